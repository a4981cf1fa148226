//! A connection that is passed over a Unix socket (SCM_RIGHTS), from its bridge to a receiver that loads us.
//!
//! What travels is the kernel socket of a bridge (see `bridge`), so that any receiver can use it. While the bridge
//! has moved no byte, a receiver of the same user may take the connection itself:
//! ```text
//!  receiver --connects to an abstract name made of the kernel socket's cookie--> bridge
//!  bridge   --endpoint as it is; segment, eventfds-----------------------------> receiver: maps, tells the monitor
//!  receiver --one byte----> bridge --one byte----> receiver; the bridge has let go, and ends
//! ```
//! The receiver makes an endpoint of its own slab of it, so this needs that nobody else holds the connection.
//! Otherwise, and when anything fails, it keeps the kernel socket.

use crate::channel::{Channel, Peer};
use crate::endpoint::{self, EndpointExt, HAS_NAME, OWN_SOCKET, WATCHED, rx_cursor, tx_cursor};
use crate::process::{PROCESS, hide_fd};
use crate::table;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use sd_proto::{Reply, Request};
use sd_shm::channel::{Mapping, SLOTS, Side, SlotState};
use sd_shm::slab::{Endpoint, State};
use sd_sys::{fd, msg};

/// `asm-generic/socket.h`.
const SO_COOKIE: i32 = 57;
/// How long the bridge waits for the sender's descriptors to be closed, and for the receiver.
const ALONE_MS: u32 = 50;
const BRIDGE_S: i64 = 1;
/// Longer than the bridge, so that both agree on who has the connection.
const RECEIVER_S: i64 = 10;
/// Eventfds that are passed on, at most.
const EVENT_FDS_MAX: usize = msg::FDS_MAX - 2;

/// What the bridge says, beside descriptors: the segment, what wakes the peer, what the peer wakes.
#[repr(C)]
struct Message {
    endpoint: MaybeUninit<Endpoint>,
    channel: u64,
    /// Tells families apart: their eventfds are watched once.
    origin: u64,
    peer_pid: u32,
    /// The side, and above its byte the number among the adopters.
    side: u32,
}

const MESSAGE_LEN: usize = size_of::<Message>();

/// The name under which the bridge behind a kernel socket answers; `outer` is the passed end.
fn name_of(outer: i32) -> Option<[u8; 27]> {
    let mut cookie = fd::getsockopt_u64(outer, libc::SOL_SOCKET, SO_COOKIE).ok()?;
    let mut name = *b"\0sd-bridge-................";
    for digit in name.iter_mut().rev().take(16) {
        *digit = b"0123456789abcdef".get((cookie % 16) as usize).copied()?;
        cookie /= 16;
    }
    Some(name)
}

/// The bridge's listener.
pub(crate) fn listen(outer: i32) -> Option<i32> {
    msg::listen_unix(&name_of(outer)?).ok()
}

fn is_same_user(socket: i32) -> bool {
    fd::peer_uid(socket).is_ok_and(|uid| uid == fd::geteuid())
}

fn set_patience(socket: i32, seconds: i64) {
    let timeout = libc::timeval { tv_sec: seconds, tv_usec: 0 };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the kernel reads one timeval.
        unsafe {
            let (level, len) = (libc::SOL_SOCKET, size_of::<libc::timeval>());
            sd_sys::syscall!(libc::SYS_setsockopt, socket, level, option, &raw const timeout, len)
        };
    }
}

/// One byte, either way.
fn say(socket: i32) -> Option<()> {
    msg::send_with_fds(socket, &[1], &[], 0).ok().map(drop)
}

fn hear(socket: i32) -> Option<()> {
    (fd::read(socket, &mut [0u8]) == Ok(1)).then_some(())
}

/// In the bridge: somebody asks for the connection. True when it is theirs from now on.
pub(crate) fn give(listener: i32, endpoint: &'static Endpoint) -> bool {
    // SAFETY: null addresses are allowed.
    let accepted =
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC) });
    let Ok(socket) = accepted.map(|socket| socket as i32) else { return false };
    set_patience(socket, BRIDGE_S);
    let given = is_same_user(socket) && is_alone(endpoint) && offer(socket, endpoint).is_some();
    fd::close(socket);
    given
}

/// Whether the sender's descriptors are closed, or will be very soon.
fn is_alone(endpoint: &Endpoint) -> bool {
    (0..ALONE_MS).any(|_| {
        let alone = endpoint.holders.load(Ordering::Acquire).is_power_of_two();
        if !alone {
            let _ = fd::poll_one(-1, 0, 1);
        }
        alone
    })
}

fn offer(socket: i32, endpoint: &'static Endpoint) -> Option<()> {
    let channel = endpoint.channel_ref()?;
    let (rec, _) = PROCESS.locate(endpoint)?;
    let mut message = Message {
        endpoint: MaybeUninit::uninit(),
        channel: channel.id,
        origin: rec.slab()?.base() as u64 ^ u64::from(rec.slab()?.header().pid.load(Ordering::Relaxed)) << 32,
        peer_pid: channel.peer.pid,
        side: channel.side as u32 | channel.adopter << 8,
    };
    let mut fds = vec![channel.segment_fd, channel.peer_event_fd()];
    fds.extend(crate::waker::event_fds());
    if fds.len() > EVENT_FDS_MAX + 2 {
        return None;
    }
    {
        let (_rx, _tx) = (endpoint.rx_token(), endpoint.tx_token());
        // SAFETY: both halves are held; the rest is atomics, and a copy of them is a snapshot.
        unsafe { core::ptr::copy_nonoverlapping(endpoint, message.endpoint.as_mut_ptr(), 1) };
    }
    // SAFETY: plain memory, without padding that was not written: Endpoint has none, and the words fill the rest.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const message).cast::<u8>(), MESSAGE_LEN) };
    msg::send_with_fds(socket, bytes, &fds, 0).ok()?;
    hear(socket)?;
    say(socket)?;
    // The receiver cannot say in the pages of the family that it sleeps.
    crate::wait::assume_asleep(true);
    Some(())
}

/// The program has received a kernel socket: if a bridge is behind it, the connection itself is taken.
pub(crate) fn claim(fd: i32) {
    let is_tcp = fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    let peer = crate::addr::kernel_peer(fd).filter(|(_, name)| name.ip.is_loopback());
    if !is_tcp || peer.is_none() || table::is_ours(fd) {
        return;
    }
    let Some(socket) = name_of(fd).and_then(|name| msg::connect_unix(&name).ok()) else { return };
    set_patience(socket, RECEIVER_S);
    if is_same_user(socket) && crate::control::connected().is_some() {
        let _ = receive(socket, fd);
    }
    fd::close(socket);
}

fn receive(socket: i32, number: i32) -> Option<()> {
    let mut message = MaybeUninit::<Message>::zeroed();
    // SAFETY: zeroed above; any bytes make a message.
    let bytes = unsafe { core::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), MESSAGE_LEN) };
    let got = msg::recv_with_fds(socket, bytes, 0).ok()?;
    let fds = got.fds.get(..got.fd_count)?;
    // SAFETY: as above.
    let message = unsafe { message.assume_init() };
    let done = (got.len == MESSAGE_LEN).then_some(()).and_then(|()| take(&message, fds));
    let Some((taken, placeholder)) = done else {
        fds.iter().for_each(|&fd| fd::close(fd));
        return None;
    };
    let agreed = say(socket).and_then(|()| hear(socket));
    if agreed.is_some() {
        let cloexec = if crate::fds::survives_exec(number) { 0 } else { libc::O_CLOEXEC };
        let _ = fd::dup3(placeholder, number, cloexec);
        taken.fd.store(number, Ordering::Relaxed);
        table::set_socket(number, taken);
    } else {
        endpoint::hand_over(taken);
    }
    fd::close(placeholder);
    agreed
}

/// Makes the connection this process's own; a placeholder comes with it.
fn take(message: &Message, fds: &[i32]) -> Option<(&'static Endpoint, i32)> {
    // SAFETY: plain integers; all bit patterns are valid.
    let image = unsafe { message.endpoint.assume_init_ref() };
    let (&[segment, peer_event], wakers) = (fds.first_chunk::<2>()?, fds.get(2..)?);
    let slot = image.slot.load(Ordering::Relaxed) as usize;
    let generation = image.generation.load(Ordering::Relaxed);
    let channel = channel(message, segment, peer_event)?;
    let side = &channel.map.slot(slot).side.get(channel.side as usize)?;
    let (now, state) = side.state();
    if slot >= SLOTS || now != generation || !matches!(state, SlotState::Syn | SlotState::Open) {
        return None;
    }
    let endpoint = endpoint::allocate(image.domain.load(Ordering::Relaxed) as i32)?;
    let Ok(placeholder) = crate::connect::number(image.domain.load(Ordering::Relaxed) as i32, true) else {
        endpoint::release(endpoint);
        return None;
    };
    copy(image, endpoint);
    endpoint::attach(endpoint, channel, slot, generation);
    // SAFETY: nobody else knows the endpoint yet.
    unsafe {
        *tx_cursor(endpoint) = image.tx.cursor.get().read();
        *rx_cursor(endpoint) = image.rx.cursor.get().read();
    }
    progress(image, endpoint);
    crate::waker::watch_family(message.origin, wakers);
    Some((endpoint, placeholder))
}

/// What `attach` sets to the start of a connection.
fn progress(from: &Endpoint, to: &Endpoint) {
    let words = [
        (&from.tx.bytes, &to.tx.bytes),
        (&from.rx.bytes, &to.rx.bytes),
        (&from.urgent_read, &to.urgent_read),
    ];
    for (from, to) in words {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Names, options and state of the endpoint.
fn copy(from: &Endpoint, to: &Endpoint) {
    let flags = from.flags.load(Ordering::Relaxed) & !(WATCHED | OWN_SOCKET | HAS_NAME);
    to.flags.store(flags, Ordering::Relaxed);
    to.error.store(from.error.load(Ordering::Relaxed), Ordering::Relaxed);
    let words = [
        (&from.ports, &to.ports),
        (&from.linger, &to.linger),
        (&from.rcv_lowat, &to.rcv_lowat),
        (&from.snd_buf, &to.snd_buf),
        (&from.rcv_buf, &to.rcv_buf),
    ];
    for (from, to) in words.into_iter().chain(from.opts.iter().zip(&to.opts)) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let words = [(&from.rcv_timeout_ns, &to.rcv_timeout_ns), (&from.snd_timeout_ns, &to.snd_timeout_ns)];
    let names = from.local.iter().zip(&to.local).chain(from.remote.iter().zip(&to.remote));
    for (from, to) in words.into_iter().chain(names) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The channel, as it is known here, or mapped and announced to the monitor.
fn channel(message: &Message, segment: i32, peer_event: i32) -> Option<&'static Channel> {
    let (side, adopter) = (Side::from_u32(message.side & 0xff)?, message.side >> 8);
    let is_it = |c: &&'static Channel| (c.id, c.side, c.adopter) == (message.channel, side, adopter);
    let known = PROCESS.channels().find(is_it);
    if let Some(known) = known {
        fd::close(segment);
        fd::close(peer_event);
        return Some(known);
    }
    let request = Request::Join { id: message.channel, side: side as u32 };
    let (Reply::Ok, _) = crate::control::question(&request, &[segment])? else { return None };
    let map = Mapping::map(segment).ok()?;
    let (segment, peer_event) = (hide_fd(segment), hide_fd(peer_event));
    let peer = Peer { pid: message.peer_pid, public: None, event_fd: peer_event };
    let channel = Channel::new(message.channel, (side, adopter), map, peer, segment);
    // Its events belong to the process that had it before; see `ready::is_polled`.
    channel.inherited.store(true, Ordering::Relaxed);
    PROCESS.forked.store(true, Ordering::Relaxed);
    PROCESS.add_channel(channel)
}

/// In the bridge: the connection is another's now.
pub(crate) fn let_go(number: i32, endpoint: &'static Endpoint) {
    table::clear(number);
    debug_assert_eq!(endpoint.state_now(), State::Connected);
    endpoint::hand_over(endpoint);
}
