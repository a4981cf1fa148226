//! close, dup and kcmp: numbers come and go.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::socket::kernel_socket::dropped_behind_our_back;
use crate::socket::life;
use libc::c_int;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;

/// Forgets an entry whose number is about to be closed or replaced in the kernel. False when the
/// number is one of the library's own.
fn drop_entry(fd: i32) -> bool {
    match table::get(fd) {
        Entry::None => {}
        Entry::Early => {
            crate::setup::handed_on::closed(fd);
            table::clear(fd);
        }
        Entry::First(_) => table::clear(fd),
        Entry::Hidden => return false,
        Entry::Socket(endpoint) | Entry::Kernel(endpoint) => {
            let change = crate::link::reclaim::change();
            if change.is_counted() {
                // Another thread may have left with it before the change.
                drop_socket(fd);
                drop(change);
                // This one may never sleep again.
                crate::route::leave::sweep(crate::epoll::take_in);
            } else {
                table::clear(fd);
                life::release(endpoint);
                crate::link::reclaim::free();
            }
        }
        Entry::Epoll(epoll) => {
            table::clear(fd);
            crate::epoll::drop_fd(epoll.epoll(), fd);
        }
    }
    true
}

/// Within a change.
fn drop_socket(fd: i32) {
    if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = table::get(fd) {
        table::clear(fd);
        life::release(endpoint);
    }
}

/// close(2); the kernel's part is the caller's.
pub(crate) fn close(fd: c_int) -> Outcome<c_int> {
    if drop_entry(fd) { Outcome::Kernel } else { Outcome::Errno(Errno::EBADF) }
}

/// close_range(2), leaving out the library's own descriptors.
pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Outcome<c_int> {
    if first > last {
        return Outcome::Kernel;
    }
    const CLOEXEC: c_int = 4;
    let mut at = first;
    let mut result = Ok(0);
    let mut range = |from: u32, to: u32| {
        // SAFETY: no pointers; ranges between our own descriptors only.
        let done = unsafe { sd_sys::syscall!(libc::SYS_close_range, from, to, flags) };
        if let Err(errno) = sd_sys::check(done) {
            result = Err(errno);
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
    result.into()
}

/// The new number `fd` leads to what `old` leads to.
fn share(old: i32, fd: i32) {
    crate::setup::first::duplicated(old);
    crate::setup::unregistered::shared(old);
    match table::get(old) {
        Entry::Socket(endpoint) | Entry::Kernel(endpoint) => {
            if life::retain_open(endpoint) && !table::copy(old, fd, endpoint) {
                life::release(endpoint);
            }
        }
        Entry::Epoll(epoll) => crate::epoll::add_fd(epoll.epoll(), old, fd),
        Entry::None | Entry::First(_) | Entry::Early | Entry::Hidden => {}
    }
}

/// Whether the program has no number left, from `first` on, for a duplicate of what it has. A duplicate that is closed
/// again could end the locks of a file.
pub(super) fn is_refused(fd: i32, first: u64) -> bool {
    sd_sys::numbers::are_used_up(first) && sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// dup(2).
pub(crate) fn dup(fd: c_int) -> Outcome<c_int> {
    match table::get(fd) {
        Entry::Hidden => return Outcome::Errno(Errno::EBADF),
        _ if is_refused(fd, 0) => return Outcome::Errno(Errno::EMFILE),
        Entry::None => return Outcome::Kernel,
        _ => {}
    }
    let _change = crate::link::reclaim::change();
    duplicated(fd, sd_sys::fd::dup(fd).map(sd_sys::fd::Owned::into_raw))
}

/// The kernel has made a duplicate: it gets its number, and is what the original is.
pub(super) fn duplicated(fd: c_int, made: sd_sys::Result<c_int>) -> Outcome<c_int> {
    match made.and_then(sd_sys::numbers::give) {
        Ok(new) => {
            dropped_behind_our_back(new);
            share(fd, new);
            Outcome::Done(new)
        }
        Err(e) => Outcome::Errno(e),
    }
}

/// dup2(2) and dup3(2); `strict` is dup3, which refuses equal numbers.
pub(crate) fn dup_to(old: c_int, new: c_int, flags: c_int, strict: bool) -> Outcome<c_int> {
    let hidden = |fd| matches!(table::get(fd), Entry::Hidden);
    let is_beyond = sd_sys::numbers::are_limited() && u64::from(new as u32) >= sd_sys::numbers::soft();
    if hidden(old) || hidden(new) || is_beyond && (strict || old != new) {
        return Outcome::Errno(Errno::EBADF);
    }
    if old == new {
        return if strict { Outcome::Errno(Errno::EINVAL) } else { Outcome::Kernel };
    }
    let change = crate::link::reclaim::change();
    // The kernel first: when it refuses, nothing has changed.
    if let Err(e) = sd_sys::fd::dup3(old, new, flags) {
        return Outcome::Errno(e);
    }
    match table::get(new) {
        Entry::Socket(_) | Entry::Kernel(_) => drop_socket(new),
        _ => _ = drop_entry(new),
    }
    share(old, new);
    drop(change);
    crate::route::leave::sweep(crate::epoll::take_in);
    Outcome::Done(new)
}

/// Of linux/fcntl.h: whether two numbers lead to one description.
pub(super) const F_DUPFD_QUERY: c_int = 1027;

/// Whether two numbers, both ours, lead to one socket. The kernel would compare placeholders.
pub(super) fn are_one(a: c_int, b: c_int) -> bool {
    match (table::get(a), table::get(b)) {
        (Entry::Socket(a) | Entry::Kernel(a), Entry::Socket(b) | Entry::Kernel(b)) => core::ptr::eq(a, b),
        (Entry::Epoll(a), Entry::Epoll(b)) => a == b,
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
