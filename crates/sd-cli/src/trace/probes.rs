//! Probes of the kernel's (uprobes, by BPF) at the library's functions, in all threads of one process.
//!
//! The kernel puts breakpoints there for as long as the links' descriptors are open, in that process alone. So the library knows
//! nothing of being traced, and who is not traced pays nothing. Each probe that is passed costs the thread some microseconds.
//!
//! ```text
//! a thread passes a probe --program--> ring in memory --take--> hits
//! ```

use super::calls;
use super::program::{self, ADDRESS_WORDS, HAS_ADDRESS, RECORD_WORDS};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Commands of bpf(2), and kinds of what they make (linux/bpf.h).
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const PROG_TYPE_KPROBE: u32 = 2;
const TRACE_UPROBE_MULTI: u32 = 48;
const UPROBE_MULTI_RETURN: u32 = 1;

/// In the length of a record: it is being written; it is none.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// A power of two: some 40,000 calls, between two looks.
const ROOM: usize = 8 << 20;

/// A place in the library's file where a call begins.
pub(super) struct Place {
    offset: u64,
    call: usize,
}

impl Place {
    /// What the program is given there.
    fn cookie(&self) -> u64 {
        let has_address = calls::numbered(self.call).is_some_and(calls::Call::has_address);
        self.call as u64 | if has_address { HAS_ADDRESS } else { 0 }
    }
}

/// Where the calls begin in that file.
pub(super) fn places(library: &Path) -> Result<Vec<Place>, String> {
    let bytes = std::fs::read(library).map_err(|error| error.to_string())?;
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(&*bytes)
        .map_err(|error| error.to_string())?;
    let offset_of = |address: u64| {
        let is_within = |at: u64, len: u64| address.checked_sub(at).is_some_and(|offset| offset < len);
        let segment = file.segments().find(|it| is_within(it.address(), it.size()))?;
        Some(segment.file_range().0 + (address - segment.address()))
    };
    let mut seen = BTreeSet::new();
    let symbols = file.dynamic_symbols().filter(|it| it.kind() == SymbolKind::Text && it.is_definition());
    let place = |symbol: object::read::elf::ElfSymbol64<'_, '_>| {
        let call = calls::of_symbol(symbol.name().ok()?)?;
        Some(Place { offset: offset_of(symbol.address())?, call })
    };
    Ok(symbols.filter_map(place).filter(|place| seen.insert(place.offset)).collect())
}

/// A call began, or has returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) at_ns: u64,
    pub(super) tid: u32,
    pub(super) call: usize,
    pub(super) passed: Passed,
}

/// What a call was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) registers: [u64; 6],
    /// What the second argument points to, where that is an address.
    pub(super) address: [u64; ADDRESS_WORDS],
}

/// What was in the registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passed {
    Begin(Begun),
    End(u64),
}

/// The probes of a process, and what they write down.
pub(super) struct Probes {
    ring: Ring,
    lost: OwnedFd,
    /// Where calls begin, and where they return: open, and no more.
    _links: [OwnedFd; 2],
}

impl Probes {
    /// Sets them.
    pub(super) fn set(pid: u32, library: &Path, places: &[Place]) -> io::Result<Probes> {
        let path = CString::new(library.as_os_str().as_bytes())?;
        let ring = make_map(MAP_TYPE_RINGBUF, [0, 0, ROOM as u32])?;
        let lost = make_map(MAP_TYPE_ARRAY, [4, 8, 1])?;
        let link = |is_end| {
            let text = program::probe(ring.as_raw_fd(), lost.as_raw_fd(), is_end);
            attach(&load(&text)?, &path, places, (pid, is_end))
        };
        // Returns first: so no call is without its end.
        let end = link(true)?;
        let begin = link(false)?;
        Ok(Probes { ring: Ring::map(ring)?, lost, _links: [begin, end] })
    }

    /// Takes what was written down since.
    pub(super) fn take(&mut self, hits: &mut Vec<Hit>) {
        self.ring.take(|words| hits.push(hit(words)));
    }

    /// Records that had no room.
    pub(super) fn lost(&self) -> u64 {
        let (key, mut count) = (0u32, 0u64);
        let attributes = Element {
            map: self.lost.as_raw_fd(),
            _pad: 0,
            key: (&raw const key) as u64,
            value: (&raw mut count) as u64,
            flags: 0,
        };
        match bpf(MAP_LOOKUP_ELEM, &attributes) {
            Ok(_) => count,
            Err(_) => 0,
        }
    }
}

fn hit(words: [u64; RECORD_WORDS]) -> Hit {
    let [at_ns, ids, cookie, is_end, a, b, c, d, e, f, address @ ..] = words;
    let begun = Begun { registers: [a, b, c, d, e, f], address };
    let passed = if is_end == 0 { Passed::Begin(begun) } else { Passed::End(a) };
    Hit { at_ns, tid: ids as u32, call: (cookie & !HAS_ADDRESS) as usize, passed }
}

/// A ring buffer of BPF's, from the reader's side: a page whose first word is ours, one whose first word is the kernel's, and the
/// records, which are there twice in a row, so that none is cut.
struct Ring {
    own: NonNull<u8>,
    theirs: NonNull<u8>,
    page: usize,
}

impl Ring {
    fn map(fd: OwnedFd) -> io::Result<Ring> {
        // SAFETY: no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let own = map_shared(&fd, libc::PROT_READ | libc::PROT_WRITE, page, 0)?;
        let theirs = map_shared(&fd, libc::PROT_READ, page + 2 * ROOM, page).inspect_err(|_| {
            // SAFETY: mapped just now, and used by nobody.
            unsafe { libc::munmap(own.as_ptr().cast(), page) };
        })?;
        Ok(Ring { own, theirs, page })
    }

    fn take(&mut self, mut each: impl FnMut([u64; RECORD_WORDS])) {
        // SAFETY: both are the first words of mapped pages.
        let (read, written) =
            unsafe { (&*self.own.as_ptr().cast::<AtomicU64>(), &*self.theirs.as_ptr().cast::<AtomicU64>()) };
        let (mut at, end) = (read.load(Ordering::Relaxed), written.load(Ordering::Acquire));
        while at < end {
            // SAFETY: records are aligned to eight bytes; within the first of both copies.
            let record = unsafe { self.theirs.as_ptr().add(self.page + (at as usize & (ROOM - 8))) };
            // SAFETY: as above; the kernel writes the length last.
            let len = unsafe { &*record.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if len & BUSY != 0 {
                break;
            }
            let bytes = (len & !DISCARDED) as usize;
            if len & DISCARDED == 0 && bytes == RECORD_WORDS * 8 {
                // SAFETY: the record follows its head of eight bytes, at most in the second copy; the kernel writes it no more.
                each(unsafe { record.add(8).cast::<[u64; RECORD_WORDS]>().read_volatile() });
            }
            at += (bytes as u64 + 8).next_multiple_of(8);
        }
        read.store(at, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mappings are ours alone, and no reference into them is left.
        unsafe {
            libc::munmap(self.own.as_ptr().cast(), self.page);
            libc::munmap(self.theirs.as_ptr().cast(), self.page + 2 * ROOM);
        }
    }
}

fn map_shared(fd: &OwnedFd, access: i32, len: usize, offset: usize) -> io::Result<NonNull<u8>> {
    let place = std::ptr::null_mut();
    // SAFETY: a new mapping at a place of the kernel's choice.
    let map =
        unsafe { libc::mmap(place, len, access, libc::MAP_SHARED, fd.as_raw_fd(), offset as libc::off_t) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(map.cast()).ok_or_else(|| io::Error::other("no mapping"))
}

/// Of MAP_CREATE.
#[repr(C)]
struct NewMap {
    kind: u32,
    sizes: [u32; 3],
}

/// Of MAP_LOOKUP_ELEM.
#[repr(C)]
struct Element {
    map: i32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Of PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct NewProgram {
    kind: u32,
    count: u32,
    text: u64,
    licence: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// Of LINK_CREATE, for many uprobes of one file.
#[repr(C)]
struct NewLink {
    program: i32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    counters: u64,
    cookies: u64,
    count: u32,
    probe_flags: u32,
    pid: u32,
    _pad: u32,
}

const _: () = assert!(size_of::<NewProgram>() == 72 && size_of::<NewLink>() == 64);

fn bpf<T>(command: i32, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads the attributes, and what they point to, during the call; callers keep that alive.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Sizes: of a key, of a value, and how many.
fn make_map(kind: u32, sizes: [u32; 3]) -> io::Result<OwnedFd> {
    bpf(MAP_CREATE, &NewMap { kind, sizes }).map(owned)
}

fn load(text: &[u64]) -> io::Result<OwnedFd> {
    let licence = c"Dual MIT/GPL";
    let attributes = NewProgram {
        kind: PROG_TYPE_KPROBE,
        count: text.len() as u32,
        text: text.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        attach_type: TRACE_UPROBE_MULTI,
        ..NewProgram::default()
    };
    bpf(PROG_LOAD, &attributes).map(owned)
}

/// The link holds the program.
fn attach(
    program: &OwnedFd,
    path: &CString,
    places: &[Place],
    (pid, is_end): (u32, bool),
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> = places.iter().map(Place::cookie).collect();
    let attributes = NewLink {
        program: program.as_raw_fd(),
        target: 0,
        attach_type: TRACE_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: places.len() as u32,
        probe_flags: if is_end { UPROBE_MULTI_RETURN } else { 0 },
        pid,
        _pad: 0,
    };
    bpf(LINK_CREATE, &attributes).map(owned)
}
