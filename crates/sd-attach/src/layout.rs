//! A file that needs nobody to load it, a static program's or the library's: what of it is mapped where, as execve(2) maps it (elf(5)).

use crate::elf::{self, Entry};

/// So much of a file is read for it.
pub const START_LEN: usize = 1024;
pub(crate) const PAGE: u64 = 4096;
pub(crate) const SEGMENTS_MAX: usize = 8;
const ET_EXEC: u64 = 2;
const ET_DYN: u64 = 3;
/// Where a program may begin (`vm.mmap_min_addr` is lower everywhere), and must have ended.
const LOWEST: u64 = 64 << 10;
const HIGHEST: u64 = 1 << 46;

/// See the module. Addresses count from [`Layout::base`] where the program is for any place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// It has its place, else it is for any.
    pub is_fixed: bool,
    /// Its first instruction.
    pub entry: u64,
    /// Its program headers: address and count.
    pub headers: (u64, usize),
    /// From the first page to behind the last one.
    pub pages: (u64, u64),
    /// The first page's address is a multiple of this.
    pub align: u64,
    segments: [Entry; SEGMENTS_MAX],
}

/// Bytes of a segment, in whole pages. Addresses as in [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub from: u64,
    /// Of the file, from this offset on; behind them are zeros.
    pub file_len: u64,
    pub offset: u64,
    pub len: u64,
    /// Bytes that are to be zero at the end of those of the file: where, and how many. None where nothing may be written.
    pub clear: (u64, u64),
    /// As mmap(2) has it.
    pub protection: i32,
}

impl Layout {
    /// Of a file that begins with these bytes. `None`: it has a dynamic linker, wants to execute on its stack, or is none that the kernel would take.
    pub fn of(start: &[u8]) -> Option<Layout> {
        let (table, _) = elf::table(start)?;
        let is_fixed = match elf::number(start, 16, 2)? {
            ET_EXEC => true,
            ET_DYN => false,
            _ => return None,
        };
        let table_at = elf::number(start, 32, 8)?;
        let mut layout = Layout {
            is_fixed,
            entry: elf::number(start, 24, 8)?,
            headers: (0, table.len() / elf::ENTRY_LEN),
            pages: (u64::MAX, 0),
            align: PAGE,
            segments: Default::default(),
        };
        let mut places = layout.segments.iter_mut();
        for entry in elf::entries(table) {
            match entry.kind {
                libc::PT_LOAD => {}
                libc::PT_INTERP => return None,
                libc::PT_GNU_STACK if entry.flags & libc::PF_X != 0 => return None,
                _ => continue,
            }
            if !is_sound(&entry) {
                return None;
            }
            if (entry.offset..entry.offset + entry.file_len).contains(&table_at) {
                layout.headers.0 = entry.address + table_at - entry.offset;
            }
            let end = (entry.address + entry.memory_len).next_multiple_of(PAGE);
            layout.pages = (layout.pages.0.min(entry.address / PAGE * PAGE), layout.pages.1.max(end));
            layout.align = layout.align.max(entry.align);
            *places.next()? = entry;
        }
        let is_there = layout.headers.0 != 0 && (!is_fixed || layout.pages.0 >= LOWEST);
        is_there.then_some(layout)
    }

    /// Those that have a byte.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Entry> {
        self.segments.iter().filter(|segment| segment.memory_len > 0)
    }

    /// What is to be mapped, in this order.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.segments().map(|segment| {
            let from = segment.address / PAGE * PAGE;
            let file_end = segment.address + segment.file_len;
            let end = segment.address + segment.memory_len;
            let file_len = if segment.file_len == 0 { 0 } else { file_end.next_multiple_of(PAGE) - from };
            let has_zeros = segment.file_len > 0 && segment.memory_len > segment.file_len;
            let clears = has_zeros && segment.flags & libc::PF_W != 0;
            let has = |flag, protection| if segment.flags & flag != 0 { protection } else { 0 };
            Mapping {
                from,
                file_len,
                offset: segment.offset / PAGE * PAGE,
                len: end.next_multiple_of(PAGE).max(from + file_len) - from,
                clear: if clears { (file_end, from + file_len - file_end) } else { (file_end, 0) },
                protection: has(libc::PF_R, libc::PROT_READ)
                    | has(libc::PF_W, libc::PROT_WRITE)
                    | has(libc::PF_X, libc::PROT_EXEC),
            }
        })
    }

    /// Bytes of address space in which its pages can be put at a multiple of [`Layout::align`].
    pub fn room(&self) -> u64 {
        self.pages.1 - self.pages.0 + self.align - PAGE
    }

    /// What is added to its addresses if that room begins there.
    pub fn base(&self, room: u64) -> u64 {
        if self.is_fixed { 0 } else { room.next_multiple_of(self.align).wrapping_sub(self.pages.0) }
    }
}

/// Numbers of which sums do not overflow, and that pages can be mapped by.
fn is_sound(segment: &Entry) -> bool {
    let parts = [segment.address, segment.memory_len, segment.offset, segment.file_len, segment.align];
    parts.iter().all(|part| *part < HIGHEST)
        && segment.address + segment.memory_len < HIGHEST
        && segment.file_len <= segment.memory_len
        && segment.address % PAGE == segment.offset % PAGE
        && (segment.align <= 1 || segment.align.is_power_of_two())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// A file: kind, and headers of kind, flags, offset, address, length in the file and in memory, alignment.
    fn file(kind: u16, headers: &[(u32, u32, [u64; 5])]) -> Vec<u8> {
        let mut start = vec![0; START_LEN];
        let mut put = |at: usize, bytes: &[u8]| start[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &kind.to_le_bytes());
        put(18, &(sd_sys::arch::ELF_MACHINE as u16).to_le_bytes());
        put(24, &0x40_1234u64.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(54, &(elf::ENTRY_LEN as u16).to_le_bytes());
        put(56, &(headers.len() as u16).to_le_bytes());
        for (n, (kind, flags, [offset, address, file_len, memory_len, align])) in headers.iter().enumerate() {
            let at = 64 + elf::ENTRY_LEN * n;
            put(at, &kind.to_le_bytes());
            put(at + 4, &flags.to_le_bytes());
            for (word, value) in [(8, offset), (16, address), (32, file_len), (40, memory_len), (48, align)] {
                put(at + word, &value.to_le_bytes());
            }
        }
        start
    }

    const HEADERS: (u32, u32, [u64; 5]) = (libc::PT_LOAD, 4, [0, 0x40_0000, 0x300, 0x300, 0x1000]);
    const TEXT: (u32, u32, [u64; 5]) = (libc::PT_LOAD, 5, [0x1000, 0x40_1000, 0x1800, 0x1800, 0x1000]);
    const DATA: (u32, u32, [u64; 5]) = (libc::PT_LOAD, 6, [0x2f80, 0x40_3f80, 0x100, 0x3000, 0x20_0000]);
    const ZEROS: (u32, u32, [u64; 5]) = (libc::PT_LOAD, 6, [0, 0x40_8000, 0, 0x1234, 0x1000]);

    #[test]
    fn segments_are_mapped_as_the_kernel_does() {
        let layout = Layout::of(&file(2, &[HEADERS, TEXT, DATA, ZEROS])).unwrap();
        assert!(layout.is_fixed);
        assert_eq!((layout.entry, layout.headers), (0x40_1234, (0x40_0040, 4)));
        assert_eq!((layout.pages, layout.align), ((0x40_0000, 0x40_a000), 0x20_0000));
        assert_eq!(layout.base(0x7000_0000), 0);
        let all: Vec<_> = layout.mappings().collect();
        let text = Mapping {
            from: 0x40_1000,
            file_len: 0x2000,
            offset: 0x1000,
            len: 0x2000,
            clear: (0x40_2800, 0),
            protection: libc::PROT_READ | libc::PROT_EXEC,
        };
        assert_eq!(all[1], text);
        let data = Mapping {
            from: 0x40_3000,
            file_len: 0x2000,
            offset: 0x2000,
            len: 0x4000,
            clear: (0x40_4080, 0xf80),
            protection: libc::PROT_READ | libc::PROT_WRITE,
        };
        assert_eq!(all[2], data);
        assert_eq!((all[3].file_len, all[3].len, all[3].clear.1), (0, 0x2000, 0));
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn one_for_any_place_is_aligned() {
        let (mut first, mut data) = (HEADERS, DATA);
        (first.2[1], data.2[1]) = (0, 0x3f80);
        let layout = Layout::of(&file(3, &[first, data])).unwrap();
        assert_eq!((layout.is_fixed, layout.pages), (false, (0, 0x7000)));
        assert_eq!(layout.room(), 0x20_6000);
        assert_eq!(layout.base(0x7000_1000), 0x7020_0000);
    }

    #[test]
    fn others_are_left_alone() {
        let linker = (libc::PT_INTERP, 4, [0, 0, 8, 8, 1]);
        let stack = |flags| (libc::PT_GNU_STACK, flags, [0; 5]);
        assert!(Layout::of(&file(2, &[HEADERS, stack(6)])).is_some());
        for headers in [
            &[HEADERS, linker][..],
            &[HEADERS, stack(7)],
            &[TEXT],
            &[HEADERS, (libc::PT_LOAD, 5, [0x1000, 0x40_1004, 8, 8, 0x1000])],
            &[HEADERS, (libc::PT_LOAD, 5, [0x1000, 0x40_1000, 9, 8, 0x1000])],
            &[HEADERS, (libc::PT_LOAD, 5, [0x1000, u64::MAX - 0xfff, 8, 8, 0x1000])],
            &[(libc::PT_LOAD, 4, [0, 0, 0x300, 0x300, 0x1000])],
            &[HEADERS; SEGMENTS_MAX + 1],
        ] {
            assert_eq!(Layout::of(&file(2, headers)), None, "{headers:x?}");
        }
        assert_eq!(Layout::of(&file(1, &[HEADERS])), None, "an object");
        assert_eq!(Layout::of(b"#!/bin/sh\n"), None);
    }
}
