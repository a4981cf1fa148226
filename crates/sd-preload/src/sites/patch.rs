//! Puts jumps to islands (`island`) in the place of `syscall` instructions.
//!
//! All or nothing: the text is made writable before the first byte is changed, all of it, so that it stays one mapping: who reads addresses of a profile (pprof)
//! knows a program by the first one. It stays executable meanwhile, and the island is made
//! executable first, so that where a policy (SELinux, MemoryDenyWriteExecute of systemd) refuses either, nothing has happened.
//! One thread exists, in the constructor, and it executes none of these bytes.

use super::island::{self, ISLAND_LEN, JUMP_LEN};
use super::program::{Part, Program};
use core::ffi::c_int;
use sd_attach::sites::{Kind, SITES_MAX, Sites};
use sd_sys::{check, syscall};
#[cfg(sd_freestanding)]
use {
    super::cancel,
    super::moved::{self, PLACE_LEN, WORDS_LEN, Words},
    sd_attach::windows::{Window, Windows},
};

const PAGE: usize = 4096;
const _: () = assert!(SITES_MAX * ISLAND_LEN <= PAGE);
/// `jmp rel32` reaches so far; less what the program and an island are long.
const REACH: usize = 0x7000_0000;
/// Places for the islands are tried so far apart, below the program; and from so far above it on, behind the heap's beginning.
const STEP: usize = 64 << 10;
const ABOVE: usize = 64 << 20;
/// As many on each side.
const TRIES: usize = 256;

/// Leads all sites to the entry of their kind; or none, where that cannot be.
pub(super) fn lead(program: &Program, sites: &Sites, entry: impl Fn(Kind) -> usize) -> bool {
    let Some(islands) = room(program.range(), PAGE) else { return false };
    let mut page = [0xccu8; PAGE];
    let mut jumps = [None; SITES_MAX];
    let places = page.as_chunks_mut::<ISLAND_LEN>().0.iter_mut().zip(&mut jumps).enumerate();
    for (site, (n, (place, jump))) in sites.iter().zip(places) {
        *jump = program.texts().nth(site.text).and_then(|part| {
            let (at, island) = (part.start + site.at, islands + n * ISLAND_LEN);
            island::build(place, island, at, site.kind, entry(site.kind))?;
            Some(Jump { at, bytes: island::jump(at, island)? })
        });
        if jump.is_none() {
            give_back(islands, PAGE);
            return false;
        }
    }
    let parts = || program.texts().filter(|part| jumps.iter().flatten().any(|jump| part.has(jump.at)));
    let open = |protection: c_int| parts().all(|part| part.protect(part.protection | protection));
    let is_open = fill(islands, &page).is_some() && open(libc::PROT_WRITE);
    if is_open {
        jumps.iter().flatten().for_each(Jump::write);
    }
    open(0);
    if !is_open {
        give_back(islands, PAGE);
    }
    is_open
}

/// Leads all windows to the entry that `words` begin with, or end with if goroutines make these calls; or none, where that cannot be.
#[cfg(sd_freestanding)]
pub(super) fn lead_any(program: &Program, windows: &Windows, words: Words) -> bool {
    let is_go = program.is_go();
    let len = (WORDS_LEN + windows.all().len() * PLACE_LEN).next_multiple_of(PAGE);
    let Some(islands) = room(program.range(), len) else { return false };
    let place = |n: usize| islands + WORDS_LEN + n * PLACE_LEN;
    let all = || windows.all().iter().enumerate();
    let part = |window: &Window| program.texts().nth(usize::from(window.text));
    let jump = |n: usize, window: &Window| {
        let part = part(window)?;
        let at = part.start + window.at as usize;
        Some(Jump { at, bytes: island::jump(at, place(n))? })
    };
    // SAFETY: `room` made it, so long and writable, and only we know it.
    unsafe { (islands as *mut Words).write(words) };
    let are_built = all().all(|(n, window)| {
        let (Some(part), Some(bytes)) = (part(window), program.bytes().nth(usize::from(window.text))) else {
            return false;
        };
        let mut code = [0xcc; PLACE_LEN];
        let is_gos = is_go && window.is_gos;
        let built = moved::build(&mut code, place(n), *window, (part.start, bytes), islands, is_gos);
        if let (Some(instruction), true) = (built, window.is_cancellable) {
            cancel::set_place(part.start + window.at as usize, (place(n), instruction));
        }
        // SAFETY: as above, and there is room for so many.
        unsafe { (place(n) as *mut [u8; PLACE_LEN]).write(code) };
        built.is_some() && jump(n, window).is_some()
    });
    cancel::set_program(program.range());
    let open = |protection: c_int| program.texts().all(|part| part.protect(part.protection | protection));
    let is_open = are_built && make_executable(islands, len).is_some() && open(libc::PROT_WRITE);
    if is_open {
        all().filter_map(|(n, window)| jump(n, window)).for_each(|jump| jump.write());
    } else {
        give_back(islands, len);
    }
    open(0);
    is_open
}

impl Part {
    fn has(&self, at: usize) -> bool {
        (self.start..self.start + self.len).contains(&at)
    }

    fn protect(&self, protection: c_int) -> bool {
        let start = self.start & !(PAGE - 1);
        let len = (self.start + self.len).next_multiple_of(PAGE) - start;
        // SAFETY: pages of the program's text; more is allowed of them than before, or what the program was built for.
        check(unsafe { syscall!(libc::SYS_mprotect, start, len, protection) }).is_ok()
    }
}

/// A jump that is to stand in the text.
#[derive(Clone, Copy)]
struct Jump {
    at: usize,
    bytes: [u8; JUMP_LEN],
}

impl Jump {
    fn write(&self) {
        // SAFETY: `find` found the site there, of at least so many bytes, and the page is open. Nobody executes it now, and no
        // reference to the text is left.
        unsafe { (self.at as *mut [u8; JUMP_LEN]).write(self.bytes) };
    }
}

/// Pages that every byte of the program can jump to, and that can be written: below the program, or well above it.
fn room((start, end): (usize, usize), len: usize) -> Option<usize> {
    let start = start & !(PAGE - 1);
    let below = (1..=TRIES).filter_map(|n| start.checked_sub(n * STEP));
    let above = (0..TRIES).map(|n| (end + ABOVE).next_multiple_of(STEP) + n * STEP);
    let far = |place: &usize| place.abs_diff(start).max(place.abs_diff(end)) < REACH;
    below.chain(above).filter(far).find_map(|place| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: memory of nobody's; what is there already is left as it is.
        let mapped =
            check(unsafe { syscall!(libc::SYS_mmap, place, len, protection, flags, usize::MAX, 0) }).ok()?;
        if mapped == place {
            return Some(place);
        }
        // A kernel that does not know the flag.
        give_back(mapped, len);
        None
    })
}

/// Writes the islands, and makes them executable.
fn fill(islands: usize, page: &[u8; PAGE]) -> Option<()> {
    // SAFETY: `room` made it, so long and writable, and only we know it.
    unsafe { (islands as *mut [u8; PAGE]).write(*page) };
    make_executable(islands, PAGE)
}

fn make_executable(islands: usize, len: usize) -> Option<()> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: what `room` made.
    check(unsafe { syscall!(libc::SYS_mprotect, islands, len, protection) }).ok().map(|_| ())
}

fn give_back(islands: usize, len: usize) {
    // SAFETY: `room` made it, and nothing refers to it.
    unsafe { sd_sys::mem::unmap(islands as *mut u8, len) };
}
