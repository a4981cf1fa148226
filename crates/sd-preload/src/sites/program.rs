//! The main program, as the dynamic linker has loaded it: is it a Go program with libc, and where is its text?

use core::ffi::c_int;
use libc::Elf64_Phdr;
#[cfg(not(sd_freestanding))]
use {
    crate::next,
    core::ffi::{CStr, c_void},
    libc::{dl_phdr_info, size_t},
};

/// `runtime/cgo` has this function, and shows it to libraries. It is there exactly where Go's threads are made by libc, and so have
/// words of libc's: those of Go's own making have not.
#[cfg(not(sd_freestanding))]
const MARK: &CStr = c"crosscall2";

/// A Go program with libc, for `libsd.so`; or a static one, for `libsd-freestanding.so`.
pub(super) struct Program {
    base: usize,
    headers: &'static [Elf64_Phdr],
}

/// The main program, if it is one.
#[cfg(not(sd_freestanding))]
pub(super) fn go() -> Option<Program> {
    let mut main = Program { base: 0, headers: &[] };
    // SAFETY: `first` takes the pointer for what it is.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut main).cast()) };
    // SAFETY: the headers are those of an object that the dynamic linker has loaded.
    unsafe { next::function(main.base, main.headers, MARK) }.map(|_| main)
}

/// The first object is the main program; it stays for ever.
#[cfg(not(sd_freestanding))]
unsafe extern "C" fn first(info: *mut dl_phdr_info, _: size_t, main: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's record, and our own pointer.
    unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        *main.cast::<Program>() = Program { base: info.dlpi_addr as usize, headers };
    }
    1
}

/// The main program, as the kernel has loaded it, with no dynamic linker, or with one that will load no library for it. `None`: another one.
///
/// # Safety
/// What the kernel has left on the stack of this program.
#[cfg(sd_freestanding)]
pub(super) unsafe fn of(start: &sd_sys::freestanding::Start) -> Option<Program> {
    let (at, count) = (start.value(libc::AT_PHDR)?, start.value(libc::AT_PHNUM)?);
    // SAFETY: by contract: the program's own headers.
    let headers = unsafe { core::slice::from_raw_parts(at as *const Elf64_Phdr, count) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    // Without one they are behind the file's header, where the file's first byte is loaded.
    let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_offset == 0);
    let address = match (own, first) {
        (Some(own), _) => own.p_vaddr as usize,
        (None, Some(first)) => first.p_vaddr as usize + size_of::<libc::Elf64_Ehdr>(),
        (None, None) => return None,
    };
    let program = Program { base: at.wrapping_sub(address), headers };
    let is_static = headers.iter().all(|header| header.p_type != libc::PT_INTERP);
    (is_static || program.is_go() && program.needs_none()).then_some(program)
}

/// A part of the program.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) len: usize,
    /// As mprotect(2) has it.
    pub(super) protection: c_int,
}

impl Program {
    /// Go's linker has made it: it leaves the note of a build's id under Go's name, and begins a segment of data so that it is known.
    #[cfg(sd_freestanding)]
    pub(super) fn is_go(&self) -> bool {
        use sd_attach::program::GO_DATA;
        let data = self.parts().filter(|part| {
            part.protection == libc::PROT_READ | libc::PROT_WRITE && part.len >= GO_DATA.len()
        });
        // SAFETY: a part of the program, as long as that at least.
        let is_gos = |at: usize| unsafe { (at as *const [u8; GO_DATA.len()]).read_unaligned() } == *GO_DATA;
        self.notes().any(|(_, name)| name == *b"Go\0\0") || data.map(|part| part.start).any(is_gos)
    }

    /// glibc is in it.
    #[cfg(sd_freestanding)]
    pub(super) fn has_glibc(&self) -> bool {
        use sd_attach::program::NT_GNU_ABI_TAG;
        self.notes().any(|note| note == (NT_GNU_ABI_TAG, *b"GNU\0"))
    }

    /// Its notes that have a name of three letters: kind, and name with the zero behind it.
    #[cfg(sd_freestanding)]
    fn notes(&self) -> impl Iterator<Item = (u32, [u8; 4])> + '_ {
        let segments = self.headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
        segments.flat_map(|header| {
            let mut at = self.base + header.p_vaddr as usize;
            let end = at + header.p_memsz as usize;
            let next = move || {
                let fits = at.checked_add(size_of::<[u32; 4]>()).is_some_and(|behind| behind <= end);
                // SAFETY: a part of the program, and sixteen bytes of it at least are left: three words, and the name (elf(5)).
                let [name_len, len, kind, name] =
                    unsafe { (fits.then_some(at)? as *const [u32; 4]).read_unaligned() };
                let [behind_name, behind] = [name_len, len].map(|len| (len as usize).next_multiple_of(4));
                at = at.saturating_add(12).saturating_add(behind_name).saturating_add(behind);
                Some((name_len, kind, name.to_ne_bytes()))
            };
            core::iter::from_fn(next)
                .filter(|(name_len, ..)| *name_len == 4)
                .map(|(_, kind, name)| (kind, name))
        })
    }

    /// There is no library that a dynamic linker would load for it.
    #[cfg(sd_freestanding)]
    fn needs_none(&self) -> bool {
        const DT_NULL: u64 = 0;
        const DT_NEEDED: u64 = 1;
        let dynamic = self.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        dynamic.is_some_and(|dynamic| {
            let (at, count) = (self.base + dynamic.p_vaddr as usize, dynamic.p_memsz as usize / 16);
            // SAFETY: a part of the program: pairs of words.
            let tags = (0..count).map(|n| unsafe { (at as *const [u64; 2]).add(n).read_unaligned() }[0]);
            tags.take_while(|tag| *tag != DT_NULL).all(|tag| tag != DT_NEEDED)
        })
    }

    /// What of it is loaded.
    fn parts(&self) -> impl Iterator<Item = Part> + Clone + '_ {
        self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
            let has = |flag, protection| if header.p_flags & flag != 0 { protection } else { 0 };
            Part {
                start: self.base + header.p_vaddr as usize,
                len: header.p_memsz as usize,
                protection: has(libc::PF_R, libc::PROT_READ)
                    | has(libc::PF_W, libc::PROT_WRITE)
                    | has(libc::PF_X, libc::PROT_EXEC),
            }
        })
    }

    /// Some of it can be written and executed.
    #[cfg(sd_freestanding)]
    pub(super) fn is_open(&self) -> bool {
        let open = libc::PROT_WRITE | libc::PROT_EXEC;
        self.parts().any(|part| part.protection & open == open)
    }

    /// Those that can be read and executed, and not written.
    pub(super) fn texts(&self) -> impl Iterator<Item = Part> + Clone + '_ {
        self.parts().filter(|part| part.protection == libc::PROT_READ | libc::PROT_EXEC)
    }

    /// The bytes of each of them.
    pub(super) fn bytes(&self) -> impl Iterator<Item = &'static [u8]> + Clone + '_ {
        // SAFETY: the dynamic linker has mapped it, to be read, for ever; it is changed in the constructor only, when nobody reads
        // it any more.
        self.texts().map(|part| unsafe { core::slice::from_raw_parts(part.start as *const u8, part.len) })
    }

    /// From its first byte to behind its last one.
    pub(super) fn range(&self) -> (usize, usize) {
        let start = self.parts().map(|part| part.start).min().unwrap_or(0);
        (start, self.parts().map(|part| part.start + part.len).max().unwrap_or(0))
    }
}
