//! The kernel's socket behind a number of ours: one placeholder for all, or one of the socket's own.
//!
//! ```text
//!  number --dup--> placeholder        `materialize`: --dup3--> a socket of its own, with the options that were recorded
//! ```

use crate::fd::hidden::HiddenCell;
use crate::fd::table::{self, Entry};
use crate::process::PROCESS;
use crate::process::stats::{Counter, count};
use crate::socket::endpoint::{EndpointExt, OWN_SOCKET};
use crate::socket::life;
use crate::socket::recorded::replay;
use crate::socket::{addr, cold, inode};
use core::sync::atomic::Ordering;
use sd_shm::slab::{End, Endpoint, State};
use sd_sys::Errno;
use sd_sys::fd::Owned;

/// The placeholder for a domain; -1: there is none yet.
pub(crate) fn placeholder(domain: i32) -> i32 {
    let index = usize::from(domain == libc::AF_INET6);
    PROCESS.placeholders.get(index).map_or(-1, HiddenCell::raw)
}

/// A descriptor number that is ours, held in the kernel by a duplicate of the placeholder.
pub(crate) fn number(domain: i32, cloexec: bool) -> Result<Owned, Errno> {
    let duplicate = |source| if cloexec { sd_sys::fd::dup_above(source, 0) } else { sd_sys::fd::dup(source) };
    let made = duplicate(placeholder(domain)).or_else(|error| match error {
        Errno::EBADF => renew_placeholder(domain).and_then(|()| duplicate(placeholder(domain))),
        _ => Err(error),
    });
    let fd = sd_sys::numbers::give(made?.into_raw())?;
    dropped_behind_our_back(fd);
    Ok(Owned::new(fd))
}

/// A socket of the kernel's alone, as the program would have made it.
pub(crate) fn kernels_own(domain: i32, ty: i32, protocol: i32) -> Result<i32, Errno> {
    let made = sd_sys::fd::socket(domain, ty, protocol)?;
    let fd = sd_sys::numbers::give(made.into_raw())?;
    dropped_behind_our_back(fd);
    Ok(fd)
}

/// There is none yet, or the program has closed it past libc.
#[cold]
fn renew_placeholder(domain: i32) -> Result<(), Errno> {
    let fresh = sd_sys::fd::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    let index = usize::from(domain == libc::AF_INET6);
    let place = PROCESS.placeholders.get(index).ok_or(Errno::EBADF)?;
    let is_first = !place.is_some();
    if !is_first {
        place.lose();
    }
    let fresh = crate::fd::hidden::Hidden::of(fresh);
    match is_first {
        // Another thread may have been faster.
        true => drop(place.put_first(fresh)),
        false => place.put(fresh),
    }
    Ok(())
}

/// The kernel gave out a number that we think is in use: the program closed it by a way that we
/// do not see. The entry goes.
#[inline]
pub(crate) fn dropped_behind_our_back(fd: i32) {
    if table::is_ours(fd) {
        forget_dropped(fd);
    }
}

#[cold]
fn forget_dropped(fd: i32) {
    let entry = table::get(fd);
    table::clear(fd);
    count(Counter::LostFd);
    if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
        life::release(endpoint);
    }
}

/// Gives the endpoint a kernel socket of its own under all its numbers, with the options that
/// were recorded so far. Afterwards calls that we do not serve may go to the kernel.
pub(crate) fn materialize(endpoint: &'static Endpoint) -> Result<(), Errno> {
    if endpoint.flag(OWN_SOCKET) {
        return Ok(());
    }
    give_own_socket(endpoint)
}

/// The kernel socket that the endpoint had of its own, which `moved` leads to, goes elsewhere: it gets another one.
pub(crate) fn renew(endpoint: &'static Endpoint, moved: i32) {
    let fd = endpoint.fd.load(Ordering::Relaxed);
    if endpoint.flag(OWN_SOCKET) && sd_sys::fd::identity(fd) == sd_sys::fd::identity(moved) {
        let _ = give_own_socket(endpoint);
    }
}

fn give_own_socket(endpoint: &'static Endpoint) -> Result<(), Errno> {
    let domain = endpoint.family();
    let protocol = if endpoint.is_mptcp() { libc::IPPROTO_MPTCP } else { 0 };
    let fresh = sd_sys::fd::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol)?;
    replay(endpoint, fresh.raw());
    let mut result = Ok(());
    each_fd(endpoint, |fd| {
        let cloexec = sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as i32 & libc::FD_CLOEXEC;
        let flags = if cloexec != 0 { libc::O_CLOEXEC } else { 0 };
        if let Err(e) = sd_sys::fd::dup3(fresh.raw(), fd, flags) {
            result = Err(e);
        }
    });
    endpoint.set_flag(OWN_SOCKET);
    if result.is_ok() {
        inode::note(endpoint.fd.load(Ordering::Relaxed));
    }
    result
}

/// Calls `each` for every number of this process that leads to the endpoint.
pub(crate) fn each_fd(endpoint: &'static Endpoint, mut each: impl FnMut(i32)) {
    let first = endpoint.fd.load(Ordering::Relaxed);
    let alone = PROCESS.private(endpoint).is_some_and(|p| p.fds.load(Ordering::Acquire) == 1);
    if alone && table::socket(first).is_some_and(|e| core::ptr::eq(e, endpoint)) {
        return each(first);
    }
    table::for_each(0, u32::MAX, |fd, entry| {
        if matches!(entry, Entry::Socket(e) if core::ptr::eq(e, endpoint)) {
            each(fd);
        }
    });
}

/// Notes both names of a kernel connection.
pub(crate) fn note_kernel_names(endpoint: &Endpoint, fd: i32) {
    note_names(endpoint, fd, None);
}

/// As [`note_kernel_names`]; `peer` is the other end's, if it was told already.
pub(crate) fn note_names(endpoint: &Endpoint, fd: i32, peer: Option<addr::Name>) {
    let mut ports = 0;
    if let Some((_, local)) = addr::kernel_name(fd) {
        cold::set_ip(endpoint, End::Local, local.ip);
        ports = u32::from(local.port) << 16;
    }
    if let Some(peer) = peer.or_else(|| addr::kernel_peer(fd).map(|(_, name)| name)) {
        cold::set_ip(endpoint, End::Remote, peer.ip);
        ports |= u32::from(peer.port);
    }
    endpoint.ports.store(ports, Ordering::Relaxed);
}

/// The socket is the kernel's by now; no errno of Linux'. Calls end with it as with an error, and go to the kernel.
pub(crate) const MOVED: Errno = Errno(4097);

/// The call's socket has gone to the kernel in the middle of it.
#[cold]
pub(crate) fn is_moved(endpoint: &Endpoint) -> bool {
    endpoint.state_now() == State::Kernel
}

/// Before fstat(2), or another call that tells the inode.
pub(crate) fn look_at_inode(fd: i32) {
    if let Some(endpoint) = table::socket(fd)
        && materialize(endpoint).is_ok()
        && inode::is_own(fd)
    {
        inode::note(fd);
    }
}
