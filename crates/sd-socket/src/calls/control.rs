//! epoll_ctl, on a descriptor that may be the kernel's when the call ends and was ours when it began.
#![allow(clippy::missing_safety_doc)]

use crate::Outcome;
use crate::epoll;
use crate::fd::table::{self, Entry};
use crate::setup::listen as listening;
use crate::setup::watched::is_to_begin_anew;
use crate::socket::kernel_socket::MOVED;
use libc::{c_int, epoll_event};
use sd_sys::Errno;

/// epoll_ctl(2).
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Outcome<c_int> {
    epoll::changed(fd);
    let is_inside = matches!(table::get(fd), Entry::Kernel(_) | Entry::First(_) | Entry::Early)
        && !crate::setup::watched::enter(fd, 0);
    // The connection goes to the kernel, or comes from there, in the middle of this.
    // SAFETY: as the caller says.
    let again = || unsafe { epoll_ctl(epfd, op, fd, event) };
    if matches!(table::get(epfd), Entry::None) && epoll::is_instance(epfd) {
        epoll::found(epfd);
    }
    let Entry::Epoll(instance) = table::get(epfd) else {
        crate::setup::first::stays(fd);
        crate::setup::unregistered::stays(fd);
        return Outcome::Kernel;
    };
    let instance = instance.epoll();
    let entry = table::get(fd);
    if !matches!(entry, Entry::Socket(_) | Entry::Epoll(_)) {
        if matches!(entry, Entry::Kernel(_)) && !is_inside {
            return again();
        }
        if op == libc::EPOLL_CTL_ADD {
            epoll::kernel_registered(instance);
        }
        let endpoint = match table::get(fd) {
            Entry::Kernel(endpoint) => Some(endpoint),
            Entry::First(_) | Entry::Early => None,
            _ => return Outcome::Kernel,
        };
        // SAFETY: see the module.
        let event = unsafe { wish(op, event) };
        let may_note =
            matches!((op, endpoint, event), (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(_), Some(_)));
        if op != libc::EPOLL_CTL_DEL && !may_note {
            return Outcome::Kernel;
        }
        let done = epoll::kernel_asked((instance, epfd), op, (fd, endpoint), event);
        crate::setup::watched::left(fd, false);
        return done.map(|()| 0).into();
    }
    // SAFETY: see the module.
    let event = unsafe { wish(op, event) };
    if event.is_none() && op != libc::EPOLL_CTL_DEL {
        return Outcome::Errno(Errno::EFAULT);
    }
    if op != libc::EPOLL_CTL_DEL {
        listening::watched(fd);
    }
    match (epoll::control(instance, op, fd, event), entry) {
        (Err(MOVED), Entry::Socket(endpoint)) if is_to_begin_anew(endpoint, fd) => again(),
        (done, _) => done.map(|()| 0).into(),
    }
}

/// The event that the caller asks for, if it can be read. What stands there at a DEL is nobody's wish: Python's selectors leave whatever was on the
/// stack.
unsafe fn wish(op: c_int, event: *const epoll_event) -> Option<(u32, u64)> {
    let is_asked = op != libc::EPOLL_CTL_DEL && sd_sys::user::seems_readable(event, size_of::<epoll_event>());
    // SAFETY: as the caller says.
    let event = unsafe { event.as_ref() }.filter(|_| is_asked);
    event.map(|event| (event.events, event.u64))
}
