//! Address space: what the library maps is not the program's to pay for (RLIMIT_AS, setrlimit(2)).
//!
//! Segments are gigabytes of addresses, most of which never have memory. A program that limits itself to what it needs
//! itself would find nothing left. So its limit is passed to the kernel with what we have mapped on top of it, which
//! follows what is mapped later; the hard limit leaves room for that. The program sees the limits that it set. A soft limit
//! from outside is taken for the program's when it is met.

use crate::Result;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Room for segments above the program's hard limit.
const ROOM: u64 = 1 << 40;

/// Bytes that the library has mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);
/// The program has set limits: these two hold.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
/// What the kernel's soft limit has on top of the program's.
static EXTRA: AtomicU64 = AtomicU64::new(0);
/// The program's hard limit.
static HARD: AtomicU64 = AtomicU64::new(u64::MAX);

fn kernel_limit(new: Option<&libc::rlimit>) -> Result<libc::rlimit> {
    crate::numbers::kernel_limit(libc::RLIMIT_AS, new)
}

/// Before so much is mapped.
pub(crate) fn mapping(len: usize) {
    MAPPED.fetch_add(len as u64, Ordering::Relaxed);
    if IS_LIMITED.load(Ordering::Relaxed) {
        adjust(len as i64);
    }
}

/// So much is no longer mapped.
pub(crate) fn unmapped(len: usize) {
    MAPPED.fetch_sub(len as u64, Ordering::Relaxed);
    if IS_LIMITED.load(Ordering::Relaxed) {
        adjust(-(len as i64));
    }
}

#[cold]
fn adjust(by: i64) {
    let Ok(mut limit) = kernel_limit(None) else { return };
    let soft = limit.rlim_cur.saturating_add_signed(by).min(limit.rlim_max);
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return;
    }
    let step = soft.wrapping_sub(limit.rlim_cur);
    limit.rlim_cur = soft;
    if kernel_limit(Some(&limit)).is_ok() {
        EXTRA.fetch_add(step, Ordering::Relaxed);
    }
}

/// Something could not be mapped, and the program has not set a limit: a soft one that somebody else has set is kept as one
/// of the program's from now on. True when the kernel's has room now.
#[cold]
pub(crate) fn raise() -> bool {
    let Ok(limit) = kernel_limit(None) else { return false };
    if IS_LIMITED.load(Ordering::Relaxed) || limit.rlim_cur == limit.rlim_max {
        return false;
    }
    HARD.store(limit.rlim_max, Ordering::Relaxed);
    IS_LIMITED.store(true, Ordering::Relaxed);
    // Of what was mapped before, too: the limit may have been set after that.
    adjust(MAPPED.load(Ordering::Relaxed) as i64);
    true
}

/// setrlimit(2) for RLIMIT_AS of this process.
pub fn limit(wanted: libc::rlimit) -> Result<()> {
    let hard_now = kernel_limit(None)?.rlim_max;
    let highest = if IS_LIMITED.load(Ordering::Relaxed) { HARD.load(Ordering::Relaxed) } else { hard_now };
    let mut limit = wanted;
    // What is an error to the kernel stays one.
    if wanted.rlim_cur <= wanted.rlim_max {
        let hard = wanted.rlim_max.saturating_add(ROOM);
        limit.rlim_max = if wanted.rlim_max <= highest { hard.min(hard_now) } else { hard };
        let mapped = MAPPED.load(Ordering::Relaxed);
        limit.rlim_cur = wanted.rlim_cur.saturating_add(mapped).min(limit.rlim_max);
    }
    kernel_limit(Some(&limit))?;
    EXTRA.store(limit.rlim_cur - wanted.rlim_cur, Ordering::Relaxed);
    HARD.store(wanted.rlim_max, Ordering::Relaxed);
    IS_LIMITED.store(true, Ordering::Relaxed);
    Ok(())
}

/// What getrlimit(2) says for RLIMIT_AS, as the program set it.
pub fn limits() -> Result<libc::rlimit> {
    let mut limit = kernel_limit(None)?;
    if IS_LIMITED.load(Ordering::Relaxed) {
        limit.rlim_cur -= EXTRA.load(Ordering::Relaxed).min(limit.rlim_cur);
        limit.rlim_max = HARD.load(Ordering::Relaxed);
    }
    Ok(limit)
}
