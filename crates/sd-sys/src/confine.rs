//! Seccomp filters of the program's own: what they forbid, the library does without.
//!
//! A filter is written for the system calls that the program makes; the library makes others, and the filter may kill
//! for them. So each call number is tried on the filter when it is installed (seccomp(2), "Filters"), and
//! `syscall!` answers ENOSYS for those that are not plainly allowed. What arguments decide is asked for zeros, as
//! nothing of ours depends on such a call, except for futex: for waiting and for waking.

use crate::arch::{AUDIT_ARCH, POLL, SELECT, syscall6};
use crate::time::{now_ns, timespec_of};
use crate::{Result, check};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WORDS: usize = 8;
/// A bit per call number.
pub type Set = [u64; WORDS];

static FORBIDDEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static IS_ON: AtomicBool = AtomicBool::new(false);

/// A nap, for who cannot be woken.
pub const NAP_NS: u64 = 1_000_000;

/// Whether anything is forbidden.
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether call `nr` may be made.
#[inline(always)]
pub fn allows(nr: i64) -> bool {
    !is_on() || is_allowed(nr)
}

#[cold]
fn is_allowed(nr: i64) -> bool {
    FORBIDDEN.get(nr as usize / 64).is_none_or(|word| word.load(Ordering::Relaxed) >> (nr % 64) & 1 == 0)
}

/// Whether a set has call `nr`.
pub fn has(set: &Set, nr: i64) -> bool {
    set.get(nr as usize / 64).is_some_and(|word| word >> (nr % 64) & 1 != 0)
}

/// Forbids the calls of a set; returns those that were allowed before.
pub fn forbid(set: &Set) -> Set {
    let mut new = [0; WORDS];
    for ((word, more), new) in FORBIDDEN.iter().zip(set).zip(&mut new) {
        *new = more & !word.fetch_or(*more, Ordering::Relaxed);
    }
    IS_ON.store(true, Ordering::Relaxed);
    new
}

/// The filter that forbade them was not installed.
pub fn allow_again(new: &Set) {
    let mut left = 0;
    for (word, new) in FORBIDDEN.iter().zip(new) {
        left |= word.fetch_and(!new, Ordering::Relaxed) & !new;
    }
    IS_ON.store(left != 0, Ordering::Relaxed);
}

fn set_of(is_allowed: impl Fn(i64) -> bool) -> Set {
    let mut set = [0; WORDS];
    for nr in (0..64 * WORDS as i64).filter(|nr| !is_allowed(*nr)) {
        set[nr as usize / 64] |= 1 << (nr % 64);
    }
    set
}

/// What SECCOMP_MODE_STRICT forbids.
pub fn forbidden_strictly() -> Set {
    let allowed = [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];
    set_of(|nr| allowed.contains(&nr))
}

/// What a filter forbids.
pub fn forbidden_by(program: &[libc::sock_filter]) -> Set {
    set_of(|nr| match nr {
        libc::SYS_futex => [libc::FUTEX_WAIT, libc::FUTEX_WAKE].iter().all(|op| run(program, nr, *op as u32)),
        _ => run(program, nr, 0),
    })
}

const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;

/// Runs a filter on a call whose second argument is `second`, and others are zero: whether it lets the call pass.
fn run(program: &[libc::sock_filter], nr: i64, second: u32) -> bool {
    let mut data = [0u32; 16];
    (data[0], data[1], data[6]) = (nr as u32, AUDIT_ARCH, second);
    evaluate(program, &data).is_some_and(|verdict| matches!(verdict & ACTION, ALLOW | LOG))
}

/// A classic BPF program as the kernel takes it for seccomp; `None` if it would not.
fn evaluate(program: &[libc::sock_filter], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut mem, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    // Jumps go forward only.
    while let Some(&libc::sock_filter { code, jt, jf, k }) = program.get(at) {
        at += 1;
        let operand = if code & 0x08 != 0 { x } else { k };
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            0x20 => a = *data.get(k as usize / 4)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *mem.get(k as usize)?,
            0x61 => x = *mem.get(k as usize)?,
            0x02 => *mem.get_mut(k as usize)? = a,
            0x03 => *mem.get_mut(k as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d => at += jump(a == operand),
            0x25 | 0x2d => at += jump(a > operand),
            0x35 | 0x3d => at += jump(a >= operand),
            0x45 | 0x4d => at += jump(a & operand != 0),
            _ if code & 0x07 == 0x04 => a = arithmetic(code & 0xf0, a, operand)?,
            _ => return None,
        }
    }
    None
}

fn arithmetic(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

/// Sleeps at most [`NAP_NS`] by any call that is allowed, while descriptors of `fds` have no events; EINTR after
/// a signal's handler. `mask` is that of ppoll.
///
/// # Safety
/// `mask` is null or leads to a kernel's signal mask.
pub unsafe fn nap(
    fds: &mut [libc::pollfd],
    limit_ns: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize> {
    let ns = limit_ns.unwrap_or(NAP_NS).min(NAP_NS);
    let (mut ts, len) = (timespec_of(ns), fds.len());
    let (list, time) = (fds.as_mut_ptr() as usize, &raw mut ts as usize);
    let ms = ns.div_ceil(1_000_000) as usize;
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: (ns / 1000) as i64 };
    let ways: [(Option<i64>, [usize; 6]); 6] = [
        (Some(libc::SYS_ppoll), [list, len, time, mask as usize, 8, 0]),
        (POLL, [list, len, ms, 0, 0, 0]),
        (Some(libc::SYS_pselect6), [0, 0, 0, 0, time, 0]),
        (SELECT, [0, 0, 0, 0, &raw mut tv as usize, 0]),
        (Some(libc::SYS_nanosleep), [time, 0, 0, 0, 0, 0]),
        (Some(libc::SYS_clock_nanosleep), [libc::CLOCK_MONOTONIC as usize, 0, time, 0, 0, 0]),
    ];
    let known = ways.into_iter().filter_map(|(nr, arguments)| nr.map(|nr| (nr, arguments)));
    if let Some((nr, [a, b, c, d, e, f])) = known.into_iter().find(|(nr, _)| allows(*nr)) {
        // SAFETY: the kernel reads and writes the variables above, the list and the mask.
        return check(unsafe { syscall6(nr, a, b, c, d, e, f) });
    }
    let end = now_ns() + ns;
    while now_ns() < end {
        core::hint::spin_loop();
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }

    #[test]
    fn a_list_of_allowed_calls() {
        let program = [
            op(0x20, 0, 0, 4),
            op(0x15, 0, 4, AUDIT_ARCH),
            op(0x20, 0, 0, 0),
            op(0x15, 3, 0, libc::SYS_write as u32),
            op(0x15, 0, 1, libc::SYS_futex as u32),
            op(0x05, 0, 0, 2),
            op(0x06, 0, 0, 0),
            op(0x06, 0, 0, ALLOW),
            // futex: waiting alone.
            op(0x20, 0, 0, 24),
            op(0x54, 0, 0, 0x7f),
            op(0x15, 0, 1, 0),
            op(0x06, 0, 0, ALLOW),
            op(0x06, 0, 0, 0x0005_0001),
        ];
        let set = forbidden_by(&program);
        assert!(!has(&set, libc::SYS_write) && has(&set, libc::SYS_read) && has(&set, libc::SYS_futex));
        assert!(run(&program, libc::SYS_futex, libc::FUTEX_WAIT as u32));
    }

    #[test]
    fn a_program_that_does_not_end_forbids() {
        assert!(has(&forbidden_by(&[op(0x00, 0, 0, 1)]), libc::SYS_read));
        assert!(!has(&forbidden_strictly(), libc::SYS_read) && has(&forbidden_strictly(), libc::SYS_close));
    }
}
