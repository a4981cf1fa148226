//! The program has closed the library's descriptors past libc, by a system call instruction of its own (close_range(2)).
//!
//! What was mapped is still there, and the monitor knows that this image lives, by its witness ([`sd_sys::witness`], ADR 67). So the
//! process connects to it again, and is given a copy of each descriptor that others hold too; these are put where they were. What only
//! this process had is made anew by whoever needs it, who sees that [`losses`] has changed.
//!
//! | who notices | by what |
//! |---|---|
//! | whoever is about to use the control connection | its number leads nowhere, or to something else ([`checked`]) |
//! | whoever looks for mail | the monitor, which has seen the connection end, has raised the count |
//! | whoever rings a peer or sleeps, before the monitor has | EBADF ([`noticed_loss`]) |
//!
//! Who failed to wake somebody meanwhile need not try again: in the end the monitor wakes all.
//!
//! Not everything can be given back: not what relatives share (inherited slabs and eventfds, ledgers of epoll instances), nor a number at which
//! the program has something else by now. Then the process [gives up](give_up), and ends for the monitor.

use super::{CONTROL_FD, Control, LOST, REGISTRATIONS, ask, reach, separate, set_timeouts};
use crate::fd::hidden::{Hidden, HiddenCell, hold, put_back};
use crate::monitor::sink::SINK;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::{ErrorCode, Reply, Request};
use sd_sys::{confine, witness};

/// The inode of the control socket.
static SOCKET: AtomicU64 = AtomicU64::new(0);
/// How often descriptors were lost.
static LOSSES: AtomicU32 = AtomicU32::new(0);
/// So often, a millisecond apart, the monitor is asked again that has not heard yet what was said over the connection before.
const TRIES: u32 = 200;

/// Changes when the library's descriptors may have been lost.
pub(crate) fn losses() -> u32 {
    LOSSES.load(Ordering::Acquire)
}

/// A connection on which this process is registered.
pub(super) fn note(fd: i32) {
    let inode = sd_sys::fd::identity(fd).map_or(0, |(_, inode)| inode);
    SOCKET.store(inode, Ordering::Relaxed);
}

/// Whether a number still leads to the control socket.
pub(super) fn is_control(fd: i32) -> bool {
    let noted = SOCKET.load(Ordering::Relaxed);
    noted == 0
        || !confine::allows(libc::SYS_fstat)
        || sd_sys::fd::identity(fd).is_ok_and(|(_, inode)| inode == noted)
}

/// The control connection, after a look whether it is that; another one, if need be. -1: there is none.
pub(super) fn checked(control: &mut Control) -> i32 {
    let fd = CONTROL_FD.raw();
    if fd < 0 || is_control(fd) {
        return fd;
    }
    CONTROL_FD.lose();
    let resumed = if confine::is_on() { None } else { resume(control, fd) };
    resumed.unwrap_or_else(|| {
        give_up(control);
        -1
    })
}

/// A descriptor of the library's is closed.
#[cold]
pub(crate) fn noticed_loss() {
    let before = losses();
    let mut control = super::CONTROL.lock();
    checked(&mut control);
    if losses() == before {
        // Not the control connection, but something that is made anew.
        LOSSES.fetch_add(1, Ordering::AcqRel);
    }
}

/// The number of the control socket was `before`, and is the new one's too where it is free.
///
/// Not part of [`checked`]: it has room for descriptors on its stack, and a handler of the program's, on a small stack of its own, may be there.
#[cold]
#[inline(never)]
fn resume(control: &mut Control, before: i32) -> Option<i32> {
    if !witness::is_there() || !can_be_given_back(control) {
        return None;
    }
    crate::monitor::spare::drop_lost();
    SINK.get().inspect(|sink| (sink.closed.forget)());
    let fresh = reach()?;
    let copy = sd_sys::fd::dup_above(fresh.raw(), 3);
    let fd = match !sd_sys::fd::is_open(before) && copy.is_ok_and(|copy| put_back(copy, before)) {
        true => Hidden::again(before),
        false => Hidden::of(fresh),
    };
    let number = fd.raw();
    set_timeouts(number);
    restore(control, number)?;
    note(number);
    CONTROL_FD.put(fd);
    REGISTRATIONS.fetch_add(1, Ordering::AcqRel);
    LOSSES.fetch_add(1, Ordering::AcqRel);
    LOST.store(false, Ordering::Release);
    SINK.get().inspect(|sink| (sink.registered)(control, number, false));
    super::send(number, &Request::Restored, &[])?;
    Some(number)
}

/// Whether there is nothing that the monitor has no copy of, and that cannot be made anew.
fn can_be_given_back(control: &Control) -> bool {
    control.slab_fd >= 0
        && control.slow.is_idle()
        && PROCESS.slab_count.load(Ordering::Acquire) == 1
        && PROCESS.waker_count.load(Ordering::Acquire) == 1
        && PROCESS.ledgers.load(Ordering::Acquire) == 0
        && SINK.get().is_some_and(|sink| (sink.closed.can_be_given_back)())
}

/// Puts everything back that the monitor has.
fn restore(control: &mut Control, fd: i32) -> Option<()> {
    let got = ask_to_resume(control, fd)?;
    let [slab, public, event_fd] = got.fds.take()?;
    let own = PROCESS.wakers.first()?.event_fd.raw();
    let all = [(slab, control.slab_fd), (public, control.public_fd.as_ref()?.raw()), (event_fd, own)];
    let mut is_done = true;
    all.into_iter().for_each(|(fd, at)| is_done &= put_back(fd, at));
    put_placeholders_back();
    is_done.then_some(())?;
    (SINK.get()?.closed.restore)(control, fd)
}

fn ask_to_resume(control: &mut Control, fd: i32) -> Option<sd_sys::msg::Received> {
    for _ in 0..TRIES {
        match ask(control, fd, &Request::Resume, &[])? {
            (Reply::Resumed, got) => return Some(got),
            (Reply::Error { code: ErrorCode::InUse }, _) => {
                let _ = sd_sys::fd::poll(&mut [], 1);
            }
            _ => return None,
        }
    }
    None
}

fn put_placeholders_back() {
    for (place, domain) in PROCESS.placeholders.iter().zip([libc::AF_INET, libc::AF_INET6]) {
        let fresh = || sd_sys::fd::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let at = place.raw();
        if at >= 0 && !sd_sys::fd::is_open(at) && !fresh().is_ok_and(|fd| put_back(fd, at)) {
            place.lose();
        }
    }
}

/// The process ends for the monitor, which closes its connections, and never comes back.
fn give_up(control: &mut Control) {
    separate::end();
    witness::end();
    LOST.store(false, Ordering::Release);
    control.slab_fd = -1;
    control.public_fd.take().into_iter().for_each(Hidden::lost);
    // Its own threads are still woken by it.
    let wakers = PROCESS.wakers.iter().take(PROCESS.waker_count.load(Ordering::Acquire));
    wakers.map(|waker| &waker.event_fd).for_each(|fd: &HiddenCell| _ = hold(fd.raw()));
    put_placeholders_back();
    REGISTRATIONS.fetch_add(1, Ordering::AcqRel);
    LOSSES.fetch_add(1, Ordering::AcqRel);
}
