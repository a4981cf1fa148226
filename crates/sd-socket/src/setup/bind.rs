//! bind(2): the kernel's decision, except where an accelerated connection has the port, which it does not know.

use crate::Outcome;
use crate::fd::hidden::Hidden;
use crate::fd::table;
use crate::route;
use crate::setup::time_wait::is_in_the_way;
use crate::socket::addr;
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, HAS_NAME, KEEPS_ADDRESS, OWN_SOCKET};
use crate::socket::kernel_socket::materialize;
use crate::socket::names::is_over;
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use sd_shm::slab::{End, Endpoint, State};
use sd_sys::Errno;

/// bind(2). The socket stays ours.
pub(crate) unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    crate::setup::first::becomes_ours(fd);
    let _within = crate::link::reclaim::change();
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    if let Err(errno) = addr::check(addr, len) {
        return Outcome::Errno(errno);
    }
    if endpoint.state_now() == State::Connecting {
        // SAFETY: the caller's arguments.
        return Outcome::Errno(unsafe { refusal(endpoint, addr, len) });
    }
    let was_connected = endpoint.state_now() == State::Connected;
    // A connection that is over has lost the port that it had not been given by bind.
    if was_connected && (endpoint.flag(HAS_NAME) || !is_over(endpoint)) {
        // SAFETY: as above.
        return Outcome::Errno(unsafe { refusal(endpoint, addr, len) });
    }
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    // SAFETY: the caller's arguments.
    let bound = unsafe { bind_in_kernel(endpoint, fd, addr, len) };
    match bound {
        Ok(()) => {
            endpoint.set_flag(HAS_NAME);
            // SAFETY: the kernel could read it.
            if unsafe { addr::parse(addr, len) }.is_some_and(|(_, name)| !name.ip.is_unspecified()) {
                endpoint.set_flag(KEEPS_ADDRESS);
            }
            if endpoint.state_now() == State::Fresh {
                endpoint.set_state(State::Bound);
            }
            if let Some((_, name)) = addr::kernel_name(fd).filter(|_| was_connected) {
                route::port_unused(endpoint);
                cold::set_ip(endpoint, End::Local, name.ip);
                let remote = endpoint.ports.load(Ordering::Relaxed) & 0xffff;
                endpoint.ports.store(u32::from(name.port) << 16 | remote, Ordering::Relaxed);
            }
            Outcome::Done(0)
        }
        Err(errno) => Outcome::Errno(errno),
    }
}

/// Why a connection cannot be bound. A port that the caller may not have is refused first, by the kernel: to another socket.
///
/// # Safety
/// As for bind(2).
#[cold]
unsafe fn refusal(endpoint: &Endpoint, addr: *const sockaddr, len: socklen_t) -> Errno {
    // SAFETY: the caller's arguments.
    let is_low = unsafe { addr::parse(addr, len) }.is_some_and(|(_, name)| (1..1024).contains(&name.port));
    let domain = endpoint.family();
    let other = is_low.then(|| sd_sys::fd::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
    let Some(Ok(other)) = other else { return Errno::EINVAL };
    let other = Hidden::of(other);
    // SAFETY: the caller's arguments, for the kernel to check.
    let bound = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_bind, other.raw(), addr, len) });
    if bound == Err(Errno::EACCES) { Errno::EACCES } else { Errno::EINVAL }
}

/// Ports that the kernel chooses are free there, but an accelerated connection may have one: so many are tried.
const CHOICES: usize = 16;

/// Binds the kernel socket to what no accelerated connection has.
///
/// # Safety
/// As for bind(2).
unsafe fn bind_in_kernel(
    endpoint: &'static Endpoint,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<(), Errno> {
    for _ in 0..CHOICES {
        // SAFETY: the caller's arguments, for the kernel to check.
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_bind, fd, addr, len) })?;
        // SAFETY: the kernel could read it.
        let Some((_, name)) = (unsafe { addr::parse(addr, len) }) else { return Ok(()) };
        let is_choice = name.port == 0;
        let name = if is_choice { addr::kernel_name(fd).map_or(name, |(_, name)| name) } else { name };
        if crate::socket::notes::has_program(endpoint) || !is_in_the_way(endpoint, fd, name) {
            return Ok(());
        }
        // Another kernel socket, as the bound one was before.
        let signals = crate::socket::signals::Wishes::of(fd);
        endpoint.clear_flag(OWN_SOCKET);
        materialize(endpoint)?;
        signals.give_to(fd);
        if !is_choice {
            break;
        }
    }
    Err(Errno::EADDRINUSE)
}
