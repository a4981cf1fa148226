//! Connections that wait for room in a full backlog: SYN-SENT (RFC 9293, figure 5).
//!
//! As on Linux the listener knows nothing of them, and the connecting side tries again by timer: after a millisecond
//! first, then after twice as long each time, up to Linux' second. The timer runs in whatever thread of the process
//! waits for something in the library; a call that concerns the socket tries at once. A program that neither waits
//! nor asks finds the connection made when it does.
//!
//! | state | event | next |
//! |---|---|---|
//! | Fresh, Bound | connect, the backlog is full | Connecting |
//! | Connecting | a try finds room | Connected |
//! | Connecting | a try finds that the kernel has to decide; fork; exec | Kernel, where the connect goes on |
//! | Connecting | all retries are over; the policy forbids it | Failed, with ETIMEDOUT or ECONNREFUSED |
//! | Connecting | shutdown, connect to AF_UNSPEC | Fresh, with ECONNRESET |
//! | Failed | connect | Fresh: the error is told once |

use crate::fd::table::{self, Entry};
use crate::setup::connect::{self, Attempt};
use crate::socket::addr::{self, Name};
use crate::socket::cold;
use crate::socket::endpoint::{CONNECTING, EndpointExt, HAS_NAME, NONBLOCK};
use crate::socket::handle::Socket;
use crate::socket::life;
use crate::wait::Deadline;
use crate::wait::duties::{self, CONNECTS, On, Waiting};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::c_int;
use sd_shm::slab::{End, Endpoint, Reason, State};
use sd_sys::Errno;
use sd_sys::lock::Lock;
use sd_sys::time::{now_ns, ticks};

const PAUSE_FIRST_NS: u64 = 1_000_000;
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// A connect that is being tried: what Linux would send SYNs for.
struct Syn {
    socket: Socket,
    to: Name,
    tries: Tries,
}

/// When a connect is tried again, and when it is given up; in nanoseconds.
struct Tries {
    until: u64,
    next: u64,
    /// How long it waits before `next`.
    pause: u64,
}

impl Tries {
    fn begin(now: u64, timeout: u64) -> Tries {
        Tries { until: now + timeout, next: now + PAUSE_FIRST_NS, pause: PAUSE_FIRST_NS }
    }

    fn are_over(&self, now: u64) -> bool {
        now >= self.until
    }

    /// One was in vain.
    fn back_off(&mut self, now: u64) {
        self.pause = (self.pause * 2).min(PAUSE_MAX_NS);
        self.next = now + self.pause;
    }
}

static SYNS: Lock<Vec<Syn>> = Lock::new(Vec::new());
/// How many there are, also while one is being tried and not in the list.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Threads in connect sleep on it; its value never changes.
static WORD: AtomicU32 = AtomicU32::new(0);

/// What a try has come to.
pub(super) enum Verdict {
    /// Connected.
    Joined,
    Busy,
    /// The kernel has to connect it.
    Kernel(Reason),
    Failed(Errno),
    /// It does not wait (any more).
    Settled,
}

/// connect has found the backlog full; names and port are noted in the endpoint.
pub(super) fn begin(socket: Socket, fd: c_int, to: Name) {
    let tries = Tries::begin(now_ns(), timeout_ns(fd));
    socket.set_state(State::Connecting);
    COUNT.fetch_add(1, Ordering::SeqCst);
    duties::note(CONNECTS);
    SYNS.lock().push(Syn { socket, to, tries });
}

fn timeout_ns(fd: c_int) -> u64 {
    const RETRIES: i32 = 6;
    let option = |name| sd_sys::fd::getsockopt_int(fd, libc::IPPROTO_TCP, name);
    let retries = option(libc::TCP_SYNCNT).unwrap_or(RETRIES);
    timeout_of(retries, option(libc::TCP_USER_TIMEOUT).unwrap_or(0))
}

/// How long Linux tries: `tcp_syn_linear_timeouts` retries, 4 unless configured, a second apart, then TCP_SYNCNT more
/// after twice as long each time; or as long as TCP_USER_TIMEOUT says, if it is not zero.
fn timeout_of(retries: i32, user_timeout_ms: i32) -> u64 {
    const LINEAR: u64 = 4;
    let timeout = (LINEAR + 1 + (2 << retries.clamp(0, 20)) - 2) * 1_000_000_000;
    match user_timeout_ms {
        limit_ms @ 1.. => timeout.min(limit_ms as u64 * 1_000_000),
        _ => timeout,
    }
}

/// Takes a connect out of the list, and keeps its endpoint; [`give_back`] or [`forget_claimed`] follows. One whose last number was
/// closed a moment ago is not kept: the thread that ends it waits for the list's lock, or is about to.
fn claim(wanted: impl Fn(&Syn) -> bool) -> Option<Syn> {
    let mut syns = SYNS.lock();
    loop {
        let at = syns.iter().position(&wanted)?;
        let syn = syns.swap_remove(at);
        if life::retain_open(&syn.socket) {
            return Some(syn);
        }
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

fn give_back(syn: Syn) {
    let endpoint = syn.socket.endpoint;
    SYNS.lock().push(syn);
    // Where the program has closed it meanwhile, this is its end.
    life::release(endpoint);
}

fn forget_claimed(syn: &Syn) {
    COUNT.fetch_sub(1, Ordering::AcqRel);
    life::release(syn.socket.endpoint);
}

/// One try.
fn attempt(mut syn: Syn, by_timer: bool) -> Verdict {
    let endpoint = syn.socket.endpoint;
    let fd = endpoint.fd.load(Ordering::Relaxed);
    let verdict = match connect::attempt(syn.socket, fd, syn.to) {
        Attempt::Joined => Verdict::Joined,
        Attempt::Kernel(reason) => Verdict::Kernel(reason),
        Attempt::Denied => fail(endpoint, Errno::ECONNREFUSED),
        Attempt::Busy(_) if syn.tries.are_over(now_ns()) => fail(endpoint, Errno::ETIMEDOUT),
        Attempt::Busy(_) => {
            if by_timer {
                syn.tries.back_off(now_ns());
            }
            give_back(syn);
            return Verdict::Busy;
        }
    };
    if matches!(verdict, Verdict::Joined) {
        crate::process::stats::count(crate::process::stats::Counter::ShmConnect);
        endpoint.set_flag(CONNECTING);
    }
    if let Verdict::Kernel(_) = verdict {
        crate::route::port_unused(endpoint);
        endpoint.set_state(unconnected(endpoint));
    }
    sd_sys::futex::wake(&WORD, i32::MAX, sd_sys::futex::Scope::Shared);
    forget_claimed(&syn);
    verdict
}

fn fail(endpoint: &'static Endpoint, errno: Errno) -> Verdict {
    crate::route::port_unused(endpoint);
    endpoint.error.store(errno.0 as u16, Ordering::Release);
    endpoint.set_state(State::Failed);
    crate::epoll::endpoint_event(endpoint);
    Verdict::Failed(errno)
}

fn unconnected(endpoint: &Endpoint) -> State {
    if endpoint.flag(HAS_NAME) { State::Bound } else { State::Fresh }
}

/// A call that concerns the socket: tries at once.
pub(super) fn try_now(endpoint: &'static Endpoint) -> Verdict {
    let _within = crate::link::reclaim::change();
    match claim(|syn| core::ptr::eq(syn.socket.endpoint, endpoint)) {
        Some(syn) => attempt(syn, false),
        // Another thread tries it at the moment.
        None if endpoint.state_now() == State::Connecting => Verdict::Busy,
        None => Verdict::Settled,
    }
}

/// Looks at a socket that connects; what the kernel has to decide goes on there.
pub(crate) fn look_at(endpoint: &'static Endpoint) {
    if let Verdict::Kernel(reason) = try_now(endpoint) {
        let to =
            Name { ip: cold::ip(endpoint, End::Remote), port: endpoint.ports.load(Ordering::Relaxed) as u16 };
        go_on_in_kernel(endpoint, to, reason);
    }
}

/// Tries those whose time has come; with no lock held. True when something has changed.
fn look() -> bool {
    let _within = crate::link::reclaim::change();
    let now = now_ns();
    let mut changed = false;
    while let Some(syn) = claim(|syn| syn.tries.next <= now) {
        let (endpoint, to) = (syn.socket.endpoint, syn.to);
        life::retain(endpoint);
        match attempt(syn, true) {
            Verdict::Busy => {}
            Verdict::Kernel(reason) => {
                go_on_in_kernel(endpoint, to, reason);
                changed = true;
            }
            _ => changed = true,
        }
        life::release(endpoint);
    }
    changed
}

/// Tries those whose time has come, and says when the next one's does.
pub(crate) fn pause() -> Option<u64> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        duties::clear(CONNECTS);
        if COUNT.load(Ordering::SeqCst) == 0 {
            return None;
        }
        duties::note(CONNECTS);
    }
    if look() {
        return Some(1);
    }
    let now = now_ns();
    let next = SYNS.lock().iter().map(|syn| syn.tries.next.saturating_sub(now)).min();
    // Those that other threads are trying are theirs to see to.
    Some(next.unwrap_or(PAUSE_FIRST_NS).max(1))
}

/// Waits until the connection is made, or has failed. EAGAIN when the time is over.
pub(super) fn wait(endpoint: &'static Endpoint, deadline: Deadline) -> Result<Verdict, Errno> {
    // Closed by another thread a moment ago.
    if !life::retain_open(endpoint) {
        return Ok(Verdict::Settled);
    }
    let mut waiting = Waiting::begin(None, ticks());
    let result = loop {
        match try_now(endpoint) {
            Verdict::Busy => {}
            verdict => break Ok(verdict),
        }
        let pause = waiting.before_sleep(On::Word);
        let slept = crate::wait::sleep_on_word(&WORD, 0, deadline, pause);
        waiting.after_sleep();
        if let Err(errno) = slept {
            break Err(errno);
        }
    };
    life::release(endpoint);
    result
}

/// For send and recv: waits as a blocking call does. An errno when there is no connection then.
pub(super) fn await_connection(
    endpoint: &'static Endpoint,
    nonblock: bool,
    timeout_ns: u64,
) -> Result<(), Errno> {
    look_at(endpoint);
    if nonblock && endpoint.state_now() == State::Connecting {
        return Err(Errno::EAGAIN);
    }
    while endpoint.state_now() == State::Connecting {
        if let Verdict::Kernel(reason) = wait(endpoint, Deadline::option(timeout_ns))? {
            let to = Name {
                ip: cold::ip(endpoint, End::Remote),
                port: endpoint.ports.load(Ordering::Relaxed) as u16,
            };
            go_on_in_kernel(endpoint, to, reason);
        }
    }
    Ok(())
}

/// connect(2) on a socket that waits: `later` is what is said while it does.
pub(super) fn connect_again(endpoint: &'static Endpoint, later: Errno) -> Result<Verdict, Errno> {
    let verdict = match endpoint.flag(NONBLOCK) {
        true => match try_now(endpoint) {
            Verdict::Busy => Err(later),
            verdict => Ok(verdict),
        },
        false => {
            let deadline = Deadline::option(cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed));
            wait(endpoint, deadline).map_err(|errno| if errno == Errno::EAGAIN { later } else { errno })
        }
    };
    match verdict? {
        Verdict::Failed(errno) => {
            tell_failure(endpoint);
            Err(errno)
        }
        verdict => Ok(verdict),
    }
}

/// connect(2) on a socket whose connect has failed: the error, or that it was told already. Another connect may
/// follow.
pub(super) fn tell_failure(endpoint: &'static Endpoint) -> Errno {
    let error = crate::socket::errors::take_error(endpoint).unwrap_or(Errno::ECONNABORTED);
    endpoint.set_state(unconnected(endpoint));
    error
}

/// shutdown(2), and connect(2) to AF_UNSPEC: the socket is as good as new, with an error (`tcp_disconnect`).
pub(super) fn abandon(endpoint: &'static Endpoint) {
    forget(endpoint);
    unconnect(endpoint, Some(Errno::ECONNRESET));
}

/// After the end of a connection: it keeps its port, for another connect (`inet_reset_saddr`).
pub(super) fn unconnect(endpoint: &'static Endpoint, error: Option<Errno>) {
    endpoint.ports.fetch_and(0xffff_0000, Ordering::Relaxed);
    if let Some(error) = error {
        endpoint.error.store(error.0 as u16, Ordering::Release);
    }
    endpoint.set_state(unconnected(endpoint));
    crate::epoll::endpoint_event(endpoint);
}

/// The socket is closed, or does not wait any more.
pub(crate) fn forget(endpoint: &Endpoint) {
    let mut syns = SYNS.lock();
    let before = syns.len();
    syns.retain(|syn| !core::ptr::eq(syn.socket.endpoint, endpoint));
    COUNT.fetch_sub(before - syns.len(), Ordering::AcqRel);
    drop(syns);
    crate::route::port_unused(endpoint);
}

/// Before fork and exec: the timers are this process's, so the kernel goes on with what waits.
pub(crate) fn all_to_kernel() {
    while let Some(syn) = claim(|_| true) {
        let (endpoint, to) = (syn.socket.endpoint, syn.to);
        crate::route::port_unused(endpoint);
        endpoint.set_state(unconnected(endpoint));
        go_on_in_kernel(endpoint, to, Reason::NotAccepting);
        forget_claimed(&syn);
    }
}

/// A connect that waited here goes on in the kernel, without waiting for it.
fn go_on_in_kernel(endpoint: &'static Endpoint, to: Name, reason: Reason) {
    if super::to_kernel::demote(endpoint, reason).is_err() {
        return;
    }
    let mut fd = endpoint.fd.load(Ordering::Relaxed);
    table::for_each(0, u32::MAX, |number, entry| {
        if matches!(entry, Entry::Kernel(e) if core::ptr::eq(e, endpoint)) {
            fd = number;
        }
    });
    let mut bytes = [0u8; 28];
    let len = addr::encode(endpoint.family(), to, &mut bytes);
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    // SAFETY: the kernel reads `len` bytes of the address. It tells the result by poll and SO_ERROR.
    let _ = unsafe { sd_sys::syscall!(libc::SYS_connect, fd, bytes.as_ptr(), len) };
    let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags);
    crate::socket::kernel_socket::note_kernel_names(endpoint, fd);
}

/// Keeps the list unchanged across a fork.
pub(crate) fn keep_lock() {
    SYNS.lock_and_keep();
}

/// Ends `keep_lock`.
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_lock`.
pub(crate) unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { SYNS.unlock() };
}

/// In the child of a fork: what began to wait in between is the parent's.
pub(crate) fn forked() {
    SYNS.lock().clear();
    COUNT.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut tries = Tries::begin(500, 3_000_000_000);
        assert_eq!(tries.next, 1_000_500);
        let mut now = tries.next;
        let mut pauses = Vec::new();
        while !tries.are_over(now) {
            tries.back_off(now);
            pauses.push((tries.next - now) / 1_000_000);
            now = tries.next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        assert!(!tries.are_over(3_000_000_499) && tries.are_over(3_000_000_500));
    }

    #[test]
    fn gives_up_when_linux_does() {
        let seconds = |retries, limit| timeout_of(retries, limit) / 1_000_000_000;
        assert_eq!(seconds(6, 0), 131);
        assert_eq!(seconds(1, 0), 7);
        assert_eq!(seconds(0, 0), 5);
        assert_eq!((seconds(6, 20_000), seconds(1, 20_000)), (20, 7));
        assert_eq!(seconds(-1, -1), 5, "what cannot be");
    }
}
