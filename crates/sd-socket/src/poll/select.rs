//! select(2) in terms of poll(2).

use crate::Outcome;
use crate::fd::table;
use alloc::vec::Vec;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, fd_set, pollfd, sigset_t};
use sd_sys::Errno;

const WORD_BITS: usize = 64;

/// Entries for the list on the stack; more go to a heap list.
fn bit(set: *const fd_set, fd: usize) -> bool {
    // SAFETY: the caller of select vouches for sets of at least `nfds` bits; fd < nfds.
    !set.is_null()
        && unsafe { (set as *const u64).add(fd / WORD_BITS).read_unaligned() } >> (fd % WORD_BITS) & 1 != 0
}

fn set_bit(set: *mut fd_set, fd: usize, on: bool) -> bool {
    // SAFETY: as in `bit`.
    unsafe {
        let word = (set as *mut u64).add(fd / WORD_BITS);
        let old = word.read_unaligned();
        word.write_unaligned(if on { old | 1 << (fd % WORD_BITS) } else { old & !(1 << (fd % WORD_BITS)) });
    }
    on
}

/// select and pselect.
///
/// # Safety
/// The sets are null or hold at least `nfds` bits.
pub(crate) unsafe fn select(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    remaining_ns: &mut u64,
) -> Outcome<c_int> {
    let nfds = nfds.max(0) as usize;
    let bytes = nfds.div_ceil(WORD_BITS) * size_of::<u64>();
    if sets.iter().any(|set| !set.is_null() && !sd_sys::user::seems_writable(*set, bytes)) {
        return Outcome::Kernel;
    }
    let member = |fd: usize| sets.iter().any(|&s| bit(s, fd));
    if !(0..nfds).any(|fd| table::is_ours(fd as i32) && member(fd)) {
        return Outcome::Kernel;
    }
    let [read, write, except] = sets;
    let mut fds: Vec<pollfd> = Vec::new();
    for fd in (0..nfds).filter(|&fd| member(fd)) {
        let mut events = 0;
        events |= if bit(read, fd) { POLLIN } else { 0 };
        events |= if bit(write, fd) { POLLOUT } else { 0 };
        events |= if bit(except, fd) { POLLPRI } else { 0 };
        fds.push(pollfd { fd: fd as i32, events, revents: 0 });
    }
    if !super::waiting::concerns_us(&fds) {
        return Outcome::Kernel;
    }
    let start = sd_sys::time::now_ns();
    let mut waited = false;
    match super::waiting::poll_noting(&mut fds, timeout_ns, mask, &mut waited) {
        Outcome::Done(_) => {}
        other => return other,
    }
    if let Some(timeout) = timeout_ns {
        *remaining_ns = timeout.saturating_sub(sd_sys::time::now_ns() - start);
    }
    // A number closed while the call waits is "ready" instead.
    if !waited && fds.iter().any(|p| p.revents & POLLNVAL != 0) {
        return Outcome::Errno(Errno::EBADF);
    }
    let mut count = 0;
    for entry in &fds {
        let fd = entry.fd as usize;
        // As in the kernel: what counts as readable, writable, exceptional.
        for (set, holds) in [
            (read, entry.revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL) != 0),
            (write, entry.revents & (POLLOUT | POLLERR | POLLNVAL) != 0),
            (except, entry.revents & (POLLPRI | POLLNVAL) != 0),
        ] {
            if bit(set, fd) {
                count += c_int::from(set_bit(set, fd, holds));
            }
        }
    }
    Outcome::Done(count)
}
