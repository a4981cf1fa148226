//! The calls that the hook table forwards, with libc's arguments.
//!
//! `Outcome::Kernel` always means: call the real function with the same arguments.
//!
//! # Safety
//! Every unsafe function here takes the pointers of the libc function of the same name, and the
//! caller of the hooked function vouches for them as it would to libc.
#![allow(clippy::missing_safety_doc)]

mod control;
mod duties;
mod ends;

use crate::Outcome;
pub use crate::data::calls::{
    read, readv, recv, recvfrom, recvmmsg, recvmsg, send, sendmmsg, sendto, write, writev,
};
use crate::data::files;
use crate::data::iov::bad_pointer;
use crate::epoll;
use crate::family::exec;
use crate::family::fork;
use crate::family::spawn;
use crate::fd::table::{self, Entry};
use crate::numbers;
use crate::options;
use crate::setup::connect as connecting;
use crate::setup::listen as listening;
use crate::setup::unconnected;
use crate::socket::endpoint::connection;
use crate::socket::names;
pub use control::epoll_ctl;
use core::ffi::c_char;
use libc::{
    c_int, c_ulong, c_void, epoll_event, fd_set, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t,
};
use sd_sys::Errno;

/// Whether `fd` may be one of ours; a nanosecond. When false every call is the kernel's.
#[inline(always)]
pub fn is_ours(fd: c_int) -> bool {
    table::is_ours(fd)
}

/// socket(2).
pub fn socket(domain: c_int, ty: c_int, protocol: c_int) -> Outcome<c_int> {
    connecting::socket(domain, ty, protocol)
}

/// bind(2).
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { crate::setup::bind::bind(fd, addr, len) }
}

/// listen(2).
pub fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    listening::listen(fd, backlog)
}

/// accept and accept4 (accept passes flags 0).
pub unsafe fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Outcome<c_int> {
    crate::family::hands_on::accepts(fd);
    // SAFETY: see the module.
    unsafe { crate::setup::accept::accept4(fd, addr, len, flags) }
}

/// connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { connecting::connect(fd, addr, len) }
}

/// shutdown(2).
pub fn shutdown(fd: c_int, how: c_int) -> Outcome<c_int> {
    match connection(fd) {
        Some(_) if !(0..=2).contains(&how) => Outcome::Errno(Errno::EINVAL),
        Some(endpoint) => crate::data::shutdown::shutdown(endpoint, how).map(|()| 0).into(),
        None => unconnected::shutdown(fd, how),
    }
}

/// close(2); `Kernel` means that the number is free to be closed.
pub fn close(fd: c_int) -> Outcome<c_int> {
    numbers::close(fd)
}

/// close_range and closefrom (last = u32::MAX).
pub fn close_range(first: u32, last: u32, flags: c_int) -> Outcome<c_int> {
    if table::is_active() { numbers::close_range(first, last, flags) } else { Outcome::Kernel }
}

/// sendfile(2). Either descriptor may be ours.
pub unsafe fn sendfile(out_fd: c_int, in_fd: c_int, offset: *mut off_t, count: size_t) -> Outcome<ssize_t> {
    // SAFETY: see the module.
    unsafe { files::sendfile(out_fd, in_fd, offset, count) }
}

/// splice(2). Either descriptor may be ours.
pub unsafe fn splice(
    fd_in: c_int,
    off_in: *mut off_t,
    fd_out: c_int,
    off_out: *mut off_t,
    len: size_t,
    flags: u32,
) -> Outcome<ssize_t> {
    [fd_in, fd_out].into_iter().for_each(crate::setup::watched::never);
    // SAFETY: see the module.
    unsafe { files::splice(fd_in, off_in, fd_out, off_out, len, flags) }
}

/// Before a call that [`moved`] follows, and that the kernel refuses whatever the socket.
pub fn passes<T>(fd: c_int) -> Outcome<T> {
    crate::setup::watched::enter(fd, 0);
    Outcome::Kernel
}

/// After a call of the kernel's that moved bytes on a number of ours, or did not: what it returned.
pub fn moved<T: Copy + PartialOrd + Default>(fd: c_int, done: T) -> T {
    crate::setup::watched::left(fd, done > T::default());
    done
}

/// After epoll_ctl(2) of the kernel's.
pub fn registered(fd: c_int, done: c_int) -> c_int {
    epoll::changed(fd);
    moved(fd, done)
}

/// After pthread_cancel(3).
pub fn cancelled(thread: usize) {
    if table::is_active() {
        crate::wait::cancel::requested(thread);
        // SAFETY: no arguments.
        epoll::cancelled(thread != unsafe { libc::pthread_self() } as usize);
    }
}

/// sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Outcome<ssize_t> {
    if table::socket(fd).is_none() {
        // SAFETY: see the module.
        if let Some(outcome) = unsafe { crate::family::rights::pass(fd, msg, flags) } {
            return outcome;
        }
    }
    // SAFETY: see the module.
    unsafe { crate::data::calls::sendmsg(fd, msg, flags) }
}

/// getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { options::get(fd, level, name, value, len) }
}

/// setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { options::set(fd, level, name, value, len) }
}

/// Before a call that tells the descriptor's inode, which the kernel does.
pub fn has_inode(fd: c_int) -> Outcome<c_int> {
    crate::socket::kernel_socket::look_at_inode(fd);
    Outcome::Kernel
}

/// getsockname(2).
pub unsafe fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { names::getsockname(fd, addr, len) }
}

/// getpeername(2).
pub unsafe fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { names::getpeername(fd, addr, len) }
}

/// fcntl and fcntl64, including F_DUPFD and F_DUPFD_CLOEXEC.
pub unsafe fn fcntl(fd: c_int, cmd: c_int, arg: c_ulong) -> Outcome<c_int> {
    numbers::fcntl(fd, cmd, arg)
}

/// kcmp(2) of two descriptors of this process.
pub fn same_file(a: c_int, b: c_int) -> Outcome<c_int> {
    numbers::compare(a, b)
}

/// ioctl(2).
pub unsafe fn ioctl(fd: c_int, request: c_ulong, arg: c_ulong) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { numbers::ioctl(fd, request, arg) }
}

/// dup(2).
pub fn dup(fd: c_int) -> Outcome<c_int> {
    numbers::dup(fd)
}

/// dup2(2), also when only `new` is ours.
pub fn dup2(old: c_int, new: c_int) -> Outcome<c_int> {
    numbers::dup_to(old, new, 0, false)
}

/// dup3(2), also when only `new` is ours.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> Outcome<c_int> {
    numbers::dup_to(old, new, flags, true)
}

/// poll and ppoll: timeout in ns (None = for ever), optional signal mask.
pub unsafe fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    if count > sd_sys::numbers::soft() {
        return Outcome::Errno(Errno::EINVAL);
    }
    let none = count == 0 || count > table::LEN as nfds_t;
    if none || !sd_sys::user::seems_writable(fds, count as usize * size_of::<pollfd>()) {
        return Outcome::Kernel;
    }
    // SAFETY: see the module.
    crate::poll::poll(unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }, timeout_ns, mask)
}

/// After a poll of the kernel's: what it returned.
pub fn polled(done: c_int) -> c_int {
    crate::poll::left();
    done
}

/// select and pselect; the hook writes select's remaining time back from `remaining_ns` (set when
/// Done).
pub unsafe fn select(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    remaining_ns: &mut u64,
) -> Outcome<c_int> {
    // SAFETY: see the module.
    unsafe { crate::poll::select(nfds, [read, write, except], timeout_ns, mask, remaining_ns) }
}

/// epoll_wait, epoll_pwait, epoll_pwait2.
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    mut timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // Once, but for a process that is asked to detach, and where another thread closes the number.
    loop {
        let Entry::Epoll(instance) = table::get(epfd) else { return Outcome::Kernel };
        let instance = instance.epoll();
        let bad = bad_pointer(events.cast(), (max.max(0) as usize).saturating_mul(size_of::<epoll_event>()));
        if bad && epoll::is_ready(instance) {
            return Outcome::Errno(Errno::EFAULT);
        }
        if max <= 0 || bad {
            return Outcome::Kernel;
        }
        // SAFETY: see the module.
        let out = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
        match epoll::wait((instance, epfd), out, timeout_ns, mask) {
            Ok(count) => return Outcome::Done(count as c_int),
            Err(epoll::CLOSED) => {}
            Err(errno) if errno != epoll::AT_EDGE => return Outcome::Errno(errno),
            Err(_) => match at_edge(epfd, out) {
                Edge::Again(left_ns) => timeout_ns = left_ns,
                Edge::Over(outcome) => return outcome,
            },
        }
    }
}

/// How a wait goes on that has come to an edge.
enum Edge {
    /// As before, for what is left of its time.
    Again(Option<u64>),
    Over(Outcome<c_int>),
}

/// A wait without a mask has come to an edge. Where the process detaches there, the instance is the kernel's alone, and what is left of the wait with it.
#[cold]
#[inline(never)]
fn at_edge(epfd: c_int, out: &mut [epoll_event]) -> Edge {
    crate::process::detaching::at_edge();
    let left_ns = crate::process::detaching::resumed();
    if matches!(table::get(epfd), Entry::Epoll(_)) {
        return Edge::Again(left_ns);
    }
    let waited = crate::wait::sleep_on(epfd, out, left_ns, core::ptr::null());
    Edge::Over(waited.map(|count| count as c_int).into())
}

/// After the kernel made an epoll instance: returns the same number.
pub fn epoll_created(fd: c_int) -> c_int {
    if fd >= 0 {
        epoll::created(fd);
    }
    fd
}

/// After the kernel made any other descriptor (open, pipe, eventfd, ...): the number to give to the program, or the
/// errno when it has none left.
#[inline(always)]
pub fn created(fd: c_int) -> Result<c_int, Errno> {
    let fd = sd_sys::numbers::give(fd)?;
    if table::is_ours(fd) {
        crate::socket::kernel_socket::dropped_behind_our_back(fd);
    }
    Ok(fd)
}

/// Before a call that makes a descriptor and something else beside it.
#[inline(always)]
pub fn creates() -> Outcome<c_int> {
    if sd_sys::numbers::are_used_up(0) { Outcome::Errno(Errno::EMFILE) } else { Outcome::Kernel }
}

/// After the kernel gave the program a descriptor that came in a message.
pub fn received(fd: c_int) -> Result<c_int, Errno> {
    let fd = created(fd)?;
    listening::adopt_from_kernel(fd);
    crate::family::handover::claim(fd);
    Ok(fd)
}

/// Before a thread begins.
pub fn thread_begins() {
    crate::process::fence::before_thread();
}

/// Whether the library may do more in this process than to pass calls on. May cost a look at /proc.
pub fn may_work() -> bool {
    crate::process::env::may_work()
}

pub use crate::setup::handed_on::accepted;

/// Before a fork and all fork handlers. Whether the child has something of ours to look after.
pub fn fork_early() -> bool {
    fork::early()
}

/// The last thing before a fork; then exactly one of the next two, on the same thread.
pub fn fork_prepare() {
    crate::socket::inode::before_fork();
    fork::prepare();
}

/// The first thing after it in the parent.
pub fn fork_parent() {
    fork::parent();
}

/// Then, in the parent: the child's pid, or negative when there is none.
pub fn fork_announce(child: c_int) {
    fork::announce(child);
}

/// Whether the process has sockets of ours.
pub fn has_sockets() -> bool {
    table::has_sockets()
}

/// Before vfork(2) with memory that is shared; false where the child needs a copy of it: the process has something of ours, or
/// another thread that would go on.
pub fn vfork_begins() -> bool {
    fork::lend_memory()
}

/// Whether this process runs on another's memory, which it must not change.
#[inline]
pub fn is_on_borrowed_memory() -> bool {
    crate::process::borrowed::is_borrowed()
}

/// The first thing after it in the child.
pub fn fork_child() {
    crate::process::borrowed::forked();
    fork::child();
}

/// The first thing in the child of a bare clone, where no fork(3) has seen to the allocator's locks.
pub fn fork_child_bare() {
    crate::process::borrowed::forked();
    fork::child_bare();
}

/// In the child after all fork handlers.
pub fn fork_late() {
    fork::late();
}

/// A descriptor of the library's: moved to where the program does not find or close it. Its number.
pub fn hide(fd: c_int) -> c_int {
    crate::fd::hidden::Hidden::of(sd_sys::fd::Owned::new(fd)).into_raw()
}

/// Before execve and friends. If they return, [`exec_failed`] follows.
pub unsafe fn exec_prepare(program: exec::Program, environment: *const *const c_char) -> exec::Prepared {
    // SAFETY: see the module.
    let prepared = unsafe { exec::prepare(program, environment) };
    sd_sys::numbers::give_back();
    prepared
}

/// The program could not be executed.
pub fn exec_failed(prepared: exec::Prepared) {
    sd_sys::numbers::take_again();
    exec::failed(prepared);
}

/// Whether a program that is started now would get a socket of ours; `duplicated` are numbers that it gets a
/// duplicate of.
pub fn spawn_passes_sockets(duplicated: &[c_int]) -> bool {
    spawn::passes_sockets(duplicated)
}

/// Whether a program that is started now must be executed by a process that has the library, so that it gets it too.
pub unsafe fn spawn_accompanies(program: exec::Program, environment: *const *const c_char) -> bool {
    // SAFETY: see the module.
    unsafe { exec::is_accompanied(program, environment) }
}

/// The environment for a program that is started without sockets of ours; `given`, or one in `room`.
pub unsafe fn spawn_environment(
    program: exec::Program,
    given: *const *const c_char,
    room: &mut exec::Variables,
) -> *const *const c_char {
    // SAFETY: see the module.
    unsafe { exec::quiet::environment(program, given, room) }
}

/// Before the fork in which a program is to be started.
pub fn spawn_begin() -> Result<spawn::Starting, Errno> {
    spawn::Starting::begin()
}

/// Once, from the library's constructor, with the environment it was given, and the path that it was loaded from.
pub unsafe fn start(envp: *const *const c_char, own_path: *const c_char) {
    exec::target::set_own_path(own_path);
    // SAFETY: see the module.
    let listeners = unsafe { crate::process::env::remember(envp) };
    crate::wait::duties::TABLE.fill(&duties::TABLE);
    crate::wait::duties::IS_IDLE.fill(&duties::IS_IDLE);
    crate::monitor::sink::SINK.fill(&crate::setup::mail::SINK);
    crate::socket::life::ABOVE.fill(&ends::TABLE);
    crate::process::detaching::AT_EDGE.fill(&crate::family::detach::AT_EDGE);
    crate::process::detaching::IS_BACK.fill(&crate::family::detach::IS_BACK);
    // SAFETY: as above.
    unsafe { exec::attach(envp) };
    listeners.for_each(listening::adopt_from_kernel);
}
