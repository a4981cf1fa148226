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
        let is_watched = matches!(table::get(fd), Entry::Kernel(_) | Entry::First(_) | Entry::Early);
        return match op {
            libc::EPOLL_CTL_DEL if is_watched => {
                let done = epoll::kernel_forgets(instance, epfd, fd);
                crate::setup::watched::left(fd, false);
                done.map(|()| 0).into()
            }
            _ => Outcome::Kernel,
        };
    }
    let bad = !sd_sys::user::seems_readable(event, size_of::<epoll_event>());
    if bad && op != libc::EPOLL_CTL_DEL {
        return Outcome::Errno(Errno::EFAULT);
    }
    // What stands there at a DEL is nobody's wish: Python's selectors leave whatever was on the stack.
    let is_asked = !bad && op != libc::EPOLL_CTL_DEL;
    // SAFETY: see the module.
    let event = unsafe { event.as_ref() }.filter(|_| is_asked).map(|e| (e.events, e.u64));
    if op != libc::EPOLL_CTL_DEL {
        listening::watched(fd);
    }
    match (epoll::control(instance, op, fd, event), entry) {
        (Err(MOVED), Entry::Socket(endpoint)) if is_to_begin_anew(endpoint, fd) => again(),
        (done, _) => done.map(|()| 0).into(),
    }
}
