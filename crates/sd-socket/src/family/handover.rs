//! A connection that is passed over a Unix socket (SCM_RIGHTS), from its keeper to a receiver that loads us.
//!
//! What travels is a kernel socket with a process behind it that keeps the connection (see `bridge`), so that any
//! receiver can use it. While that has moved no byte, a receiver of the same user becomes one more holder of the
//! connection, as the child of a fork is one:
//! ```text
//!  receiver --connects to an abstract name made of the kernel socket's cookie--> keeper
//!  keeper   --which endpoint; slab, segment, eventfds--------------------------> receiver: maps, asks the monitor for
//!                                                                                a number, sets its bit in `holders`
//!  receiver --one byte----> keeper, which lets go
//! ```
//! A receiver of another user keeps the kernel socket, since with the connection it would get the sender's slab; so does one
//! of the same user with fewer rights than the keeper (`sd_sys::rights`). They are
//! told the names of the connection, and believe them of root or their own user. A receiver looks first
//! who that is (SO_PEERCRED): nobody else is sent anything or waited for, so that who sends descriptors to a stranger cannot
//! hold it up.
//!
//! The sender may close its copy at any time, or go on using it. Threads of two families know each other by their ids
//! only, so a connection that was passed has no token holder (`Token::keep_unheld`). When anything fails the receiver
//! keeps the kernel socket.

use crate::fd::hidden::Hidden;
use crate::fd::table;
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::process::{PROCESS, SlabRec};
use crate::socket::addr::Name;
use crate::socket::endpoint::EndpointExt;
use crate::socket::life;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};
use sd_proto::{Ip, Request};
use sd_shm::channel::{Mapping, Side};
use sd_shm::slab::{Endpoint, Slab, State};
use sd_sys::fd::Owned;
use sd_sys::{fd, msg, trust};

/// `asm-generic/socket.h`.
const SO_COOKIE: i32 = 57;
/// How long the keeper waits for a receiver, which has to ask the monitor. Meanwhile no byte moves.
const KEEPER_MS: u32 = 1000;
/// How long a receiver waits for a keeper of its own user or root's; and for room in the backlog of whoever it is. After
/// that it has the kernel socket.
const RECEIVER_MS: u32 = 250;
const OTHER_USER_MS: u32 = 50;
/// Receivers that a keeper turns away before it listens no more.
pub(super) const TURNED_AWAY_MAX: u32 = 4;
/// Eventfds that are passed on, at most.
const EVENT_FDS_MAX: usize = msg::FDS_MAX - 3;

/// What the keeper says, beside descriptors: the slab, the segment, what wakes the peer, what the peer wakes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    /// Number in the slab.
    index: u64,
    channel: u64,
    /// Where the segment is mapped: endpoints hold addresses.
    base: u64,
    /// Tells families apart: their eventfds are watched once.
    origin: u64,
    peer_pid: u32,
    /// The side, and above its byte the number among the adopters.
    side: u32,
    /// The process id of who listens, as it sees itself: another number where ids are seen otherwise.
    pid: u64,
}

/// Who listens: the process that passes the connection on, or its keeper.
static LISTENER: AtomicI32 = AtomicI32::new(0);

const MESSAGE_LEN: usize = size_of::<Message>();

/// What the keeper tells a receiver of another user.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Names {
    domain: u32,
    local_port: u16,
    remote_port: u16,
    local: [u8; 16],
    remote: [u8; 16],
}

const NAMES_LEN: usize = size_of::<Names>();

/// The name under which the keeper behind a kernel socket answers; `outer` is the passed end.
fn name_of(outer: i32) -> Option<[u8; 27]> {
    let mut cookie = fd::getsockopt_u64(outer, libc::SOL_SOCKET, SO_COOKIE).ok()?;
    let mut name = *b"\0sd-bridge-................";
    for digit in name.iter_mut().rev().take(16) {
        *digit = b"0123456789abcdef".get((cookie % 16) as usize).copied()?;
        cookie /= 16;
    }
    Some(name)
}

/// The keeper's listener.
pub(super) fn listen(outer: i32) -> Option<Owned> {
    LISTENER.store(fd::getpid(), Ordering::Relaxed);
    msg::listen_unix(&name_of(outer)?).ok()
}

/// In the keeper: somebody asks for the connection. True when it holds it from now on.
pub(super) fn give(listener: i32, endpoint: &'static Endpoint) -> bool {
    // SAFETY: null addresses are allowed.
    let accepted =
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC) });
    let Ok(accepted) = accepted.map(|socket| Owned::new(socket as i32)) else { return false };
    let socket = accepted.raw();
    let may_have_it = trust::is_same_user(socket) && sd_sys::rights::peer_has_ours(socket);
    let is_bounded = msg::set_timeout(socket, KEEPER_MS).is_ok();
    if !may_have_it {
        tell_names(socket, endpoint);
    }
    let sender = LISTENER.load(Ordering::Relaxed);
    is_bounded && may_have_it && offer(socket, endpoint, sender).is_some()
}

fn tell_names(socket: i32, endpoint: &'static Endpoint) {
    let (local, remote) = crate::socket::names::of(endpoint);
    let names = Names {
        domain: endpoint.family() as u32,
        local_port: local.port,
        remote_port: remote.port,
        local: local.ip.0,
        remote: remote.ip.0,
    };
    // SAFETY: plain words without padding.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const names).cast::<u8>(), NAMES_LEN) };
    let _ = msg::send_with_fds(socket, bytes, &[], libc::MSG_DONTWAIT);
}

/// In the receiver: the kernel socket has these names.
fn learn_names(socket: i32, number: i32) -> Option<()> {
    let mut names = Names::default();
    // SAFETY: plain words; any bytes make names.
    let bytes = unsafe { core::slice::from_raw_parts_mut((&raw mut names).cast::<u8>(), NAMES_LEN) };
    if fd::read(socket, bytes) != Ok(NAMES_LEN) {
        return None;
    }
    let local = Name { ip: Ip(names.local), port: names.local_port };
    let remote = Name { ip: Ip(names.remote), port: names.remote_port };
    let domain = if names.domain as i32 == libc::AF_INET6 { libc::AF_INET6 } else { libc::AF_INET };
    crate::socket::names::remember(number, domain, local, remote).map(drop)
}

/// Lets whoever is at the other end of the socket, which the process `sender` has made, hold the connection too.
pub(super) fn offer(socket: i32, endpoint: &'static Endpoint, sender: i32) -> Option<()> {
    let channel = endpoint.channel_ref()?;
    let (rec, index) = PROCESS.locate(endpoint)?;
    let slab = rec.slab()?;
    let message = Message {
        index: index as u64,
        channel: channel.id,
        base: channel.map.base() as u64,
        origin: slab.base() as u64 ^ u64::from(slab.header().pid.load(Ordering::Relaxed)) << 32,
        peer_pid: channel.peer.pid,
        side: channel.side as u32
            | channel.adopter << 8
            | u32::from(channel.peer.is_stranger.load(Ordering::Relaxed)) << 31,
        pid: sender as u64,
    };
    let mut fds = vec![rec.fd.raw(), channel.segment_fd.raw(), channel.peer.event_fd.raw()];
    fds.extend(crate::process::waker::event_fds());
    if fds.len() > EVENT_FDS_MAX + 3 {
        return None;
    }
    crate::socket::token::keep_unheld(endpoint);
    crate::socket::thread_waker::ring_no_more(endpoint);
    // SAFETY: plain words without padding.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const message).cast::<u8>(), MESSAGE_LEN) };
    // The receiver cannot say in the pages of the family that it sleeps.
    crate::process::waker::assume_asleep(true);
    msg::send_with_fds(socket, bytes, &fds, 0).ok()?;
    is_confirmed(socket).then_some(())
}

/// Whether the receiver has said that it has the connection. One that comes too late cannot say it any more: however long
/// either was stopped meanwhile, both agree on who has it.
fn is_confirmed(socket: i32) -> bool {
    let is_said = || fd::read(socket, &mut [0u8]) == Ok(1);
    if is_said() {
        return true;
    }
    // SAFETY: no pointers.
    unsafe { sd_sys::syscall!(libc::SYS_shutdown, socket, libc::SHUT_RD) };
    is_said()
}

/// The program has received a kernel socket: if a keeper is behind it, the connection itself is taken.
pub(crate) fn claim(fd: i32) {
    let is_tcp = fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    let peer = crate::socket::addr::kernel_peer(fd).filter(|(_, name)| name.ip.is_loopback());
    if !is_tcp || peer.is_none() || table::is_ours(fd) {
        return;
    }
    let Some(keeper) = name_of(fd).and_then(|name| msg::connect_unix(&name, OTHER_USER_MS).ok()) else {
        return;
    };
    let socket = keeper.raw();
    // Anybody can listen under that name: who does is looked at before anything is said or waited for.
    let is_same = trust::is_same_user(socket);
    let is_believed = is_same || fd::peer(socket).is_ok_and(|(_, uid)| uid == 0);
    if !is_believed
        || msg::set_timeout(socket, RECEIVER_MS).is_err()
        || crate::monitor::client::connected().is_none()
    {
        return;
    }
    if is_same {
        let _ = receive(socket, fd);
    } else {
        let _ = learn_names(socket, fd);
    }
}

fn receive(socket: i32, number: i32) -> Option<()> {
    if is_told_names(socket) {
        return learn_names(socket, number);
    }
    let (taken, placeholder) = take_offered(socket)?;
    let cloexec = if crate::fd::table::survives_exec(number) { 0 } else { libc::O_CLOEXEC };
    let _ = fd::dup3(placeholder.raw(), number, cloexec);
    note(number, taken);
    Some(())
}

/// This process may not have the connection. Waits for what the keeper says.
fn is_told_names(socket: i32) -> bool {
    let mut bytes = [0u8; MESSAGE_LEN];
    // SAFETY: the kernel writes at most the array.
    let came = sd_sys::check(unsafe {
        sd_sys::syscall!(libc::SYS_recvfrom, socket, bytes.as_mut_ptr(), bytes.len(), libc::MSG_PEEK, 0, 0)
    });
    came == Ok(NAMES_LEN)
}

fn note(number: i32, taken: &'static Endpoint) {
    taken.fd.store(number, Ordering::Relaxed);
    table::set_socket(number, taken);
}

/// In a process that the monitor has started for that: the connection that is offered, under a number of its own. A receiver of
/// the kernel socket is told of the process that listens for it, which is the one that offers.
pub(super) fn take_over(socket: i32) -> Option<&'static Endpoint> {
    let (taken, placeholder) = take_offered(socket)?;
    note(placeholder.into_raw(), taken);
    LISTENER.store(fd::peer(socket).map_or(0, |(pid, _)| pid), Ordering::Relaxed);
    Some(taken)
}

/// Takes what is offered at the other end, which agrees: the connection, which this process holds too, and a placeholder.
fn take_offered(socket: i32) -> Option<(&'static Endpoint, Owned)> {
    let mut message = Message::default();
    // SAFETY: plain words; any bytes make a message.
    let bytes = unsafe { core::slice::from_raw_parts_mut((&raw mut message).cast::<u8>(), MESSAGE_LEN) };
    let got = msg::recv_with_fds(socket, bytes, 0).ok()?;
    let is_whole = got.len == MESSAGE_LEN && fd::peer(socket).is_ok_and(|(pid, _)| pid as u64 == message.pid);
    let mut fds = Vec::new();
    got.fds.hand_over(|fd| fds.push(fd));
    let taken = if is_whole { take(&message, fds.into_iter())? } else { return None };
    let Ok(placeholder) = crate::socket::kernel_socket::number(taken.family(), true) else {
        life::release(taken);
        return None;
    };
    if msg::send_with_fds(socket, &[1], &[], 0).is_err() {
        life::release(taken);
        return None;
    }
    Some((taken, placeholder))
}

/// This process holds the connection too; one descriptor is counted.
fn take(message: &Message, mut fds: impl Iterator<Item = Owned>) -> Option<&'static Endpoint> {
    let (slab, segment, peer_event) = (fds.next()?, fds.next()?, fds.next()?);
    let rec = shared(slab)?;
    let channel = channel(message, segment, peer_event)?;
    let index = message.index as usize;
    let (endpoint, bit) = (rec.slab()?.endpoint(index)?, rec.bit.load(Ordering::Relaxed));
    let is_there = endpoint.state_now() == State::Connected
        && crate::link::placed::is_right(endpoint, channel)
        && bit != 0;
    if !is_there {
        return None;
    }
    endpoint.holders.fetch_or(bit, Ordering::AcqRel);
    life::hold(endpoint, channel);
    crate::process::waker::watch_family(message.origin, fds);
    Some(endpoint)
}

/// A slab that this process has.
fn known(identity: (u64, u64)) -> Option<&'static SlabRec> {
    let count = PROCESS.slab_count.load(Ordering::Acquire);
    let is_it = |rec: &&SlabRec| fd::identity(rec.fd.raw()) == Ok(identity);
    PROCESS.slabs.iter().take(count).find(is_it)
}

/// The slab that the connection lies in: one that this process has, or shares from now on.
fn shared(slab_fd: Owned) -> Option<&'static SlabRec> {
    let identity = fd::identity(slab_fd.raw()).ok()?;
    known(identity).or_else(|| {
        PROCESS.forked.store(true, Ordering::Relaxed);
        crate::monitor::client::share(slab_fd.raw(), |member| {
            let _alloc = PROCESS.alloc.lock();
            let slab = Slab::map(slab_fd.raw()).ok()?;
            let added = PROCESS.add_inherited_slab(slab, Hidden::of(slab_fd), 1 << member);
            added.then_some(())
        })?;
        known(identity)
    })
}

/// The channel, as it is known here, or mapped where the endpoints say, and announced to the monitor.
fn channel(message: &Message, segment: Owned, peer_event: Owned) -> Option<&'static Channel> {
    let (side, adopter) = (Side::from_u32(message.side & 0xff)?, message.side >> 8 & 0xff);
    let is_stranger = message.side >> 31 != 0;
    let is_it = |c: &&'static Channel| (c.id, c.side, c.adopter) == (message.channel, side, adopter);
    let is_there = |c: &&'static Channel| c.map.base() as u64 == message.base;
    let known = || PROCESS.channels().filter(is_there).find(is_it);
    if let Some(known) = known() {
        return Some(known);
    }
    let request = Request::Join { id: message.channel, side: side as u32 };
    let (sd_proto::Reply::Ok, _) = crate::monitor::client::question(&request, &[segment.raw()])? else {
        return None;
    };
    // Until it is in the table: a process that leaves its family goes through that.
    let _control = crate::monitor::client::connected()?;
    let Ok(map) = Mapping::map_at(segment.raw(), message.base as usize) else {
        // Another thread was faster, or something else is there.
        return known();
    };
    let (segment, peer_event) = (Hidden::of(segment), Hidden::of(peer_event));
    let peer = Peer::new(message.peer_pid, (None, peer_event), (message.channel, side), is_stranger);
    let channel = Channel::new(message.channel, (side, adopter), map, peer, segment);
    // Its events belong to the process that had it before; see `ready::is_polled`.
    channel.inherited.store(true, Ordering::Relaxed);
    PROCESS.forked.store(true, Ordering::Relaxed);
    PROCESS.add_channel(channel)
}
