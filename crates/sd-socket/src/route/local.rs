//! Whether an address is one of this host's, and what the kernel would connect from.
//!
//! The kernel's routes answer. That a socket can be bound to an address says nothing where `ip_nonlocal_bind` is set
//! (ip(7)), as on hosts that take addresses over from each other.
//!
//! Where they cannot be asked (`process::netlink`), or a thread of the program is in another network namespace, a UDP socket tells
//! less.

use crate::process::{netlink, network};
use crate::socket::addr::{self, Name};
use sd_proto::Ip;

/// The address that the kernel would connect from, if `ip` is one of this host's; else `None`.
pub(crate) fn source_for(ip: Ip) -> Option<Ip> {
    let is_v6_loopback = ip.is_loopback() && ip.to_v4().is_none();
    if ip == Ip::v4([127, 0, 0, 1]) || is_v6_loopback {
        return Some(ip);
    }
    if network::has_left() {
        return by_udp(ip);
    }
    let asked = netlink::ROUTES.ask(|routes| routes.source_to(ip.0));
    asked.map_or_else(|_| by_udp(ip), |source| source.map(Ip))
}

/// Asked with a UDP socket, which sends nothing: it says what the kernel would connect from, and that may be the address
/// itself. Loopback addresses are taken for this host's.
fn by_udp(ip: Ip) -> Option<Ip> {
    let domain = if ip.to_v4().is_some() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sd_sys::fd::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
    let fd = socket.raw();
    let mut bytes = [0u8; 28];
    let len = addr::encode(domain, Name { ip, port: 9 }, &mut bytes);
    // SAFETY: the kernel reads `len` bytes of the address.
    let connected = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_connect, fd, bytes.as_ptr(), len) });
    let source = addr::kernel_name(fd).map(|(_, name)| name.ip).filter(|_| connected.is_ok());
    source.filter(|source| *source == ip || ip.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use sd_sys::netlink::Netlink;

    const ELSEWHERE: Ip = Ip::v4([203, 0, 113, 9]);

    /// In a network of this thread's own, with a route to everywhere and `ip_nonlocal_bind`; false where that is
    /// forbidden.
    fn enter_network() -> bool {
        // SAFETY: only this thread, which ends soon, moves.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return false;
        }
        let fd = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        let mut name = *b"lo\0";
        // SAFETY: all-zero requests are valid and filled within their bounds; the kernel reads them.
        unsafe {
            let mut up: libc::ifreq = core::mem::zeroed();
            up.ifr_name[0] = name[0] as libc::c_char;
            up.ifr_name[1] = name[1] as libc::c_char;
            up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
            assert_eq!(libc::ioctl(fd.raw(), libc::SIOCSIFFLAGS, &raw const up), 0);
            let mut route: libc::rtentry = core::mem::zeroed();
            let any = libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: [0; 14] };
            (route.rt_dst, route.rt_genmask) = (any, any);
            route.rt_flags = libc::RTF_UP;
            route.rt_dev = name.as_mut_ptr().cast();
            assert_eq!(libc::ioctl(fd.raw(), libc::SIOCADDRT, &raw const route), 0);
        }
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").is_ok()
    }

    #[test]
    fn what_can_be_bound_is_not_local_for_that() {
        let tried = std::thread::spawn(|| {
            if !enter_network() {
                return;
            }
            let bound = std::net::UdpSocket::bind("203.0.113.9:0");
            assert!(bound.is_ok(), "{bound:?}");
            // Not the socket that the process keeps, which is another network's.
            let routes = Netlink::of_routes().unwrap();
            let asked = |ip: Ip| routes.source_to(ip.0).unwrap().map(Ip);
            let loopback = Some(Ip::v4([127, 0, 0, 1]));
            for source in [&asked as &dyn Fn(Ip) -> Option<Ip>, &by_udp] {
                assert_eq!(source(ELSEWHERE), None);
                assert_eq!(source(Ip::v4([127, 0, 0, 1])), loopback);
                assert_eq!(source(Ip::v4([127, 9, 8, 7])), loopback);
            }
        });
        tried.join().unwrap();
    }
}
