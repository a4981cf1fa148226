//! The library's file, which a tracer maps into a program ([`crate::layout`]).

use crate::elf::{self, Entry};
use crate::layout::{Layout, Mapping, PAGE, START_LEN};
use sd_sys::{Errno, Result, fd};

/// Far more than any library needs.
const LEN_MAX: u64 = 1 << 32;

/// A file that can be mapped without a loader, at any page.
pub(crate) struct Library {
    layout: Layout,
    start: [u8; START_LEN],
    headers_len: usize,
}

impl Library {
    /// ENOEXEC: not such a file. `path` ends with a zero byte.
    pub(crate) fn read(path: &[u8]) -> Result<Library> {
        let file = fd::open_to_read(path)?;
        let mut start = [0; START_LEN];
        let len = fd::read(file.raw(), &mut start)?;
        Library::of(start, len).ok_or(Errno(libc::ENOEXEC))
    }

    fn of(start: [u8; START_LEN], len: usize) -> Option<Library> {
        let bytes = start.get(..len)?;
        let (_, headers_len) = elf::table(bytes)?;
        let layout = Layout::of(bytes)?;
        let first = layout.segments().next()?;
        let begins_with_headers =
            first.offset == 0 && first.address == 0 && first.file_len >= headers_len as u64;
        let is_for_any_page = !layout.is_fixed && layout.align == PAGE && layout.pages.1 <= LEN_MAX;
        let has_entry = layout.segments().any(|segment| executes(segment, layout.entry));
        let is_it = begins_with_headers && is_for_any_page && has_entry;
        is_it.then_some(Library { layout, start, headers_len })
    }

    /// Where it begins to run, from its first byte on.
    pub(crate) fn entry(&self) -> u64 {
        self.layout.entry
    }

    /// From the first byte to the end of the last segment, in whole pages.
    pub(crate) fn len(&self) -> u64 {
        self.layout.pages.1
    }

    /// What is to be mapped.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.layout.mappings()
    }

    /// The bytes that the file, and the first segment, begins with: the headers that all of this is from.
    pub(crate) fn headers(&self) -> &[u8] {
        self.start.get(..self.headers_len).unwrap_or(&[])
    }
}

fn executes(segment: &Entry, address: u64) -> bool {
    let holds = address >= segment.address && address - segment.address < segment.file_len;
    segment.flags & libc::PF_X != 0 && holds
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// A file: kind, and segments of flags, offset, address, length in the file, length in memory.
    fn file(kind: u16, segments: &[(u32, [u64; 5])]) -> [u8; START_LEN] {
        let mut start = [0; START_LEN];
        let mut put = |at: usize, bytes: &[u8]| start[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &kind.to_le_bytes());
        put(18, &62u16.to_le_bytes());
        put(24, &0x1010u64.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &(segments.len() as u16).to_le_bytes());
        for (n, (kind, [flags, offset, address, file_len, memory_len])) in segments.iter().enumerate() {
            put(64 + 56 * n, &kind.to_le_bytes());
            put(64 + 56 * n + 4, &(*flags as u32).to_le_bytes());
            for (word, value) in [(8, offset), (16, address), (32, file_len), (40, memory_len), (48, &PAGE)] {
                put(64 + 56 * n + word, &value.to_le_bytes());
            }
        }
        start
    }

    const LOAD: u32 = libc::PT_LOAD;
    const HEADERS: (u32, [u64; 5]) = (LOAD, [4, 0, 0, 0x300, 0x300]);
    const CODE: (u32, [u64; 5]) = (LOAD, [5, 0x1000, 0x1000, 0x20, 0x20]);
    const DATA: (u32, [u64; 5]) = (LOAD, [6, 0x1f00, 0x2f00, 0x50, 0x2000]);

    fn read(kind: u16, segments: &[(u32, [u64; 5])]) -> Option<Library> {
        Library::of(file(kind, segments), START_LEN)
    }

    #[test]
    fn what_is_to_be_mapped() {
        let library = read(3, &[HEADERS, CODE, (libc::PT_NOTE, [0; 5]), DATA]).unwrap();
        assert_eq!((library.entry(), library.len(), library.mappings().count()), (0x1010, 0x5000, 3));
        assert_eq!(library.headers().len(), 64 + 4 * 56);
        let protections: Vec<i32> = library.mappings().map(|mapping| mapping.protection).collect();
        assert_eq!(protections, [1, 5, 3]);
    }

    #[test]
    fn what_is_no_library() {
        assert!(read(2, &[HEADERS, CODE]).is_none(), "not at any address");
        assert!(read(3, &[]).is_none(), "nothing");
        assert!(read(3, &[HEADERS, CODE, (libc::PT_INTERP, [0; 5])]).is_none(), "an interpreter");
        assert!(read(3, &[HEADERS, DATA]).is_none(), "no entry");
        assert!(read(3, &[CODE, HEADERS]).is_none(), "headers elsewhere");
        assert!(
            read(3, &[HEADERS, (LOAD, [5, 0x1000, 0x1000, 0x20, 0x1f])]).is_none(),
            "less than in the file"
        );
        assert!(read(3, &[HEADERS, CODE, (LOAD, [6, 0x1f01, 0x2f00, 1, 1])]).is_none(), "between pages");
        assert!(read(3, &[HEADERS, CODE, (LOAD, [6, 0, u64::MAX << 12, 1, 1])]).is_none(), "too far");
        assert!(read(3, &[&[HEADERS, CODE][..], &[DATA; 7]].concat()).is_none(), "too many");
        for len in 0..64 + 2 * 56 {
            assert!(Library::of(file(3, &[HEADERS, CODE]), len).is_none(), "cut at {len}");
        }
    }

    #[test]
    fn any_byte_may_be_another() {
        let whole = file(3, &[HEADERS, CODE, DATA]);
        for at in 0..64 + 3 * 56 {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut start = whole;
                start[at] = byte;
                if let Some(library) = Library::of(start, START_LEN) {
                    let sound = |it: Mapping| it.file_len <= it.len && it.from + it.len <= library.len();
                    assert!(library.mappings().all(sound) && library.len() % PAGE == 0, "{at}: {byte}");
                }
            }
        }
    }
}
