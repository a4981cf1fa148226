//! memfd_create(2), mmap(2) and friends.

use crate::{Result, check, syscall};

/// Creates a sealable, close-on-exec memfd of `len` bytes that can neither shrink nor grow.
pub fn memfd_sealed(name: &core::ffi::CStr, len: usize) -> Result<i32> {
    // ftruncate beyond RLIMIT_FSIZE would raise SIGXFSZ in a program that never asked for a file.
    if crate::fd::file_size_limit() < len as u64 {
        return Err(crate::Errno(libc::EFBIG));
    }
    // SAFETY: `name` is a valid C string.
    let fd = check(unsafe {
        syscall!(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    })? as i32;
    let sized = ftruncate(fd, len).and_then(|()| add_seals(fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW));
    if let Err(e) = sized {
        crate::fd::close(fd);
        return Err(e);
    }
    Ok(fd)
}

/// ftruncate(2).
pub fn ftruncate(fd: i32, len: usize) -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_ftruncate, fd, len) }).map(drop)
}

/// fcntl(F_ADD_SEALS).
pub fn add_seals(fd: i32, seals: i32) -> Result<()> {
    crate::fd::fcntl(fd, libc::F_ADD_SEALS, seals as usize).map(drop)
}

/// fcntl(F_GET_SEALS).
pub fn get_seals(fd: i32) -> Result<i32> {
    crate::fd::fcntl(fd, libc::F_GET_SEALS, 0).map(|s| s as i32)
}

/// Maps `len` bytes of `fd` shared; nothing is populated and no swap is reserved.
pub fn map_shared(fd: i32, len: usize, writable: bool) -> Result<*mut u8> {
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: a fresh mapping chosen by the kernel cannot overlap existing memory.
    check(unsafe { syscall!(libc::SYS_mmap, 0, len, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0) })
        .map(|p| p as *mut u8)
}

/// Maps `len` bytes of zeroed private memory, touched lazily.
pub fn map_private(len: usize) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping chosen by the kernel cannot overlap existing memory.
    check(unsafe { syscall!(libc::SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0) })
        .map(|p| p as *mut u8)
}

/// Unmaps a mapping made by this module.
///
/// # Safety
/// Nothing may use the memory afterwards.
pub unsafe fn unmap(ptr: *mut u8, len: usize) {
    // SAFETY: the caller gives up the range.
    let _ = unsafe { syscall!(libc::SYS_munmap, ptr, len) };
}

/// Gives the pages of a shared mapping back to the system; they read as zero afterwards.
///
/// # Safety
/// The page-aligned range must lie in a writable shared mapping and hold nothing that is needed.
pub unsafe fn punch(ptr: *mut u8, len: usize) {
    // SAFETY: the caller gives up the contents.
    let _ = unsafe { syscall!(libc::SYS_madvise, ptr, len, libc::MADV_REMOVE) };
}
