//! Names that glibc gives its functions beside those of the headers, and fortified ones, as compilers call them.

use libc::{c_int, c_void, iovec, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timespec};

unsafe extern "C" {
    pub(crate) fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    pub(crate) fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    // One of its names, which glibc has not there.
    #[cfg_attr(target_arch = "aarch64", link_name = "send")]
    pub(crate) fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    pub(crate) fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn __close(fd: c_int) -> c_int;
    pub(crate) fn __dup2(old: c_int, new: c_int) -> c_int;
    pub(crate) fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
    pub(crate) fn fcntl64(fd: c_int, command: c_int, ...) -> c_int;
    pub(crate) fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    pub(crate) fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int;
    pub(crate) fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const libc::sigset_t,
        size: size_t,
    ) -> c_int;
    pub(crate) fn __select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
    pub(crate) fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, size: size_t) -> ssize_t;
    pub(crate) fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        size: size_t,
        flags: c_int,
    ) -> ssize_t;
    pub(crate) fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        size: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    pub(crate) fn preadv64v2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t;
    pub(crate) fn pwritev64v2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t;
    pub(crate) fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    pub(crate) fn sockatmark(fd: c_int) -> c_int;
    pub(crate) fn closefrom(first: c_int);
    pub(crate) fn bindresvport(fd: c_int, addr: *mut libc::sockaddr_in) -> c_int;
}
