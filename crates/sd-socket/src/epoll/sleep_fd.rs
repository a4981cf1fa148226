//! What a wait sleeps on: a kernel instance of the library's own.
//!
//! It watches the program's instance, our eventfds and the control socket. So the program's instance
//! stays what it would be without us, for nesting, poll and children. Where the program nests
//! instances, one more level on top could be one too many for the kernel: then the two are slept on
//! side by side, with ppoll.

use super::*;
use crate::fd::hidden::{Hidden, HiddenCell};
use crate::process::lingering;
use crate::process::waker::OWN_EVENT;
use crate::process::waker::View;
use crate::wait;
use libc::{epoll_event, pollfd, sigset_t};
use sd_sys::Errno;

/// Marks the program's instance in the one that is slept on.
const KERNEL_PART: u64 = 1;

/// An eventfd that can always be read: asking for its event anew wakes one sleeper of one instance.
static SIGNAL: HiddenCell = HiddenCell::empty();

fn signal_fd() -> i32 {
    if !SIGNAL.is_some()
        && let Ok(fd) = sd_sys::fd::eventfd(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
    {
        let _ = sd_sys::fd::write(fd.raw(), &1u64.to_ne_bytes());
        SIGNAL.put_first(Hidden::of(fd));
    }
    SIGNAL.raw()
}

/// The program may have closed what the library has, past libc: what was slept on is left alone.
#[cold]
fn abandon_lost(epoll: &Epoll, interest: &mut Interest, losses: u32) {
    if !sd_sys::fd::is_open(SIGNAL.raw()) {
        SIGNAL.lose();
    }
    let other = signal_fd();
    match epoll.sleep_fd.take() {
        Some(fd) if sd_sys::fd::is_epoll(fd.raw(), other) => drop(fd),
        fd => fd.into_iter().for_each(Hidden::lost),
    }
    epoll.place.is_beside();
    (interest.wakers, interest.registration, interest.losses) = (View::default(), 0, losses);
}

/// Makes the instance to sleep on, and lets it watch what there is now. False when out of descriptors.
pub(super) fn prepare(epoll: &Epoll, interest: &mut Interest, view: View) -> bool {
    let losses = crate::monitor::client::losses();
    if interest.losses != losses {
        abandon_lost(epoll, interest, losses);
    }
    if !epoll.sleep_fd.is_some() {
        let Ok(fd) = sd_sys::fd::epoll_create() else { return false };
        let fd = Hidden::of(fd);
        let _ = sd_sys::fd::epoll_ctl(fd.raw(), libc::EPOLL_CTL_ADD, signal_fd(), 0, OWN_EVENT);
        epoll.sleep_fd.put(fd);
        watch_program(epoll);
        watch_ledger(epoll);
        kick(epoll, interest);
    }
    let sleep_fd = epoll.sleep_fd.raw();
    wait::watch_all(&mut interest.wakers, sleep_fd, view);
    let registration = crate::monitor::client::REGISTRATIONS.load(Ordering::Acquire);
    if interest.registration != registration {
        interest.registration = registration;
        wait::add_control(sleep_fd);
    }
    true
}

/// The program's instance shall end a sleep, unless that were one level too many.
pub(super) fn watch_program(epoll: &Epoll) {
    let (sleep_fd, level) = (epoll.sleep_fd.raw(), libc::EPOLLIN as u32);
    if !epoll.flat.load(Ordering::Relaxed)
        && sd_sys::fd::epoll_ctl(sleep_fd, libc::EPOLL_CTL_ADD, epoll.fd(), level, KERNEL_PART).is_err()
    {
        epoll.flat.store(true, Ordering::Relaxed);
    }
}

/// What was slept on goes.
pub(super) fn close(epoll: &Epoll) {
    if lingering::is_for(epoll) {
        lingering::end();
    }
    epoll.place.is_beside();
    epoll.sleep_fd.close();
}

/// Changes made by other processes shall end a sleep.
pub(super) fn watch_ledger(epoll: &Epoll) {
    let (sleep_fd, ledger_fd) = (epoll.sleep_fd.raw(), epoll.ledger_fd.raw());
    if sleep_fd >= 0 && ledger_fd >= 0 {
        let edge = sd_sys::fd::EVENTFD_EDGE;
        let _ = sd_sys::fd::epoll_ctl(sleep_fd, libc::EPOLL_CTL_ADD, ledger_fd, edge, OWN_EVENT);
    }
}

/// An instance is about to be nested in this one: no more level on top of it.
pub(super) fn flatten(epoll: &Epoll, interest: &Interest) {
    inside::leave(epoll, interest);
    if epoll.flat.swap(true, Ordering::SeqCst) {
        return;
    }
    let sleep_fd = epoll.sleep_fd.raw();
    if sleep_fd >= 0 {
        let _ = sd_sys::fd::epoll_ctl(sleep_fd, libc::EPOLL_CTL_DEL, epoll.fd(), 0, 0);
        wake_one(epoll);
    }
}

/// Threads that sleep on the program's instance because it held nothing of ours must come back: it
/// is ready until the last one has, whoever else looks at it.
pub(super) fn kick(epoll: &Epoll, interest: &Interest) {
    if epoll.strangers.load(Ordering::SeqCst) != 0 {
        let level = libc::EPOLLIN as u32;
        let _ = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, signal_fd(), level, OWN_EVENT);
        epoll.kicked.store(true, Ordering::SeqCst);
        are_all_back(epoll, interest);
    }
}

/// Perhaps the last of the threads that were to come back has. Under the lock of `kick`, whose next call would find its event there still.
pub(super) fn are_all_back(epoll: &Epoll, _interest: &Interest) {
    if epoll.strangers.load(Ordering::SeqCst) == 0 && epoll.kicked.swap(false, Ordering::SeqCst) {
        let _ = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, signal_fd(), 0, 0);
    }
}

/// Wakes one of the threads that sleep in a wait on the instance, if any do.
pub(super) fn wake_one(epoll: &Epoll) {
    if epoll.sleepers.load(Ordering::SeqCst) != 0 {
        let once = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        let sleep_fd = epoll.sleep_fd.raw();
        let _ = sd_sys::fd::epoll_ctl(sleep_fd, libc::EPOLL_CTL_MOD, signal_fd(), once, OWN_EVENT);
    }
}

/// Sleeps. Whether the kernel's part has something, as far as is known; or errno.
pub(super) fn sleep(epoll: &Epoll, timeout_ns: Option<u64>, mask: *const sigset_t) -> Result<bool, Errno> {
    let sleep_fd = epoll.sleep_fd.raw();
    let flat = epoll.flat.load(Ordering::SeqCst);
    let mut kernel = false;
    let mut timeout_ns = timeout_ns;
    let mut mask = mask;
    if flat {
        kernel = sleep_on_both(epoll.fd(), sleep_fd, timeout_ns, mask)?;
        // What was slept on has to be taken, or it would be found again.
        (timeout_ns, mask) = (Some(0), core::ptr::null());
    }
    Ok(kernel | take(sleep_fd, timeout_ns, mask)?)
}

/// Something of ours has ended a sleep on the program's instance.
pub(super) fn answer(epoll: &Epoll) {
    let _ = take(epoll.sleep_fd.raw(), Some(0), core::ptr::null());
}

/// Takes what ends a sleep, or waits for it. Whether that was the program's instance.
fn take(sleep_fd: i32, timeout_ns: Option<u64>, mask: *const sigset_t) -> Result<bool, Errno> {
    let mut kernel = false;
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    let woken = match wait::sleep_on(sleep_fd, &mut events, timeout_ns, mask) {
        // The program closed it behind our back.
        Err(Errno::EBADF | Errno::EINVAL) => {
            crate::monitor::client::noticed_loss();
            return Ok(false);
        }
        other => other?,
    };
    for event in events.iter().take(woken) {
        let (data, bits) = (event.u64, event.events);
        kernel |= data == KERNEL_PART;
        if data == OWN_EVENT {
            crate::wait::has_rung(bits);
        }
    }
    Ok(kernel)
}

fn sleep_on_both(
    program_fd: i32,
    sleep_fd: i32,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<bool, Errno> {
    let entry = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(program_fd), entry(sleep_fd)];
    // SAFETY: the caller's mask.
    unsafe { sd_sys::fd::ppoll(&mut fds, timeout_ns, mask) }?;
    Ok(fds.first().is_some_and(|program| program.revents & libc::POLLIN != 0))
}
