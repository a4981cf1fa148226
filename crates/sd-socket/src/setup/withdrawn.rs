//! A connection that nobody accepts over its channel goes over the kernel after all.
//!
//! The monitor says which (`sd-monitor/src/shell/withdrawal.rs`). This side takes its request back, by the compare-and-swap
//! with which the other side would accept it, connects in the kernel, from the same name where that can be had, sends there what it
//! has sent so far, and is a kernel socket from then on. Calls that were under way end with [`MOVED`], which becomes
//! the real call. Tested by the subjects `siblings/other_user_*`.

use crate::link::channel::Channel;
use crate::process::PROCESS;
use crate::socket::addr::{self, Name};
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, HAS_NAME, SHUT_RD, SHUT_WR};
use crate::socket::kernel_socket::{MOVED, is_moved};
use crate::socket::life;
use crate::wait::{Deadline, interrupted};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::c_int;
use sd_proto::Request;
use sd_ring::{Next, RxCursor};
use sd_shm::channel::{FLAG_TAKES_BACK, GEOMETRY, Side, SlotState};
use sd_shm::slab::{End, Endpoint, Reason, State};
use sd_sys::Errno;
use sd_sys::section::Watch;

/// How long the kernel may take for its connection, and for what was sent.
const TIMEOUT_MS: i32 = 3000;

/// How often a pump's answer is looked for, and the time between two looks: a fifth of a second.
const PUMP_LOOKS: u32 = 200;
const PUMP_LOOK_NS: u64 = 1_000_000;

/// After a sleep, in which the monitor may have said so: an error when the socket has gone to the kernel.
#[inline]
pub(crate) fn look(endpoint: &Endpoint, watch: &Watch, deadline: Deadline) -> Result<(), Errno> {
    if is_moved(endpoint) { Err(moved(watch, Some(deadline))) } else { Ok(()) }
}

/// The error of a call whose socket has gone to the kernel in the middle of it. `deadline` is that of its wait, if it has waited: a handler
/// that ran meanwhile ends the call still, also where it is what moved the socket (`separate`).
#[cold]
pub(crate) fn moved(watch: &Watch, deadline: Option<Deadline>) -> Errno {
    deadline.and_then(|deadline| interrupted(watch, deadline).err()).unwrap_or(MOVED)
}

/// The monitor says that nobody will accept the connection at a slot. The caller holds no lock.
pub(super) fn asked(id: u64, slot: usize, generation: u32) {
    let is_it =
        |c: &&'static Channel| (c.id, c.side) == (id, Side::A) && !c.inherited.load(Ordering::Relaxed);
    let Some(channel) = PROCESS.channels().find(is_it) else { return };
    let Some(endpoint) = channel.endpoint(slot) else { return };
    let is_it =
        endpoint.generation.load(Ordering::Relaxed) == generation && endpoint.state_now() == State::Connected;
    if !is_it || !life::retain_open(endpoint) {
        return;
    }
    if go_over(endpoint, channel, slot, generation).is_none() {
        refuse(endpoint, channel, slot, generation);
    }
    crate::socket::bell::wake_sleepers(endpoint);
    sd_sys::fd::eventfd_signal(crate::process::waker::own_event_fd());
    crate::socket::thread_waker::wake_all();
    life::release(endpoint);
}

/// `None` when the connection cannot be made otherwise.
fn go_over(
    endpoint: &'static Endpoint,
    channel: &'static Channel,
    slot: usize,
    generation: u32,
) -> Option<()> {
    // Nobody sends or receives meanwhile.
    let _rx = endpoint.rx_token();
    let _tx = endpoint.tx_token();
    let (sent, has_ended) = sent_so_far(endpoint)?;
    if !takes_back(channel, slot, generation) {
        // Accepted, or refused.
        return Some(());
    }
    let own = PROCESS.locate(endpoint)?.0.bit.load(Ordering::Relaxed);
    if endpoint.holders.load(Ordering::Acquire) != own {
        return None;
    }
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let from = Name { ip: cold::ip(endpoint, End::Local), port: (ports >> 16) as u16 };
    let to = Name { ip: cold::ip(endpoint, End::Remote), port: ports as u16 };
    crate::socket::kernel_socket::materialize(endpoint).ok()?;
    let mut fd = endpoint.fd.load(Ordering::Relaxed);
    crate::socket::kernel_socket::each_fd(endpoint, |number| fd = number);
    connected(endpoint, fd, from, to)?;
    deliver(fd, &sent)?;
    let shuts = |flag: u32, how: c_int| {
        if endpoint.flag(flag) {
            // SAFETY: no pointers.
            unsafe { sd_sys::syscall!(libc::SYS_shutdown, fd, how) };
        }
    };
    if has_ended {
        shuts(SHUT_WR, libc::SHUT_WR);
    }
    shuts(SHUT_RD, libc::SHUT_RD);
    super::to_kernel::demote(endpoint, Reason::NotAccepting).ok()?;
    crate::socket::kernel_socket::note_kernel_names(endpoint, fd);
    Some(())
}

/// Nobody will accept the request at a slot any more; false where somebody was faster.
fn takes_back(channel: &Channel, slot: usize, generation: u32) -> bool {
    let [_, b] = &channel.map.slot(slot).side;
    if channel.link.must_be_told() {
        ask_pump(channel, slot, generation);
        if b.flags.load(Ordering::Acquire) & FLAG_TAKES_BACK != 0 {
            return b.state() == (generation, SlotState::Closed);
        }
    }
    channel.take_back(slot, generation)
}

/// Behind a pump somebody accepts before this side's words say so. So the pump takes the request back there first, if
/// it looks soon.
fn ask_pump(channel: &Channel, slot: usize, generation: u32) {
    let [a, b] = &channel.map.slot(slot).side;
    a.flags.fetch_or(FLAG_TAKES_BACK, Ordering::AcqRel);
    channel.tell(slot);
    for _ in 0..PUMP_LOOKS {
        if b.state().0 == generation || sd_sys::time::sleep_ns(PUMP_LOOK_NS).is_err() {
            return;
        }
    }
}

/// What lies in the ring, none of which anybody has read, and whether the stream has ended. `None` where it cannot be sent
/// as it was: urgent data.
fn sent_so_far(endpoint: &Endpoint) -> Option<(Vec<u8>, bool)> {
    let mem = endpoint.tx_mem();
    let mut reader = RxCursor::new();
    let mut bytes = Vec::new();
    loop {
        match reader.next(&GEOMETRY, &mem) {
            Ok(Next::Data { region, off, len }) => {
                let start = bytes.len();
                bytes.resize(start + len as usize, 0);
                let to = bytes.get_mut(start..)?.as_mut_ptr();
                // SAFETY: the ring checked region, off and len against our mapping; the buffer has so much room.
                unsafe { sd_ring::copy::copy_shared(to, mem.at(region, off), len as usize) };
                reader.advance(len);
            }
            Ok(Next::Empty) => return Some((bytes, endpoint.flag(SHUT_WR))),
            Ok(Next::Fin) => return Some((bytes, true)),
            Ok(Next::Urgent | Next::Apart | Next::Marker) | Err(_) => return None,
        }
    }
}

/// Connects the kernel's socket.
fn connected(endpoint: &Endpoint, fd: c_int, from: Name, to: Name) -> Option<()> {
    let domain = endpoint.family();
    let call = |nr: i64, name: Name| {
        let mut bytes = [0u8; 28];
        let len = addr::encode(domain, name, &mut bytes);
        // SAFETY: the kernel reads `len` bytes of the address.
        sd_sys::check(unsafe { sd_sys::syscall!(nr, fd, bytes.as_ptr(), len) }).map(drop)
    };
    set_nonblock(fd);
    let mut result = None;
    if !endpoint.flag(HAS_NAME) {
        let programs = PortOptions::of(fd);
        if PortOptions::only(from.port).set(fd) {
            let _ = call(libc::SYS_bind, Name { port: 0, ..from });
            // Somebody may have the same four numbers by now: then another port.
            result = Some(call(libc::SYS_connect, to)).filter(|r| *r != Err(Errno::EADDRNOTAVAIL));
            programs.set(fd);
        } else {
            let _ = call(libc::SYS_bind, from);
        }
    }
    match result.unwrap_or_else(|| call(libc::SYS_connect, to)) {
        Ok(()) => Some(()),
        Err(Errno::EINPROGRESS) => {
            let events = sd_sys::fd::poll_one(fd, libc::POLLOUT, TIMEOUT_MS).ok()?;
            (events & (libc::POLLERR | libc::POLLHUP) == 0 && events != 0).then_some(())
        }
        Err(_) => None,
    }
}

/// What says from where a connection may come.
struct PortOptions {
    /// IP_LOCAL_PORT_RANGE: the lowest port, and above it the highest; zero: as the host says.
    range: i32,
    /// IP_BIND_ADDRESS_NO_PORT.
    chosen_late: i32,
}

/// `linux/in.h`; since Linux 6.3.
const IP_LOCAL_PORT_RANGE: c_int = 51;

impl PortOptions {
    /// As the program has set them.
    fn of(fd: c_int) -> PortOptions {
        let get = |name| sd_sys::fd::getsockopt_int(fd, libc::IPPROTO_IP, name).unwrap_or(0);
        PortOptions { range: get(IP_LOCAL_PORT_RANGE), chosen_late: get(libc::IP_BIND_ADDRESS_NO_PORT) }
    }

    /// Has connect choose this port, which is free where the four numbers are: bind wants more, that nobody has the port, not
    /// in TIME-WAIT either.
    fn only(port: u16) -> PortOptions {
        let range = u32::from(port) << 16 | u32::from(port);
        PortOptions { range: i32::from_ne_bytes(range.to_ne_bytes()), chosen_late: 1 }
    }

    /// False before Linux 6.3, and nothing is changed then.
    fn set(&self, fd: c_int) -> bool {
        let set = |name, value| sd_sys::fd::setsockopt_int(fd, libc::IPPROTO_IP, name, value).is_ok();
        set(IP_LOCAL_PORT_RANGE, self.range) && set(libc::IP_BIND_ADDRESS_NO_PORT, self.chosen_late)
    }
}

/// The socket's own flags are put back by `demote`.
fn set_nonblock(fd: c_int) {
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
}

fn deliver(fd: c_int, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the kernel reads the bytes, which live longer.
        let done =
            unsafe { sd_sys::syscall!(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) };
        match sd_sys::check(done) {
            Ok(sent) => bytes = bytes.get(sent..)?,
            Err(Errno::EAGAIN) => {
                sd_sys::fd::poll_one(fd, libc::POLLOUT, TIMEOUT_MS).ok().filter(|events| *events != 0)?;
            }
            Err(_) => return None,
        }
    }
    Some(())
}

/// The connection could not be made otherwise.
fn refuse(endpoint: &'static Endpoint, channel: &'static Channel, slot: usize, generation: u32) {
    let [_, b] = &channel.map.slot(slot).side;
    let old = b.state.load(Ordering::Acquire);
    let refused = generation << 8 | SlotState::Refused as u32;
    if old >> 8 == generation && old & 0xff == SlotState::Open as u32 {
        return;
    }
    b.state.store(refused, Ordering::Release);
    crate::socket::bell::announce_to_self(endpoint);
}

/// A socket that went over to the kernel has ended: its slot can be used again.
#[cold]
pub(crate) fn let_go(endpoint: &'static Endpoint, channel: &'static Channel) {
    let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
    if channel.endpoint(slot).is_some_and(|bound| core::ptr::eq(bound, endpoint)) {
        let generation = endpoint.generation.load(Ordering::Relaxed);
        let [a, _] = &channel.map.slot(slot).side;
        a.set_state(generation, SlotState::Closed);
        if channel.unbind(slot, endpoint) {
            crate::route::port_unused(endpoint);
        }
        channel.unused();
    }
}

/// This process accepts from a listener, but can take no channel: what comes there is to come over the kernel.
#[cold]
pub(crate) fn cannot_take(fd: c_int) {
    let monitor = crate::monitor::client::image_fd();
    if monitor >= 0 {
        let _ = crate::monitor::client::send(monitor, &Request::CannotTake, &[fd]);
    }
}
