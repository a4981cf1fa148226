//! What is noted when an option is set; where the options of a new socket come from.

use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, INQ, KEEPS_ADDRESS, OOB_INLINE, STAMPS, STAMPS_NS, ZERO_COPY};
use crate::socket::handle::Socket;
use crate::socket::parked::is_parked;
use crate::socket::recorded::{NUMBERS, number};
use core::sync::atomic::Ordering;
use libc::{SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, c_int, c_void, socklen_t};
use sd_ring::token::Way;
use sd_shm::slab::{Endpoint, FIXED_BUF, HAS_COLD, LINGER_ON, SWITCHES_MASK, State};
use sd_sys::{Errno, user};

const TCP: c_int = libc::IPPROTO_TCP;

/// Whether an option was one of those.
pub(crate) enum Remembered {
    /// It is noted; a kernel socket has to be told only if there is one.
    Yes,
    /// It is the kernel's, noted or not.
    No,
    /// It makes no sense.
    Invalid(Errno),
}

/// Notes what the library has to know of an option.
///
/// # Safety
/// `value` points to `len` readable bytes, or the kernel would say EFAULT.
pub(crate) unsafe fn remember(
    endpoint: &'static Endpoint,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Remembered {
    if !user::is_readable(value, len as usize) {
        return Remembered::No;
    }
    if let Some(n) = number(level, name) {
        if len < 4 {
            return Remembered::Invalid(Errno::EINVAL);
        }
        // SAFETY: at least four bytes.
        let v = unsafe { (value as *const i32).read_unaligned() };
        if v < n.range.0 || v > n.range.1 {
            return Remembered::Invalid(Errno::EINVAL);
        }
        n.store(endpoint, v);
        return Remembered::Yes;
    }
    match (level, name) {
        // SAFETY: as the caller says.
        (SOL_SOCKET, SO_RCVTIMEO | SO_SNDTIMEO) => unsafe { remember_timeout(endpoint, name, value, len) },
        (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) if len >= 4 => {
            // SAFETY: at least four bytes.
            remember_send_buffer(endpoint, unsafe { (value as *const i32).read_unaligned() });
            Remembered::No
        }
        (SOL_SOCKET, libc::SO_OOBINLINE) if len >= 4 => {
            // SAFETY: at least four bytes.
            remember_flag(endpoint, OOB_INLINE, i32::from(unsafe { *value.cast::<[u8; 4]>() } != [0; 4]))
        }
        (SOL_SOCKET, libc::SO_ZEROCOPY) | (TCP, libc::TCP_INQ) if len >= 4 => {
            let flag = if level == TCP { INQ } else { ZERO_COPY };
            // SAFETY: at least four bytes.
            remember_flag(endpoint, flag, unsafe { (value as *const i32).read_unaligned() })
        }
        (SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS) if len >= 4 => {
            // SAFETY: at least four bytes.
            remember_stamps(endpoint, name, unsafe { (value as *const i32).read_unaligned() } != 0);
            Remembered::No
        }
        (TCP, libc::TCP_LINGER2) if len >= 4 => {
            // SAFETY: at least four bytes.
            let seconds = unsafe { (value as *const i32).read_unaligned() };
            if seconds != 0 || endpoint.flag(HAS_COLD) {
                cold::change(endpoint, |cold| cold.set_orphan_seconds(seconds));
            }
            Remembered::No
        }
        (SOL_SOCKET, SO_LINGER) => {
            if len < 8 {
                return Remembered::Invalid(Errno::EINVAL);
            }
            // SAFETY: at least eight bytes.
            let l = unsafe { (value as *const libc::linger).read_unaligned() };
            let on = if l.l_onoff != 0 { LINGER_ON } else { 0 };
            // Switching it off keeps the seconds.
            let old = cold::of(endpoint).linger.load(Ordering::Relaxed) & !LINGER_ON;
            let stored = if on != 0 { on | (l.l_linger.max(0) as u32 & !LINGER_ON) } else { old };
            cold::change(endpoint, |cold| cold.linger.store(stored, Ordering::Relaxed));
            Remembered::Yes
        }
        _ => Remembered::No,
    }
}

/// A program that asks for less than this gets a ring that does not grow.
const LARGE_BUFFER: u32 = 128 << 10;

/// SO_SNDBUF. Who waits for room is told of a larger buffer, as the kernel does.
fn remember_send_buffer(endpoint: &'static Endpoint, size: i32) {
    // The kernel takes a negative size for a very large one.
    if (size as u32) < LARGE_BUFFER {
        endpoint.set_flag(FIXED_BUF);
    } else if endpoint.flag(FIXED_BUF)
        && !endpoint.channel_ref().is_some_and(crate::link::kept_rings::are_kept)
    {
        endpoint.clear_flag(FIXED_BUF);
        if endpoint.state_now() == State::Connected {
            crate::socket::bell::wake_sleepers(endpoint);
            crate::epoll::room_event(endpoint);
        }
    }
}

/// Anything but zero and one is refused by the kernel, which is asked as well.
fn remember_flag(endpoint: &Endpoint, flag: u32, value: i32) -> Remembered {
    match value {
        0 => endpoint.clear_flag(flag),
        1 => endpoint.set_flag(flag),
        _ => {}
    }
    Remembered::No
}

fn remember_stamps(endpoint: &Endpoint, name: c_int, on: bool) {
    endpoint.clear_flag(STAMPS | STAMPS_NS);
    if on {
        endpoint.set_flag(if name == libc::SO_TIMESTAMP { STAMPS } else { STAMPS_NS });
    }
}

unsafe fn remember_timeout(
    endpoint: &Endpoint,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Remembered {
    if len < 16 {
        return Remembered::Invalid(Errno::EINVAL);
    }
    // SAFETY: at least sixteen bytes.
    let tv = unsafe { (value as *const libc::timeval).read_unaligned() };
    if !(0..1_000_000).contains(&tv.tv_usec) {
        return Remembered::Invalid(Errno::EDOM);
    }
    let ns = if tv.tv_sec < 0 { 1 } else { tv.tv_sec as u64 * 1_000_000_000 + tv.tv_usec as u64 * 1000 };
    cold::change(endpoint, |cold| {
        let cell = if name == SO_RCVTIMEO { &cold.rx_timeout_ns } else { &cold.tx_timeout_ns };
        cell.store(ns, Ordering::Relaxed);
    });
    Remembered::Yes
}

/// Beside [`NUMBERS`].
const OTHERS: [(c_int, c_int); 11] = [
    (SOL_SOCKET, SO_RCVTIMEO),
    (SOL_SOCKET, SO_SNDTIMEO),
    (SOL_SOCKET, SO_LINGER),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (SOL_SOCKET, libc::SO_ZEROCOPY),
    (TCP, libc::TCP_INQ),
    (TCP, libc::TCP_USER_TIMEOUT),
    (TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_IP, libc::IP_TOS),
];

/// Whether [`recall`] finds what the option was set to.
pub(super) fn is_recalled(level: c_int, name: c_int) -> bool {
    number(level, name).is_some() || OTHERS.contains(&(level, name))
}

/// Remembers what a kernel socket that somebody else has made says: the opposite of `replay`.
pub(super) fn recall(endpoint: &'static Endpoint, fd: i32) {
    crate::socket::mptcp::note(endpoint, fd);
    for (level, name) in NUMBERS.iter().map(|n| (n.level, n.name)).chain(OTHERS) {
        let mut value = [0u8; 16];
        let (at, mut len) = (value.as_mut_ptr(), value.len() as u32);
        // SAFETY: the kernel writes at most `len` bytes.
        let got = sd_sys::check(unsafe {
            sd_sys::syscall!(libc::SYS_getsockopt, fd, level, name, at, &mut len as *mut u32)
        });
        if got.is_ok() && value != [0; 16] {
            // SAFETY: so many bytes are readable.
            unsafe {
                if let Remembered::No = remember(endpoint, level, name, value.as_ptr().cast(), len) {
                    crate::socket::notes::note(endpoint, level, name, value.as_ptr().cast(), len as usize);
                }
            }
        }
    }
    if let Ok(least) = sd_sys::fd::getsockopt_int(fd, SOL_SOCKET, libc::SO_RCVLOWAT) {
        set_least(endpoint, least);
    }
}

/// SO_RCVLOWAT, which is never zero.
pub(crate) fn set_least(endpoint: &Endpoint, least: i32) {
    let _half = endpoint.rx_token();
    if is_parked(endpoint, Way::Receive) {
        // The kernel's; it is asked when the ring is read (`data::by_kernel`).
        return;
    }
    endpoint.rx().lowat.store((least as u32).max(1), Ordering::Relaxed);
}

/// An accepted connection starts with the listener's options, not its O_NONBLOCK.
pub(super) fn inherit(from: Socket, to: Socket) {
    const FLAGS: u32 =
        SWITCHES_MASK | FIXED_BUF | OOB_INLINE | STAMPS | STAMPS_NS | ZERO_COPY | INQ | KEEPS_ADDRESS;
    to.set_flag(from.flags.load(Ordering::Relaxed) & FLAGS);
    to.rx().lowat.store(from.rx().lowat.load(Ordering::Relaxed), Ordering::Relaxed);
    if from.flag(HAS_COLD) {
        let from = cold::of(&from);
        cold::change(&to, |to| {
            for (a, b) in from.opts.iter().zip(&to.opts) {
                b.store(a.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            to.rx_timeout_ns.store(from.rx_timeout_ns.load(Ordering::Relaxed), Ordering::Relaxed);
            to.tx_timeout_ns.store(from.tx_timeout_ns.load(Ordering::Relaxed), Ordering::Relaxed);
            to.linger.store(from.linger.load(Ordering::Relaxed), Ordering::Relaxed);
        });
    }
    crate::socket::notes::inherit(from, to);
}
