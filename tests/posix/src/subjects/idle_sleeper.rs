//! Many connections idle while the only thread of the program sleeps for something else: whatever call it sleeps in, what the
//! layer below keeps for them goes.

use super::idle::{connections, exchange};
use super::idle_busy::memory;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("idle_sleeper/poll", in_poll),
    solo("idle_sleeper/poll_many", in_poll_of_many),
    solo("idle_sleeper/select", in_select),
    solo("idle_sleeper/accept", in_accept),
    solo("idle_sleeper/recv", in_recv),
    solo("idle_sleeper/send", in_send),
    solo("idle_sleeper/epoll", in_epoll),
    solo("idle_sleeper/more_bytes", more_bytes),
];

const PAIRS: usize = 50;
/// Longer than anything is kept.
const SLEEP_MS: i32 = 4500;

/// Uses many connections, sleeps once, and looks what is left of their memory.
fn goes(sleep_once: impl FnOnce(&[Connected])) {
    goes_of((40_000, 12_000), sleep_once);
}

/// Uses them for so many bytes, of which so many may be left.
fn goes_of((len, left): (usize, u64), sleep_once: impl FnOnce(&[Connected])) {
    let pairs = connections(PAIRS);
    let before = memory();
    say!("{}", exchange(&pairs, 0, len));
    sleep_once(&pairs);
    let after = memory();
    say!("little memory: {}", after < before + PAIRS as u64 * left);
    say!("{}", exchange(&pairs, 1, len));
}

fn in_poll() {
    let other = connected();
    goes(|_| say!("{}", poll_one(other.server, libc::POLLIN, SLEEP_MS).0));
}

fn in_poll_of_many() {
    goes(|pairs| {
        let mut list: Vec<_> = pairs.iter().map(|pair| pollfd(pair.server, libc::POLLIN)).collect();
        say!("{}", poll(&mut list, SLEEP_MS));
    });
}

/// So many that what is left of them is a page with a word or two.
fn more_bytes() {
    goes_of((60_000, 7_000), |pairs| {
        let mut list: Vec<_> = pairs.iter().map(|pair| pollfd(pair.server, libc::POLLIN)).collect();
        say!("{}", poll(&mut list, SLEEP_MS));
    });
}

fn in_select() {
    let other = connected();
    let read = &mut FdSet::of(&[other.client, other.server]);
    let count = other.client.max(other.server) + 1;
    goes(|_| say!("{}", select_read(count, Some(read), SLEEP_MS.into())));
}

fn in_accept() {
    let (fd, _) = listener();
    set_timeout(fd, libc::SO_RCVTIMEO, SLEEP_MS.into());
    goes(|_| _ = show("accept", accept(fd)));
}

/// Of another connection than those that idle.
fn in_recv() {
    let other = connected();
    set_timeout(other.server, libc::SO_RCVTIMEO, SLEEP_MS.into());
    goes(|_| _ = show_recv("recv", other.server, 8, 0));
}

/// On a connection whose reader takes nothing.
fn in_send() {
    let other = connected();
    set_nonblocking(other.client, true);
    while send(other.client, &[0; 4096], 0).ok() {}
    set_nonblocking(other.client, false);
    set_timeout(other.client, libc::SO_SNDTIMEO, SLEEP_MS.into());
    goes(|_| _ = show_send("send", other.client, &[0; 65_536], 0));
}

/// On an instance in which none of them is.
fn in_epoll() {
    let other = connected();
    let ep = epoll();
    epoll_add(ep, other.server, libc::EPOLLIN, 1);
    goes(|_| say!("{}", epoll_wait(ep, 4, SLEEP_MS).0));
}
