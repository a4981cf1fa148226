//! Whether an address is one of this host's, and what the kernel would connect from.
//!
//! The kernel's routes answer. That a socket can be bound to an address says nothing where `ip_nonlocal_bind` is set
//! (ip(7)), as on hosts that take addresses over from each other.
//!
//! They are asked by a socket that is kept for that: making one costs twice as much as the question. A child of a fork makes its
//! own. Where the program has a filter of its own, which such a socket could offend, or one of its threads is in another
//! network namespace, a UDP socket tells less.

use crate::process::{close_hidden, hide_fd};
use crate::socket::addr::{self, Name};
use core::sync::atomic::{AtomicBool, Ordering};
use sd_proto::Ip;
use sd_sys::fd::Owned;
use sd_sys::lock::Lock;
use sd_sys::netlink::Netlink;

/// The kept socket.
static ROUTES: Lock<Option<Netlink>> = Lock::new(None);
/// It has failed once. From then on each question has its own.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// The address that the kernel would connect from, if `ip` is one of this host's; else `None`.
pub(crate) fn source_for(ip: Ip) -> Option<Ip> {
    let is_v6_loopback = ip.is_loopback() && ip.to_v4().is_none();
    if ip == Ip::v4([127, 0, 0, 1]) || is_v6_loopback {
        return Some(ip);
    }
    if sd_sys::confine::is_on() || crate::process::network::has_left() {
        return by_udp(ip);
    }
    // Another thread may be asking just now.
    let asked = match ROUTES.try_lock() {
        Some(mut kept) => ask_kept(&mut kept, ip),
        None => Netlink::of_routes().and_then(|routes| routes.source_to(ip.0)),
    };
    asked.map_or_else(|_| by_udp(ip), |source| source.map(Ip))
}

/// Asks by the kept socket, made if need be.
fn ask_kept(kept: &mut Option<Netlink>, ip: Ip) -> sd_sys::Result<Option<[u8; 16]>> {
    let routes = match kept {
        Some(routes) => routes,
        None if IS_GIVEN_UP.load(Ordering::Relaxed) => return Netlink::of_routes()?.source_to(ip.0),
        None => kept.insert(Netlink::from_raw(hide_fd(Netlink::of_routes()?.into_raw()))),
    };
    let asked = routes.source_to(ip.0);
    if asked.is_err() {
        // Neither asked nor closed again: the number may be another file's by now.
        IS_GIVEN_UP.store(true, Ordering::Relaxed);
        kept.take().map(Netlink::into_raw);
    }
    asked
}

/// In the child of a fork: the parent's answers are not ours.
pub(crate) fn forked() {
    // SAFETY: the child has one thread.
    unsafe { ROUTES.force_unlock() };
    ROUTES.lock().take().into_iter().for_each(|routes| close_hidden(routes.into_raw()));
}

/// Asked with a UDP socket, which sends nothing: it says what the kernel would connect from, and that may be the address
/// itself. Loopback addresses are taken for this host's.
fn by_udp(ip: Ip) -> Option<Ip> {
    let domain = if ip.to_v4().is_some() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sd_sys::fd::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).map(Owned::new).ok()?;
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

    const ELSEWHERE: Ip = Ip::v4([203, 0, 113, 9]);

    #[test]
    fn a_kept_socket_that_fails_is_left_alone() {
        let (here, there) = (Ip::v4([127, 0, 0, 1]), Ip::v4([127, 9, 8, 7]));
        let mut kept = None;
        for _ in 0..2 {
            assert_eq!(ask_kept(&mut kept, there), Ok(Some(here.0)));
        }
        close_hidden(kept.take().unwrap().into_raw());
        // Something of the program's has its number.
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        kept = Some(Netlink::from_raw(std::os::fd::AsRawFd::as_raw_fd(&other)));
        assert!(ask_kept(&mut kept, there).is_err() && kept.is_none());
        assert!(other.local_addr().is_ok(), "it is open");
        assert_eq!(ask_kept(&mut kept, there), Ok(Some(here.0)));
        assert!(kept.is_none());
    }

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
            assert_eq!(libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const up), 0);
            let mut route: libc::rtentry = core::mem::zeroed();
            let any = libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: [0; 14] };
            (route.rt_dst, route.rt_genmask) = (any, any);
            route.rt_flags = libc::RTF_UP;
            route.rt_dev = name.as_mut_ptr().cast();
            assert_eq!(libc::ioctl(fd, libc::SIOCADDRT, &raw const route), 0);
        }
        sd_sys::fd::close(fd);
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
