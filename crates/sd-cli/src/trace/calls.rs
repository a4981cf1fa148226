//! Which calls are traced, and how they are written down.

use super::probes::Begun;
use serde::Serialize;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A descriptor; the first one decides whether the call is about a socket.
    Fd,
    Int,
    Len,
    Pointer,
    Flags,
    /// A pointer to one, always the second argument.
    Address,
}

/// A traced call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    arguments: &'static [Kind],
    /// Its result is a new descriptor.
    pub(super) makes_fd: bool,
}

impl Call {
    /// Whether it is about one descriptor, so that it is left out for one that is no socket.
    pub(super) fn fd(&self, registers: &[u64; 6]) -> Option<i32> {
        (self.arguments.first() == Some(&Kind::Fd)).then_some(registers[0] as i32)
    }

    /// Whether what its second argument points to is shown.
    pub(super) fn has_address(&self) -> bool {
        self.arguments.get(1) == Some(&Kind::Address)
    }
}

const fn call(name: &'static str, arguments: &'static [Kind]) -> Call {
    Call { name, arguments, makes_fd: false }
}

const fn maker(name: &'static str, arguments: &'static [Kind]) -> Call {
    Call { name, arguments, makes_fd: true }
}

use Kind::{Address, Fd, Flags, Int, Len, Pointer};

/// All of them. What forks, executes or never returns is not among them: a probe at the return lies on the stack.
const CALLS: &[Call] = &[
    maker("socket", &[Int, Flags, Int]),
    call("bind", &[Fd, Address, Len]),
    call("listen", &[Fd, Int]),
    maker("accept", &[Fd, Pointer, Pointer]),
    maker("accept4", &[Fd, Pointer, Pointer, Flags]),
    call("connect", &[Fd, Address, Len]),
    call("shutdown", &[Fd, Int]),
    call("close", &[Fd]),
    maker("dup", &[Fd]),
    maker("dup2", &[Fd, Fd]),
    maker("dup3", &[Fd, Fd, Flags]),
    call("read", &[Fd, Pointer, Len]),
    call("readv", &[Fd, Pointer, Int]),
    call("recv", &[Fd, Pointer, Len, Flags]),
    call("recvfrom", &[Fd, Pointer, Len, Flags, Pointer, Pointer]),
    call("recvmsg", &[Fd, Pointer, Flags]),
    call("write", &[Fd, Pointer, Len]),
    call("writev", &[Fd, Pointer, Int]),
    call("send", &[Fd, Pointer, Len, Flags]),
    call("sendto", &[Fd, Pointer, Len, Flags, Pointer, Len]),
    call("sendmsg", &[Fd, Pointer, Flags]),
    call("sendfile", &[Fd, Fd, Pointer, Len]),
    call("setsockopt", &[Fd, Int, Int, Pointer, Len]),
    call("getsockopt", &[Fd, Int, Int, Pointer, Pointer]),
    call("getsockname", &[Fd, Pointer, Pointer]),
    call("getpeername", &[Fd, Pointer, Pointer]),
    call("fcntl", &[Fd, Int, Flags]),
    call("ioctl", &[Fd, Flags, Pointer]),
    call("poll", &[Pointer, Len, Int]),
    call("ppoll", &[Pointer, Len, Pointer, Pointer]),
    call("select", &[Int, Pointer, Pointer, Pointer, Pointer]),
    call("pselect", &[Int, Pointer, Pointer, Pointer, Pointer, Pointer]),
    call("epoll_wait", &[Int, Pointer, Int, Int]),
    call("epoll_pwait", &[Int, Pointer, Int, Int, Pointer]),
    call("epoll_ctl", &[Int, Int, Int, Pointer]),
];

/// The call behind a symbol of the library's: some have names with underscores, and for large files, too.
pub(super) fn of_symbol(symbol: &str) -> Option<usize> {
    let name = symbol.strip_prefix("__").unwrap_or(symbol);
    let name = name.strip_suffix("64").unwrap_or(name);
    CALLS.iter().position(|call| call.name == name)
}

/// The call of that number.
pub(super) fn numbered(number: usize) -> Option<&'static Call> {
    CALLS.get(number)
}

/// One that has returned.
#[derive(Serialize, Debug, PartialEq)]
pub(super) struct Done {
    /// CLOCK_MONOTONIC.
    pub(super) at_ns: u64,
    pub(super) tid: u32,
    pub(super) call: &'static str,
    pub(super) arguments: Vec<String>,
    pub(super) result: i64,
    pub(super) took_ns: u64,
}

impl Done {
    /// From what was seen where it began and where it returned.
    pub(super) fn new(
        call: &'static Call,
        (at_ns, tid): (u64, u32),
        begun: &Begun,
        (result, end_ns): (u64, u64),
    ) -> Done {
        let write = |(kind, value): (&Kind, &u64)| match kind {
            Kind::Fd | Kind::Int => (*value as i32).to_string(),
            Kind::Len => value.to_string(),
            Kind::Flags | Kind::Pointer => format!("{value:#x}"),
            Kind::Address => address(begun).unwrap_or_else(|| format!("{value:#x}")),
        };
        let arguments = call.arguments.iter().zip(&begun.registers).map(write).collect();
        // Most return an int, of which the upper half of the register says nothing.
        let is_long = ["read", "write", "send", "recv"].iter().any(|start| call.name.starts_with(start));
        let result = if is_long { result as i64 } else { i64::from(result as i32) };
        let took_ns = end_ns.saturating_sub(at_ns);
        Done { at_ns, tid, call: call.name, arguments, result, took_ns }
    }

    /// In the manner of strace(1).
    pub(super) fn line(&self) -> String {
        let us = self.took_ns as f64 / 1e3;
        format!("[{}] {}({}) = {} <{us:.1} us>", self.tid, self.call, self.arguments.join(", "), self.result)
    }
}

/// An address and port, of a family that has these.
fn address(begun: &Begun) -> Option<String> {
    let bytes: Vec<u8> = begun.address.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Some(format!("{}:{port}", Ipv4Addr::from(*rest.first_chunk::<4>()?))),
        libc::AF_INET6 => {
            // Behind the flow label.
            let address = Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?);
            Some(format!("[{address}]:{port}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols() {
        let name = |symbol| of_symbol(symbol).and_then(numbered).map(|call| call.name);
        assert_eq!(
            [name("__send"), name("sendfile64"), name("recv")],
            [Some("send"), Some("sendfile"), Some("recv")]
        );
        assert_eq!([name("fork"), name("__recv_chk")], [None, None]);
    }

    #[test]
    fn lines() {
        let call = |name| of_symbol(name).and_then(numbered).unwrap();
        let begun = |registers| Begun { registers, address: [0; 4] };
        let done = Done::new(call("send"), (1000, 7), &begun([5, 4096, 8, 0x4000, 0, 0]), (8, 2500));
        assert_eq!(done.line(), "[7] send(5, 0x1000, 8, 0x4000) = 8 <1.5 us>");
        let failed = Done::new(call("connect"), (0, 7), &begun([5, 16, 16, 0, 0, 0]), (0xffff_ffff, 0));
        assert_eq!(failed.line(), "[7] connect(5, 0x10, 16) = -1 <0.0 us>");
        assert_eq!((failed.result, call("connect").fd(&[5, 0, 0, 0, 0, 0])), (-1, Some(5)));
        assert_eq!(call("poll").fd(&[5, 0, 0, 0, 0, 0]), None);
    }
    #[test]
    fn addresses() {
        let shown = |bytes: &[u8]| {
            let mut all = [0; 32];
            all[..bytes.len()].copy_from_slice(bytes);
            let word = |at: usize| u64::from_ne_bytes(all[8 * at..][..8].try_into().unwrap());
            address(&Begun { registers: [0; 6], address: [word(0), word(1), word(2), word(3)] })
        };
        let [v4, v6] = [libc::AF_INET, libc::AF_INET6].map(|family| (family as u16).to_ne_bytes());
        assert_eq!(shown(&[&v4[..], &[0, 80, 127, 0, 0, 1]].concat()).as_deref(), Some("127.0.0.1:80"));
        let one = [&v6[..], &[1, 0, 9, 9, 9, 9], &[0; 15], &[1]].concat();
        assert_eq!(shown(&one).as_deref(), Some("[::1]:256"));
        assert_eq!(shown(&[]), None);
    }
}
