//! elf(5): the program headers of a file, for this processor.

use sd_sys::{check, syscall};

/// Of the file's header.
pub const HEADER_LEN: usize = 64;
/// Of a program header.
pub const ENTRY_LEN: usize = 56;

/// A little-endian number.
pub fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(len)?)?;
    Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Where the program headers of a file are that begins with these bytes, and their length; `None`: it is none for this processor.
pub fn place(start: &[u8]) -> Option<(usize, usize)> {
    let is_ours = start.starts_with(b"\x7fELF\x02\x01\x01")
        && number(start, 18, 2)? == sd_sys::arch::ELF_MACHINE
        && number(start, 54, 2)? == ENTRY_LEN as u64;
    let (at, count) = (usize::try_from(number(start, 32, 8)?).ok()?, number(start, 56, 2)? as usize);
    (is_ours && at >= HEADER_LEN).then_some((at, count * ENTRY_LEN))
}

/// The program headers of a file that begins with these bytes, and where they end; `None` if they are not all there.
pub fn table(start: &[u8]) -> Option<(&[u8], usize)> {
    let (at, len) = place(start)?;
    let end = at.checked_add(len)?;
    start.get(at..end).map(|table| (table, end))
}

/// Bytes read at a place of a file.
pub fn read_at(fd: i32, buf: &mut [u8], at: u64) -> Option<usize> {
    // SAFETY: the kernel writes into the slice.
    check(unsafe { syscall!(libc::SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), at) }).ok()
}

/// A program header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// `p_type`, and so on.
    pub kind: u32,
    /// See `kind`.
    pub flags: u32,
    /// See `kind`.
    pub offset: u64,
    /// See `kind`.
    pub address: u64,
    /// See `kind`.
    pub file_len: u64,
    /// See `kind`.
    pub memory_len: u64,
    /// See `kind`.
    pub align: u64,
}

/// Those of a table.
pub fn entries(table: &[u8]) -> impl Iterator<Item = Entry> {
    let word = |entry: &[u8], at, len| number(entry, at, len).unwrap_or(0);
    table.chunks_exact(ENTRY_LEN).map(move |entry| Entry {
        kind: word(entry, 0, 4) as u32,
        flags: word(entry, 4, 4) as u32,
        offset: word(entry, 8, 8),
        address: word(entry, 16, 8),
        file_len: word(entry, 32, 8),
        memory_len: word(entry, 40, 8),
        align: word(entry, 48, 8),
    })
}
