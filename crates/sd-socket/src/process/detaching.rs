//! A process that is about to be checkpointed has nothing but what is its own, or the kernel's (ADR 86). What it knows of that.
//!
//! ```text
//!  RUNS ── the monitor says Detach ──> ASKED ── nothing stands in the way, at an edge ──> DETACHED ── restored, or told so ──> RUNS
//! ```
//! *An edge* is a place in a call at which nothing of the library's is under way in the process, so that what it shares can be unmapped. What is
//! done there stands in `family::detach`, which is above.
//!
//! A process that was restored began at another time than the one that was detached (`/proc/self/stat`). One that was not, since nobody made a
//! checkpoint of it after all, is told by a byte in a file of its own, `memfd:sd-detached`, by whoever may open its descriptors: root, and its user.

use super::above::Above;
use super::lingering;
use crate::fd::hidden::{Hidden, HiddenCell};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_sys::section;

const RUNS: u32 = 0;
const ASKED: u32 = 1;
const DETACHED: u32 = 2;
static STEP: AtomicU32 = AtomicU32::new(RUNS);

/// Threads between the beginning and the end of a sleep: see [`crate::process::waker::Sleeper`].
static ASLEEP: AtomicU32 = AtomicU32::new(0);
/// When the process began that was detached, in ticks since the machine did.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static FILE: HiddenCell = HiddenCell::empty();
/// When it was asked.
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
/// For so long it tries.
const PATIENCE_NS: u64 = 60_000_000_000;

/// What is done at an edge.
pub(crate) static AT_EDGE: Above<fn()> = Above::empty();
/// What is done when a process that was detached has registered again.
pub(crate) static IS_BACK: Above<fn()> = Above::empty();

/// The monitor wants it. True: it is news.
pub(crate) fn ask() -> bool {
    ASKED_AT.store(sd_sys::time::now_ns(), Ordering::Relaxed);
    STEP.compare_exchange(RUNS, ASKED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Something stands in the way for so long that nobody waits for it any more.
pub(crate) fn give_up_late() {
    if is_asked() && sd_sys::time::now_ns().saturating_sub(ASKED_AT.load(Ordering::Relaxed)) > PATIENCE_NS {
        let _ = STEP.compare_exchange(ASKED, RUNS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The process is on its way, or has detached: it offers nothing.
#[inline]
pub(crate) fn is_on() -> bool {
    STEP.load(Ordering::Relaxed) != RUNS
}

/// It was asked to, and has not yet.
#[inline]
pub(crate) fn is_asked() -> bool {
    STEP.load(Ordering::Relaxed) == ASKED
}

/// It has.
#[inline]
pub(crate) fn is_done() -> bool {
    STEP.load(Ordering::Relaxed) == DETACHED
}

pub(super) fn sleeps() {
    ASLEEP.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn sleeps_no_more() {
    ASLEEP.fetch_sub(1, Ordering::Relaxed);
}

/// Nobody is in the middle of a sleep of the library's, or of what handlers of signals may not see.
pub(crate) fn is_nobody_within() -> bool {
    ASLEEP.load(Ordering::Relaxed) == 0 && !lingering::is_asleep() && !section::is_inside()
}

/// For who has nothing of the library's under way, but for its own caller.
#[inline]
pub(crate) fn at_edge() {
    if is_asked() {
        AT_EDGE.get().inspect(|at_edge| at_edge());
    }
}

/// What a wait that was interrupted at an edge has left of its time; the process has one thread.
static LEFT_NS: AtomicU64 = AtomicU64::new(0);

/// See [`resumed`].
pub(crate) fn interrupt(left_ns: Option<u64>) {
    LEFT_NS.store(left_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// How long the wait that was interrupted last has still to last.
pub(crate) fn resumed() -> Option<u64> {
    Some(LEFT_NS.load(Ordering::Relaxed)).filter(|left| *left != u64::MAX)
}

/// Everything is let go of.
pub(crate) fn done() {
    BEGAN.store(began(), Ordering::Relaxed);
    STEP.store(DETACHED, Ordering::Release);
    // Last, as this is what `sd detach` waits for.
    if let Ok(file) = sd_sys::mem::memfd_sealed(c"sd-detached", 1) {
        FILE.put(Hidden::of(file));
    }
}

/// Whether a process that is detached is one that was restored, or was told that it may go on: it is as it was before then.
#[cold]
pub(crate) fn may_go_on() -> bool {
    if !(began() != BEGAN.load(Ordering::Relaxed) || was_told()) {
        return false;
    }
    FILE.close();
    STEP.store(RUNS, Ordering::Release);
    true
}

fn was_told() -> bool {
    let mut byte = 0u8;
    // SAFETY: the kernel writes one byte.
    let got = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_pread64, FILE.raw(), &raw mut byte, 1, 0) });
    got == Ok(1) && byte != 0
}

/// proc_pid_stat(5), the 22nd field.
fn began() -> u64 {
    let mut text = [0u8; 1024];
    let Ok(got) = sd_sys::fd::read_file(b"/proc/self/stat\0", &mut text) else { return 0 };
    let text = text.get(..got).unwrap_or_default();
    // The name before it may have any bytes, and ends with the last bracket.
    let Some(end) = text.iter().rposition(|byte| *byte == b')') else { return 0 };
    let mut fields = text.get(end..).unwrap_or_default().split(|byte| *byte == b' ');
    const FIELD: usize = 20;
    let digits = fields.nth(FIELD).unwrap_or_default();
    digits.iter().fold(0, |sum: u64, digit| sum.wrapping_mul(10).wrapping_add(u64::from(*digit & 15)))
}

/// In the child of a fork, which is another process: if its parent has detached, so has it.
pub(crate) fn forked() {
    ASLEEP.store(0, Ordering::Relaxed);
    match is_done() {
        true => BEGAN.store(began(), Ordering::Relaxed),
        false => STEP.store(RUNS, Ordering::Relaxed),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_process_began_once() {
        let began = began();
        assert!(began != 0 && began == super::began());
        let text = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields = text.rsplit_once(')').unwrap().1;
        assert_eq!(fields.split(' ').nth(20).unwrap().parse(), Ok(began));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn who_was_told_goes_on() {
        assert!(!is_on() && ask() && !ask() && is_asked());
        done();
        assert!(is_done() && is_on() && !is_asked());
        assert!(!may_go_on(), "it is the process that was detached");
        let path = format!("/proc/self/fd/{}", FILE.raw());
        std::os::unix::fs::FileExt::write_at(
            &std::fs::File::options().write(true).open(path).unwrap(),
            &[1],
            0,
        )
        .unwrap();
        assert!(may_go_on() && !is_on());
        assert!(ask());
        done();
        BEGAN.store(1, Ordering::Relaxed);
        assert!(may_go_on(), "it was restored");
    }
}
