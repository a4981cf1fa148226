//! What the monitor says unasked: noted under the lock of the control path, acted on under no lock.

use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::monitor::client::{self, Control};
use crate::process::{PROCESS, hide_fd};
use crate::socket::endpoint::{EOF, EndpointExt, PEER_DEAD, RESET};
use core::sync::atomic::Ordering;
use sd_proto::{Reply, Request};
use sd_shm::channel::{FLAG_DEAD, Mapping, Side};
use sd_shm::slab::Endpoint;
use sd_sys::msg;

/// What the monitor says unasked, when it is more than to be noted.
#[derive(Clone, Copy)]
pub(super) enum Mail {
    /// A channel's other side is gone for good.
    Dead(u64),
    /// A channel's other side is gone for good, and connections wait there.
    Gone(u64),
    /// A channel's other side is another user's from now on.
    Stranger(u64),
    /// Nobody will accept the connection at a slot, of that generation, of a channel.
    Withdraw(u64, u32, u32),
    /// Connections on a channel are for the listener of that index; the channel is marked as used.
    Offer(&'static Channel, u32),
}

/// Notes what was said unasked; an answer is returned, with what came along.
pub(super) fn take_in(
    control: &mut Control,
    reply: Reply,
    got: msg::Received,
) -> Option<(Reply, msg::Received)> {
    match reply {
        Reply::NewChannel { id, peer_pid, stranger, admits } => {
            match new_channel(id, (Side::B, 0), (peer_pid, stranger), got) {
                Some(channel) => crate::setup::admission::learn(channel, admits),
                None => decline(id),
            }
        }
        Reply::ChannelDead { id } => control.mail.push_back(Mail::Dead(id)),
        Reply::Stranger { id } => control.mail.push_back(Mail::Stranger(id)),
        Reply::PeerGone { id } => control.mail.push_back(Mail::Gone(id)),
        Reply::Withdraw { channel, slot, generation } => {
            control.mail.push_back(Mail::Withdraw(channel, slot, generation));
        }
        Reply::Offer { id, peer_pid, adopter, listener, stranger } => {
            match offered_channel(id, adopter, (peer_pid, stranger), got) {
                Some(channel) => {
                    channel.used();
                    control.mail.push_back(Mail::Offer(channel, listener));
                }
                None => decline(id),
            }
        }
        answer => return Some((answer, got)),
    }
    None
}

/// A channel cannot be taken: the monitor sees to what waits on it.
#[cold]
fn decline(channel: u64) {
    let fd = client::CONTROL_FD.load(Ordering::Acquire);
    let _ = client::send(fd, &Request::Decline { channel }, &[]);
}

/// Acts on mail; under no lock that a peer's event could need.
pub(super) fn deliver() {
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
            Some(Mail::Offer(channel, listener)) => {
                crate::setup::arrivals::offered(channel, listener);
                channel.unused();
            }
            None => return,
        }
    }
}

pub(super) fn take_mail(control: &mut Control) {
    let fd = client::CONTROL_FD.load(Ordering::Acquire);
    if fd < 0 {
        return;
    }
    let _free = crate::monitor::spare::Free::now();
    client::take_late(control, fd);
}

/// The record of a channel that connections are offered on: our own, one that we have adopted from
/// before, or a new one.
fn offered_channel(id: u64, adopter: u32, peer: (u32, bool), got: msg::Received) -> Option<&'static Channel> {
    let is_it = |c: &&'static Channel| {
        (c.id, c.side, c.adopter) == (id, Side::B, adopter) && !c.inherited.load(Ordering::Relaxed)
    };
    if let Some(known) = PROCESS.channels().find(is_it) {
        return Some(known);
    }
    new_channel(id, (Side::B, adopter), peer, got)
}

/// Every connection of the channel is over; each learns it by looking.
fn peer_gone(id: u64, note: fn(&Channel)) {
    for channel in PROCESS.channels().filter(|c| c.id == id) {
        // What the dead announced last, a connection to be accepted perhaps, comes first.
        crate::link::channel::take_in(channel);
        for slot in 0..sd_shm::channel::SLOTS {
            crate::memory::idle::with_bound(channel, slot, peer_is_dead);
        }
        note(channel);
    }
    crate::route::forget_all();
    crate::link::reclaim::channels();
}

/// Nobody is on the other side of a connection any more. The monitor has marked what it found open, but the dead may
/// have lied: about that, about ends that were told and then taken back, and about what lies in the ring.
fn peer_is_dead(endpoint: &'static Endpoint) {
    if crate::socket::kernel_socket::is_moved(endpoint) {
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

/// Maps a channel that the monitor made: descriptors are segment, peer's page, peer's eventfd. Of the peer are known its
/// process id, and whether it is a stranger. Under `CONTROL`.
pub(crate) fn new_channel(
    id: u64,
    side: (Side, u32),
    (peer_pid, is_stranger): (u32, bool),
    got: msg::Received,
) -> Option<&'static Channel> {
    let &[segment, public, _] = got.fds.as_slice() else { return None };
    let peer_public = sd_shm::public::map_peer(public).ok()?;
    let Ok(map) = Mapping::map(segment) else {
        // SAFETY: just mapped, and nobody else knows of it.
        unsafe { sd_shm::public::unmap_peer(peer_public) };
        return None;
    };
    let [segment, public, event_fd] = got.fds.take()?;
    sd_sys::fd::close(public);
    let (segment, event_fd) = (hide_fd(segment), hide_fd(event_fd));
    let peer = Peer::new(peer_pid, (Some(peer_public), event_fd), (id, side.0), is_stranger);
    PROCESS.add_channel(Channel::new(id, side, map, peer, segment))
}
