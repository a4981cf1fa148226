//! No monitor: when to look for one again.
//!
//! | who | looks |
//! |---|---|
//! | a call that needs one | when another file is at the socket's place than at the last try, or the pause is over |
//! | a sleeper whose process had one, or listens | when the pause is over |
//!
//! The pause doubles up to two seconds, or to a quarter of a second in a process that listens: clients of its
//! wait for it for a while when a monitor starts (`sd-monitor/src/shell/expected.rs`). One that is there, and wants nothing
//! to do with us, is of another version: it stays for long. A process that is closed for good (`separate`, `resume`) has none any
//! more, and does not look.

use super::{CONTROL_FD, Control, LOST, is_closed_for_good, prepare};
use core::sync::atomic::{AtomicBool, Ordering};

pub(super) const RETRY_MIN_NS: u64 = 50_000_000;
const RETRY_MAX_NS: u64 = 2_000_000_000;
const RETRY_MAX_LISTENING_NS: u64 = 250_000_000;

/// The process has, or had, a listener.
static LISTENS: AtomicBool = AtomicBool::new(false);

/// See [`LISTENS`].
pub(crate) fn listens() {
    LISTENS.store(true, Ordering::Relaxed);
}

/// See [`LISTENS`].
pub(crate) fn has_listened() -> bool {
    LISTENS.load(Ordering::Relaxed)
}

/// The pause after the one that is over. `is_refused`: by a monitor that was there.
pub(super) fn next_pause(pause: u64, is_refused: bool) -> u64 {
    let most = if has_listened() && !is_refused { RETRY_MAX_LISTENING_NS } else { RETRY_MAX_NS };
    (pause * 2).min(most)
}

/// What was found at the place of the monitor's socket: the file, its last change, and its mode.
pub(super) type Seen = [u64; 4];

/// Whether a monitor's socket has come since this was asked last.
pub(super) fn has_come(control: &mut Control) -> bool {
    let mut path = [0u8; 108];
    let path = crate::process::env::monitor_path(&mut path).filter(|_| !sd_sys::confine::is_on());
    let seen = path.and_then(|(path, _)| sd_sys::trust::seen(path));
    let is_new = seen.is_some() && seen != control.seen;
    control.seen = seen;
    is_new
}

/// Whether there may be a monitor some day: then the table of numbers is there.
pub(crate) fn may_come() -> bool {
    let has_place = crate::process::env::monitor_path(&mut [0; 108]).is_some();
    has_place && !sd_sys::confine::is_on() && !is_closed_for_good() && crate::fd::table::init()
}

/// A process that listens has no monitor: it gets what one will need, and looks for one when it sleeps. False when it cannot.
pub(crate) fn wait_for_monitor() -> bool {
    if sd_sys::confine::is_on() {
        return false;
    }
    let mut control = crate::monitor::client::CONTROL.lock();
    if CONTROL_FD.raw() >= 0 {
        return true;
    }
    // Nothing is asked any more, so a sleeper would look for a monitor for ever.
    if is_closed_for_good() || super::is_ending() {
        return false;
    }
    let is_ready = prepare(&mut control, -1).is_some();
    if is_ready {
        listens();
        LOST.store(true, Ordering::Release);
    }
    is_ready
}
