//! close, dup, fcntl, ioctl: what happens to numbers.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::setup::connect::dropped_behind_our_back;
use crate::socket::cold;
use crate::socket::endpoint::{self, EndpointExt, NONBLOCK, OWN_SOCKET};
use core::sync::atomic::Ordering;
use libc::{c_int, c_ulong};
use sd_shm::slab::{Endpoint, HAS_RARE, State};

/// Whether the next program finds the number open.
pub(crate) fn survives_exec(fd: i32) -> bool {
    sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags as i32 & libc::FD_CLOEXEC == 0)
}

/// Forgets an entry whose number is about to be closed or replaced in the kernel. False when the
/// number is one of the library's own.
fn drop_entry(fd: i32) -> bool {
    match table::get(fd) {
        Entry::None => {}
        Entry::Hidden => return false,
        Entry::Socket(endpoint) | Entry::Kernel(endpoint) => {
            table::clear(fd);
            endpoint::release(endpoint);
        }
        Entry::Epoll(epoll) => {
            table::clear(fd);
            crate::epoll::drop_fd(epoll, fd);
        }
    }
    true
}

/// close(2); the kernel's part is the caller's.
pub(crate) fn close(fd: c_int) -> Outcome<c_int> {
    if drop_entry(fd) { Outcome::Kernel } else { Outcome::Errno(libc::EBADF) }
}

/// close_range(2), leaving out the library's own descriptors.
pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Outcome<c_int> {
    if first > last {
        return Outcome::Kernel;
    }
    const CLOEXEC: c_int = 4;
    let mut at = first;
    let mut errno = 0;
    let mut range = |from: u32, to: u32| {
        // SAFETY: no pointers; ranges between our own descriptors only.
        let done = unsafe { sd_sys::syscall!(libc::SYS_close_range, from, to, flags) };
        if let Err(e) = sd_sys::check(done) {
            errno = e.0;
        }
    };
    table::for_each(first, last, |fd, entry| match entry {
        Entry::Hidden => {
            if fd as u32 > at {
                range(at, fd as u32 - 1);
            }
            at = fd as u32 + 1;
        }
        _ if flags & CLOEXEC == 0 => {
            drop_entry(fd);
        }
        _ => {}
    });
    if at <= last {
        range(at, last);
    }
    if errno != 0 { Outcome::Errno(errno) } else { Outcome::Done(0) }
}

/// The new number `fd` leads to what `old` leads to.
fn share(old: i32, fd: i32) {
    match table::get(old) {
        Entry::Socket(endpoint) => {
            endpoint::retain(endpoint);
            if !table::set_socket(fd, endpoint) {
                endpoint::release(endpoint);
            }
        }
        Entry::Kernel(endpoint) => {
            endpoint::retain(endpoint);
            if !table::set_kernel(fd, endpoint) {
                endpoint::release(endpoint);
            }
        }
        Entry::Epoll(epoll) => crate::epoll::add_fd(epoll, fd),
        Entry::None | Entry::Hidden => {}
    }
}

/// Whether the program has no number left, from `first` on, for a duplicate of what it has. A duplicate that is closed
/// again could end the locks of a file.
fn is_refused(fd: i32, first: u64) -> bool {
    sd_sys::numbers::are_used_up(first) && sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// dup(2).
pub(crate) fn dup(fd: c_int) -> Outcome<c_int> {
    match table::get(fd) {
        Entry::Hidden => return Outcome::Errno(libc::EBADF),
        _ if is_refused(fd, 0) => return Outcome::Errno(libc::EMFILE),
        Entry::None => return Outcome::Kernel,
        _ => {}
    }
    duplicated(fd, sd_sys::fd::dup(fd))
}

/// The kernel has made a duplicate: it gets its number, and is what the original is.
fn duplicated(fd: c_int, made: sd_sys::Result<c_int>) -> Outcome<c_int> {
    match made.and_then(sd_sys::numbers::give) {
        Ok(new) => {
            dropped_behind_our_back(new);
            share(fd, new);
            Outcome::Done(new)
        }
        Err(e) => Outcome::Errno(e.0),
    }
}

/// dup2(2) and dup3(2); `strict` is dup3, which refuses equal numbers.
pub(crate) fn dup_to(old: c_int, new: c_int, flags: c_int, strict: bool) -> Outcome<c_int> {
    let hidden = |fd| matches!(table::get(fd), Entry::Hidden);
    let is_beyond = sd_sys::numbers::are_limited() && u64::from(new as u32) >= sd_sys::numbers::soft();
    if hidden(old) || hidden(new) || is_beyond && (strict || old != new) {
        return Outcome::Errno(libc::EBADF);
    }
    if old == new {
        return if strict { Outcome::Errno(libc::EINVAL) } else { Outcome::Kernel };
    }
    // The kernel first: when it refuses, nothing has changed.
    let kept = match table::get(new) {
        Entry::None => None,
        entry => Some(entry),
    };
    if let Err(e) = sd_sys::fd::dup3(old, new, flags) {
        return Outcome::Errno(e.0);
    }
    if kept.is_some() {
        drop_entry(new);
    }
    share(old, new);
    Outcome::Done(new)
}

/// Of linux/fcntl.h: whether two numbers lead to one description.
const F_DUPFD_QUERY: c_int = 1027;

/// Whether two numbers, both ours, lead to one socket. The kernel would compare placeholders.
fn are_one(a: c_int, b: c_int) -> bool {
    match (table::get(a), table::get(b)) {
        (Entry::Socket(a) | Entry::Kernel(a), Entry::Socket(b) | Entry::Kernel(b)) => core::ptr::eq(a, b),
        (Entry::Epoll(a), Entry::Epoll(b)) => core::ptr::eq(a, b),
        _ => false,
    }
}

/// kcmp(2) of two numbers of this process, both ours: the order of the sockets, as that of their addresses.
pub(crate) fn compare(a: c_int, b: c_int) -> Outcome<c_int> {
    match (table::socket(a), table::socket(b)) {
        (Some(a), Some(b)) => Outcome::Done(match (a as *const Endpoint).cmp(&(b as *const Endpoint)) {
            core::cmp::Ordering::Equal => 0,
            core::cmp::Ordering::Less => 1,
            core::cmp::Ordering::Greater => 2,
        }),
        _ => Outcome::Kernel,
    }
}

/// fcntl(2).
#[inline]
pub(crate) fn fcntl(fd: c_int, cmd: c_int, arg: c_ulong) -> Outcome<c_int> {
    let socket = table::socket(fd);
    if let Some(endpoint) = socket
        && cmd == libc::F_GETFL
    {
        let flags = endpoint.flags.load(Ordering::Acquire);
        if flags & HAS_RARE == 0 {
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
            return Outcome::Errno(if is_number { libc::EMFILE } else { libc::EINVAL });
        }
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
                return Outcome::Errno(libc::EINVAL);
            }
            set_nonblock(endpoint, fd, arg as c_int & libc::O_NONBLOCK != 0);
            let others = arg as c_int & (libc::O_APPEND | libc::O_NOATIME | libc::O_ASYNC);
            let old = set_other_flags(endpoint, others as u32);
            if (old ^ others as u32) & libc::O_ASYNC as u32 != 0 {
                crate::socket::signals::set_async(endpoint, fd);
            }
            Outcome::Done(0)
        }
        // The placeholder is shared, and a lock is one socket's.
        libc::F_GETLK..=libc::F_SETLKW | libc::F_OFD_GETLK..=libc::F_OFD_SETLKW => {
            match crate::setup::connect::materialize(endpoint) {
                Ok(()) => Outcome::Kernel,
                Err(errno) => Outcome::Errno(errno),
            }
        }
        _ if crate::socket::signals::is_command(cmd) => {
            crate::socket::signals::ask_kernel(endpoint, libc::SYS_fcntl, fd, cmd as c_ulong, arg)
        }
        _ => Outcome::Kernel,
    }
}

/// Status flags other than O_NONBLOCK; only O_ASYNC has a meaning for our sockets.
pub(crate) fn other_flags(endpoint: &Endpoint) -> u32 {
    cold::of(endpoint).status.load(Ordering::Relaxed)
}

/// Sets them; what they were.
fn set_other_flags(endpoint: &Endpoint, flags: u32) -> u32 {
    let old = other_flags(endpoint);
    if old != flags {
        cold::change(endpoint, |rare| rare.status.store(flags, Ordering::Relaxed));
    }
    old
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
            crate::socket::signals::set_async(endpoint, fd);
            return Outcome::Done(0);
        }
        _ if OWNERS.contains(&request) => {
            return crate::socket::signals::ask_kernel(endpoint, libc::SYS_ioctl, fd, request, arg);
        }
        libc::FIONREAD | SIOCOUTQ if endpoint.state_now() == State::Listen => {
            return Outcome::Errno(libc::EINVAL);
        }
        libc::FIONREAD | SIOCOUTQ | SIOCATMARK if endpoint.state_now() != State::Connected => 0,
        libc::FIONREAD => crate::data::shutdown::readable_bytes(endpoint) as c_int,
        SIOCOUTQ => crate::data::shutdown::unsent_bytes(endpoint) as c_int,
        SIOCATMARK => c_int::from(crate::data::shutdown::is_at_mark(endpoint)),
        _ => return Outcome::Kernel,
    };
    if bad {
        return Outcome::Errno(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    unsafe { value.write_unaligned(answer) };
    Outcome::Done(0)
}
