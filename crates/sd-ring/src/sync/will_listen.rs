//! Ports to which a process connects in the kernel, as nobody accelerated listens there.
//!
//! ```text
//!  who connects                              who is about to listen (the monitor, for it)
//!  note: the port; full fence                void: the routes' epoch; full fence
//!  its route is of this epoch? the kernel    is_noted? not yet
//! ```

use crate::facade::{AtomicU32, Ordering, fence_full};

/// Notes a port in a free place. Afterwards the caller looks whether its route still holds.
pub fn note(notes: &[AtomicU32], port: u16) -> Option<&AtomicU32> {
    let takes = |note: &&AtomicU32| {
        note.compare_exchange(0, port.into(), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let note = notes.iter().find(takes);
    fence_full();
    note
}

/// The kernel has been asked.
pub fn forget(note: &AtomicU32) {
    note.store(0, Ordering::Release);
}

/// Voids routes that were learned at an earlier epoch. When that was done for all, and a full fence executed, notes are looked at.
pub fn void(epoch: &AtomicU32) {
    epoch.fetch_add(1, Ordering::Release);
}

/// The epoch: of what is learned from now on; or, behind [`note`], for the question whether a route still holds.
#[inline]
pub fn epoch(epoch: &AtomicU32) -> u32 {
    epoch.load(Ordering::Acquire)
}

/// Somebody connects there in the kernel. `notes` are asked for behind the fence.
pub fn is_noted<'a>(mut notes: impl Iterator<Item = &'a AtomicU32>, port: u16) -> bool {
    fence_full();
    notes.any(|note| note.load(Ordering::Acquire) == u32::from(port))
}
