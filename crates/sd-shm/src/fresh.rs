//! A new channel: its file is written before anybody maps it, and its maker maps it when he has to look into it. Making and
//! ending a mapping costs a process with several threads more than writing a file of that kind.

use crate::channel::{Header, MAGIC, Mapping, SEGMENT_LEN};
use crate::link::Link;
use core::mem::offset_of;
use sd_sys::Errno;
use sd_sys::fd::Owned;

impl Mapping {
    /// Creates a segment: its memfd, and a mapping of it.
    pub fn create(id: u64, pid_a: u32, pid_b: u32) -> sd_sys::Result<(Owned, Mapping)> {
        let fd = Mapping::create_file(id, pid_a, pid_b)?;
        let map = Mapping::of_created(fd.raw(), id)?;
        Ok((fd, map))
    }

    /// Creates a segment: its memfd. It is sealed for good, so nobody who has it can keep its maker from mapping it later.
    pub fn create_file(id: u64, pid_a: u32, pid_b: u32) -> sd_sys::Result<Owned> {
        let fd = sd_sys::mem::memfd_sealed_for_good(c"sd-channel", SEGMENT_LEN)?;
        match sd_sys::fd::pwrite(fd.raw(), &header(id, pid_a, pid_b), 0)? {
            HEADER_LEN => Ok(fd),
            _ => Err(Errno::ENOSPC),
        }
    }

    /// Says in a segment that the caller has created, and that nobody else has yet, what stands behind its two sides.
    pub fn note_links(fd: i32, links: [Link; 2]) -> sd_sys::Result<()> {
        let mut bytes = [0; 8];
        let (a, b) = bytes.split_at_mut(4);
        a.copy_from_slice(&links[0].word().to_ne_bytes());
        b.copy_from_slice(&links[1].word().to_ne_bytes());
        match sd_sys::fd::pwrite(fd, &bytes, offset_of!(Header, link) as u64)? {
            8 => Ok(()),
            _ => Err(sd_sys::Errno(libc::ENOSPC)),
        }
    }

    /// Maps a segment that the caller has created with this identity, whatever others have made of its header since: as [`Mapping::map`] does,
    /// at a multiple of a MiB, which is how large rings are found.
    pub fn of_created(fd: i32, id: u64) -> sd_sys::Result<Mapping> {
        sd_sys::mem::map_apart(fd, SEGMENT_LEN).map(|base| Mapping::named(base, id))
    }
}

const HEADER_LEN: usize = offset_of!(Header, dead);

/// The first words of a segment.
fn header(id: u64, pid_a: u32, pid_b: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let (magic, pids) = (offset_of!(Header, magic), offset_of!(Header, pid));
    bytes[magic..magic + 8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[offset_of!(Header, id)..pids].copy_from_slice(&id.to_ne_bytes());
    bytes[pids..pids + 4].copy_from_slice(&pid_a.to_ne_bytes());
    bytes[pids + 4..].copy_from_slice(&pid_b.to_ne_bytes());
    bytes
}

const _: () = assert!(offset_of!(Header, magic) == 0 && offset_of!(Header, id) == 8);
const _: () = assert!(offset_of!(Header, pid) == 16 && HEADER_LEN == 24);

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::channel::Side;
    use core::sync::atomic::Ordering;

    #[test]
    fn what_is_written_is_mapped() {
        let (_fd, map) = Mapping::create(7, 8, 9).unwrap();
        let header = map.header();
        let words = (header.magic.load(Ordering::Relaxed), header.id.load(Ordering::Relaxed));
        assert_eq!(words, (MAGIC, 7));
        assert_eq!([&header.pid[0], &header.pid[1]].map(|pid| pid.load(Ordering::Relaxed)), [8, 9]);
        assert_eq!((header.dead[0].load(Ordering::Relaxed), header.used.load(Ordering::Relaxed)), (0, 0));
        // SAFETY: nothing uses the mapping any more.
        unsafe { map.unmap() };
    }

    /// The kernel's own choice is below what was mapped last, wherever that ends.
    #[test]
    fn its_maker_finds_large_rings_wherever_it_is_mapped() {
        let fd = Mapping::create_file(7, 8, 9).unwrap();
        let mut maps = Vec::new();
        for _ in 0..4 {
            let odd = SEGMENT_LEN + crate::PAGE;
            maps.push((sd_sys::mem::map_private(odd).unwrap(), odd));
            let map = Mapping::of_created(fd.raw(), 7).unwrap();
            let (small, large) = (map.small_ring(5, Side::B), map.large_ring(5, Side::B));
            assert_eq!(crate::channel::large_of(small as u64), large as u64);
            maps.push((map.base(), SEGMENT_LEN));
        }
        // SAFETY: nothing uses them any more.
        maps.into_iter().for_each(|(at, len)| unsafe { sd_sys::mem::unmap(at, len) });
    }

    #[test]
    fn who_has_it_cannot_keep_its_maker_out() {
        let fd = Mapping::create_file(7, 8, 9).unwrap();
        for seal in [libc::F_SEAL_WRITE, libc::F_SEAL_FUTURE_WRITE, libc::F_SEAL_SEAL] {
            assert_eq!(sd_sys::mem::add_seals(fd.raw(), seal), Err(Errno::EPERM), "{seal}");
        }
        let map = Mapping::of_created(fd.raw(), 7).unwrap();
        map.header().dead[0].store(1, Ordering::Relaxed);
        // SAFETY: nothing uses the mapping any more.
        unsafe { map.unmap() };
    }
}
