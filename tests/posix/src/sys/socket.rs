//! Socket calls: making, naming, connecting, options.

use std::ptr;

use super::{Addr, Ret};

pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Ret {
    call!(libc::socket(domain, kind, protocol))
}

pub(crate) fn socketpair(domain: i32, kind: i32) -> (Ret, [i32; 2]) {
    let mut fds = [-1; 2];
    let result = call!(libc::socketpair(domain, kind, 0, fds.as_mut_ptr()));
    (result, fds)
}

pub(crate) fn bind(fd: i32, addr: &Addr) -> Ret {
    call!(libc::bind(fd, addr.ptr(), addr.len))
}

pub(crate) fn bind_raw(fd: i32, addr: *const libc::sockaddr, len: u32) -> Ret {
    call!(libc::bind(fd, addr, len))
}

pub(crate) fn listen(fd: i32, backlog: i32) -> Ret {
    call!(libc::listen(fd, backlog))
}

pub(crate) fn connect(fd: i32, addr: &Addr) -> Ret {
    call!(libc::connect(fd, addr.ptr(), addr.len))
}

pub(crate) fn connect_raw(fd: i32, addr: *const libc::sockaddr, len: u32) -> Ret {
    call!(libc::connect(fd, addr, len))
}

/// `accept` without an address.
pub(crate) fn accept(fd: i32) -> Ret {
    call!(libc::accept(fd, ptr::null_mut(), ptr::null_mut()))
}

/// `accept` with an address.
pub(crate) fn accept_addr(fd: i32) -> (Ret, Addr) {
    let mut addr = Addr::empty();
    let result = call!(libc::accept(fd, addr.ptr_mut(), &raw mut addr.len));
    (result, addr)
}

pub(crate) fn accept_raw(fd: i32, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> Ret {
    call!(libc::accept(fd, addr, len))
}

pub(crate) fn accept4(fd: i32, flags: i32) -> Ret {
    call!(libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags))
}

pub(crate) fn getsockname(fd: i32) -> (Ret, Addr) {
    let mut addr = Addr::empty();
    let result = call!(libc::getsockname(fd, addr.ptr_mut(), &raw mut addr.len));
    (result, addr)
}

pub(crate) fn getpeername(fd: i32) -> (Ret, Addr) {
    let mut addr = Addr::empty();
    let result = call!(libc::getpeername(fd, addr.ptr_mut(), &raw mut addr.len));
    (result, addr)
}

pub(crate) fn getsockname_raw(fd: i32, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> Ret {
    call!(libc::getsockname(fd, addr, len))
}

pub(crate) fn getpeername_raw(fd: i32, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> Ret {
    call!(libc::getpeername(fd, addr, len))
}

/// Prints the local address of a socket.
pub(crate) fn show_sockname(label: &str, fd: i32) -> Addr {
    let (result, addr) = getsockname(fd);
    show_addr(label, "getsockname", result, addr)
}

/// Prints the address of a socket's peer.
pub(crate) fn show_peername(label: &str, fd: i32) -> Addr {
    let (result, addr) = getpeername(fd);
    show_addr(label, "getpeername", result, addr)
}

/// Prints what a call that gives an address returned.
pub(crate) fn show_addr(label: &str, call: &str, result: Ret, addr: Addr) -> Addr {
    match result.ok() {
        true => say!("{label}: {call} = 0 {addr} len {}", addr.len),
        false => say!("{label}: {call} = {result}"),
    }
    addr
}

pub(crate) fn shutdown(fd: i32, how: i32) -> Ret {
    call!(libc::shutdown(fd, how))
}

pub(crate) fn set_bytes(fd: i32, level: i32, name: i32, value: &[u8]) -> Ret {
    call!(libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as libc::socklen_t))
}

pub(crate) fn set_raw(fd: i32, level: i32, name: i32, value: *const libc::c_void, len: u32) -> Ret {
    call!(libc::setsockopt(fd, level, name, value, len))
}

pub(crate) fn set_int(fd: i32, level: i32, name: i32, value: i32) -> Ret {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// `getsockopt` into `value`; the second result is the length that came back.
pub(crate) fn get_bytes(fd: i32, level: i32, name: i32, value: &mut [u8]) -> (Ret, usize) {
    let mut len = value.len() as libc::socklen_t;
    let result = call!(libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len));
    (result, len as usize)
}

pub(crate) fn get_raw(fd: i32, level: i32, name: i32, value: *mut libc::c_void, len: *mut u32) -> Ret {
    call!(libc::getsockopt(fd, level, name, value, len))
}

pub(crate) fn get_int(fd: i32, level: i32, name: i32) -> (Ret, i32) {
    let mut bytes = [0; 4];
    let (result, _) = get_bytes(fd, level, name, &mut bytes);
    (result, i32::from_ne_bytes(bytes))
}

/// Prints an integer option.
pub(crate) fn show_option(label: &str, fd: i32, level: i32, name: i32) -> i32 {
    let (result, value) = get_int(fd, level, name);
    match result.ok() {
        true => say!("{label} is {value}"),
        false => say!("getsockopt {label} = {result}"),
    }
    value
}

/// Takes and prints the pending error of a socket.
pub(crate) fn show_so_error(label: &str, fd: i32) {
    let (result, value) = get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    match (result.ok(), value) {
        (false, _) => say!("{label}: SO_ERROR = {result}"),
        (true, 0) => say!("{label}: SO_ERROR is 0"),
        (true, errno) => say!("{label}: SO_ERROR is {}", super::errno_name(errno)),
    }
}

/// `tcpi_state`, the first byte of struct tcp_info.
pub(crate) fn tcp_info_state(fd: i32) -> (Ret, u8) {
    let mut info = [0; 104];
    let (result, _) = get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    (result, info[0])
}

/// How many connections wait for accept at a listener, and how many may: `tcpi_unacked` and `tcpi_sacked`.
pub(crate) fn tcp_info_queue(fd: i32) -> (u32, u32) {
    let mut info = [0; 104];
    get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
    let word = |at: usize| info[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    (word(24), word(28))
}

/// `SO_LINGER`.
pub(crate) fn set_linger(fd: i32, on: i32, seconds: i32) -> Ret {
    let value = [on.to_ne_bytes(), seconds.to_ne_bytes()].concat();
    set_bytes(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value)
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`.
pub(crate) fn set_timeout(fd: i32, name: i32, milliseconds: i64) -> Ret {
    let value = [(milliseconds / 1000).to_ne_bytes(), (milliseconds % 1000 * 1000).to_ne_bytes()].concat();
    set_bytes(fd, libc::SOL_SOCKET, name, &value)
}
