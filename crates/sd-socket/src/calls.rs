//! The calls that the hook table forwards, with libc's arguments.
//!
//! `Outcome::Kernel` always means: call the real function with the same arguments.

use crate::Outcome;
use libc::{c_int, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// Whether `fd` may be one of ours; a nanosecond. When false every call is the kernel's.
#[inline(always)]
pub fn is_ours(_fd: c_int) -> bool { false }

pub fn socket(_domain: c_int, _ty: c_int, _protocol: c_int) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn bind(_fd: c_int, _addr: *const sockaddr, _len: socklen_t) -> Outcome<c_int> { Outcome::Kernel }
pub fn listen(_fd: c_int, _backlog: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// accept and accept4 (accept passes flags 0).
pub unsafe fn accept4(_fd: c_int, _addr: *mut sockaddr, _len: *mut socklen_t, _flags: c_int) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn connect(_fd: c_int, _addr: *const sockaddr, _len: socklen_t) -> Outcome<c_int> { Outcome::Kernel }
pub fn shutdown(_fd: c_int, _how: c_int) -> Outcome<c_int> { Outcome::Kernel }
pub fn close(_fd: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// close_range and closefrom (last = u32::MAX); never Kernel once the process has sockets of ours.
pub fn close_range(_first: u32, _last: u32, _flags: c_int) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn recv(_fd: c_int, _buf: *mut c_void, _len: size_t, _flags: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn send(_fd: c_int, _buf: *const c_void, _len: size_t, _flags: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn recvfrom(_fd: c_int, _buf: *mut c_void, _len: size_t, _flags: c_int, _addr: *mut sockaddr, _addr_len: *mut socklen_t) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn sendto(_fd: c_int, _buf: *const c_void, _len: size_t, _flags: c_int, _addr: *const sockaddr, _addr_len: socklen_t) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn read(_fd: c_int, _buf: *mut c_void, _len: size_t) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn write(_fd: c_int, _buf: *const c_void, _len: size_t) -> Outcome<ssize_t> { Outcome::Kernel }
/// readv, and preadv2 with offset -1.
pub unsafe fn readv(_fd: c_int, _iov: *const iovec, _count: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
/// writev, and pwritev2 with offset -1.
pub unsafe fn writev(_fd: c_int, _iov: *const iovec, _count: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn recvmsg(_fd: c_int, _msg: *mut msghdr, _flags: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn sendmsg(_fd: c_int, _msg: *const msghdr, _flags: c_int) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn recvmmsg(_fd: c_int, _msgs: *mut mmsghdr, _count: u32, _flags: c_int, _timeout: *mut timespec) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn sendmmsg(_fd: c_int, _msgs: *mut mmsghdr, _count: u32, _flags: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// Either descriptor may be ours.
pub unsafe fn sendfile(_out_fd: c_int, _in_fd: c_int, _offset: *mut off_t, _count: size_t) -> Outcome<ssize_t> { Outcome::Kernel }
/// Either descriptor may be ours.
pub unsafe fn splice(_fd_in: c_int, _off_in: *mut off_t, _fd_out: c_int, _off_out: *mut off_t, _len: size_t, _flags: u32) -> Outcome<ssize_t> { Outcome::Kernel }
pub unsafe fn getsockopt(_fd: c_int, _level: c_int, _name: c_int, _value: *mut c_void, _len: *mut socklen_t) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn setsockopt(_fd: c_int, _level: c_int, _name: c_int, _value: *const c_void, _len: socklen_t) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn getsockname(_fd: c_int, _addr: *mut sockaddr, _len: *mut socklen_t) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn getpeername(_fd: c_int, _addr: *mut sockaddr, _len: *mut socklen_t) -> Outcome<c_int> { Outcome::Kernel }
/// fcntl and fcntl64, including F_DUPFD and F_DUPFD_CLOEXEC.
pub unsafe fn fcntl(_fd: c_int, _cmd: c_int, _arg: c_ulong) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn ioctl(_fd: c_int, _request: c_ulong, _arg: c_ulong) -> Outcome<c_int> { Outcome::Kernel }
pub fn dup(_fd: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// Also when only `new` is ours.
pub fn dup2(_old: c_int, _new: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// Also when only `new` is ours.
pub fn dup3(_old: c_int, _new: c_int, _flags: c_int) -> Outcome<c_int> { Outcome::Kernel }
/// poll and ppoll: timeout in ns (None = for ever), optional signal mask.
pub unsafe fn poll(_fds: *mut pollfd, _count: nfds_t, _timeout_ns: Option<u64>, _mask: *const sigset_t) -> Outcome<c_int> { Outcome::Kernel }
/// select and pselect; the hook writes select's remaining time back from `remaining_ns` (set when Done).
pub unsafe fn select(_nfds: c_int, _read: *mut fd_set, _write: *mut fd_set, _except: *mut fd_set, _timeout_ns: Option<u64>, _mask: *const sigset_t, _remaining_ns: &mut u64) -> Outcome<c_int> { Outcome::Kernel }
pub unsafe fn epoll_ctl(_epfd: c_int, _op: c_int, _fd: c_int, _event: *mut epoll_event) -> Outcome<c_int> { Outcome::Kernel }
/// epoll_wait, epoll_pwait, epoll_pwait2.
pub unsafe fn epoll_wait(_epfd: c_int, _events: *mut epoll_event, _max: c_int, _timeout_ns: Option<u64>, _mask: *const sigset_t) -> Outcome<c_int> { Outcome::Kernel }
/// After the kernel made an epoll instance: returns the same number.
pub fn epoll_created(fd: c_int) -> c_int { fd }
/// After the kernel made any other descriptor (open, pipe, eventfd, accept on a kernel listener, ...):
/// returns the number to give to the program (a lower recycled one, perhaps). Negative passes through.
pub fn created(fd: c_int) -> c_int { fd }

/// To be called just before fork; then exactly one of the two below, on the same thread.
pub fn fork_prepare() {}
/// In the parent (child = pid, or negative when fork failed).
pub fn fork_parent(_child: c_int) {}
/// In the child.
pub fn fork_child() {}
/// Before execve and friends: what a new program must not find.
pub fn exec_prepare() {}
/// Once, from the library's constructor.
pub fn start() {}
