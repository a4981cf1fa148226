//! Turning an accelerated connection into a kernel socket, for programs that are not accelerated.
//!
//! ```text
//!  peer <--shared memory--> bridge process <--loopback TCP--> program after exec, or across SCM_RIGHTS
//! ```
//! The bridge is a child of ours that keeps only the connection and one end of a loopback TCP pair,
//! and copies both ways, half-close and reset included, until both directions have ended. It is
//! forked twice, so the program never meets it as a child. The kernel socket's peer name is that of
//! the pair, not of the real peer. Where no process can be started, the monitor starts one (see `helper`).

mod copying;
mod gate;
pub mod helper;
mod lent;
mod others;

use crate::family::fork;
use crate::family::handover::{self, TURNED_AWAY_MAX};
use crate::fd::table;
use crate::socket::endpoint::{self, EndpointExt, NONBLOCK};
use crate::socket::kernel_socket;
use crate::socket::{life, resend, road};
use alloc::vec::Vec;
use copying::{Copied, Flow, copy};
use core::sync::atomic::Ordering;
pub(super) use gate::Gate;
use libc::{POLLIN, POLLOUT, pollfd};
pub(super) use others::Reads;
use others::{Others, is_sole_holder};
use sd_shm::slab::{Endpoint, Reason, State};
use sd_sys::fd::Owned;
use sd_sys::{Errno, Result, check, syscall};

/// Replaces the connection by a kernel socket under all its numbers in this process. Errno when that
/// cannot be done; nothing has changed then.
pub(super) fn to_kernel_socket(endpoint: &'static Endpoint, reads: Reads) -> Result<()> {
    if endpoint.state_now() != State::Connected {
        return kernel_socket::materialize(endpoint);
    }
    let outer = open(endpoint, reads, |_| None, None)?;
    let mut numbers = Vec::new();
    kernel_socket::each_fd(endpoint, |fd| numbers.push(fd));
    for fd in numbers {
        let flags = sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as i32;
        let cloexec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        let _ = sd_sys::fd::dup3(outer.raw(), fd, cloexec);
        table::clear(fd);
        life::release(endpoint);
    }
    Ok(())
}

/// A kernel socket that leads to the connection, for passing on: a receiver that loads us takes the connection itself
/// (see `handover`). The process keeps its own descriptors.
pub(super) fn passable(endpoint: &'static Endpoint) -> Result<Owned> {
    // Who takes it would not have the kernel's socket, where some of its bytes come.
    let listen: fn(i32) -> Option<Owned> = match road::is_promoted(endpoint) {
        true => |_| None,
        false => handover::listen,
    };
    open(endpoint, Reads::AtOnce, listen, None)
}

/// A kernel socket that leads to the connection, for a process that leaves its family (see `separate`) and lets go of its
/// own descriptors then. The bridge begins when the `gate` opens, if there is one.
pub(super) fn for_leaving(endpoint: &'static Endpoint, gate: Option<&Gate>) -> Result<Owned> {
    let outer = open(endpoint, Reads::AsRead, |_| None, gate)?;
    crate::socket::recorded::replay(endpoint, outer.raw());
    Ok(outer)
}

/// A kernel socket with a bridge behind it, which answers at the listener that `listen` makes for the socket. A process that
/// went to a network without a loopback interface makes it where the connection is, if it may go back there.
fn open(
    endpoint: &'static Endpoint,
    reads: Reads,
    listen: impl Fn(i32) -> Option<Owned> + Copy,
    gate: Option<&Gate>,
) -> Result<Owned> {
    let opened = open_here(endpoint, reads, listen, gate);
    if !crate::process::network::has_left() || opened.is_ok() {
        return opened;
    }
    let number = endpoint.fd.load(Ordering::Relaxed);
    crate::process::network::within(number, || open_here(endpoint, reads, listen, gate)).unwrap_or(opened)
}

fn open_here(
    endpoint: &'static Endpoint,
    reads: Reads,
    listen: impl FnOnce(i32) -> Option<Owned>,
    gate: Option<&Gate>,
) -> Result<Owned> {
    let (outer, inner) = match crate::family::tcp_pair::pair(endpoint) {
        Some(pair) => pair,
        None => crate::family::tcp_pair::make()?,
    };
    let listener = listen(outer.raw());
    let told = (listener.as_ref().map(Owned::raw), gate);
    let started = start(endpoint, reads, [outer.raw(), inner.raw()], told)
        .or_else(|error| helper::ask(endpoint, reads, inner.raw(), told).ok_or(error));
    drop((inner, listener));
    if let Err(e) = started {
        // It may be the endpoint's own.
        crate::family::tcp_pair::disconnect(outer.raw());
        return Err(e);
    }
    kernel_socket::renew(endpoint, outer.raw());
    if endpoint.flag(NONBLOCK) {
        let _ = sd_sys::fd::fcntl(outer.raw(), libc::F_SETFL, libc::O_NONBLOCK as usize);
    }
    Ok(outer)
}

/// fork(2) without fork handlers and without a signal when the child ends.
fn bare_fork() -> Result<i32> {
    // SAFETY: a plain copy of the process; the child only uses raw calls and this crate.
    check(unsafe { syscall!(libc::SYS_clone, 0, 0, 0, 0, 0) }).map(|pid| pid as i32)
}

fn exit() -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { syscall!(libc::SYS_exit_group, 0) };
    }
}

/// Starts the bridge; returns when the monitor has been told of it, and the bridge has no copy of `outer` left: if the
/// last one were closed there, and that socket lingers, the bridge would wait for bytes that it has to pass on itself.
fn start(
    endpoint: &'static Endpoint,
    reads: Reads,
    [outer, inner]: [i32; 2],
    (listener, gate): (Option<i32>, Option<&Gate>),
) -> Result<()> {
    fork::early();
    fork::prepare();
    // Made and closed while no other thread can fork: its end says something.
    let mut pipe = [-1i32; 2];
    // SAFETY: the kernel writes two numbers.
    let made = check(unsafe { syscall!(libc::SYS_pipe2, pipe.as_mut_ptr(), libc::O_CLOEXEC) });
    let [read_end, write_end] = pipe.map(Owned::new);
    let middle = made.and_then(|_| bare_fork());
    if middle == Ok(0) {
        // The process in between: makes the bridge, tells its pid, and is gone. The bridge is in a session of
        // its own from its first moment: what ends the program's process group leaves it alone.
        // SAFETY: no pointers.
        unsafe { syscall!(libc::SYS_setsid) };
        let pid = bare_fork().unwrap_or(-1);
        if pid != 0 {
            let _ = sd_sys::fd::write(write_end.raw(), &pid.to_ne_bytes());
            exit();
        }
        fork::child_bare();
        fork::late();
        // It may be the endpoint's own, to which this process's numbers lead as well: they would keep it open for ever.
        kernel_socket::renew(endpoint, outer);
        // This process's copies; their owners' frames are the parent's.
        sd_sys::fd::close(outer);
        drop(write_end);
        crate::family::spawn::is_other_program();
        run(endpoint, reads, inner, (listener, gate));
    }
    drop(write_end);
    fork::parent();
    let mut pid = [0xffu8; 4];
    if middle.is_ok() {
        read(read_end.raw(), &mut pid);
    }
    let pid = i32::from_ne_bytes(pid);
    fork::announce(pid);
    if let Ok(middle) = middle {
        // SAFETY: null results are allowed.
        unsafe { syscall!(libc::SYS_wait4, middle, 0, libc::__WALL, 0) };
        read(read_end.raw(), &mut [0]);
    }
    if pid > 0 { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// read(2), through signals.
fn read(fd: i32, bytes: &mut [u8]) {
    while sd_sys::fd::read(fd, bytes) == Err(Errno::EINTR) {}
}

/// The bridge process: keeps nothing but the connection and the socket.
fn run(
    endpoint: &'static Endpoint,
    reads: Reads,
    inner: i32,
    (listener, gate): (Option<i32>, Option<&Gate>),
) -> ! {
    // SAFETY: a C string; a name for people.
    unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_NAME, c"sd-bridge".as_ptr()) };
    // Signals are for the program; only SIGKILL ends a bridge early.
    let all = [!0u64];
    // SAFETY: the kernel reads eight bytes.
    unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, all.as_ptr(), 0, 8) };
    let mut number = -1;
    kernel_socket::each_fd(endpoint, |fd| number = fd);
    let [opened, opener] = gate.map_or([-1; 2], Gate::numbers);
    close_others(&mut [number, inner, listener.unwrap_or(-1), opened, opener]);
    gate.into_iter().for_each(Gate::pass);
    let _ = sd_sys::fd::fcntl(inner, libc::F_SETFL, libc::O_NONBLOCK as usize);
    if pump(endpoint, reads, [number, inner], listener) {
        table::clear(number);
        life::release(endpoint);
        exit();
    }
    if endpoint.flag(endpoint::RESET) {
        let is_the_kernels = road::is_promoted(endpoint) || endpoint.state_now() == State::Kernel;
        resend::abort_at_close(inner);
        // Else a placeholder is there, which others have too.
        if is_the_kernels {
            resend::abort_at_close(number);
        }
    }
    table::clear(number);
    life::release(endpoint);
    exit()
}

/// Closes all descriptors of the program but these.
fn close_others(kept: &mut [i32]) {
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept.iter().filter_map(|&fd| u32::try_from(fd).ok()) {
        close_range(from..fd);
        from = fd + 1;
    }
    close_range(from..u32::MAX);
}

fn close_range(fds: core::ops::Range<u32>) {
    let (first, last) = (fds.start, fds.end.saturating_sub(1));
    if !fds.is_empty() && matches!(crate::numbers::close_range(first, last, 0), crate::Outcome::Errno(_)) {
        // An old kernel, or a filter.
        let is_hidden = |fd: &i32| matches!(table::get(*fd), table::Entry::Hidden);
        (first as i32..=last.min(table::LEN as u32) as i32)
            .filter(|fd| !is_hidden(fd))
            .for_each(sd_sys::fd::close);
    }
}

/// How long, at first and at most, the bridge sleeps before it asks again whether it may read.
const ASK_MS: (i32, i32) = (1, 100);
/// So long a receiver that loads us has the time to ask for the connection before bytes move; see `handover`.
const CLAIM_MS: i32 = 50;

/// Waits for the first that happens: a receiver takes the connection (true then), the kernel's side has something, or
/// time has passed. Others that ask are turned away.
fn wait_for_claim(endpoint: &'static Endpoint, inner: i32, listener: i32) -> bool {
    let entry = |fd| pollfd { fd, events: POLLIN, revents: 0 };
    for _ in 0..TURNED_AWAY_MAX {
        let mut fds = [entry(listener), entry(inner)];
        let _ = sd_sys::fd::poll(&mut fds, CLAIM_MS);
        let [claim, moved] = fds;
        if claim.revents == 0 || moved.revents != 0 {
            return false;
        }
        if handover::give(listener, endpoint) {
            return true;
        }
    }
    false
}

/// Whether copying has come to an end before both directions have; what the other side is to see then is said.
fn is_over(copied: Copied, endpoint: &'static Endpoint, inner: i32, others: &mut Others) -> bool {
    if matches!(copied, Copied::Broken) {
        // What is left unread is for others.
        others.end_turn(endpoint);
    }
    match copied {
        Copied::On => return false,
        Copied::Broken if others::is_soon_sole_holder(endpoint) && !others.have_read_it(endpoint) => {
            endpoint.set_flag(endpoint::RESET);
        }
        Copied::Broken | Copied::Ended => {}
        Copied::Reset => {
            resend::abort_at_close(inner);
            if is_sole_holder(endpoint) {
                endpoint.set_flag(endpoint::RESET);
            }
        }
        Copied::Left => others.finish(endpoint),
    }
    true
}

/// Copies until both directions have ended, or one side is broken. With a `listener` a receiver may take the
/// connection instead, before anything was copied: true when one has.
fn pump(
    endpoint: &'static Endpoint,
    reads: Reads,
    [number, inner]: [i32; 2],
    mut listener: Option<i32>,
) -> bool {
    let (mut out, mut back) = (Flow::new(), Flow::new());
    let mut pause_ms = ASK_MS.0;
    let mut others = Others::new(endpoint, reads, inner);
    let mut turned_away = 0;
    if listener.is_some_and(|listener| wait_for_claim(endpoint, inner, listener)) {
        return true;
    }
    endpoint.reason.store(Reason::Bridged as u8, Ordering::Relaxed);
    while !(out.closed && back.closed) {
        others.settle(endpoint);
        let reads = others.leave_it(endpoint);
        let copied = copy(endpoint, inner, (&mut out, &mut back), (&mut others, reads));
        if is_over(copied, endpoint, inner, &mut others) || back.closed && out.closed {
            return false;
        }
        if back.is_empty() {
            others.has_answered(endpoint);
        }
        if let Some(socket) = listener
            && (out.has_moved() || back.has_moved())
        {
            sd_sys::fd::close(socket);
            listener = None;
        }
        let (ours, kernels) = (want(&out, &back), want(&back, &out));
        if let Some(pause_ns) = others.pause_ns() {
            let mut fds = [pollfd { fd: inner, events: kernels, revents: 0 }];
            // SAFETY: no mask.
            let _ = unsafe { sd_sys::fd::ppoll(&mut fds, Some(pause_ns), core::ptr::null()) };
            continue;
        }
        if !reads && others.see_something() {
            let _ = sd_sys::fd::poll_one(inner, kernels, pause_ms);
            pause_ms = (pause_ms * 2).min(ASK_MS.1);
            continue;
        }
        pause_ms = ASK_MS.0;
        let asked = sleep([number, inner], [ours, kernels], listener);
        if let Some(socket) = listener.filter(|_| asked) {
            if handover::give(socket, endpoint) {
                endpoint.reason.store(Reason::None as u8, Ordering::Relaxed);
                return true;
            }
            turned_away += 1;
            if turned_away >= TURNED_AWAY_MAX {
                sd_sys::fd::close(socket);
                listener = None;
            }
        }
    }
    false
}

/// What the source of `fill`, which is where `drain` goes to, is waited for.
fn want(fill: &Flow, drain: &Flow) -> i16 {
    let read = if fill.is_empty() && !fill.ended { POLLIN } else { 0 };
    let write = if drain.is_empty() { 0 } else { POLLOUT };
    read | write
}

/// Sleeps until one of the two descriptors, ours and the kernel's, has what is wanted, or somebody asks for the
/// connection: true when they do, and nothing has come from the kernel's side.
fn sleep(fds: [i32; 2], wanted: [i16; 2], listener: Option<i32>) -> bool {
    let [number, inner] = fds;
    let [ours, kernels] = wanted;
    let entry = |fd, events| pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 };
    let mut fds = [entry(number, ours), entry(inner, kernels), entry(listener.unwrap_or(-1), POLLIN)];
    if crate::poll::poll(&mut fds, None, core::ptr::null()) == crate::Outcome::Kernel {
        // Only the kernel's side is waited for, or both are the kernel's: a connection that has gone back.
        let [ours, ..] = fds;
        let mut both = [ours, pollfd { fd: inner, events: kernels, revents: 0 }];
        let _ = sd_sys::fd::poll(&mut both, -1);
    }
    let [_, moved, claim] = fds;
    claim.revents != 0 && moved.revents == 0
}
