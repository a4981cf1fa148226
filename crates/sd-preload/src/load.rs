//! A program that the library's file was executed for, since no tracer may bring the library into it (`sd_attach::loader`): its file is mapped as
//! execve(2) would have mapped it, and the auxiliary vector tells of it instead of the library's.
//!
//! ```text
//!  kernel: the library's file --sd_start, rdi = 0--> load: the program's pages, AT_PHDR, AT_ENTRY, AT_EXECFN, its name --> the program's own entry
//!                                                      └─ whatever fails: execve(2) of the program, without the library
//! ```
//! The kernel takes the library's file for the program. Where the program asks for its own by name (`/proc/self/exe`: Go's os.Executable, servers that
//! execute themselves) its call is led to the program's file, which stays open at a number of the library's.

use crate::sites;
use core::ffi::{CStr, c_char, c_int, c_long};
use core::sync::atomic::{AtomicBool, Ordering};
use sd_attach::elf::read_at;
use sd_attach::layout::{Layout, Mapping, START_LEN};
use sd_sys::fd::Owned;
use sd_sys::freestanding::Start;
use sd_sys::{Errno, Result, check, fd, procfs, syscall};

/// A program whose pages are mapped.
pub(crate) struct Loaded {
    file: Owned,
    stack: *const usize,
}

/// Loads the program whose file is at [`sd_attach::loader::number`]. Where that cannot be, it is executed without the library.
///
/// # Safety
/// At the library's first instruction, once: the stack pointer.
pub(crate) unsafe fn load(stack: *const usize) -> Loaded {
    let number = sd_attach::loader::number().filter(|number| fd::is_open(*number));
    // Somebody has executed the library's file for nothing.
    let Some(number) = number else { end() };
    let loaded = Loaded { file: Owned::new(number), stack };
    // SAFETY: by contract.
    match unsafe { loaded.map() } {
        Ok(()) => loaded,
        Err(_) => loaded.execute(),
    }
}

fn end() -> ! {
    /// As shells say it of a program that is not there.
    const NOT_FOUND: c_int = 127;
    loop {
        // SAFETY: ends this process.
        unsafe { syscall!(libc::SYS_exit_group, NOT_FOUND) };
    }
}

impl Loaded {
    /// # Safety
    /// As for [`load`].
    unsafe fn map(&self) -> Result<()> {
        let mut start = [0; START_LEN];
        let len = read_at(self.file.raw(), &mut start, 0).unwrap_or(0);
        let layout = start.get(..len).and_then(Layout::of).ok_or(Errno(libc::ENOEXEC))?;
        let base = reserve(&layout)?;
        layout.mappings().try_for_each(|mapping| map(&mapping, base, self.file.raw()))?;
        // SAFETY: by contract.
        unsafe {
            note_path(self.file.raw())?;
            tell(&Start::of(self.stack), &layout, base)?;
            self.name();
        }
        Ok(())
    }

    /// Its name is that of its first argument, which is what a program is mostly executed by.
    ///
    /// # Safety
    /// As for [`load`].
    unsafe fn name(&self) {
        // SAFETY: by contract: the count, and the first of so many C strings.
        unsafe {
            if *self.stack == 0 {
                return;
            }
            let first = *self.stack.add(1) as *const c_char;
            let text = CStr::from_ptr(first).to_bytes();
            let behind_slash = text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            // A shell of a login.
            let is_login = text.get(behind_slash) == Some(&b'-');
            let name = first.add(behind_slash + usize::from(is_login));
            let _ = syscall!(libc::SYS_prctl, libc::PR_SET_NAME, name, 0, 0, 0);
        }
    }

    /// Executes the program as if there were no library.
    pub(crate) fn execute(&self) -> ! {
        // SAFETY: no pointers; what the kernel has left on the stack, of which nothing but the auxiliary vector was changed; C strings.
        unsafe {
            let _ = fd::fcntl(self.file.raw(), libc::F_SETFD, libc::FD_CLOEXEC as usize);
            let (arguments, start) = (self.stack.add(1), Start::of(self.stack));
            for path in [PATH.text(), OWN.text()] {
                syscall!(libc::SYS_execve, path, arguments, start.environment);
            }
            let flags = libc::AT_EMPTY_PATH;
            syscall!(libc::SYS_execveat, self.file.raw(), c"".as_ptr(), arguments, start.environment, flags);
        }
        end()
    }

    /// The library is in the program, which is about to begin: its file stays open, and is what it finds by its own name.
    pub(crate) fn keep(self) {
        let number = sd_socket::calls::hide(self.file.into_raw());
        // SAFETY: nobody reads it yet.
        unsafe { OWN.set(&procfs::of_fd(number)) };
        sites::look_at(BY_PATH.iter().map(|(number, _)| *number));
        IS_LOADED.store(true, Ordering::Relaxed);
    }
}

/// Address space for its pages: what is to be added to its addresses.
fn reserve(layout: &Layout) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (place, len, fixed) = match layout.is_fixed {
        true => (layout.pages.0, layout.pages.1 - layout.pages.0, libc::MAP_FIXED_NOREPLACE),
        false => (0, layout.room(), 0),
    };
    // SAFETY: a new mapping.
    let room = unsafe { syscall!(libc::SYS_mmap, place, len, libc::PROT_NONE, flags | fixed, -1i64, 0) };
    check(room).map(|room| layout.base(room as u64))
}

fn map(mapping: &Mapping, base: u64, file: c_int) -> Result<()> {
    let from = base + mapping.from;
    let (prot, flags) = (mapping.protection, libc::MAP_PRIVATE | libc::MAP_FIXED);
    // SAFETY: pages of what `reserve` has mapped, which nobody uses yet; of these bytes that are written.
    unsafe {
        if mapping.file_len > 0 {
            let made = syscall!(libc::SYS_mmap, from, mapping.file_len, prot, flags, file, mapping.offset);
            check(made)?;
        }
        if mapping.len > mapping.file_len {
            let (from, len) = (from + mapping.file_len, mapping.len - mapping.file_len);
            let flags = flags | libc::MAP_ANONYMOUS;
            check(syscall!(libc::SYS_mmap, from, len, prot, flags, -1i64, 0))?;
        }
        if mapping.clear.1 > 0 {
            ((base + mapping.clear.0) as *mut u8).write_bytes(0, mapping.clear.1 as usize);
        }
    }
    Ok(())
}

/// Writes to the auxiliary vector what the kernel would have.
///
/// # Safety
/// What the kernel has left, which nobody reads meanwhile.
unsafe fn tell(start: &Start, layout: &Layout, base: u64) -> Result<()> {
    let (headers, count) = layout.headers;
    for (key, value) in [
        (libc::AT_PHDR, (base + headers) as usize),
        (libc::AT_PHNUM, count),
        (libc::AT_ENTRY, (base + layout.entry) as usize),
        (libc::AT_EXECFN, PATH.text() as usize),
    ] {
        let pair = start.pair(key).ok_or(Errno(libc::ENOEXEC))?;
        // SAFETY: by contract.
        unsafe { (*pair.cast_mut())[1] = value };
    }
    Ok(())
}

/// A path, with a zero byte behind, that stands there for ever.
struct Text(core::cell::UnsafeCell<[u8; PATH_LEN]>);

/// PATH_MAX, and the zero byte.
const PATH_LEN: usize = 4097;

// SAFETY: it is written before there is a second thread.
unsafe impl Sync for Text {}

/// The program's file, as the kernel calls it; and by the number at which that is open.
static PATH: Text = Text(core::cell::UnsafeCell::new([0; PATH_LEN]));
static OWN: Text = Text(core::cell::UnsafeCell::new([0; PATH_LEN]));

impl Text {
    const fn text(&self) -> *const c_char {
        self.0.get().cast()
    }

    /// # Safety
    /// Nobody reads it meanwhile.
    unsafe fn set(&self, bytes: &[u8]) {
        // SAFETY: by contract.
        let text = unsafe { &mut *self.0.get() };
        text.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }
}

/// # Safety
/// As for [`load`].
unsafe fn note_path(file: c_int) -> Result<()> {
    let link = procfs::of_fd(file);
    // SAFETY: a C string; one byte less than there is room for; nobody reads it yet.
    unsafe {
        OWN.set(&link);
        let (at, len) = (libc::AT_FDCWD, PATH_LEN - 1);
        check(syscall!(libc::SYS_readlinkat, at, link.as_ptr(), PATH.0.get(), len)).map(drop)
    }
}

static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// System calls that take a path, and which argument it is.
const BY_PATH: [(c_long, usize); 14] = [
    (libc::SYS_open, 0),
    (libc::SYS_stat, 0),
    (libc::SYS_lstat, 0),
    (libc::SYS_access, 0),
    (libc::SYS_readlink, 0),
    (libc::SYS_execve, 0),
    (libc::SYS_openat, 1),
    (libc::SYS_openat2, 1),
    (libc::SYS_newfstatat, 1),
    (libc::SYS_statx, 1),
    (libc::SYS_faccessat, 1),
    (libc::SYS_faccessat2, 1),
    (libc::SYS_readlinkat, 1),
    (libc::SYS_execveat, 1),
];

/// The library's file was executed for this program.
#[inline]
pub(crate) fn is_loaded() -> bool {
    IS_LOADED.load(Ordering::Relaxed)
}

/// The arguments of a call that the program makes, if it names its own file: with that which it was loaded from.
pub(crate) fn led_to_own_file(number: c_long, arguments: &[usize; 6]) -> Option<[usize; 6]> {
    let (_, at) = BY_PATH.iter().find(|(by_path, _)| *by_path == number)?;
    if !names_own_file(*arguments.get(*at)?) {
        return None;
    }
    let mut led = *arguments;
    *led.get_mut(*at)? = OWN.text() as usize;
    Some(led)
}

/// Whether a path of the program's is `/proc/self/exe`, or another name of the same.
fn names_own_file(path: usize) -> bool {
    let mut text = [0; 24];
    for (at, byte) in text.iter_mut().enumerate() {
        let place = path.wrapping_add(at) as *const u8;
        let is_page_new = at == 0 || (place as usize).is_multiple_of(sd_sys::mem::SMALLEST_PAGE);
        if is_page_new && !sd_sys::user::seems_readable(place, 1) {
            return false;
        }
        // SAFETY: the page can be read.
        *byte = unsafe { place.read() };
        if *byte == 0 {
            break;
        }
    }
    let process = text.strip_prefix(b"/proc/").and_then(|rest| {
        let end = rest.windows(5).position(|window| window == b"/exe\0")?;
        rest.get(..end)
    });
    process.is_some_and(|process| matches!(process, b"self" | b"thread-self") || is_own_id(process))
}

fn is_own_id(digits: &[u8]) -> bool {
    let own = fd::getpid() as usize;
    let value = |sum: usize, digit: &u8| digit.is_ascii_digit().then(|| sum * 10 + usize::from(digit - b'0'));
    (1..=10).contains(&digits.len()) && digits.iter().try_fold(0, value) == Some(own)
}
