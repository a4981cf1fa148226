//! A fork, as the monitor hears of it: before the child exists.

use super::{BIRTH_FD, CONTROL_FD, Control, lost, slow};
use crate::fd::hidden::Hidden;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_proto::Request;
use sd_sys::msg;

/// Counts forks.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Before fork, under `CONTROL`: tells the monitor that a child will be there, and makes the socket by
/// which the child is known. What the child says and does can then only come later. The fork's number; zero
/// without a monitor.
pub(crate) fn before_fork(control: &mut Control, member: u32) -> u32 {
    let fd = CONTROL_FD.raw();
    if fd < 0 || !super::resume::is_control(fd) {
        return 0;
    }
    let serial = FORKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    if let Ok([monitors, childs]) = msg::pair_with_credentials() {
        if slow::tell(control, fd, &Request::Fork { member, serial }, &[monitors.raw()]).is_none() {
            lost(control);
        }
        BIRTH_FD.put(Hidden::of(childs));
    }
    serial
}

/// After fork, in the parent, under `CONTROL`: only the child has its socket now.
pub(crate) fn parent_after_fork() {
    BIRTH_FD.close();
}
