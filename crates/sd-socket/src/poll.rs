//! poll(2) and select(2) over our sockets and the kernel's descriptors.
//!
//! Without a socket of ours the real call is made. Else the kernel's part is asked without
//! waiting, ours is looked at, and a sleep happens on the socket's doorbell word when it is the
//! only thing waited for, or on a temporary epoll instance that holds everything.

use crate::Outcome;
use crate::channel::drain;
use crate::endpoint::{EndpointExt, PeerEnd, peer_end};
use crate::ready;
use crate::table::{self, Entry};
use crate::wait::{self, Deadline, OWN_EVENT, SleepSet, Sleeper};
use core::sync::atomic::AtomicU32;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, c_int, pollfd, sigset_t};
use sd_ring::doorbell;
use sd_shm::slab::{Endpoint, State};

/// What a poll entry leads to, as far as it concerns us.
enum Kind {
    Kernel,
    Socket(&'static Endpoint),
    Epoll(*mut crate::epoll::Epoll),
}

fn kind(fd: i32) -> Kind {
    match table::get(fd) {
        Entry::Socket(endpoint) => Kind::Socket(endpoint),
        Entry::Epoll(epoll) if crate::epoll::has_ours(epoll) => Kind::Epoll(epoll),
        _ => Kind::Kernel,
    }
}

/// Whether any of the numbers needs us.
pub(crate) fn concerns_us(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| table::is_ours(p.fd) && !matches!(kind(p.fd), Kind::Kernel))
}

/// Events of ours for one entry. Listeners and epoll instances are also asked in the kernel.
fn own_events(entry: &pollfd) -> i16 {
    let wanted = entry.events | POLLERR | POLLHUP;
    match kind(entry.fd) {
        Kind::Socket(endpoint) => {
            if endpoint.state_now() == State::Listen {
                crate::listen::interested(endpoint, entry.fd);
            }
            ready::mask(endpoint) as i16 & wanted
        }
        Kind::Epoll(epoll) if crate::epoll::is_ready(epoll, 0) => POLLIN & wanted,
        _ => 0,
    }
}

/// Whether the kernel has to be asked for the number.
fn in_kernel(fd: i32) -> bool {
    match kind(fd) {
        Kind::Socket(endpoint) => endpoint.state_now() == State::Listen,
        _ => true,
    }
}

/// Thirty years.
const FOREVER_NS: u64 = 1_000_000_000_000_000_000;

static SPIN: AtomicU32 = AtomicU32::new(0);

/// poll and ppoll. `fds` are the caller's.
pub(crate) fn poll(fds: &mut [pollfd], timeout_ns: Option<u64>, mask: *const sigset_t) -> Outcome<c_int> {
    if !concerns_us(fds) {
        return Outcome::Kernel;
    }
    crate::control::look_now_and_then();
    let deadline = Deadline::after(timeout_ns);
    let kernel = fds.iter().any(|p| p.fd >= 0 && in_kernel(p.fd));
    let mut ready = look(fds, kernel);
    if ready == Ok(0) && timeout_ns == Some(0) && !mask.is_null() {
        // A signal that the mask lets through interrupts even a poll that does not wait.
        if let Err(errno) = sleep(fds, kernel, deadline, mask) {
            return Outcome::Errno(errno);
        }
        ready = look(fds, kernel);
    }
    if ready == Ok(0) && timeout_ns != Some(0) && mask.is_null() {
        let mut rounds = 0u32;
        wait::spin(&SPIN, || {
            rounds += 1;
            ready = look(fds, kernel && rounds.is_multiple_of(64));
            ready != Ok(0)
        });
    }
    while ready == Ok(0) && deadline.left() != Some(0) {
        if let Err(errno) = sleep(fds, kernel, deadline, mask) {
            return Outcome::Errno(errno);
        }
        ready = look(fds, kernel);
    }
    match ready {
        Ok(count) => Outcome::Done(count as c_int),
        Err(errno) => Outcome::Errno(errno),
    }
}

/// One look without waiting; the number of entries with events.
fn look(fds: &mut [pollfd], kernel: bool) -> Result<usize, i32> {
    drain();
    if kernel {
        look_at_kernel(fds)?;
    } else {
        fds.iter_mut().for_each(|p| p.revents = 0);
    }
    let mut count = 0;
    for entry in fds.iter_mut() {
        if entry.fd >= 0 {
            entry.revents |= own_events(entry);
        }
        count += usize::from(entry.revents != 0);
    }
    Ok(count)
}

/// Asks the kernel about all entries at once; what it says of our placeholders is dropped.
fn look_at_kernel(fds: &mut [pollfd]) -> Result<(), i32> {
    // SAFETY: the kernel reads and writes the slice.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_poll, fds.as_mut_ptr(), fds.len(), 0) })
        .map_err(|e| e.0)?;
    for entry in fds.iter_mut().filter(|p| p.fd >= 0 && !in_kernel(p.fd)) {
        entry.revents &= POLLNVAL;
    }
    Ok(())
}

/// Sleeps until something may have changed.
fn sleep(fds: &[pollfd], kernel: bool, deadline: Deadline, mask: *const sigset_t) -> Result<(), i32> {
    if mask.is_null()
        && !kernel
        && let Some((endpoint, events)) = only_connection(fds)
    {
        return sleep_on_word(endpoint, events, deadline);
    }
    let set = SleepSet::new()?;
    for entry in fds.iter().filter(|p| p.fd >= 0 && in_kernel(p.fd)) {
        // A number twice in the list, or a regular file (EPERM, always ready), is no reason to fail.
        let _ = set.add(entry.fd, u32::from(entry.events as u16), 0);
    }
    let _sleeper = Sleeper::enter();
    drain();
    for entry in fds.iter().filter(|p| p.fd >= 0) {
        match kind(entry.fd) {
            Kind::Socket(endpoint) => ready::arm(endpoint, u32::from(entry.events as u16)),
            Kind::Epoll(epoll) => crate::epoll::arm_all(epoll, 0),
            Kind::Kernel => {}
        }
        if own_events(entry) != 0 {
            return Ok(());
        }
    }
    let retry = crate::control::retry_if_lost();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let timeout = wait::earlier(deadline.left(), retry);
    let woken = wait::sleep_on(set.fd, &mut events, timeout, mask)?;
    if events.iter().take(woken).any(|e| e.u64 == OWN_EVENT && e.events & POLLIN as u32 == 0) {
        crate::control::look_at_socket();
    }
    Ok(())
}

/// The connection, if the list waits for a single one and nothing else.
fn only_connection(fds: &[pollfd]) -> Option<(&'static Endpoint, i16)> {
    let mut valid = fds.iter().filter(|p| p.fd >= 0);
    let entry = valid.next()?;
    if valid.next().is_some() {
        return None;
    }
    match kind(entry.fd) {
        Kind::Socket(endpoint) if endpoint.state_now() == State::Connected => Some((endpoint, entry.events)),
        _ => None,
    }
}

fn sleep_on_word(endpoint: &'static Endpoint, events: i16, deadline: Deadline) -> Result<(), i32> {
    let mut bits = doorbell::RX_SLEEP;
    if events & POLLOUT != 0 {
        bits |= doorbell::TX_SLEEP;
    }
    let word = &endpoint.own_words().wait;
    let value = doorbell::arm(word, bits);
    let wanted = events | POLLERR | POLLHUP;
    if ready::mask(endpoint) as i16 & wanted != 0
        || peer_end(endpoint) != PeerEnd::Open && wanted & POLLIN != 0
    {
        return Ok(());
    }
    // Without a timeout the kernel would restart the wait after a handler with SA_RESTART; poll
    // never does.
    let timeout = deadline.left().or(Some(FOREVER_NS));
    match sd_sys::futex::wait(word, value, timeout, sd_sys::futex::Scope::Shared) {
        Err(sd_sys::Errno(libc::EINTR)) => Err(libc::EINTR),
        _ => Ok(()),
    }
}
