//! Finds the functions behind the hooks, as dlsym(RTLD_NEXT) does, each when it is called first.
//!
//! This reads the hash tables of the loaded libraries (elf(5), DT_GNU_HASH), in the order in which the dynamic linker searches
//! them. The constructor notes where they are; libraries that are there at the program's start stay for ever. A search takes no lock,
//! unlike dlsym, which a handler of a signal, or the child of a fork of a program with threads, must not call. What it does not
//! know is left to dlsym: a function that is chosen at run time; and all functions, in the constructor, where a
//! library has a table of another kind.
//! Tested by `tests/pass_through.rs`, which calls every hook with the library and without.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info, size_t};

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// Of a version: not the one that a program without versions means.
const VERSYM_HIDDEN: u16 = 0x8000;
const STT_FUNC: u8 = 2;

/// Objects that are searched, at most; programs with more of them go by dlsym.
const OBJECTS_MAX: usize = 64;

/// The tables of a loaded object.
#[derive(Clone, Copy)]
struct Object {
    base: usize,
    symbols: *const Elf64_Sym,
    strings: *const u8,
    versions: *const u16,
    hash: *const u32,
    /// That of older linkers, and of Go's (elf(5), DT_HASH).
    old_hash: *const u32,
}

const NOTHING: Object =
    Object { base: 0, symbols: null(), strings: null(), versions: null(), hash: null(), old_hash: null() };

/// What is loaded after this library.
struct Next {
    objects: [Object; OBJECTS_MAX],
    count: usize,
    /// The path of this library, when it has gone by.
    own: *const c_char,
    is_whole: bool,
}

/// Written by [`note_all`] alone.
struct Noted(UnsafeCell<Next>);

// SAFETY: it is written while the process has one thread, before `IS_NOTED` is set, and read when that is set.
unsafe impl Sync for Noted {}

static NEXT: Noted =
    Noted(UnsafeCell::new(Next { objects: [NOTHING; OBJECTS_MAX], count: 0, own: null(), is_whole: false }));
static IS_NOTED: AtomicBool = AtomicBool::new(false);

/// What a search came to.
enum Found {
    Function(*mut c_void),
    Nowhere,
    /// dlsym has to say.
    Special,
}

/// In the constructor, while nothing is loaded or unloaded, and there is one thread. False: [`find`] knows nothing.
pub(crate) fn note_all() -> bool {
    // SAFETY: one thread, and nobody reads it yet.
    let next = unsafe { &mut *NEXT.0.get() };
    next.is_whole = true;
    // SAFETY: `note` takes the pointer for what it is.
    unsafe { libc::dl_iterate_phdr(Some(note), core::ptr::from_mut(next).cast()) };
    next.is_whole &= !next.own.is_null();
    let is_whole = next.is_whole;
    IS_NOTED.store(true, Ordering::Release);
    is_whole
}

/// Whether the constructor has begun.
pub(crate) fn is_noted() -> bool {
    IS_NOTED.load(Ordering::Acquire)
}

fn noted() -> Option<&'static Next> {
    // SAFETY: written before the flag was, and never again.
    is_noted().then(|| unsafe { &*NEXT.0.get() })
}

/// The path that this library was loaded from, a C string for ever; null if it is not known.
pub(crate) fn own_path() -> *const c_char {
    noted().map_or(null(), |next| next.own)
}

/// The function's address, or null when there is none; `None` when only dlsym can tell.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    let next = noted().filter(|next| next.is_whole)?;
    let hash = gnu_hash(name);
    for object in next.objects.get(..next.count)? {
        // SAFETY: the tables of an object that the dynamic linker has loaded, and uses itself.
        match unsafe { object.find(name, hash) } {
            Found::Function(address) => return Some(address),
            Found::Special => return None,
            Found::Nowhere => {}
        }
    }
    Some(core::ptr::null_mut())
}

/// The address of a loaded object's function of that name.
///
/// # Safety
/// The headers are those of a loaded object.
pub(crate) unsafe fn function(base: usize, headers: &[Elf64_Phdr], name: &CStr) -> Option<*mut c_void> {
    // SAFETY: by contract.
    let found = unsafe {
        match Object::of(base, headers)? {
            object if !object.hash.is_null() => object.find(name, gnu_hash(name)),
            object if !object.old_hash.is_null() => object.find_old(name),
            _ => Found::Nowhere,
        }
    };
    if let Found::Function(address) = found { Some(address) } else { None }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// For each loaded object, in the order of their loading, which is that of the search.
unsafe extern "C" fn note(info: *mut dl_phdr_info, _: size_t, next: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's record, and our own pointer; it describes what is mapped.
    let (next, info) = unsafe { (&mut *next.cast::<Next>(), &*info) };
    let base = info.dlpi_addr as usize;
    // SAFETY: as above.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    if next.own.is_null() {
        if holds(base, headers, note as *const () as usize) {
            next.own = info.dlpi_name;
        }
        return 0;
    }
    // SAFETY: as above.
    match unsafe { Object::of(base, headers) }.filter(|object| !object.hash.is_null()) {
        Some(object) => match next.objects.get_mut(next.count) {
            Some(place) => {
                *place = object;
                next.count += 1;
            }
            None => next.is_whole = false,
        },
        None => next.is_whole = false,
    }
    0
}

fn holds(base: usize, headers: &[Elf64_Phdr], address: usize) -> bool {
    headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = base + header.p_vaddr as usize;
        (start..start + header.p_memsz as usize).contains(&address)
    })
}

impl Object {
    /// `None` when it has no table that we can read.
    ///
    /// # Safety
    /// The headers are those of a loaded object.
    unsafe fn of(base: usize, headers: &[Elf64_Phdr]) -> Option<Object> {
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut object = Object { base, ..NOTHING };
        let mut at = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        // The linker has made addresses of these, but where the section cannot be written (vdso(7)).
        let place = |value: u64| if (value as usize) < base { base + value as usize } else { value as usize };
        loop {
            // SAFETY: by contract; the list ends with a zero.
            let [tag, value] = unsafe { *at };
            match tag {
                0 => break,
                DT_STRTAB => object.strings = place(value) as *const u8,
                DT_SYMTAB => object.symbols = place(value) as *const Elf64_Sym,
                DT_VERSYM => object.versions = place(value) as *const u16,
                DT_GNU_HASH => object.hash = place(value) as *const u32,
                DT_HASH => object.old_hash = place(value) as *const u32,
                _ => {}
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        (!object.strings.is_null() && !object.symbols.is_null()).then_some(object)
    }

    /// As `do_lookup_x` of the dynamic linker.
    ///
    /// # Safety
    /// The tables are there, and well formed.
    unsafe fn find(&self, name: &CStr, hash: u32) -> Found {
        // SAFETY: by contract: four words, then the filter, a word for each bucket, and one for each symbol from the
        // first one on.
        unsafe {
            let [buckets, first, filters, shift] = *self.hash.cast::<[u32; 4]>();
            let filter = self.hash.add(4).cast::<u64>();
            let word = *filter.add((hash / 64 % filters.max(1)) as usize);
            let both = 1u64 << (hash % 64) | 1u64 << ((hash >> (shift % 32)) % 64);
            if word & both != both || buckets == 0 {
                return Found::Nowhere;
            }
            let bucket = filter.add(filters as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return Found::Nowhere;
            }
            loop {
                let link = *chain.add((index - first) as usize);
                if link | 1 == hash | 1
                    && let Some(found) = self.judge(name, index as usize)
                {
                    return found;
                }
                if link & 1 != 0 {
                    return Found::Nowhere;
                }
                index += 1;
            }
        }
    }

    /// The same, in the older table.
    ///
    /// # Safety
    /// The older table is there, and well formed.
    unsafe fn find_old(&self, name: &CStr) -> Found {
        let hash = name.to_bytes().iter().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(*byte));
            let high = hash & 0xf000_0000;
            (hash ^ high >> 24) & !high
        });
        // SAFETY: by contract: two counts, then a word for each bucket, and one for each symbol.
        unsafe {
            let [buckets, symbols] = *self.old_hash.cast::<[u32; 2]>();
            if buckets == 0 {
                return Found::Nowhere;
            }
            let bucket = self.old_hash.add(2);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            while index != 0 && index < symbols {
                if let Some(found) = self.judge(name, index as usize) {
                    return found;
                }
                index = *chain.add(index as usize);
            }
            Found::Nowhere
        }
    }

    /// Whether a symbol is the one of that name, and what it is then.
    ///
    /// # Safety
    /// The tables are there, and have a symbol of that number.
    unsafe fn judge(&self, name: &CStr, index: usize) -> Option<Found> {
        // SAFETY: by contract.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let is_hidden = !self.versions.is_null() && *self.versions.add(index) & VERSYM_HIDDEN != 0;
            let is_it = symbol.st_shndx != 0
                && !is_hidden
                && CStr::from_ptr(self.strings.add(symbol.st_name as usize).cast()) == name;
            is_it.then(|| match symbol.st_info & 15 {
                STT_FUNC => Found::Function((self.base + symbol.st_value as usize) as *mut c_void),
                // Chosen at run time, or nothing that we know.
                _ => Found::Special,
            })
        }
    }
}
