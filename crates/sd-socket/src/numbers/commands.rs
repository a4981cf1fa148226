//! fcntl and ioctl.

use super::copies::{F_DUPFD_QUERY, are_one, duplicated, is_refused};
use crate::Outcome;
use crate::fd::table::{self};
use crate::socket::cold::{other_flags, set_other_flags};
use crate::socket::endpoint::{EndpointExt, NONBLOCK, OWN_SOCKET};
use crate::socket::kernel_socket::materialize;
use crate::socket::signals::{self, F_GETOWN_EX, F_GETSIG, F_SETOWN_EX, F_SETSIG};
use core::sync::atomic::Ordering;
use libc::{c_int, c_ulong};
use sd_shm::slab::{Endpoint, HAS_COLD, State};
use sd_sys::Errno;

/// fcntl(2).
#[inline]
pub(crate) fn fcntl(fd: c_int, cmd: c_int, arg: c_ulong) -> Outcome<c_int> {
    let socket = table::socket(fd);
    if let Some(endpoint) = socket
        && cmd == libc::F_GETFL
    {
        let flags = endpoint.flags.load(Ordering::Acquire);
        if flags & HAS_COLD == 0 {
            return Outcome::Done(libc::O_RDWR | if flags & NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 });
        }
    }
    fcntl_other(socket, fd, cmd, arg)
}

/// All but the usual question, whose frame is small.
#[inline(never)]
fn fcntl_other(socket: Option<&'static Endpoint>, fd: c_int, cmd: c_int, arg: c_ulong) -> Outcome<c_int> {
    if cmd == libc::F_DUPFD || cmd == libc::F_DUPFD_CLOEXEC {
        // The kernel looks at the lower half.
        let first = u64::from(arg as u32);
        if is_refused(fd, first) {
            let is_number = first < sd_sys::numbers::soft();
            return Outcome::Errno(if is_number { Errno::EMFILE } else { Errno::EINVAL });
        }
        let _change = crate::link::reclaim::change();
        return duplicated(fd, sd_sys::fd::fcntl(fd, cmd, arg as usize).map(|new| new as i32));
    }
    if cmd == F_DUPFD_QUERY && table::is_ours(arg as c_int) {
        return Outcome::Done(c_int::from(are_one(fd, arg as c_int)));
    }
    let Some(endpoint) = socket else { return Outcome::Kernel };
    match cmd {
        libc::F_GETFL => {
            let nonblock = if endpoint.flag(NONBLOCK) { libc::O_NONBLOCK } else { 0 };
            Outcome::Done(libc::O_RDWR | nonblock | other_flags(endpoint) as c_int)
        }
        libc::F_SETFL => {
            if arg as c_int & libc::O_DIRECT != 0 {
                return Outcome::Errno(Errno::EINVAL);
            }
            set_nonblock(endpoint, fd, arg as c_int & libc::O_NONBLOCK != 0);
            let others = arg as c_int & (libc::O_APPEND | libc::O_NOATIME | libc::O_ASYNC);
            let old = set_other_flags(endpoint, others as u32);
            if (old ^ others as u32) & libc::O_ASYNC as u32 != 0 {
                signals::changed(endpoint, fd);
            }
            Outcome::Done(0)
        }
        // The placeholder is shared, and a lock is one socket's.
        libc::F_GETLK..=libc::F_SETLKW | libc::F_OFD_GETLK..=libc::F_OFD_SETLKW => {
            match crate::socket::kernel_socket::materialize(endpoint) {
                Ok(()) => Outcome::Kernel,
                Err(errno) => Outcome::Errno(errno),
            }
        }
        _ if is_signal_command(cmd) => ask_kernel(endpoint, libc::SYS_fcntl, fd, cmd as c_ulong, arg),
        _ => Outcome::Kernel,
    }
}

/// Sets O_NONBLOCK; on a kernel socket of its own too, except a listener's, which always has it.
fn set_nonblock(endpoint: &'static Endpoint, fd: c_int, on: bool) {
    if on {
        endpoint.set_flag(NONBLOCK);
    } else {
        endpoint.clear_flag(NONBLOCK);
    }
    if endpoint.flag(OWN_SOCKET) && endpoint.state_now() != State::Listen {
        let flags = if on { libc::O_NONBLOCK } else { 0 };
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags as usize);
    }
}

/// ioctl(2).
///
/// # Safety
/// `arg` is what the request wants.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, arg: c_ulong) -> Outcome<c_int> {
    const SIOCOUTQ: c_ulong = 0x5411;
    const SIOCATMARK: c_ulong = 0x8905;
    const FIOASYNC: c_ulong = 0x5452;
    // FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP.
    const OWNERS: core::ops::RangeInclusive<c_ulong> = 0x8901..=0x8904;
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    let value = arg as *mut c_int;
    let bad = !sd_sys::user::is_writable(value, size_of::<c_int>());
    let answer = match request {
        libc::FIONBIO if !bad => {
            // SAFETY: as the caller says.
            set_nonblock(endpoint, fd, unsafe { value.read_unaligned() } != 0);
            return Outcome::Done(0);
        }
        FIOASYNC if !bad => {
            // SAFETY: as the caller says.
            let on = unsafe { value.read_unaligned() } != 0;
            let bit = libc::O_ASYNC as u32;
            set_other_flags(endpoint, other_flags(endpoint) & !bit | if on { bit } else { 0 });
            signals::changed(endpoint, fd);
            return Outcome::Done(0);
        }
        _ if OWNERS.contains(&request) => {
            return ask_kernel(endpoint, libc::SYS_ioctl, fd, request, arg);
        }
        libc::FIONREAD | SIOCOUTQ if endpoint.state_now() == State::Listen => {
            return Outcome::Errno(Errno::EINVAL);
        }
        libc::FIONREAD | SIOCOUTQ | SIOCATMARK if endpoint.state_now() != State::Connected => 0,
        libc::FIONREAD => crate::socket::ring_view::readable_bytes(endpoint) as c_int,
        SIOCOUTQ => crate::socket::ring_view::unsent_bytes(endpoint) as c_int,
        SIOCATMARK => c_int::from(crate::socket::ring_view::is_at_mark(endpoint)),
        _ => return Outcome::Kernel,
    };
    if bad {
        return Outcome::Errno(Errno::EFAULT);
    }
    // SAFETY: as the caller says.
    unsafe { value.write_unaligned(answer) };
    Outcome::Done(0)
}

/// Whether fcntl's command is about signals.
fn is_signal_command(cmd: c_int) -> bool {
    matches!(cmd, libc::F_SETOWN | libc::F_GETOWN | F_SETSIG | F_GETSIG | F_SETOWN_EX | F_GETOWN_EX)
}

/// fcntl(2) with such a command, or ioctl(2) with FIOSETOWN and the like; `arg` is the kernel's to check.
fn ask_kernel(
    endpoint: &'static Endpoint,
    call: libc::c_long,
    fd: c_int,
    cmd: c_ulong,
    arg: c_ulong,
) -> Outcome<c_int> {
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    // SAFETY: the caller's argument, for the kernel to check.
    let done = sd_sys::check(unsafe { sd_sys::syscall!(call, fd, cmd, arg) });
    signals::changed(endpoint, fd);
    done.map(|n| n as c_int).into()
}
