//! Numbers of descriptors: those of the library are not the program's to pay for (RLIMIT_NOFILE, setrlimit(2)).
//!
//! A program that limits itself to the descriptors that it needs counts on every number below its limit. So the
//! kernel's limit is higher than the program's, as far as the hard limit or a privilege allows; the library's
//! descriptors have numbers above the program's limit, and whoever gives the program a number asks here. The program
//! sees the limits that it set, and so do the programs that it executes: the kernel gets them back before an exec.
//!
//! Not hidden: `/proc/PID/limits`, prlimit(2) from another process, and what libc opens within itself.
//! Tested by `limits/` of `cargo xtask posix`.

use crate::{Errno, Result, check, fd, syscall};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::rlimit;

/// Numbers above the program's limit.
const ROOM: u64 = 1 << 14;

/// The limits that the program has set; higher than any limit until it does.
static SOFT: AtomicU64 = AtomicU64::new(u64::MAX);
static HARD: AtomicU64 = AtomicU64::new(u64::MAX);

/// prlimit(2) of this process, for one resource.
pub(crate) fn kernel_limit(resource: libc::__rlimit_resource_t, new: Option<&rlimit>) -> Result<rlimit> {
    let mut old = rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the kernel reads one rlimit, and writes one.
    check(unsafe { syscall!(libc::SYS_prlimit64, 0, resource, new, &raw mut old) })?;
    Ok(old)
}

fn set(limit: rlimit) -> Result<()> {
    kernel_limit(libc::RLIMIT_NOFILE, Some(&limit)).map(drop)
}

/// The program's soft limit if it has set one; a number that is no limit otherwise.
#[inline(always)]
pub fn soft() -> u64 {
    SOFT.load(Ordering::Relaxed)
}

/// Whether the program has set limits.
#[inline(always)]
pub fn are_limited() -> bool {
    soft() != u64::MAX
}

/// setrlimit(2) for RLIMIT_NOFILE of this process.
pub fn limit(wanted: rlimit) -> Result<()> {
    let rlimit { rlim_cur: soft, rlim_max: hard } = wanted;
    if soft > hard {
        return set(wanted);
    }
    let hard_now = kernel_limit(libc::RLIMIT_NOFILE, None)?.rlim_max;
    let highest = if are_limited() { HARD.load(Ordering::Relaxed) } else { hard_now };
    let up_to = |hard: u64| rlimit { rlim_cur: soft.saturating_add(ROOM).min(hard), rlim_max: hard };
    // More than the hard limit takes a privilege, and there is a highest number for everybody.
    let raised = set(up_to(hard.saturating_add(ROOM)));
    if raised.is_err() && hard <= highest {
        set(up_to(hard.saturating_add(ROOM).min(hard_now)))?;
    } else if raised.is_err() && hard > hard_now {
        set(wanted)?;
    } else {
        raised?;
    }
    HARD.store(hard, Ordering::Relaxed);
    SOFT.store(soft, Ordering::Relaxed);
    Ok(())
}

/// What getrlimit(2) says for RLIMIT_NOFILE: what the program has set.
pub fn limits() -> Result<rlimit> {
    match are_limited() {
        true => Ok(rlimit { rlim_cur: soft(), rlim_max: HARD.load(Ordering::Relaxed) }),
        false => kernel_limit(libc::RLIMIT_NOFILE, None),
    }
}

/// Before an exec: the next program is to have the limits that this one has set.
pub fn give_back() {
    if are_limited()
        && let Ok(limits) = limits()
    {
        let _ = set(limits);
    }
}

/// After an exec that failed. Without a privilege the hard limit stays low, and the library's new descriptors have
/// numbers below it.
pub fn take_again() {
    if are_limited()
        && let Ok(limits) = limits()
    {
        let _ = limit(limits);
    }
}

/// Whether the program has no number left from `first` on.
///
/// The kernel gives out the lowest number, so as long as the last one is free, most often, there is no need to look
/// further.
#[inline(always)]
pub fn are_used_up(first: u64) -> bool {
    are_limited() && none_left(first)
}

#[cold]
fn none_left(first: u64) -> bool {
    let soft = soft();
    if first >= soft {
        return true;
    }
    if fd::fcntl(soft as i32 - 1, libc::F_GETFD, 0) == Err(Errno::EBADF) {
        return false;
    }
    // A file of nobody's: closing a duplicate of the program's could end its locks.
    let Ok(probe) = fd::eventfd(libc::EFD_CLOEXEC) else { return true };
    let lowest = fd::dup_above(probe.raw(), first as i32);
    let free = if probe.raw() as u64 >= first { Ok(&probe) } else { lowest.as_ref() };
    free.map_or(true, |free| free.raw() as u64 >= soft)
}

/// The number that the kernel gave out, if the program may have it; else it is closed: EMFILE.
#[inline(always)]
pub fn give(fd: i32) -> Result<i32> {
    if (fd as u64) < soft() { Ok(fd) } else { refuse(fd) }
}

#[cold]
fn refuse(fd: i32) -> Result<i32> {
    fd::close(fd);
    Err(Errno::EMFILE)
}
