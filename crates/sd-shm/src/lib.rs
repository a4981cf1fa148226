//! What lies in shared memory, and who may write it.
//!
//! | segment | made by | mapped by | holds |
//! |---|---|---|---|
//! | [`channel`] | the monitor | two processes (and their children), the monitor | connections' slots and rings |
//! | [`slab`] | a process | that process, its children, the monitor | its sockets: cursors, options, names |
//! | [`directory`] | the monitor | the monitor; read-only all processes | listeners |
//! | [`public`] | a process | that process; read-only its peers and the monitor | sleepers, listeners |
//!
//! Every segment is a memfd sealed against shrinking and growing before anybody else maps it, so a
//! mapping can never fault. Everything is made of atomics, because a hostile peer may write at any
//! time; what it writes is checked by whoever reads it. Layouts are proved at compile time.
#![cfg_attr(not(test), no_std)]

use sd_sys::{Errno, Result};

pub mod channel;
pub mod directory;
mod endpoint;
pub mod events;
mod fresh;
mod leaving;
pub mod link;
pub mod promotion;
pub mod public;
pub mod rings;
pub mod slab;
mod slot;
pub mod time_wait;

/// Changes whenever a layout here or a control message changes; both sides must agree.
pub const VERSION: u32 = 35 + cfg!(sd_next_version) as u32;

/// The unit of all layouts here: no processor has smaller pages. Where pages are larger some of this memory is not given back,
/// see `sd_sys::mem::punch`.
pub const PAGE: usize = sd_sys::mem::SMALLEST_PAGE;

/// Checks that a descriptor's file has exactly `len` bytes and cannot shrink: only then does no
/// access to a mapping of it raise SIGBUS.
fn check_segment(fd: i32, len: usize) -> Result<()> {
    // The seal first: what it seals is what is measured.
    if sd_sys::mem::get_seals(fd)? & libc::F_SEAL_SHRINK == 0 {
        return Err(Errno::EPERM);
    }
    // SAFETY: an all-zero stat is valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one stat, whose layout on x86-64 libc shares.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_fstat, fd, &mut found as *mut libc::stat) })?;
    if found.st_size as u64 == len as u64 { Ok(()) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn only_whole_and_sealed_segments_are_mapped() {
        for len in [PAGE, public::LEN - PAGE, public::LEN + PAGE] {
            let fd = sd_sys::mem::memfd_sealed(c"wrong", len).unwrap();
            assert_eq!(channel::Mapping::map(fd.raw()).err(), Some(Errno::EINVAL));
            assert_eq!(slab::Slab::map(fd.raw()).err(), Some(Errno::EINVAL));
            assert_eq!(public::map_peer(fd.raw()).err(), Some(Errno::EINVAL));
        }
        let (fd, _) = public::create(1).unwrap();
        assert!(public::map_peer(fd.raw()).is_ok());
    }
}
