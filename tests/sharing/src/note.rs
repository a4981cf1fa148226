//! Words in a file that outlive the process that writes them.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

/// Maps the first `N` words of a file, which is made long enough.
pub(crate) fn open<const N: usize>(path: &str) -> io::Result<&'static [AtomicU64; N]> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let len = N * size_of::<AtomicU64>();
    file.set_len(len as u64)?;
    let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
    // SAFETY: a new shared mapping of a file that is long enough.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), len, read | write, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `len` bytes, aligned, mapped until the end of the process.
    Ok(unsafe { &*map.cast::<[AtomicU64; N]>() })
}
