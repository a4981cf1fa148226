//! A socket of ours goes to the kernel, at its connect.

use crate::Outcome;
use crate::fd::table;
use crate::link::reclaim::User;
use crate::process::stats::{Counter, count};
use crate::route::elsewhere;
use crate::socket::addr::{self, Name};
use crate::socket::endpoint::{EndpointExt, NONBLOCK, OWN_SOCKET};
use crate::socket::inode;
use crate::socket::kernel_socket::{each_fd, kernels_own, materialize, note_kernel_names, note_names};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use sd_shm::slab::{Endpoint, Reason, State};
use sd_sys::Errno;
use sd_sys::fd::Owned;

/// A number for an endpoint whose connection will probably be the kernel's: with a socket of its own, so that no placeholder has to be
/// replaced. An MPTCP socket always has its own: whether the kernel has any, it says itself, and it knows their options.
#[cold]
pub(super) fn socket(endpoint: &Endpoint, domain: c_int, ty: c_int, protocol: c_int) -> Result<Owned, Errno> {
    let fd = kernels_own(domain, ty, protocol)?;
    if protocol == libc::IPPROTO_MPTCP {
        endpoint.set_mptcp();
    } else {
        elsewhere::expect();
    }
    endpoint.set_flag(OWN_SOCKET);
    inode::note(fd);
    Ok(Owned::new(fd))
}

/// Hands the socket to the kernel for good, listed with `reason`.
pub(super) fn demote(endpoint: &'static Endpoint, reason: Reason) -> Result<(), Errno> {
    materialize(endpoint)?;
    endpoint.reason.store(reason as u8, Ordering::Relaxed);
    crate::epoll::to_kernel(endpoint);
    let is_async = crate::socket::cold::other_flags(endpoint) as c_int & libc::O_ASYNC;
    let flags = if endpoint.flag(NONBLOCK) { libc::O_NONBLOCK | is_async } else { is_async };
    each_fd(endpoint, |fd| {
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags as usize);
        table::set_kernel(fd, endpoint);
    });
    endpoint.set_state(State::Kernel);
    count(Counter::KernelConnect);
    Ok(())
}

/// A connect that the kernel has to do, and what it needs.
pub(super) struct KernelConnect {
    pub(super) fd: c_int,
    pub(super) addr: *const sockaddr,
    pub(super) len: socklen_t,
    /// It is part of a send (MSG_FASTOPEN), which the kernel makes as a whole.
    pub(super) by_send: bool,
}

impl KernelConnect {
    /// Makes a call that the kernel will probably refuse. If it does, the socket stays ours.
    pub(super) fn try_first(&self, endpoint: &'static Endpoint, within: User) -> Outcome<c_int> {
        if self.by_send {
            return self.go(endpoint, Reason::Option, within);
        }
        if let Err(errno) = materialize(endpoint) {
            return Outcome::Errno(errno);
        }
        // SAFETY: the caller's arguments, for the kernel to check.
        let done = unsafe { sd_sys::syscall!(libc::SYS_connect, self.fd, self.addr, self.len) };
        match sd_sys::check(done) {
            Err(errno @ (Errno::EFAULT | Errno::EINVAL | Errno::EAFNOSUPPORT | Errno::ENETUNREACH)) => {
                Outcome::Errno(errno)
            }
            done => {
                let demoted = demote(endpoint, Reason::Option);
                note_kernel_names(endpoint, self.fd);
                demoted.and(done.map(|_| 0)).into()
            }
        }
    }

    /// Demotes the socket, makes the call, and notes the names for `sd ss`.
    pub(super) fn go(&self, endpoint: &'static Endpoint, reason: Reason, within: User) -> Outcome<c_int> {
        if let Err(errno) = demote(endpoint, reason) {
            return Outcome::Errno(errno);
        }
        if self.by_send {
            return Outcome::Kernel;
        }
        if reason == Reason::Remote {
            elsewhere::leads_there();
        }
        if reason != Reason::Option {
            super::watched::begin(endpoint, true);
        }
        // It may sleep.
        drop(within);
        // SAFETY: the caller's arguments, for the kernel to check.
        let done =
            sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_connect, self.fd, self.addr, self.len) });
        self.note_names(endpoint, done.map(drop));
        done.map(|_| 0).into()
    }

    fn note_names(&self, endpoint: &Endpoint, done: Result<(), Errno>) {
        // SAFETY: the caller of connect vouches for its address.
        let to = unsafe { addr::parse(self.addr, self.len) }.map(|(_, to)| to);
        let is_exact =
            |to: &Name| matches!(done, Ok(()) | Err(Errno::EINPROGRESS)) && !to.ip.is_unspecified();
        note_names(endpoint, self.fd, to.filter(is_exact));
    }
}
