//! The library's file: what of it is to be mapped where (elf(5)).

use crate::elf;
use sd_sys::{Errno, Result, fd};

/// Of the library, and of this processor.
pub(crate) const PAGE: u64 = 4096;
/// Bytes at the start of the file that hold all headers.
const START_LEN: usize = 1024;
pub(crate) const SEGMENTS_MAX: usize = 8;
const ET_DYN: u64 = 3;
/// Far more than any library needs; sums of two such numbers cannot overflow.
const LEN_MAX: u64 = 1 << 32;

/// A segment that is to be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// From the library's first byte on.
    pub(crate) address: u64,
    pub(crate) memory_len: u64,
    pub(crate) offset: u64,
    pub(crate) file_len: u64,
    /// PF_R, PF_W, PF_X.
    flags: u32,
}

impl Segment {
    /// As mmap(2) has it.
    pub(crate) fn protection(&self) -> u64 {
        let has = |flag, protection| if self.flags & flag != 0 { protection as u64 } else { 0 };
        has(libc::PF_R, libc::PROT_READ)
            | has(libc::PF_W, libc::PROT_WRITE)
            | has(libc::PF_X, libc::PROT_EXEC)
    }

    /// Headers that [`PAGE`] can be mapped by.
    fn is_sound(&self, align: u64) -> bool {
        let parts = [self.address, self.memory_len, self.offset, self.file_len];
        parts.iter().all(|part| *part < LEN_MAX)
            && self.file_len <= self.memory_len
            && self.address % PAGE == self.offset % PAGE
            && align <= PAGE
    }

    fn holds(&self, address: u64) -> bool {
        self.flags & libc::PF_X != 0 && address >= self.address && address - self.address < self.file_len
    }
}

/// A file that can be mapped without a loader.
pub(crate) struct Library {
    /// Where it begins to run.
    pub(crate) entry: u64,
    /// From the first byte to the end of the last segment, in whole pages.
    pub(crate) len: u64,
    segments: [Segment; SEGMENTS_MAX],
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
        let headers = start.get(..len)?;
        let (table, headers_len) = elf::table(headers)?;
        if elf::number(headers, 16, 2)? != ET_DYN {
            return None;
        }
        let mut library = Library {
            entry: elf::number(headers, 24, 8)?,
            len: 0,
            segments: Default::default(),
            start,
            headers_len,
        };
        let mut places = library.segments.iter_mut();
        for entry in elf::entries(table) {
            match entry.kind {
                libc::PT_LOAD => {}
                libc::PT_INTERP => return None,
                _ => continue,
            }
            let elf::Entry { flags, offset, address, file_len, memory_len, align, .. } = entry;
            let segment = Segment { flags, offset, address, file_len, memory_len };
            if !segment.is_sound(align) {
                return None;
            }
            library.len = library.len.max((segment.address + segment.memory_len).next_multiple_of(PAGE));
            *places.next()? = segment;
        }
        let first = library.segments.first()?;
        let begins_with_headers =
            first.offset == 0 && first.address == 0 && first.file_len >= headers_len as u64;
        let has_entry = library.segments().any(|segment| segment.holds(library.entry));
        (begins_with_headers && has_entry).then_some(library)
    }

    /// Those that have a byte.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.memory_len > 0)
    }

    /// The bytes that the file, and the first segment, begins with: the headers that all of this is from.
    pub(crate) fn headers(&self) -> &[u8] {
        self.start.get(..self.headers_len).unwrap_or(&[])
    }
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
        assert_eq!((library.entry, library.len, library.segments().count()), (0x1010, 0x5000, 3));
        assert_eq!(library.headers().len(), 64 + 4 * 56);
        let protections: Vec<u64> = library.segments().map(Segment::protection).collect();
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
                    let sound =
                        |s: &Segment| s.file_len <= s.memory_len && s.address + s.memory_len <= library.len;
                    assert!(library.segments().all(sound) && library.len % PAGE == 0, "{at}: {byte}");
                }
            }
        }
    }
}
