//! What Miri runs instead of assembly.

/// See the assembly's.
pub fn fence_full() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// A full fence.
pub fn fence_after_change() {
    fence_full();
}

/// A hint that nobody needs here.
pub fn fetch_for_writing(_: *const u8) {}

/// The same.
pub fn fetch_for_reading(_: *const u8) {}

/// Reads eight bytes.
///
/// # Safety
/// They can be read, at any alignment.
pub unsafe fn load8(src: *const u8) -> u64 {
    // SAFETY: by contract.
    unsafe { src.cast::<u64>().read_unaligned() }
}

/// Writes eight bytes.
///
/// # Safety
/// They can be written, at any alignment.
pub unsafe fn store8(dst: *mut u8, word: u64) {
    // SAFETY: by contract.
    unsafe { dst.cast::<u64>().write_unaligned(word) };
}

/// Copies bytes.
///
/// # Safety
/// Both ranges are mapped and do not overlap; the destination can be written.
pub unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: by contract.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
}
