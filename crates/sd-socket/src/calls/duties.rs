//! The duties of threads that wait: all of them, in the order in which they are done (`wait/duties.rs` is the engine).
//!
//! | duty | when | if |
//! |---|---|---|
//! | look for the monitor, and at what it says | a wait begins, every 10 ms; a clock then makes it once a second | |
//! | clock hand over idle connections of a busy process | a wait begins, every 200 us | |
//! | connects that wait for room: SYNs again | sleep; call, every 200 us | there are some |
//! | complaints about requests that nobody accepts | sleep; call, every 2 ms | there are some |
//! | connections that TCP_DEFER_ACCEPT or the policy holds back | sleep; announced, as the last look may find some | there are some |
//! | a monitor that is lost: register again | sleep on events; announced | it is lost |
//! | what is to be sent again through the kernel | sleep; call, every 1 ms | there is some |
//! | detach: look again whether anything is in the way | sleep | the process was asked |
//! | memory of the connection that is waited for | sleep | it has some to give back |
//! | memory of the process's connections | sleep | no other thread sees to it |
//! | channels whose other side is gone: free them | sleep; announced, as the last look may end some | there are some |
//! | be the wake target of inherited connections | sleep on events | they are this process's alone |
//! | ask for connections that wait at busy siblings | announced | the monitor or a client has said that there are some |
//! | mail of the monitor | a wait begins, every 200 us; announced, while another thread talks with it; slept | there is some |
//!
//! Who sleeps on one connection does not register again: `sharing --only policy` then finds connections reset.

use crate::backlog::beside;
use crate::memory::sweep;
use crate::monitor::client;
use crate::route::leave;
use crate::setup::{admission, adopt, syn_sent};
use crate::wait::duties::{Act, CONNECTS, DUTIES, Duty, REQUESTS, RESENDS, SHORTEST_NS, When};
use crate::wait::settle;
use sd_sys::time::Interval;

const fn every(ns: u64) -> Interval {
    Interval::of_ns(ns)
}

pub(super) static TABLE: [Duty; DUTIES] = [
    Duty { when: When::Begins(every(10_000_000)), act: Act::Plain(client::glance) },
    Duty { when: When::Begins(every(SHORTEST_NS)), act: Act::Plain(sweep::episode) },
    Duty { when: When::Begins(every(SHORTEST_NS)), act: Act::Plain(client::check_mail) },
    Duty { when: When::Caused(CONNECTS, every(SHORTEST_NS)), act: Act::Timed(syn_sent::pause) },
    Duty { when: When::Caused(REQUESTS, every(2_000_000)), act: Act::Timed(adopt::complain) },
    Duty { when: When::Sleeps, act: Act::Timed(admission::pause) },
    Duty { when: When::SleepsOnEvents, act: Act::Timed(client::retry_if_lost) },
    Duty { when: When::Caused(RESENDS, every(1_000_000)), act: Act::Timed(crate::epoll::resend_more) },
    Duty { when: When::SleepsOnEvents, act: Act::Timed(crate::epoll::look_at_ends) },
    Duty { when: When::Sleeps, act: Act::Timed(crate::family::detach::pause) },
    Duty { when: When::Sleeps, act: Act::OfWait(|wait| wait.own.as_mut()?.before_sleep()) },
    Duty { when: When::Sleeps, act: Act::OfWait(|wait| wait.caretaker.before_sleep()) },
    Duty { when: When::Sleeps, act: Act::Plain(|| leave::sweep(crate::epoll::take_in)) },
    Duty { when: When::SleepsOnEvents, act: Act::Plain(settle::settle) },
    Duty { when: When::Announced, act: Act::Timed(beside::ask_for_work) },
    Duty { when: When::Announced, act: Act::Timed(admission::pause) },
    Duty { when: When::Announced, act: Act::Plain(|| leave::sweep(crate::epoll::take_in)) },
    Duty { when: When::Announced, act: Act::Timed(client::retry_if_lost) },
    Duty { when: When::Announced, act: Act::Timed(client::mail_pause) },
    Duty { when: When::Slept, act: Act::Plain(client::check_mail) },
];

/// For a thread that lingers (`process::lingering`): a row that is done before a sleep needs a line here. The conditions of all, but of those that have a cause, and of the wake target's, which only saves peers a call. Rounds
/// that are still to be made are known by their time.
pub(super) static IS_IDLE: fn() -> bool = || {
    !(admission::is_any()
        || client::is_lost()
        || crate::socket::road::are_there()
        || crate::process::detaching::is_asked()
        || crate::memory::rounds::are_new()
        || leave::is_due()
        || client::has_mail()
        || beside::is_told())
};
