//! The waiting calls, on a pipe with one byte and with their own units of time.

use crate::report::{close, show};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        size: size_t,
    ) -> c_int;
    fn __select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn epoll_pwait2(
        fd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
}

const INVALID: timespec = timespec { tv_sec: 0, tv_nsec: -1 };
const SHORT: timespec = timespec { tv_sec: 0, tv_nsec: 1_000_000 };

pub(crate) fn run() {
    let mut pipe = [0; 2];
    // SAFETY: all pointers are literals or local variables of the right kind.
    unsafe {
        libc::pipe(pipe.as_mut_ptr());
        libc::write(pipe[1], c"x".as_ptr().cast(), 1);
        polls(pipe[0]);
        selects(pipe[0]);
        epolls(pipe[0]);
    }
    pipe.into_iter().for_each(close);
}

unsafe fn polls(fd: c_int) {
    let mut fds = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let fds = fds.as_mut_ptr();
    // SAFETY: see `run`.
    unsafe {
        show("poll", libc::poll(fds, 1, -1));
        println!("poll: {:?}", (*fds).revents);
        show("poll", libc::poll(null_mut(), 0, 1));
        show("__poll", __poll(fds, 1, 0));
        show("__poll_chk", __poll_chk(fds, 1, 0, 8));
        show("ppoll", libc::ppoll(fds, 1, &SHORT, null()));
        show("ppoll", libc::ppoll(fds, 1, &INVALID, null()));
        show("__ppoll_chk", __ppoll_chk(fds, 1, null(), null(), 8));
    }
}

unsafe fn selects(fd: c_int) {
    // SAFETY: see `run`.
    unsafe {
        let mut set: fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &mut set);
        let mut timeout = timeval { tv_sec: 1, tv_usec: 0 };
        show("select", libc::select(fd + 1, &mut set, null_mut(), null_mut(), &mut timeout));
        show("select", libc::select(-1, &mut set, null_mut(), null_mut(), &mut timeout));
        timeout = timeval { tv_sec: 0, tv_usec: 1000 };
        show("select", libc::select(0, null_mut(), null_mut(), null_mut(), &mut timeout));
        println!("select: {} {} left", timeout.tv_sec, timeout.tv_usec);
        show("__select", __select(fd + 1, &mut set, null_mut(), null_mut(), null_mut()));
        show("pselect", libc::pselect(fd + 1, &mut set, null_mut(), null_mut(), &SHORT, null()));
        show("pselect", libc::pselect(fd + 1, &mut set, null_mut(), null_mut(), &INVALID, null()));
    }
}

unsafe fn epolls(fd: c_int) {
    // SAFETY: see `run`.
    unsafe {
        let epfd = libc::epoll_create1(0);
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        show("epoll_ctl", libc::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event));
        show("epoll_ctl", libc::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event));
        event.u64 = 0;
        show("epoll_wait", libc::epoll_wait(epfd, &mut event, 1, -1));
        println!("epoll_wait: {}", { event.u64 });
        show("epoll_wait", libc::epoll_wait(epfd, &mut event, 0, 0));
        show("epoll_pwait", libc::epoll_pwait(epfd, &mut event, 1, 0, null()));
        show("epoll_pwait2", epoll_pwait2(epfd, &mut event, 1, &SHORT, null()));
        show("epoll_pwait2", epoll_pwait2(epfd, &mut event, 1, &INVALID, null()));
        close(epfd);
    }
}
