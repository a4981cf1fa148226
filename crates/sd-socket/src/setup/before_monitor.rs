//! Listeners of a process that has no monitor yet, or none any more (ADR 53).
//!
//! Without a monitor sockets are the kernel's. One that listens is taken up all the same, so that connections to it are
//! accelerated as soon as a monitor is there: the process makes its slab, in which the monitor finds the listener when it starts
//! (`sd-monitor/src/shell/expected.rs`), and looks for a monitor in whatever it sleeps ([`crate::monitor::client::retry_if_lost`]). It
//! registers the listener once the program has shown that it accepts.
//!
//! The program may have threads, and have the socket in epoll instances before it listens: no call on a socket that does not
//! listen yet waits, and the instances that threads may sleep in are known since they were made ([`crate::epoll::created`]).
//!
//! What stays the kernel's:
//! - listeners of a process with threads that got an epoll instance by exec or in a message. Threads that sleep there could not be
//!   told of connections of ours;
//! - sockets that another process may have as well: made before a fork, or by somebody else. Ours do not block in the kernel, which
//!   is a matter of the file that all of them share; who accepts there without knowing of us would get EAGAIN.
//!
//! Tested by `cargo xtask sharing --only before-monitor`.

use crate::Outcome;
use crate::backlog::listener::{Listener, REGISTRY, UNREGISTERED};
use crate::epoll;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::{PROCESS, single_threaded};
use crate::setup::listen;
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::kernels_own;
use crate::socket::{addr, inode, life, mptcp};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::c_int;
use sd_proto::Request;

/// Numbers among which epoll instances and duplicates are looked for.
const NUMBERS: i32 = 4096;

/// socket(2) for a TCP socket that is the kernel's. It is noted, since it may listen.
pub(super) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> Outcome<c_int> {
    if !client::may_come() {
        return Outcome::Kernel;
    }
    let made = kernels_own(domain, ty, protocol);
    let begin = |fd: &c_int| {
        inode::note(*fd);
        super::unregistered::begin(*fd);
    };
    made.inspect(begin).into()
}

/// listen(2) on a socket that is not ours.
pub(super) fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    if crate::setup::handed_on::is_brief() {
        return Outcome::Kernel;
    }
    if crate::setup::first::listens(fd) {
        inode::note(fd);
    }
    super::unregistered::stays(fd);
    let may_be_ours = table::is_active()
        && matches!(table::get(fd), Entry::None)
        && is_tcp(fd)
        && inode::is_own(fd)
        && may_be_taken_up();
    if !may_be_ours {
        return Outcome::Kernel;
    }
    let others = duplicates(fd);
    let Some(watched_by) = instances_with(fd, &others) else { return Outcome::Kernel };
    // Before the kernel's: who calls accept the moment that it listens is to wait with us.
    let Some(endpoint) = listen::take_up(fd, backlog) else { return Outcome::Kernel };
    for number in &others {
        life::retain(endpoint);
        table::set_socket(*number, endpoint);
    }
    // SAFETY: no pointers.
    if let Err(e) = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_listen, fd, backlog) }) {
        for number in others {
            table::clear(number);
            life::release(endpoint);
        }
        listen::give_back(endpoint, fd);
        return Outcome::Errno(e);
    }
    if let Some((_, name)) = addr::kernel_name(fd) {
        endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    }
    for registered in watched_by {
        listen::interested(endpoint, registered.fd());
        epoll::put_back(registered, endpoint);
    }
    Outcome::Done(0)
}

fn is_tcp(fd: c_int) -> bool {
    mptcp::is_stream(fd) && sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(0)
}

/// There is a monitor, since the socket was made perhaps, or may be one.
pub(super) fn may_be_taken_up() -> bool {
    client::connected().is_some() || is_ready()
}

/// There is no monitor, but may be one some day, and the process has what a listener needs then.
fn is_ready() -> bool {
    !client::is_there()
        && !crate::process::network::has_left()
        && !sd_sys::confine::is_on()
        && crate::process::env::monitor_path(&mut [0; 108]).is_some()
        && client::wait_for_monitor()
}

/// All numbers that are looked at.
fn numbers() -> core::ops::Range<c_int> {
    0..sd_sys::fd::nofile_limit().min(NUMBERS as u64) as c_int
}

/// The other numbers of the socket.
fn duplicates(fd: c_int) -> Vec<c_int> {
    let Ok(socket) = sd_sys::fd::identity(fd) else { return Vec::new() };
    let is_other = |number: &c_int| {
        *number != fd
            && matches!(table::get(*number), Entry::None)
            && sd_sys::fd::identity(*number) == Ok(socket)
    };
    numbers().filter(is_other).collect()
}

/// The registrations of the socket in the process's epoll instances, each of which is one that can have sockets of ours from now
/// on. `None`: there may be some that we cannot know of.
fn instances_with(fd: c_int, others: &[c_int]) -> Option<Vec<epoll::Registered>> {
    let mut found: Vec<epoll::Registered> = Vec::new();
    for number in numbers() {
        if matches!(table::get(number), Entry::None) && epoll::is_instance(number) {
            if !single_threaded() {
                return None;
            }
            epoll::found(number);
        }
        let Entry::Epoll(epoll) = table::get(number) else { continue };
        let epoll = epoll.epoll();
        if found.iter().any(|other| other.is_in(epoll)) {
            continue;
        }
        for socket in others.iter().chain([&fd]) {
            found.extend(epoll::Registered::of_kernel(epoll, number, *socket).ok()?);
        }
    }
    Some(found)
}

/// A listener could not be registered: it will be.
#[cold]
pub(super) fn wait(fd: c_int) {
    crate::setup::withdrawn::cannot_take(fd);
    if client::image_fd() < 0 {
        client::wait_for_monitor();
    }
}

/// All listeners that this process accepts from, to a monitor that is new to it. Under `CONTROL`.
pub(super) fn announce_all(mut tell: impl FnMut(&Request, i32)) {
    let all: Vec<&'static Listener> = REGISTRY.lock().clone();
    for listener in all {
        let Some(Socket { endpoint, .. }) = *listener.socket.lock() else { continue };
        if listener.index.load(Ordering::Relaxed) == UNREGISTERED && !begin(listener) {
            continue;
        }
        crate::socket::kernel_socket::each_fd(endpoint, |fd| tell(&listen::request(listener), fd));
    }
}

/// A listener that has never been registered gets its place in the public page, if the program has shown that it accepts.
fn begin(listener: &'static Listener) -> bool {
    let page = PROCESS.public().filter(|_| listener.interested.load(Ordering::Relaxed));
    let Some(page) = page.and_then(|public| listen::publish(listener, public)) else { return false };
    page.backlog.store(listener.public_backlog(), Ordering::Release);
    true
}
