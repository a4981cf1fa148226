//! Life, names and options of a kernel TCP connection over loopback.

use crate::report::{close, show, show_fd, show_success};
use libc::{AF_INET, SOCK_STREAM, c_char, c_int, sockaddr, sockaddr_in, socklen_t};

unsafe extern "C" {
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn bindresvport(fd: c_int, addr: *mut sockaddr_in) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, found: *mut libc::stat) -> c_int;
    fn __fxstat64(version: c_int, fd: c_int, found: *mut libc::stat) -> c_int;
    fn __fxstatat(v: c_int, dir: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    fn __fxstatat64(v: c_int, dir: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int)
    -> c_int;
}

const LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

/// A connected pair of TCP sockets; the caller closes them.
pub(crate) fn tcp_pair() -> (c_int, c_int) {
    // SAFETY: all pointers are to local variables of the right kind.
    unsafe {
        let listener = libc::socket(AF_INET, SOCK_STREAM, 0);
        let addr = listen(listener);
        let client = libc::socket(AF_INET, SOCK_STREAM, 0);
        libc::connect(client, (&raw const addr).cast(), LEN);
        let server = libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut());
        close(listener);
        (client, server)
    }
}

/// Binds to loopback and listens.
unsafe fn listen(listener: c_int) -> sockaddr_in {
    // SAFETY: as above.
    unsafe {
        let mut addr: sockaddr_in = std::mem::zeroed();
        addr.sin_family = AF_INET as u16;
        addr.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
        show("bind", libc::bind(listener, (&raw const addr).cast(), LEN));
        show("listen", libc::listen(listener, 5));
        let mut len = LEN;
        show("getsockname", libc::getsockname(listener, (&raw mut addr).cast(), &mut len));
        addr
    }
}

pub(crate) fn run() {
    // SAFETY: as above.
    unsafe {
        show_fd("socket", libc::socket(AF_INET, libc::SOCK_DGRAM, 0));
        show_fd("socket", libc::socket(-1, SOCK_STREAM, 0));
        let listener = show("socket", libc::socket(AF_INET, SOCK_STREAM, 0));
        let addr = listen(listener);
        let client = libc::socket(AF_INET, SOCK_STREAM, 0);
        show("connect", libc::connect(client, (&raw const addr).cast(), LEN));
        show("__connect", __connect(client, (&raw const addr).cast(), LEN));
        let mut peer = addr;
        let mut len = LEN;
        let server = show("accept", libc::accept(listener, (&raw mut peer).cast(), &mut len));
        println!("accept: {len} bytes of address");
        let second = libc::socket(AF_INET, SOCK_STREAM, 0);
        libc::connect(second, (&raw const addr).cast(), LEN);
        show_fd("accept4", libc::accept4(listener, (&raw mut peer).cast(), &mut len, libc::SOCK_NONBLOCK));
        show("accept4", libc::accept4(listener, (&raw mut peer).cast(), &mut len, -1));
        show("getpeername", libc::getpeername(server, (&raw mut peer).cast(), &mut len));
        show("getpeername", libc::getpeername(listener, (&raw mut peer).cast(), &mut len));
        options(client);
        inodes(client);
        show("sockatmark", sockatmark(client));
        show("shutdown", libc::shutdown(client, libc::SHUT_WR));
        let unbound = libc::socket(AF_INET, SOCK_STREAM, 0);
        show_success("bindresvport", bindresvport(unbound, std::ptr::null_mut()));
        [listener, client, server, second, unbound].into_iter().for_each(close);
    }
}

unsafe fn inodes(fd: c_int) {
    let empty = libc::AT_EMPTY_PATH;
    // SAFETY: as above.
    unsafe {
        let (mut found, mut more): (libc::stat, libc::statx) = std::mem::zeroed();
        let (path, at) = (c"".as_ptr(), &raw mut found);
        show("fstat", libc::fstat(fd, at));
        show("fstat64", libc::fstat64(fd, at.cast()));
        show("__fxstat", __fxstat(1, fd, at));
        show("__fxstat64", __fxstat64(1, fd, at));
        show("fstatat", libc::fstatat(fd, path, at, empty));
        show("fstatat64", libc::fstatat64(fd, path, at.cast(), empty));
        show("__fxstatat", __fxstatat(1, fd, path, at, empty));
        show("__fxstatat64", __fxstatat64(1, fd, path, at, empty));
        show("statx", libc::statx(fd, path, empty, libc::STATX_INO, &raw mut more));
        show("fchmod", libc::fchmod(fd, 0o600));
        show("fchown", libc::fchown(fd, u32::MAX, u32::MAX));
    }
}

unsafe fn options(fd: c_int) {
    let (mut value, mut len) = (1, 4);
    let (tcp, nodelay) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    // SAFETY: as above.
    unsafe {
        show("setsockopt", libc::setsockopt(fd, tcp, nodelay, (&raw const value).cast(), 4));
        show("getsockopt", libc::getsockopt(fd, tcp, nodelay, (&raw mut value).cast(), &mut len));
        println!("getsockopt: value {value}, {len} bytes");
        show("ioctl", libc::ioctl(fd, libc::FIONREAD, &raw mut value));
        println!("ioctl: value {value}");
        show("ioctl", libc::ioctl(fd, libc::TCGETS, &raw mut value));
    }
}
