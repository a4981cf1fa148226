//! The side that closes a connection first keeps its port busy for about a minute (TIME-WAIT): bind(2) without
//! SO_REUSEADDR fails. The kernel does not know these ports, so after its own bind the monitor is asked, which looks
//! into the slabs of those who may have had the port.

use crate::monitor::client;
use crate::process::{SlabRec, netlink};
use crate::socket::addr::Name;
use crate::socket::cold;
use crate::socket::endpoint::{CLOSED_FIRST, EndpointExt, FIN_SENT, OWN_SOCKET, peer_finished};
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab::{End, Endpoint};
use sd_shm::time_wait::{SECONDS, TimeWait, step};

/// shutdown(2) is about to end this side's stream.
pub(crate) fn note_shutdown(endpoint: &Endpoint) {
    if !endpoint.flag(FIN_SENT) && !peer_finished(endpoint) {
        endpoint.set_flag(CLOSED_FIRST);
    }
}

/// The connection is closed, and not reset; its endpoint is in that slab. True if a reset is to follow the end of the
/// stream, as nothing is waited for: TCP_LINGER2 is negative.
pub(crate) fn note_close(endpoint: &Endpoint, rec: &SlabRec) -> bool {
    let first = endpoint.flag(CLOSED_FIRST) || !endpoint.flag(FIN_SENT) && !peer_finished(endpoint);
    if !first {
        return false;
    }
    let Some(slab) = rec.slab() else { return false };
    let local = slab.address(endpoint, End::Local);
    let seconds = match cold::of(endpoint).orphan_seconds() {
        // The other side has not ended its stream, and is not waited for any longer than that (FIN-WAIT-2).
        Some(0) if !peer_finished(endpoint) => return true,
        Some(seconds) if !peer_finished(endpoint) => seconds,
        _ => SECONDS,
    };
    slab.time_waits().note(TimeWait::of(endpoint, local, step(sd_sys::time::ticks()), seconds));
    false
}

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
