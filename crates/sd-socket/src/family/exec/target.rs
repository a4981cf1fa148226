//! Will the next program load libsd.so? Where that is not sure the answer is no.
//!
//! The dynamic linker loads us into a program when LD_PRELOAD names us, the library is there, the program has
//! the linker of glibc or musl as its interpreter, and exec changes neither user nor capabilities (ld.so(8), AT_SECURE).

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};
use sd_attach::dynamic::{self, Linked, Linker};
use sd_attach::elf::read_at;
use sd_attach::loader::Loader;
use sd_attach::{Tracer, script};
use sd_sys::fd::Owned;
use sd_sys::{check, syscall};

pub(super) type Environment = *const *const c_char;

/// What execve(2) and its relatives are told; paths are C strings.
#[derive(Clone, Copy)]
pub enum Program {
    /// As execveat(2) takes it.
    At {
        /// Where the path begins.
        dir: i32,
        /// See `dir`.
        path: *const c_char,
        /// AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW.
        flags: i32,
    },
    /// Looked for in PATH, if it has no slash.
    Searched {
        /// Its name.
        file: *const c_char,
    },
}

/// What becomes of us in the next program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Loaded,
    /// It would load us, but its environment was made anew and has none of our variables.
    Forgotten,
    NotLoaded,
}

/// Brings the library into a program without libc.
pub(super) enum Company {
    /// It waits for the exec.
    Tracer(Tracer),
    /// The library's file is executed instead.
    Loader(Loader),
}

impl Company {
    /// Executes the program, if that is to be done otherwise than the caller would: the errno, as it returns only when that failed.
    ///
    /// Not part of who calls, whose frame is large already.
    ///
    /// # Safety
    /// As for execve(2).
    #[inline(never)]
    pub(super) unsafe fn execute(
        &self,
        arguments: *const *const c_char,
        environment: Environment,
    ) -> Option<sd_sys::Errno> {
        let Company::Loader(loader) = self else { return None };
        let mut room = [0u8; PATH_MAX];
        // SAFETY: by contract.
        freestanding(&mut room).map(|library| unsafe { loader.execute(library, arguments, environment) })
    }

    /// The exec has failed.
    pub(super) fn dismiss(self) {
        match self {
            Company::Tracer(tracer) => tracer.dismiss(),
            Company::Loader(_) => {}
        }
    }
}

/// Has the library brought into the program, where no dynamic linker would load the one with libc: one without libc, in whose environment
/// the library is named. Such a program is none that gives rights.
///
/// # Safety
/// As for execve(2).
pub(super) unsafe fn accompany(program: Program, environment: Environment) -> Option<Company> {
    // SAFETY: by contract.
    let found = unsafe { wants_company(program, environment) }?;
    let mut room = [0u8; PATH_MAX];
    let library = freestanding(&mut room)?;
    match sd_attach::accompany(library) {
        Ok(tracer) => Some(Company::Tracer(tracer)),
        Err(_) if found.is_script => None,
        Err(_) => Loader::of(found.file.raw(), library).ok().map(Company::Loader),
    }
}

/// Whether the program is one for [`accompany`]: what is executed for it. Memory may be borrowed, and the stack that of a handler, as for `quiet`.
///
/// # Safety
/// As for execve(2).
pub(super) unsafe fn wants_company(program: Program, environment: Environment) -> Option<Executed> {
    if own_path().is_none() || sd_sys::confine::is_on() {
        return None;
    }
    // SAFETY: by contract.
    unsafe {
        let found = executed(open(program)??)?;
        // The rest is asked about few programs; a filter may kill for what is to come.
        let is_one = sd_attach::program::without_libc(found.file.raw()).is_some()
            && crate::process::env::may_accompany()
            && is_preloaded(environment)
            && has_plain_ids()
            && keeps_ids(found.file.raw());
        is_one.then_some(found)
    }
}

/// Of a path of a library.
const PATH_MAX: usize = 1024;

/// The library for programs without libc, which is beside this one.
fn freestanding(room: &mut [u8; PATH_MAX]) -> Option<&CStr> {
    let own = own_path()?;
    let folder = own.iter().rposition(|byte| *byte == b'/')? + 1;
    let name = sd_attach::FILE.to_bytes_with_nul();
    room.get_mut(..folder)?.copy_from_slice(own.get(..folder)?);
    room.get_mut(folder..folder + name.len())?.copy_from_slice(name);
    CStr::from_bytes_until_nul(room).ok()
}

/// `None` when there is no such program. `accompanied`: [`accompany`] brings the library into it.
///
/// # Safety
/// As for execve(2).
pub(super) unsafe fn loads_us(
    program: Program,
    environment: Environment,
    accompanied: bool,
) -> Option<Answer> {
    // SAFETY: by contract.
    unsafe {
        let Some(fd) = open(program)? else { return Some(Answer::NotLoaded) };
        if accompanied {
            let is_led =
                executed(fd).is_some_and(|found| sd_attach::program::can_be_led(found.file.raw()).is_ok());
            return Some(if is_led { Answer::Loaded } else { Answer::NotLoaded });
        }
        let named = is_preloaded(environment);
        let forgotten = !named && super::cleared::is_clear(environment);
        let would_load = (named || forgotten) && has_plain_ids() && is_for_us(fd);
        Some(match would_load {
            true if named => Answer::Loaded,
            true => Answer::Forgotten,
            false => Answer::NotLoaded,
        })
    }
}

/// `Some(None)` when it is there but cannot be read.
pub(super) unsafe fn open(program: Program) -> Option<Option<Owned>> {
    // SAFETY: by contract.
    unsafe {
        match program {
            Program::At { dir, path, flags } => open_at(dir, path, flags),
            Program::Searched { file } if CStr::from_ptr(file).to_bytes().contains(&b'/') => {
                open_at(libc::AT_FDCWD, file, 0)
            }
            Program::Searched { file } => search(CStr::from_ptr(file).to_bytes()),
        }
    }
}

unsafe fn open_at(dir: i32, path: *const c_char, flags: i32) -> Option<Option<Owned>> {
    // SAFETY: by contract.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && *path == 0 {
            return sd_sys::fd::dup_above(dir, 0).ok().map(Some);
        }
        if check(syscall!(libc::SYS_faccessat, dir, path, libc::X_OK)).is_err() {
            return None;
        }
        let follow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
        let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | follow;
        Some(check(syscall!(libc::SYS_openat, dir, path, how, 0)).ok().map(|fd| Owned::new(fd as i32)))
    }
}

/// Of a path that is looked for; longer ones take memory.
const SEARCHED_MAX: usize = 512;

/// As execvp(3).
unsafe fn search(file: &[u8]) -> Option<Option<Owned>> {
    let path = crate::process::env::current(b"PATH").unwrap_or(b"/bin:/usr/bin");
    let mut whole = [0u8; SEARCHED_MAX];
    path.split(|&byte| byte == b':').find_map(|dir| {
        let long;
        let whole = match super::quiet::join(dir, file, &mut whole) {
            Some(whole) => whole,
            None => {
                long = [dir, b"/", file, b"\0"].concat();
                &long
            }
        };
        // SAFETY: a C string, made above.
        unsafe { open_at(libc::AT_FDCWD, whole.as_ptr().cast(), 0) }
    })
}

/// Whether LD_PRELOAD names this library, and the file is there.
unsafe fn is_preloaded(environment: Environment) -> bool {
    let Some(preload) = crate::process::env::get(environment, b"LD_PRELOAD") else { return false };
    let Some(own) = own_path() else { return false };
    let base = |path: &[u8]| path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
    preload.split(|byte| b": ".contains(byte)).any(|path| {
        let is_there = || {
            let whole = [path, b"\0"].concat();
            sd_sys::fd::access(&whole, libc::R_OK).is_ok()
        };
        base(path) == base(own) && (!path.contains(&b'/') || is_there())
    })
}

/// See [`own_path`]; null when it is not known.
static OWN_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// At the start: null, or a C string for ever.
pub(crate) fn set_own_path(path: *const c_char) {
    OWN_PATH.store(path.cast_mut(), Ordering::Relaxed);
}

/// The path that this library was loaded from.
pub(super) fn own_path() -> Option<&'static [u8]> {
    let path = OWN_PATH.load(Ordering::Relaxed);
    // SAFETY: a C string that lives as long as the library.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Real and effective ids are the same, or the linker drops LD_PRELOAD.
fn has_plain_ids() -> bool {
    // SAFETY: no arguments.
    unsafe {
        syscall!(libc::SYS_getuid) == syscall!(libc::SYS_geteuid)
            && syscall!(libc::SYS_getgid) == syscall!(libc::SYS_getegid)
    }
}

/// What is executed, of a file that is.
pub(super) struct Executed {
    file: Owned,
    /// The interpreter of a script, else the file itself.
    is_script: bool,
}

/// See [`Executed`]. Allocates nothing.
fn executed(mut file: Owned) -> Option<Executed> {
    for nested in 0..script::NESTED_MAX {
        let mut start = [0u8; script::LEN];
        let len = read_at(file.raw(), &mut start, 0)?;
        let start = start.get(..len)?;
        if !script::is_script(start) {
            return Some(Executed { file, is_script: nested > 0 });
        }
        file = interpreter(start)?;
    }
    None
}

/// The file that a script's first line names.
fn interpreter(start: &[u8]) -> Option<Owned> {
    let path = script::interpreter(start)?;
    let mut room = [0u8; script::LEN];
    room.get_mut(..path.len())?.copy_from_slice(path);
    // SAFETY: a C string: the path is shorter than that.
    unsafe { open_at(libc::AT_FDCWD, room.as_ptr().cast(), 0)? }
}

/// Whether the file, or the interpreter that a script names, is a program for a linker that loads us, and lets us begin. One that needs no
/// library, not even libc, makes its system calls itself, though the linker loads us into it: a Go program without cgo.
fn is_for_us(fd: Owned) -> bool {
    let Some(fd) = executed(fd).map(|found| found.file).filter(|fd| keeps_ids(fd.raw())) else {
        return false;
    };
    let mut window = [0; size_of::<dynamic::Window>()];
    let Some(found) = Linked::of(fd.raw(), &mut window) else { return false };
    // Musl's stdio would ask the kernel for the bytes of a socket of ours.
    let is_musl_on_sockets = found.linker == Linker::Musl && (0..3).any(crate::fd::table::is_ours);
    found.libraries != 0 && !is_musl_on_sockets && found.runs_constructors(fd.raw(), &mut window)
}

/// Neither set-user-id nor set-group-id, no file capabilities.
fn keeps_ids(fd: i32) -> bool {
    // SAFETY: an all-zero stat is valid; the kernel writes one, and reads a C string.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let known = check(syscall!(libc::SYS_fstat, fd, &raw mut found)).is_ok();
        let name = c"security.capability".as_ptr();
        let capable = check(syscall!(libc::SYS_fgetxattr, fd, name, 0, 0)).is_ok();
        let plain = found.st_mode & libc::S_IFMT == libc::S_IFREG
            && found.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0;
        known && plain && !capable
    }
}
