//! What the monitor says unasked: noted under the lock of the control path, acted on under no lock.

use crate::link::channel::Channel;
use crate::link::made::new_channel;
use crate::monitor::client::{self, Control, Counts, Mail};
use crate::monitor::sink::Sink;
use crate::process::{PROCESS, waker};
use crate::socket::endpoint::{EOF, EndpointExt, PEER_DEAD, RESET};
use core::sync::atomic::Ordering;
use sd_proto::{Reply, Request, Route};
use sd_shm::channel::{FLAG_DEAD, Side};
use sd_shm::slab::{Endpoint, Moved};
use sd_sys::msg;

/// What the connection to the monitor hands to this folder.
pub(crate) static SINK: Sink = Sink {
    take_in,
    deliver,
    late,
    welcomed: |got| crate::route::welcomed(&got.fds),
    registered,
    lost: crate::wait::settle::leave,
    is_back: crate::link::wake_target::ring_late,
    closed: crate::setup::restored::CLOSED,
};

/// Notes what was said unasked; an answer is returned, with what came along.
fn take_in(control: &mut Control, reply: Reply, got: msg::Received) -> Option<(Reply, msg::Received)> {
    match reply {
        Reply::NewChannel { id, peer_pid, stranger, admits } => {
            match told_channel(id, (Side::B, 0), (peer_pid, stranger), got) {
                Some(channel) => crate::setup::admission::learn(channel, admits),
                None => decline(id),
            }
        }
        Reply::ChannelDead { id } => control.mail.push_back(Mail::Dead(id)),
        Reply::Emptied { id } => crate::link::kept_rings::paid(id),
        Reply::Stranger { id } => control.mail.push_back(Mail::Stranger(id)),
        Reply::PeerGone { id } => control.mail.push_back(Mail::Gone(id)),
        Reply::Withdraw { channel, slot, generation } => {
            control.mail.push_back(Mail::Withdraw(channel, slot, generation));
        }
        Reply::Offer { id, peer_pid, adopter, listener, stranger } => {
            match offered_channel(id, adopter, (peer_pid, stranger), got) {
                Some(channel) => {
                    channel.used();
                    control.mail.push_back(Mail::Offer((id, adopter), listener));
                }
                None => decline(id),
            }
        }
        Reply::Promote {
            serial,
            channel,
            side,
            ticket,
            peer_pid,
            peer,
            stranger,
            behind,
            told,
            sent,
            received,
            netns: _,
        } => {
            if side == Side::A as u32 && !got.fds.as_slice().is_empty() {
                match told_channel(channel, (Side::A, 0), (peer_pid, stranger), got) {
                    Some(made) => made.set_client(peer),
                    None => decline(channel),
                }
            }
            let side = if side == Side::A as u32 { Side::A } else { Side::B };
            let counts = Counts { behind, began: told.then_some((sent, received)) };
            control.mail.push_back(Mail::Promote((serial, channel), side, ticket, counts));
        }
        Reply::Demote { ip, port, at_once, by_policy } => {
            let why = if by_policy { Moved::Policy } else { Moved::Asked };
            control.mail.push_back(Mail::Demote((ip, port), at_once, why));
        }
        Reply::Detach => control.mail.push_back(Mail::Detach),
        answer => return Some((answer, got)),
    }
    None
}

/// A channel that the monitor tells of, whose other side may have used it and rung before it was known here: a thread that woke up for that, found
/// nothing, and sleeps again, looks once more (SYNC POINT: told channel, with `enter` in crates/sd-socket/src/process/waker.rs).
fn told_channel(
    id: u64,
    side: (Side, u32),
    peer: (u32, bool),
    got: msg::Received,
) -> Option<&'static Channel> {
    let channel = new_channel(id, side, peer, got)?;
    if waker::any_sleeper() {
        sd_sys::fd::eventfd_signal(waker::own_event_fd());
    }
    Some(channel)
}

/// A channel cannot be taken: the monitor sees to what waits on it.
#[cold]
fn decline(channel: u64) {
    let fd = client::CONTROL_FD.raw();
    let _ = client::send(fd, &Request::Decline { channel }, &[]);
}

/// Acts on mail; under no lock that a peer's event could need.
fn deliver() {
    let _user = crate::link::reclaim::User::enter();
    loop {
        let mail = crate::monitor::client::CONTROL.lock().mail.pop_front();
        match mail {
            Some(Mail::Dead(id)) => peer_gone(id, Channel::doom),
            Some(Mail::Gone(id)) => peer_gone(id, Channel::left_over),
            Some(Mail::Stranger(id)) => {
                PROCESS.channels().filter(|c| c.id == id).for_each(Channel::peer_becomes_stranger);
            }
            Some(Mail::Withdraw(id, slot, generation)) => {
                crate::setup::withdrawn::asked(id, slot as usize, generation);
            }
            Some(Mail::Demote(name, at_once, why)) => crate::setup::demote::asked(name, at_once, why),
            Some(Mail::Detach) => crate::setup::detach::asked(),
            Some(Mail::Promote((serial, channel), side, ticket, counts)) => {
                crate::setup::promote::promised((serial, channel), side, ticket, counts);
            }
            Some(Mail::Offer((id, adopter), listener)) => {
                crate::backlog::beside::offered();
                if let Some(channel) = offered_before(id, adopter) {
                    crate::backlog::arrivals::offered(channel, listener, |listening| {
                        crate::epoll::state_event(listening, 0);
                    });
                    channel.unused();
                }
            }
            None => return,
        }
    }
}

/// The record of a channel that connections are offered on: our own, one that we have adopted from
/// before, or a new one.
fn offered_channel(id: u64, adopter: u32, peer: (u32, bool), got: msg::Received) -> Option<&'static Channel> {
    offered_before(id, adopter).or_else(|| told_channel(id, (Side::B, adopter), peer, got))
}

fn offered_before(id: u64, adopter: u32) -> Option<&'static Channel> {
    let is_it = |c: &&'static Channel| {
        (c.id, c.side, c.adopter) == (id, Side::B, adopter) && !c.inherited.load(Ordering::Relaxed)
    };
    PROCESS.channels().find(is_it)
}

/// Every connection of the channel is over; each learns it by looking.
fn peer_gone(id: u64, note: fn(&Channel)) {
    for channel in PROCESS.channels().filter(|c| c.id == id) {
        // What the dead announced last, a connection to be accepted perhaps, comes first.
        crate::epoll::take_in(channel);
        note(channel);
        for slot in 0..sd_shm::channel::SLOTS {
            crate::memory::idle::with_bound(channel, slot, peer_is_dead);
        }
        channel.leave_if_unused();
    }
    crate::route::forget_all();
    crate::link::reclaim::channels();
}

/// Nobody is on the other side of a connection any more. The monitor has marked what it found open, but the dead may
/// have lied: about that, about ends that were told and then taken back, and about what lies in the ring.
pub(super) fn peer_is_dead(endpoint: &'static Endpoint) {
    if crate::socket::kernel_socket::is_moved(endpoint) {
        return;
    }
    if crate::socket::way_back::is_mended(endpoint) {
        crate::socket::way_back::tell_self(endpoint);
        return;
    }
    endpoint.set_flag(PEER_DEAD);
    endpoint.peer_words().flags.fetch_or(FLAG_DEAD, Ordering::AcqRel);
    let was_told = endpoint.flag(EOF | RESET);
    if crate::socket::ring_view::is_endless(endpoint) {
        crate::socket::endpoint::corrupt(endpoint);
    }
    if was_told {
        // Programs know that nothing more comes, and instances that tell of news have told it.
        crate::epoll::peer_event(endpoint, 0);
        crate::socket::bell::wake_sleepers(endpoint);
    } else {
        crate::epoll::look_again(endpoint);
    }
}

/// Nobody waits for it any more. A channel that came with it is taken all the same: the monitor says only once what it is.
fn late(fd: i32, reply: Reply, got: msg::Received) {
    if let Reply::Route {
        route: Route::Shm { channel: id, fresh: true, peer_pid, peer, stranger, .. }, ..
    } = reply
    {
        match new_channel(id, (Side::A, 0), (peer_pid, stranger), got) {
            Some(channel) => channel.set_client(peer),
            None => client::try_send(fd, &Request::Decline { channel: id }),
        }
    }
}

/// After a restart of the monitor: channels first; then come the listeners.
fn announce_channels(fd: i32) {
    crate::link::kept_rings::forgive();
    for channel in PROCESS.channels() {
        // This monitor counts anew.
        channel.peer.client.store(0, Ordering::Relaxed);
        if channel.inherited.load(Ordering::Relaxed) || channel.segment_fd.raw() < 0 {
            continue;
        }
        let Channel { id, adopter, .. } = *channel;
        let request = Request::Channel { id, side: channel.side as u32, peer_pid: channel.peer.pid, adopter };
        let _ = client::send(fd, &request, &[channel.segment_fd.raw()]);
    }
    crate::route::monitor_is_new();
}

fn registered(control: &mut Control, fd: i32, was_registered: bool) {
    if was_registered {
        announce_channels(fd);
        crate::setup::promote::monitor_is_new();
    }
    if client::has_listened() {
        let announce = |request: &Request, kernel_fd| {
            drop(client::ask(control, fd, request, &[kernel_fd]));
        };
        crate::setup::before_monitor::announce_all(announce);
    }
}
