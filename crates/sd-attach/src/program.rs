//! Which files are programs that the library can be brought into: those that no dynamic linker loads, of Go's own linker, or with musl or glibc in them; and
//! those of Go's that have one, and no library (`-buildmode=pie` without cgo).

use crate::dynamic;
use crate::elf::{self, Entry, read_at};
use crate::sites::{self, Threads};
use crate::unled::Unled;
use crate::windows;
use sd_sys::{check, syscall};

/// So much of a file is looked at for its headers, of which Go's linker makes seven to nine. The stack may be a small one.
const START_LEN: usize = 768;

/// What such a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Made {
    /// By Go's linker: with the note of a build's id under Go's name, or data that begins with [`GO_DATA`].
    ByGo,
    /// Otherwise: with a libc.
    Otherwise,
}

/// Whether a file is a program for which no dynamic linker loads a libc, by its headers, and which; `None`: it is none.
pub fn without_libc(fd: i32) -> Option<Made> {
    let mut start = [0u8; START_LEN];
    headers(fd, &mut start).ok().map(|(_, made)| made)
}

/// The program headers of such a program.
fn headers(fd: i32, start: &mut [u8; START_LEN]) -> Result<(&[u8], Made), Unled> {
    let len = read_at(fd, start, 0).ok_or(Unled::Unknown)?;
    let start = start.get(..len).unwrap_or(&[]);
    let (table, _) = elf::table(start).ok_or(Unled::Unknown)?;
    let has_linker = elf::entries(table).any(|entry| entry.kind == libc::PT_INTERP);
    if has_linker && !may_need_none(table) {
        return Err(Unled::Unknown);
    }
    // Three words, then the name.
    let mut segments = elf::entries(table).filter(|entry| entry.kind == libc::PT_NOTE);
    let has_note = segments.any(|segment| notes(fd, segment).any(|name| name == *b"Go\0\0"));
    let is_go = has_note || has_go_data(fd, table);
    if is_go && (!has_linker || needs_none(fd, table)) {
        return Ok((table, Made::ByGo));
    }
    if has_linker {
        return Err(Unled::Unknown);
    }
    // Instructions that are written while it runs are led by nobody.
    let is_open = |entry: Entry| entry.kind == libc::PT_LOAD && entry.flags & OPEN == OPEN;
    if elf::entries(table).any(is_open) {
        return Err(Unled::Open);
    }
    let has_flag = |entry: Entry| entry.kind == libc::PT_DYNAMIC && is_executable(fd, entry);
    let is_program = match elf::number(start, 16, 2) {
        Some(ET_EXEC) => true,
        Some(ET_DYN) => elf::entries(table).any(has_flag),
        _ => false,
    };
    if is_program { Ok((table, Made::Otherwise)) } else { Err(Unled::Unknown) }
}

/// The note of the system, under the name GNU: glibc is in the program (`.note.ABI-tag`).
pub const NT_GNU_ABI_TAG: u32 = 1;

/// What the data of a program begins with that Go's linker has made: where debug/buildinfo reads on. It is there without a build's id, too
/// (`-ldflags=-buildid=`).
pub const GO_DATA: &[u8; 14] = b"\xff Go buildinf:";

/// Whether a segment of data begins so.
fn has_go_data(fd: i32, table: &[u8]) -> bool {
    let is_data = |entry: &Entry| entry.kind == libc::PT_LOAD && entry.flags == libc::PF_R | libc::PF_W;
    elf::entries(table).filter(is_data).take(DATA_MAX).any(|entry| {
        let mut bytes = [0u8; GO_DATA.len()];
        read_at(fd, &mut bytes, entry.offset) == Some(bytes.len()) && bytes == *GO_DATA
    })
}

/// Segments of data, at most: what is to be relocated may be one of its own.
const DATA_MAX: usize = 2;

/// A segment to be written and executed.
const OPEN: u32 = libc::PF_W | libc::PF_X;
const ET_EXEC: u64 = 2;
const ET_DYN: u64 = 3;

/// The notes of a segment, the first few of them: their names.
fn notes(fd: i32, segment: Entry) -> impl Iterator<Item = [u8; 4]> {
    let mut at = segment.offset;
    let end = segment.offset.saturating_add(segment.file_len);
    core::iter::from_fn(move || {
        let mut bytes = [0u8; 16];
        if at >= end || read_at(fd, &mut bytes, at) != Some(bytes.len()) {
            return None;
        }
        let [name_len, len] = [0, 4].map(|place| elf::number(&bytes, place, 4).unwrap_or(0));
        at = at.saturating_add(12 + name_len.next_multiple_of(4) + len.next_multiple_of(4));
        bytes.last_chunk().copied()
    })
    .take(NOTES_MAX)
}

/// Of a segment.
const NOTES_MAX: usize = 4;

/// Whether an ET_DYN is to be executed, and no library, as dynamic linkers are (DF_1_PIE, elf.h).
fn is_executable(fd: i32, dynamic: Entry) -> bool {
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_PIE: u64 = 0x0800_0000;
    let mut is_one = false;
    let _ = dynamic::tags(fd, dynamic, |tag, flags| is_one |= tag == DT_FLAGS_1 && flags & DF_1_PIE != 0);
    is_one
}

/// Whether it is worth a look whether such a program needs libraries: Go's linker puts instructions first. Most programs are not looked at further.
fn may_need_none(table: &[u8]) -> bool {
    let first = elf::entries(table).find(|entry| entry.kind == libc::PT_LOAD);
    first.is_some_and(|first| first.flags & libc::PF_X != 0)
}

/// It has a dynamic linker, and no library that this would load.
fn needs_none(fd: i32, table: &[u8]) -> bool {
    let dynamic = elf::entries(table).find(|entry| entry.kind == libc::PT_DYNAMIC);
    dynamic.is_some_and(|dynamic| dynamic::needs_libraries(fd, dynamic) == Some(false))
}

/// Whether the library could lead such a program's system calls, or why not: this reads all its text.
///
/// # Errors
/// See [`Unled`].
pub fn can_be_led(fd: i32) -> Result<(), Unled> {
    let mut start = [0u8; START_LEN];
    let (table, made) = headers(fd, &mut start)?;
    let is_text = |entry: &Entry| entry.kind == libc::PT_LOAD && entry.flags == libc::PF_R | libc::PF_X;
    let mut texts = [const { None }; TEXTS_MAX];
    for (place, entry) in texts.iter_mut().zip(elf::entries(table).filter(is_text)) {
        *place = Text::map(fd, &entry);
    }
    let texts = texts.iter().flatten().map(Text::bytes);
    match made {
        Made::ByGo => match sites::sites(texts.clone(), Threads::OfRuntime) {
            Some(_) => Ok(()),
            None if sites::has_libc(texts.clone()) => by_windows(texts),
            None => Err(Unled::Go),
        },
        Made::Otherwise => by_windows(texts),
    }
}

fn by_windows<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Result<(), Unled> {
    windows::windows(texts).map(|_| ()).map_err(Unled::Calls)
}

/// Texts of a program, at most. Go's linker makes one.
const TEXTS_MAX: usize = 4;

/// A text of a file, to be read. A file that is cut meanwhile is a SIGBUS, as it is for the program that is executed from it.
struct Text {
    at: *mut u8,
    len: usize,
    /// Bytes of the mapping that are others'.
    before: usize,
}

impl Text {
    fn map(fd: i32, segment: &Entry) -> Option<Text> {
        const PAGE: u64 = 4096;
        let before = segment.offset % PAGE;
        let len =
            usize::try_from(segment.file_len.checked_add(before)?).ok().filter(|_| segment.file_len != 0)?;
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a mapping where the kernel likes.
        let at =
            check(unsafe { syscall!(libc::SYS_mmap, 0, len, read, private, fd, segment.offset - before) })
                .ok()?;
        Some(Text { at: at as *mut u8, len, before: before as usize })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, to be read, until it is dropped. Who writes to the file meanwhile changes bytes that are only compared.
        unsafe { core::slice::from_raw_parts(self.at.add(self.before), self.len - self.before) }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: `map` has made it, and no reference is left.
        unsafe { sd_sys::mem::unmap(self.at, self.len) };
    }
}
