//! Socket addresses: between sockaddr structures, [`Ip`] values and endpoint words.

use core::sync::atomic::{AtomicU64, Ordering};
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use sd_proto::Ip;
use sd_sys::{Errno, user};

/// An address and port, host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) ip: Ip,
    pub(crate) port: u16,
}

/// Reads a caller's sockaddr. `None` when it is not one of TCP's, or too short.
///
/// # Safety
/// `addr` must point to `len` readable bytes, or be an address that can be no memory.
pub(crate) unsafe fn parse(addr: *const sockaddr, len: socklen_t) -> Option<(i32, Name)> {
    // SAFETY: as the caller says.
    let family = unsafe { family(addr, len) }?;
    match family {
        AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: long enough, read unaligned.
            let sin = unsafe { (addr as *const sockaddr_in).read_unaligned() };
            let ip = Ip::v4(sin.sin_addr.s_addr.to_ne_bytes());
            Some((family, Name { ip, port: u16::from_be(sin.sin_port) }))
        }
        // Linux accepts sockaddr_in6 without the scope (SIN6_LEN_RFC2133).
        AF_INET6 if len as usize >= 24 => {
            // SAFETY: the first 24 bytes are readable.
            let (port, ip) = unsafe {
                ((addr as *const u8).add(2) as *const [u8; 2], (addr as *const u8).add(8) as *const [u8; 16])
            };
            // SAFETY: as above.
            let (port, ip) = unsafe { (port.read_unaligned(), ip.read_unaligned()) };
            Some((family, Name { ip: Ip(ip), port: u16::from_be_bytes(port) }))
        }
        _ => None,
    }
}

/// What the kernel refuses of a caller's address before it looks at the socket.
pub(crate) fn check(addr: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    is_readable(addr, len)?;
    if len < 2 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// What it refuses of an address that nobody will look at.
pub(crate) fn is_readable(addr: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    match len as usize {
        len if len > size_of::<sockaddr_storage>() => Err(Errno::EINVAL),
        len if !user::seems_readable(addr, len) => Err(Errno::EFAULT),
        _ => Ok(()),
    }
}

/// The address family that a caller names, if it can be read.
///
/// # Safety
/// As `parse`.
pub(crate) unsafe fn family(addr: *const sockaddr, len: socklen_t) -> Option<i32> {
    if (len as usize) < 2 || !user::seems_readable(addr, 2) {
        return None;
    }
    // SAFETY: at least two bytes are readable.
    Some(i32::from(unsafe { (addr as *const u16).read_unaligned() }))
}

/// Writes a name as Linux does: truncated to `*len`, with the full length stored in `*len`.
///
/// # Safety
/// `addr` must point to `*len` writable bytes and `len` be valid, or be addresses that can be no memory.
pub(crate) unsafe fn write(
    domain: i32,
    name: Name,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if !user::seems_writable(len, size_of::<socklen_t>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: valid by contract.
    let room = unsafe { len.read_unaligned() };
    if room as i32 <= -1 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0u8; 28];
    let full = encode(domain, name, &mut bytes);
    if !user::seems_writable(addr, full.min(room as usize)) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: at most `room` bytes are written to the caller's buffer.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, full.min(room as usize));
        len.write_unaligned(full as socklen_t);
    }
    Ok(())
}

/// The sockaddr's bytes for a socket of `domain`; their number.
pub(crate) fn encode(domain: i32, name: Name, bytes: &mut [u8; 28]) -> usize {
    let port = name.port.to_be_bytes();
    if domain == AF_INET {
        let ip = name.ip.to_v4().unwrap_or([0; 4]);
        bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port);
        bytes[4..8].copy_from_slice(&ip);
        size_of::<sockaddr_in>()
    } else {
        bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port);
        bytes[8..24].copy_from_slice(&name.ip.0);
        size_of::<sockaddr_in6>()
    }
}

/// Stores an address in an endpoint's (or slot's) words.
pub(crate) fn store(words: &[AtomicU64; 2], ip: Ip) {
    for (word, half) in words.iter().zip(ip.halves()) {
        word.store(half, Ordering::Relaxed);
    }
}

/// Reads it back.
pub(crate) fn load(words: &[AtomicU64; 2]) -> Ip {
    Ip::from_halves(words.each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// The kernel's name of a kernel socket.
pub(crate) fn kernel_name(fd: i32) -> Option<(i32, Name)> {
    ask_kernel(libc::SYS_getsockname, fd)
}

/// The kernel's name of a kernel socket's peer.
pub(crate) fn kernel_peer(fd: i32) -> Option<(i32, Name)> {
    ask_kernel(libc::SYS_getpeername, fd)
}

fn ask_kernel(call: i64, fd: i32) -> Option<(i32, Name)> {
    let mut storage = [0u64; 16];
    let mut len = 128u32;
    // SAFETY: the kernel writes at most 128 bytes into `storage`.
    sd_sys::check(unsafe { sd_sys::syscall!(call, fd, storage.as_mut_ptr(), &mut len as *mut u32) }).ok()?;
    // SAFETY: `storage` holds at least `len.min(128)` bytes.
    unsafe { parse(storage.as_ptr() as *const sockaddr, len.min(128)) }
}
/// Ports below it tell that the kernel has let somebody with rights bind them (ip(7)), so who accepts may trust them. We
/// cannot: such connections are the kernel's.
const PRIVILEGED: u16 = 1024;

/// Whether connections from a port may be ours.
pub(crate) fn may_be_source(port: u16) -> bool {
    port >= PRIVILEGED
}

/// Whether these can be the names of a connection to a listener with this name, as far as its side can tell.
pub(crate) fn may_be_of_a_connection(listener: Name, local: Name, peer: Name) -> bool {
    local.port == listener.port
        && (listener.ip == local.ip || listener.ip.is_unspecified())
        && (local.ip == peer.ip || local.ip.is_loopback() == peer.ip.is_loopback())
        && may_be_source(peer.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_connection_can_have() {
        let name = |ip: [u8; 4], port| Name { ip: Ip::v4(ip), port };
        let (here, any) = (name([127, 0, 0, 1], 80), name([0; 4], 80));
        let peer = name([127, 0, 0, 1], 40_000);
        assert!(may_be_of_a_connection(here, here, peer));
        assert!(may_be_of_a_connection(any, here, peer));
        assert!(may_be_of_a_connection(any, name([10, 0, 0, 1], 80), name([10, 0, 0, 1], 40_000)));
        assert!(!may_be_of_a_connection(here, name([127, 0, 0, 2], 80), peer), "another address");
        assert!(!may_be_of_a_connection(here, name([127, 0, 0, 1], 81), peer), "another port");
        assert!(!may_be_of_a_connection(any, name([10, 0, 0, 1], 80), peer), "from loopback to elsewhere");
        for port in [0, 22, 1023] {
            assert!(!may_be_of_a_connection(here, here, name([127, 0, 0, 1], port)), "{port}");
        }
    }
}
