//! The calls of the matrix. Each gives what it returned as text.

use super::states::Made;
use crate::sys::*;

pub(super) type Call = fn(&Made) -> String;

pub(super) const CALLS: &[(&str, Call)] = &[
    ("nothing", |_| "-".to_owned()),
    ("send", |made| send(made.fd, b"x", 0).to_string()),
    ("send nothing", |made| send(made.fd, b"", 0).to_string()),
    ("send NOSIGNAL", |made| send(made.fd, b"x", libc::MSG_NOSIGNAL).to_string()),
    ("send DONTWAIT", |made| send(made.fd, b"x", libc::MSG_DONTWAIT).to_string()),
    ("send EOR", |made| send(made.fd, b"x", libc::MSG_EOR).to_string()),
    ("send OOB", |made| send(made.fd, b"xy", libc::MSG_OOB).to_string()),
    ("send from null", |made| send_raw(made.fd, std::ptr::null(), 5).to_string()),
    ("sendto", |made| sendto(made.fd, b"x", 0, Some(&made.elsewhere)).to_string()),
    ("sendmsg", |made| sendmsg(made.fd, &[b"x", b"y"], 0).to_string()),
    ("sendmsg of nothing", |made| sendmsg(made.fd, &[], 0).to_string()),
    ("sendmmsg", |made| mmsg(sendmmsg(made.fd, &[b"x", b"yz"], 0))),
    ("write", |made| write(made.fd, b"x").to_string()),
    ("write nothing", |made| write(made.fd, b"").to_string()),
    ("writev", |made| writev(made.fd, &[b"x", b"", b"y"]).to_string()),
    ("pwrite", |made| pwrite(made.fd, b"x", 0).to_string()),
    ("sendfile", |made| through(temporary_file(b"file"), |file| sendfile(made.fd, file, 4))),
    ("splice out", splice_out),
    ("recv", |made| received(made.fd, 4, 0)),
    ("recv nothing", |made| received(made.fd, 0, 0)),
    ("recv PEEK", |made| received(made.fd, 64, libc::MSG_PEEK)),
    ("recv DONTWAIT", |made| received(made.fd, 4, libc::MSG_DONTWAIT)),
    ("recv WAITALL", |made| received(made.fd, 7, libc::MSG_WAITALL)),
    ("recv TRUNC", |made| recv(made.fd, &mut [0; 4], libc::MSG_TRUNC).to_string()),
    ("recv OOB", |made| received(made.fd, 4, libc::MSG_OOB)),
    ("recv OOB PEEK", |made| received(made.fd, 4, libc::MSG_OOB | libc::MSG_PEEK)),
    ("recv PEEK WAITALL", |made| received(made.fd, 7, libc::MSG_PEEK | libc::MSG_WAITALL)),
    ("recv PEEK TRUNC", |made| recv(made.fd, &mut [0; 4], libc::MSG_PEEK | libc::MSG_TRUNC).to_string()),
    ("recv ERRQUEUE", |made| received(made.fd, 4, libc::MSG_ERRQUEUE)),
    ("recv to null", |made| recv_raw(made.fd, std::ptr::null_mut(), 5).to_string()),
    ("recvfrom", receive_from),
    ("recvmsg", receive_message),
    ("recvmmsg", |made| {
        let (result, parts) = recvmmsg(made.fd, 2, 4, libc::MSG_DONTWAIT);
        format!("{result} {parts:?}")
    }),
    ("read", |made| {
        let mut buffer = [0; 64];
        let result = read(made.fd, &mut buffer);
        bytes(result, &buffer)
    }),
    ("read nothing", |made| read(made.fd, &mut []).to_string()),
    ("readv", |made| {
        let mut parts = vec![vec![0; 3], vec![0; 4]];
        format!("{} {:?}", readv(made.fd, &mut parts), parts.concat())
    }),
    ("pread", |made| pread(made.fd, &mut [0; 4], 0).to_string()),
    ("splice in", splice_in),
    ("bind", |made| bind(made.fd, &Addr::local(0)).to_string()),
    ("listen", |made| listen(made.fd, 4).to_string()),
    ("connect", |made| connect(made.fd, &made.elsewhere).to_string()),
    ("connect UNSPEC", |made| connect(made.fd, &Addr::unspec()).to_string()),
    ("connect IPv6", |made| connect(made.fd, &Addr::local6(9)).to_string()),
    ("connect, short", |made| connect(made.fd, &made.elsewhere.with_len(8)).to_string()),
    ("connect port 0", |made| connect(made.fd, &Addr::v4([255, 255, 255, 255], 0)).to_string()),
    ("accept", |made| new_fd(accept(made.fd))),
    ("accept4", |made| new_fd(accept4(made.fd, libc::SOCK_CLOEXEC))),
    ("accept4, bad flag", |made| new_fd(accept4(made.fd, 1))),
    ("accept, null length", |made| {
        new_fd(accept_raw(made.fd, Addr::empty().ptr_mut(), std::ptr::null_mut()))
    }),
    ("getsockname", |made| name(getsockname(made.fd))),
    ("getpeername", |made| name(getpeername(made.fd))),
    ("shutdown RD", |made| shutdown(made.fd, libc::SHUT_RD).to_string()),
    ("shutdown WR", |made| shutdown(made.fd, libc::SHUT_WR).to_string()),
    ("shutdown RDWR", |made| shutdown(made.fd, libc::SHUT_RDWR).to_string()),
    ("shutdown 3", |made| shutdown(made.fd, 3).to_string()),
    ("SO_ACCEPTCONN", |made| option(made.fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)),
    ("SO_ERROR", |made| option(made.fd, libc::SOL_SOCKET, libc::SO_ERROR)),
    ("TCP_INFO", |made| {
        // Whether the peer's kernel has acknowledged the end already depends on its timers.
        let (result, state) = tcp_info_state(made.fd);
        format!("{result} {}", tcp_state(state).trim_end_matches(['1', '2']))
    }),
    ("SO_REUSEADDR", |made| set_int(made.fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).to_string()),
    ("TCP_NODELAY", |made| set_int(made.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).to_string()),
    ("SO_OOBINLINE", |made| set_int(made.fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).to_string()),
    ("SO_RCVLOWAT", |made| set_int(made.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 20).to_string()),
    ("SO_LINGER", |made| set_linger(made.fd, 1, 0).to_string()),
    ("SO_ZEROCOPY", |made| set_int(made.fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1).to_string()),
    ("IP_TRANSPARENT off", |made| set_int(made.fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 0).to_string()),
    ("IPV6_V6ONLY", |made| set_int(made.fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).to_string()),
    ("FIONREAD", |made| value(ioctl_int(made.fd, libc::FIONREAD, -1))),
    ("SIOCOUTQ", |made| ioctl_int(made.fd, libc::TIOCOUTQ, -1).0.to_string()),
    ("SIOCATMARK", |made| value(ioctl_int(made.fd, 0x8905, -1))),
    ("FIOASYNC", |made| value(ioctl_int(made.fd, libc::FIOASYNC, 1))),
    ("F_SETOWN", |made| fcntl(made.fd, libc::F_SETOWN, getpid()).to_string()),
    ("F_GETFL", |made| status_flags(made.fd)),
    ("lseek", |made| lseek(made.fd, 0, libc::SEEK_CUR).to_string()),
    ("fsync", |made| fsync(made.fd).to_string()),
    ("ftruncate", |made| ftruncate(made.fd, 0).to_string()),
];

/// The result, and the bytes that came.
pub(super) fn bytes(result: Ret, buffer: &[u8]) -> String {
    match result.value > 0 {
        true => format!("{result} {}", text(&buffer[..result.count().min(buffer.len())])),
        false => result.to_string(),
    }
}

fn received(fd: i32, len: usize, flags: i32) -> String {
    let mut buffer = vec![0; len];
    let result = recv(fd, &mut buffer, flags);
    bytes(result, &buffer)
}

fn receive_from(made: &Made) -> String {
    let mut buffer = [0; 64];
    let (result, addr) = recvfrom(made.fd, &mut buffer, 0);
    format!("{} len {}", bytes(result, &buffer), addr.len)
}

fn receive_message(made: &Made) -> String {
    let got = recvmsg(made.fd, &[4, 4], 0);
    match got.result.ok() {
        true => format!("{} name {} flags {}", got.result, got.name_len, msg_flags(got.flags)),
        false => got.result.to_string(),
    }
}

pub(super) fn mmsg((result, lengths): (Ret, Vec<u32>)) -> String {
    format!("{result} {lengths:?}")
}

/// A new descriptor, closed again, or the error.
fn new_fd(result: Ret) -> String {
    match result.ok() {
        true => {
            close(result.fd());
            "fd".to_owned()
        }
        false => result.to_string(),
    }
}

/// The address without its port, which other subjects look at.
fn name((result, addr): (Ret, Addr)) -> String {
    match result.ok() {
        true => format!("{} len {}", addr.to_string().trim_end_matches(['0', '?']), addr.len),
        false => result.to_string(),
    }
}

fn option(fd: i32, level: i32, name: i32) -> String {
    value(get_int(fd, level, name))
}

fn value((result, value): (Ret, i32)) -> String {
    format!("{result} {value}")
}

/// Makes a call with a descriptor, which is closed afterwards.
fn through(fd: i32, call: impl FnOnce(i32) -> Ret) -> String {
    let result = call(fd);
    close(fd);
    result.to_string()
}

fn splice_out(made: &Made) -> String {
    let (read_end, write_end) = pipe(0);
    write(write_end, b"pipe");
    let result = through(read_end, |read_end| splice(read_end, made.fd, 4, 0));
    close(write_end);
    result
}

fn splice_in(made: &Made) -> String {
    let (read_end, write_end) = pipe(0);
    let result = through(write_end, |write_end| splice(made.fd, write_end, 4, 0));
    close(read_end);
    result
}
