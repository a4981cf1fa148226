//! Now and then somebody looks whether the monitor is there still, and what it has to say.

use super::{CONTROL_FD, Control, checked, lost, retry_if_lost, take_late};
use crate::monitor::sink::SINK;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU64, Ordering};

/// So often, at most, `glance` looks.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// When it looked last.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// See [`mail_pause`].
const MAIL_PAUSE_NS: u64 = 1_000_000;

/// For threads that wait on single sockets, where the end of the monitor does not wake them: a look
/// at the control socket about once a second, and registration with a new monitor.
pub(crate) fn glance() {
    let now = sd_sys::time::now_ns();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) > LOOK_EVERY_NS {
        LOOKED_AT.store(now, Ordering::Relaxed);
        look_at_socket();
        retry_if_lost();
    }
}

/// Whether the monitor that this process registered with is gone, which calls that ask nothing do not notice.
pub(crate) fn has_ended() -> bool {
    let fd = CONTROL_FD.raw();
    let events = if fd >= 0 { sd_sys::fd::poll_one(fd, libc::POLLIN, 0) } else { Ok(0) };
    if !events.is_ok_and(|events| events & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0) {
        return false;
    }
    look_at_socket();
    CONTROL_FD.raw() != fd
}

/// The control socket's peer has hung up, or there is mail; called after waking up.
pub(crate) fn look_at_socket() {
    let Some(mut control) = crate::monitor::client::CONTROL.try_lock() else { return };
    take_mail(&mut control);
    let fd = CONTROL_FD.raw();
    if fd < 0 {
        return;
    }
    if let Ok(events) = sd_sys::fd::poll_one(fd, libc::POLLIN, 0)
        && events & (libc::POLLHUP | libc::POLLERR) != 0
    {
        lost(&mut control);
    }
    drop(control);
    deliver();
}

/// A look at the control socket when the monitor said so, or its end was seen.
#[inline]
pub(crate) fn check_mail() {
    if has_mail() {
        read_mail(PROCESS.header().mail.load(Ordering::Acquire));
    }
}

/// The monitor has said something that nobody has read yet.
#[inline]
pub(crate) fn has_mail() -> bool {
    PROCESS.header().mail.load(Ordering::Acquire) != PROCESS.mail_seen.load(Ordering::Relaxed)
}

/// Before a sleep: mail that is there while another thread talks with the monitor is looked for again so soon.
pub(crate) fn mail_pause() -> Option<u64> {
    has_mail().then_some(MAIL_PAUSE_NS)
}

#[cold]
fn read_mail(mail: u32) {
    let Some(mut control) = crate::monitor::client::CONTROL.try_lock() else { return };
    PROCESS.mail_seen.store(mail, Ordering::Relaxed);
    take_mail(&mut control);
    drop(control);
    deliver();
}

/// Takes in what has come.
pub(super) fn take_mail(control: &mut Control) {
    let fd = checked(control);
    if fd < 0 {
        return;
    }
    let _free = crate::monitor::spare::Free::now();
    take_late(control, fd);
}

/// Acts on what was taken in.
pub(super) fn deliver() {
    SINK.get().inspect(|sink| (sink.deliver)());
}
