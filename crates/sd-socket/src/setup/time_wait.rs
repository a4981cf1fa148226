//! Ports in TIME-WAIT (`socket::time_wait` notes them): bind(2) without
//! SO_REUSEADDR fails. The kernel does not know these ports, so after its own bind the monitor is asked, which looks
//! into the slabs of those who may have had the port.

use crate::monitor::client;
use crate::process::netlink;
use crate::socket::addr::Name;
use crate::socket::endpoint::{EndpointExt, OWN_SOCKET};
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab::Endpoint;

/// A socket that was bound wants to connect: whether a connection has the same four numbers, an accelerated one
/// or one of the kernel's. Two sockets can be bound to one port only where they share it.
#[cold]
pub(super) fn is_taken(endpoint: &Endpoint, fd: i32, to: Name) -> bool {
    let shares = || sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1);
    if !endpoint.reuses_address() && !shares() {
        return false;
    }
    let Some((_, name)) = crate::socket::addr::kernel_name(fd).filter(|(_, name)| name.port != 0) else {
        return false;
    };
    let source =
        if name.ip.is_unspecified() { crate::route::local::source_for(to.ip) } else { Some(name.ip) };
    let Some(ip) = source else { return false };
    let of_kernel = netlink::SOCKETS.ask(|kernel| kernel.is_connected((ip.0, name.port), (to.ip.0, to.port)));
    if of_kernel == Ok(true) {
        return true;
    }
    let asked = Request::Tuple { ip, port: name.port, to_ip: to.ip, to_port: to.port };
    matches!(client::question(&asked, &[]), Some((Reply::Error { code: ErrorCode::InUse }, _)))
}

/// The kernel has bound the socket to this name: whether accelerated connections are in the way.
pub(super) fn is_in_the_way(endpoint: &Endpoint, fd: i32, name: Name) -> bool {
    let shares = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1);
    if name.port == 0 || shares || !endpoint.flag(OWN_SOCKET) {
        return false;
    }
    let reuse = endpoint.reuses_address();
    let answer = client::question(&Request::Bind { ip: name.ip, port: name.port, reuse }, &[]);
    matches!(answer, Some((Reply::Error { code: ErrorCode::InUse }, _)))
}
