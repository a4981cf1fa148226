//! Which files are programs that the library can be brought into: those of Go without libc, which its own linker has made.

use crate::elf::{self, Entry};
use crate::sites::{self, Threads};
use sd_sys::{check, syscall};

/// So much of a file is looked at for its headers, of which Go's linker makes seven to nine. The stack may be a small one.
const START_LEN: usize = 768;

/// Whether a file is a static Go program, by its headers: no interpreter, and the note of a build's id under Go's name. What is
/// built without that note (`-ldflags=-buildid=`) is not known as one.
pub fn is_static_go(fd: i32) -> bool {
    let mut start = [0u8; START_LEN];
    headers_of_go(fd, &mut start).is_some()
}

/// The program headers of such a program.
fn headers_of_go(fd: i32, start: &mut [u8; START_LEN]) -> Option<&[u8]> {
    let len = read_at(fd, start, 0)?;
    let (table, _) = elf::table(start.get(..len)?)?;
    // Three words, then the name.
    let has_name = |note: Entry| {
        let mut bytes = [0u8; 16];
        let is_whole =
            note.kind == libc::PT_NOTE && read_at(fd, &mut bytes, note.offset) == Some(bytes.len());
        is_whole && elf::number(&bytes, 0, 4) == Some(4) && bytes.ends_with(b"Go\0\0")
    };
    let is_static = elf::entries(table).all(|entry| entry.kind != libc::PT_INTERP);
    (is_static && elf::entries(table).any(has_name)).then_some(table)
}

/// Whether the library could lead such a program's system calls: this reads all its text.
pub fn can_be_led(fd: i32) -> bool {
    let mut start = [0u8; START_LEN];
    let Some(table) = headers_of_go(fd, &mut start) else { return false };
    let is_text = |entry: &Entry| entry.kind == libc::PT_LOAD && entry.flags == libc::PF_R | libc::PF_X;
    let mut texts = [const { None }; TEXTS_MAX];
    for (place, entry) in texts.iter_mut().zip(elf::entries(table).filter(is_text)) {
        *place = Text::map(fd, &entry);
    }
    sites::sites(texts.iter().flatten().map(Text::bytes), Threads::OfRuntime).is_some()
}

/// Texts of a program, at most. Go's linker makes one.
const TEXTS_MAX: usize = 4;

/// A text of a file, to be read. A file that is cut meanwhile is a SIGBUS, as it is for the program that is executed from it.
struct Text {
    at: *mut u8,
    len: usize,
}

impl Text {
    fn map(fd: i32, segment: &Entry) -> Option<Text> {
        const PAGE: u64 = 4096;
        let len = usize::try_from(segment.file_len).ok().filter(|len| *len != 0)?;
        if !segment.offset.is_multiple_of(PAGE) {
            return None;
        }
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a mapping where the kernel likes.
        let at =
            check(unsafe { syscall!(libc::SYS_mmap, 0, len, read, private, fd, segment.offset) }).ok()?;
        Some(Text { at: at as *mut u8, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, to be read, until it is dropped. Who writes to the file meanwhile changes bytes that are only compared.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: `map` has made it, and no reference is left.
        unsafe { sd_sys::mem::unmap(self.at, self.len) };
    }
}

/// Bytes read at a place of a file.
fn read_at(fd: i32, buf: &mut [u8], at: u64) -> Option<usize> {
    // SAFETY: the kernel writes into the slice.
    check(unsafe { syscall!(libc::SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), at) }).ok()
}
