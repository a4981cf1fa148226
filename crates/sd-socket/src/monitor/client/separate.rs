//! The control connection of a process that leaves its family.

use super::{BIRTH_FD, CONTROL_FD, Control, KNOWS_CHANNELS, ask, checked, set_timeouts};
use core::sync::atomic::{AtomicBool, Ordering};
use sd_proto::{Reply, Request};

/// The process leaves its family: for the monitor it has ended. The connection is kept for the next registration, which
/// may be in another root directory.
pub(crate) fn forget() {
    let mut control = crate::monitor::client::CONTROL.lock();
    checked(&mut control);
    let fd = CONTROL_FD.take().or_else(|| BIRTH_FD.take());
    let kept = fd.filter(|fd| {
        set_timeouts(fd.raw());
        // Mail from before comes before the answer, and goes with all the rest.
        matches!(ask(&mut control, fd.raw(), &Request::Separate, &[]), Some((Reply::Ok, _)))
    });
    sd_sys::witness::end();
    control.forked();
    if let Some(fd) = kept {
        BIRTH_FD.put(fd);
    }
    KNOWS_CHANNELS.store(false, Ordering::Release);
}

/// Not even the connection is kept: children would have it too.
pub(crate) fn forget_connection() {
    BIRTH_FD.close();
}

/// The process has left for a checkpoint (`family::detach`): not even the connection is kept, and nothing is asked any more.
pub(crate) fn leave_for_checkpoint() {
    BIRTH_FD.close();
    set_ending(true);
}

/// A process is leaving its family while its threads run: nothing is asked of the monitor any more.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// It has left: it has no monitor from now on.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// See [`IS_ENDING`].
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Acquire)
}

/// See [`IS_CLOSED`].
pub(crate) fn is_closed_for_good() -> bool {
    IS_CLOSED.load(Ordering::Acquire)
}

/// What the library needs is lost; under `CONTROL`.
pub(super) fn end() {
    IS_CLOSED.store(true, Ordering::Release);
    IS_ENDING.store(true, Ordering::Release);
}

/// From now on no route is found, and nothing is mapped that others have. Who maps something does so under the lock.
pub(crate) fn set_ending(yes: bool) {
    let _control = crate::monitor::client::CONTROL.lock();
    IS_ENDING.store(yes, Ordering::Release);
}

/// For the monitor the process ends. It lets go of what the process held, and the process never comes back.
pub(crate) fn close_for_good(control: &mut Control) {
    IS_CLOSED.store(true, Ordering::Release);
    BIRTH_FD.close();
    // With the connection to the monitor.
    control.forked();
    KNOWS_CHANNELS.store(false, Ordering::Release);
}
