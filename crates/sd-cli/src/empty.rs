//! `sd empty-segments`, hidden: a process that the monitor starts to give back the memory of channels that are over, where somebody
//! keeps their segments. Standard input is a socket; each message in it brings one, and is answered by a byte when that is done.
//!
//! Whoever keeps a segment can hold its lock, so that this process waits in the kernel and cannot be killed. It has nothing else,
//! so nobody minds. It ends when nothing has come for a second.

use sd_shm::channel::SEGMENT_LEN;
use std::os::fd::{AsRawFd, OwnedFd};

const IDLE_MS: i32 = 1000;

/// Whether this is such a process's command line.
pub(crate) fn is_asked_for() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == "empty-segments")
}

/// Empties them all.
pub(crate) fn main() {
    if !super::helper::leave_the_monitor() {
        return;
    }
    // SAFETY: a C string: a name for people.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sd-empty".as_ptr()) };
    let socket = libc::STDIN_FILENO;
    while sd_sys::fd::poll_one(socket, libc::POLLIN, IDLE_MS).is_ok_and(|events| events != 0) {
        match sd_sys::msg::recv_with_fds(socket, &mut [0; 1], 0) {
            Ok(got) if got.len != 0 => got.fds.hand_over(|fd| {
                let segment = sd_monitor::std_fd(fd);
                empty(&segment);
            }),
            _ => return,
        }
        if sd_sys::fd::write(socket, &[0]).is_err() {
            return;
        }
    }
}

fn empty(segment: &OwnedFd) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers.
    unsafe { libc::fallocate(segment.as_raw_fd(), mode, 0, SEGMENT_LEN as i64) };
}
