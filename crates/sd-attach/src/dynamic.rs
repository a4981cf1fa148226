//! Programs that a dynamic linker loads: whose it is, and what their dynamic sections say (elf(5)).
//!
//! Allocates nothing, and needs little stack: it is asked in signal handlers, and in children of vfork(2).

use crate::elf::{self, Entry, number, read_at};

/// Whose dynamic linker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linker {
    /// `ld-linux`: constructors of libraries run before the program's first instruction.
    Glibc,
    /// `ld-musl`: constructors run in libc's start, which the program calls.
    Musl,
}

/// What is known of such a program.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    /// The dynamic linker that it names.
    pub linker: Linker,
    /// How many libraries it needs itself (DT_NEEDED).
    pub libraries: u32,
    /// It has a say in where libraries are found, or in who looks on (DT_RUNPATH, DT_AUDIT and their like).
    pub looks_elsewhere: bool,
    /// Where the file has the names that the program asks of others, or gives them: C strings, one behind the other (DT_STRTAB).
    pub names_at: u64,
    /// Their length, in bytes.
    pub names_len: u64,
}

/// Room for [`Linked::of`].
pub type Window = [u8; 1024];

impl Linked {
    /// What a file is; `None`: no such program for this processor, or for another linker, or one that cannot be read.
    pub fn of(fd: i32, window: &mut Window) -> Option<Linked> {
        let table = table(fd, window)?;
        let entry = |kind| elf::entries(table).find(|entry| entry.kind == kind);
        let linker = linker(fd, entry(libc::PT_INTERP)?)?;
        let mut found = Linked { linker, libraries: 0, looks_elsewhere: false, names_at: 0, names_len: 0 };
        let mut address = 0;
        tags(fd, entry(libc::PT_DYNAMIC)?, |tag, value| match tag {
            DT_NEEDED => found.libraries += 1,
            DT_STRTAB => address = value,
            DT_STRSZ => found.names_len = value,
            other => found.looks_elsewhere |= ELSEWHERE.contains(&other),
        })?;
        let within = |load: &Entry| address.checked_sub(load.address).filter(|at| *at < load.file_len);
        let mut loads = elf::entries(table).filter(|entry| entry.kind == libc::PT_LOAD);
        found.names_at = loads.find_map(|load| within(&load)?.checked_add(load.offset))?;
        Some(found)
    }

    /// Whether constructors of libraries that are preloaded run in the program. A few of musl's begin without libc's start: those with cgo
    /// that Go's own linker has made.
    pub fn runs_constructors(&self, fd: i32, window: &mut Window) -> bool {
        self.linker == Linker::Glibc || self.has_name(fd, b"__libc_start_main\0", window) == Some(true)
    }

    /// Whether a name, with its end, is one of the program's, or the end of one. `None`: they cannot be read, or are too many to be searched.
    fn has_name(&self, fd: i32, name: &[u8], window: &mut Window) -> Option<bool> {
        if self.names_len > NAMES_LEN_MAX {
            return None;
        }
        let (mut at, end) = (self.names_at, self.names_at.checked_add(self.names_len)?);
        while at < end {
            let len = (end - at).min(window.len() as u64) as usize;
            let text = window.get_mut(..len)?;
            if read_at(fd, text, at)? != len {
                return None;
            }
            if text.windows(name.len()).any(|part| part == name) {
                return Some(true);
            }
            if at + len as u64 == end {
                break;
            }
            // It may begin at the window's end.
            at += (len - name.len()) as u64;
        }
        Some(false)
    }
}

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// RPATH, RUNPATH, DEPAUDIT, AUDIT, AUXILIARY, FILTER.
const ELSEWHERE: [u64; 6] = [15, 29, 0x6fff_fefb, 0x6fff_fefc, 0x7fff_fffd, 0x7fff_ffff];

/// The program headers, which some tools put at a file's end.
fn table(fd: i32, window: &mut Window) -> Option<&[u8]> {
    let len = read_at(fd, window, 0)?;
    let (at, size) = elf::place(window.get(..len)?)?;
    let begin = match at.checked_add(size)? {
        end if end <= len => at,
        _ => {
            let table = window.get_mut(..size)?;
            (read_at(fd, table, at as u64)? == size).then_some(0)?
        }
    };
    window.get(begin..begin + size)
}

/// By the name of the file; the path may be long.
fn linker(fd: i32, path: Entry) -> Option<Linker> {
    let mut end = [0u8; 64];
    let len = path.file_len.min(end.len() as u64);
    let end = end.get_mut(..len as usize)?;
    let at = path.offset.checked_add(path.file_len - len)?;
    if read_at(fd, end, at)? != end.len() {
        return None;
    }
    let name = end.rsplit(|byte| *byte == b'/').next()?;
    match name {
        name if name.starts_with(b"ld-linux") => Some(Linker::Glibc),
        name if name.starts_with(b"ld-musl") => Some(Linker::Musl),
        _ => None,
    }
}

/// Gives tag and value of each entry of a dynamic section; `None` if it cannot be read.
pub fn tags(fd: i32, dynamic: Entry, mut each: impl FnMut(u64, u64)) -> Option<()> {
    let mut window = [0u8; 256];
    let end = dynamic.offset.checked_add(dynamic.file_len.min(SECTION_LEN_MAX))?;
    let mut at = dynamic.offset;
    while at < end {
        let len = (end - at).min(window.len() as u64) as usize;
        let part = window.get_mut(..len)?;
        if read_at(fd, part, at)? != len {
            return None;
        }
        for entry in part.as_chunks::<16>().0 {
            match (number(entry, 0, 8)?, number(entry, 8, 8)?) {
                (DT_NULL, _) => return Some(()),
                (tag, value) => each(tag, value),
            }
        }
        at += len as u64;
    }
    Some(())
}

/// Far more than any program has. The file may be another user's, who could make root's `sd ss` read a file of holes for years.
const NAMES_LEN_MAX: u64 = 16 << 20;
/// Longer dynamic sections are not read to their end.
const SECTION_LEN_MAX: u64 = 16 << 10;

/// Whether it names a library that is to be loaded; `None` if it cannot be read.
pub fn needs_libraries(fd: i32, dynamic: Entry) -> Option<bool> {
    let mut needs = false;
    tags(fd, dynamic, |tag, _| needs |= tag == DT_NEEDED)?;
    Some(needs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn of(path: &str) -> Option<Linked> {
        Linked::of(File::open(path).unwrap().as_raw_fd(), &mut [0; 1024])
    }

    #[test]
    fn programs_of_this_system() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let (fd, window) = (own.as_raw_fd(), &mut [0; 1024]);
        let found = Linked::of(fd, window).unwrap();
        assert_eq!(found.linker, Linker::Glibc);
        assert!(found.libraries >= 1 && !found.looks_elsewhere);
        assert_eq!(found.has_name(fd, b"__libc_start_main\0", window), Some(true));
        assert_eq!(found.has_name(fd, b"main_of_another\0", window), Some(false));
        let shell = of("/bin/sh").unwrap();
        assert_eq!((shell.linker, shell.libraries), (Linker::Glibc, 1));
        assert!(of("/etc/passwd").is_none() && of("/bin").is_none());
    }

    #[test]
    fn a_file_of_holes_is_not_read_to_its_end() {
        let path = std::env::temp_dir().join(format!("sd-holes-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let found = Linked {
            linker: Linker::Musl,
            libraries: 1,
            looks_elsewhere: false,
            names_at: 0,
            names_len: 1 << 40,
        };
        let runs = found.runs_constructors(File::open(&path).unwrap().as_raw_fd(), &mut [0; 1024]);
        std::fs::remove_file(&path).unwrap();
        assert!(!runs);
    }

    #[test]
    fn a_name_is_found_wherever_a_window_ends() {
        let folder = std::env::temp_dir().join(format!("sd-names-{}", std::process::id()));
        for before in 1000..1030 {
            let text = [&vec![b'x'; before][..], b"\0first\0", &[b'y'; 900]].concat();
            std::fs::write(&folder, &text).unwrap();
            let file = File::open(&folder).unwrap();
            let names = Linked {
                linker: Linker::Musl,
                libraries: 0,
                looks_elsewhere: false,
                names_at: 0,
                names_len: text.len() as u64,
            };
            let has = |name: &[u8]| names.has_name(file.as_raw_fd(), name, &mut [0; 1024]);
            assert_eq!((has(b"first\0"), has(b"second\0")), (Some(true), Some(false)), "{before}");
        }
        std::fs::remove_file(&folder).unwrap();
    }
}
