//! The control connection of a process that leaves its family.

use super::{BIRTH_FD, CONTROL_FD, KNOWS_CHANNELS, ask, image_fd, set_timeouts};
use crate::process::{PROCESS, close_hidden};
use core::sync::atomic::Ordering;
use sd_proto::{Reply, Request};

/// The process leaves its family: for the monitor it has ended. The connection is kept for the next registration, which
/// may be in another root directory.
pub(crate) fn forget() {
    let mut control = PROCESS.control.lock();
    let fd = image_fd();
    CONTROL_FD.store(-1, Ordering::Release);
    let is_kept = fd >= 0 && {
        set_timeouts(fd);
        // Mail from before comes before the answer, and goes with all the rest.
        matches!(ask(&mut control, fd, &Request::Separate, &[]), Some((Reply::Ok, _)))
    };
    control.forked();
    BIRTH_FD.store(if is_kept { fd } else { -1 }, Ordering::Release);
    if !is_kept {
        close_hidden(fd);
    }
    KNOWS_CHANNELS.store(false, Ordering::Release);
}
