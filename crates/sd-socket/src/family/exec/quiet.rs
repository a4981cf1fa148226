//! Programs that can do without the library are executed without it (ADR 90).
//!
//! ```text
//!  true, cat, ls: makes no socket, starts no program, loads nothing --LD_PRELOAD= as a last variable--> no library
//! ```
//! The names that a program can ask of other files stand in one string table of its own (elf(5), DT_STRTAB). Where none of
//! them makes a socket, starts a program, loads a library or lists the environment, and all libraries that it needs are
//! known, it has nothing that the library could do anything for. A second LD_PRELOAD, empty, is put behind the others for it:
//! of two the dynamic linker takes the last, getenv(3) the first. So such a program finds each variable as it was given.
//!
//! # Not guaranteed
//! The program may be replaced between the look and the exec. A wrong answer leaves its connections to the kernel, no more.
//!
//! Memory may be borrowed (vfork), and the stack that of a handler: nothing is noted or allocated, and few bytes are used. When in
//! doubt the program loads the library. Tested here, by `sd-preload/tests/quiet.rs` and the posix subjects `exec/quiet_*`.

use super::target::{Environment, Program, own_path};
use core::ffi::{CStr, c_char};
use sd_attach::dynamic::{Linked, Linker, Window};
use sd_attach::elf::read_at;
use sd_sys::fd::Owned;
use sd_sys::{check, syscall};

/// Variables, at most, of an environment that is written anew.
const VARIABLES_MAX: usize = 254;
/// Larger programs are not looked at: shells, interpreters, servers.
const FILE_LEN_MAX: u64 = 512 << 10;
const NAMES_LEN_MAX: u64 = 16 << 10;
const WINDOW_LEN: usize = size_of::<Window>();
const PATH_LEN_MAX: usize = 256;

/// What such a program may need.
const LIBRARIES: &[&[u8]] = &[
    b"libc.so.6",
    b"libm.so.6",
    b"libpthread.so.0",
    b"librt.so.1",
    b"ld-linux-x86-64.so.2",
    b"ld-linux-aarch64.so.1",
    b"libselinux.so.1",
    b"libacl.so.1",
    b"libattr.so.1",
    b"libpcre2-8.so.0",
    b"libgmp.so.10",
    b"libz.so.1",
];

/// What it must not ask for. A name also stands for those that end with it, as the linker makes one string of both.
const LOUD: &[&[u8]] = &[
    // Sockets, and descriptors of others.
    b"socket",
    b"socketpair",
    b"accept",
    b"accept4",
    b"connect",
    b"bind",
    b"listen",
    b"recv",
    b"recvfrom",
    b"recvmsg",
    b"recvmmsg",
    b"send",
    b"sendto",
    b"sendmsg",
    b"sendmmsg",
    b"shutdown",
    b"sockopt",
    b"sockname",
    b"peername",
    b"pidfd_getfd",
    b"epoll_create",
    b"epoll_create1",
    b"getaddrinfo",
    b"gethostbyname",
    // Programs.
    b"fork",
    b"clone",
    b"execl",
    b"execle",
    b"execlp",
    b"execv",
    b"execve",
    b"execvp",
    b"execvpe",
    b"execveat",
    b"spawn",
    b"spawnp",
    b"system",
    b"popen",
    b"daemon",
    b"forkpty",
    b"wordexp",
    b"rcmd",
    b"rcmd_af",
    b"rexec",
    b"rexec_af",
    // Libraries, and calls that have no name.
    b"dlopen",
    b"dlmopen",
    b"dlopen_mode",
    b"dlsym",
    b"dlvsym",
    b"syscall",
    // Threads: who has several lives for longer.
    b"pthread_create",
    b"thrd_create",
    // All variables.
    b"environ",
];

/// Room for an environment, on the stack of who executes a program.
pub struct Variables([*const c_char; VARIABLES_MAX + 2]);

impl Variables {
    /// None yet.
    #[inline]
    pub const fn new() -> Variables {
        Variables([core::ptr::null(); VARIABLES_MAX + 2])
    }

    /// `given` with the library left out, where it is the one thing that LD_PRELOAD names, and no other variable is the linker's.
    ///
    /// # Safety
    /// `given` is null or a null-terminated array of C strings.
    unsafe fn leave_out(&mut self, own: &[u8], given: Environment) -> Option<Environment> {
        let (mut count, mut is_found) = (0, false);
        // SAFETY: by contract.
        unsafe {
            while !given.is_null() && !(*given.add(count)).is_null() {
                let variable = *given.add(count);
                if *variable as u8 == b'L'
                    && let Some(rest) = CStr::from_ptr(variable).to_bytes().strip_prefix(b"LD_")
                {
                    if is_found || rest.strip_prefix(b"PRELOAD=") != Some(own) {
                        return None;
                    }
                    is_found = true;
                }
                *self.0.get_mut(..VARIABLES_MAX)?.get_mut(count)? = variable;
                count += 1;
            }
        }
        *self.0.get_mut(count).filter(|_| is_found)? = c"LD_PRELOAD=".as_ptr();
        *self.0.get_mut(count + 1)? = core::ptr::null();
        Some(self.0.as_ptr())
    }
}

impl Default for Variables {
    fn default() -> Variables {
        Variables::new()
    }
}

/// The environment to execute `program` with, which has nothing of ours: `given`, or one in `room` in which the library is left out.
///
/// # Safety
/// As for execve(2).
pub(crate) unsafe fn environment(program: Program, given: Environment, room: &mut Variables) -> Environment {
    // A number is taken for a moment, which other threads could miss.
    let may_look = crate::process::single_threaded() && !sd_sys::confine::is_on();
    let Some(own) = own_path().filter(|_| may_look) else { return given };
    // SAFETY: by contract.
    unsafe {
        match room.leave_out(own, given) {
            Some(left) if is_quiet(program) => left,
            _ => given,
        }
    }
}

/// # Safety
/// As for execve(2).
unsafe fn is_quiet(program: Program) -> bool {
    // SAFETY: by contract.
    unsafe {
        match program {
            Program::At { dir, path, flags: 0 } => look(dir, path) == Some(true),
            Program::At { .. } => false,
            Program::Searched { file } if CStr::from_ptr(file).to_bytes().contains(&b'/') => {
                look(libc::AT_FDCWD, file) == Some(true)
            }
            Program::Searched { file } => search(CStr::from_ptr(file).to_bytes()),
        }
    }
}

/// As execvp(3).
fn search(file: &[u8]) -> bool {
    let path = crate::process::env::current(b"PATH").unwrap_or(b"/bin:/usr/bin");
    for dir in path.split(|&byte| byte == b':') {
        let mut whole = [0u8; PATH_LEN_MAX];
        let Some(whole) = join(dir, file, &mut whole) else { return false };
        // SAFETY: a C string, made above.
        if let Some(answer) = unsafe { look(libc::AT_FDCWD, whole.as_ptr().cast()) } {
            return answer;
        }
    }
    false
}

/// A name in a folder, as a C string, if there is room.
pub(super) fn join<'a>(dir: &[u8], file: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
    let mut len = 0;
    for part in [dir, slash, file, b"\0"] {
        room.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    room.get(..len)
}

/// `None` when there is nothing by that name.
///
/// # Safety
/// `path` is a C string.
unsafe fn look(dir: i32, path: *const c_char) -> Option<bool> {
    // SAFETY: by contract; an all-zero stat is valid, and the kernel writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        match check(syscall!(libc::SYS_newfstatat, dir, path, &raw mut found, 0)) {
            Ok(_) => {}
            Err(errno) if [libc::ENOENT, libc::ENOTDIR, libc::EACCES].contains(&errno.0) => return None,
            Err(_) => return Some(false),
        }
        // The linker leaves us out of a set-user-id program anyway.
        let is_plain = found.st_mode & libc::S_IFMT == libc::S_IFREG
            && found.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0
            && found.st_mode & 0o111 != 0;
        if !is_plain || found.st_size as u64 > FILE_LEN_MAX {
            return Some(false);
        }
        let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = check(syscall!(libc::SYS_openat, dir, path, how, 0)).ok().map(|fd| Owned::new(fd as i32));
        Some(file.and_then(|file| file_is_quiet(file.raw())) == Some(true))
    }
}

/// `None`, as false: that is not sure.
fn file_is_quiet(file: i32) -> Option<bool> {
    let mut window = [0u8; WINDOW_LEN];
    let found = Linked::of(file, &mut window)?;
    let is_one = found.linker == Linker::Glibc
        && !found.looks_elsewhere
        && (1..=NAMES_LEN_MAX).contains(&found.names_len);
    if !is_one {
        return None;
    }
    let names = Names { at: found.names_at, len: found.names_len, libraries: found.libraries };
    names_are_quiet(&names, &mut window, |buf, at| read_at(file, buf, at))
}

/// Where the table of names is, and how many libraries are needed.
struct Names {
    at: u64,
    len: u64,
    libraries: u32,
}

/// Goes through the names by `read` (into a buffer, at a place; how much was read).
fn names_are_quiet(
    names: &Names,
    window: &mut Window,
    read: impl Fn(&mut [u8], u64) -> Option<usize>,
) -> Option<bool> {
    let (mut done, mut libraries) = (0, 0);
    while done < names.len {
        let len = (names.len - done).min(WINDOW_LEN as u64) as usize;
        let len = read(window.get_mut(..len)?, names.at.checked_add(done)?)?;
        let text = window.get(..len)?;
        let whole = text.get(..=text.iter().rposition(|&byte| byte == 0)?)?;
        for name in whole.split(|&byte| byte == 0) {
            if is_loud(name) {
                return Some(false);
            }
            if name.contains(&b'.') && name.windows(3).any(|part| part == b".so") {
                if !LIBRARIES.contains(&name) {
                    return Some(false);
                }
                libraries += 1;
            }
        }
        done += whole.len() as u64;
    }
    Some(libraries == names.libraries)
}

fn is_loud(name: &[u8]) -> bool {
    // Nearly all differ in the last two bytes.
    let tail = name.last_chunk::<2>();
    tail.is_some() && LOUD.iter().any(|loud| loud.last_chunk() == tail && name.ends_with(loud))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn answer(path: &CStr) -> Option<bool> {
        // SAFETY: a C string.
        unsafe { look(libc::AT_FDCWD, path.as_ptr()) }
    }

    #[test]
    fn programs_of_this_system() {
        for quiet in [c"/bin/true", c"/bin/cat", c"/bin/ls", c"/bin/date", c"/bin/rm", c"/bin/cp"] {
            assert_eq!(answer(quiet), Some(true), "{quiet:?}");
        }
        for other in [
            c"/bin/sh",
            c"/usr/bin/env",
            c"/usr/bin/printenv",
            c"/usr/bin/sort",
            c"/bin/bash",
            c"/etc/passwd",
            c"/bin",
        ] {
            assert_eq!(answer(other), Some(false), "{other:?}");
        }
        assert_eq!(answer(c"/nonexistent"), None);
        assert!(search(b"cat") && !search(b"env") && !search(b"nothing-by-that-name"));
    }

    fn names(text: &[u8], libraries: u32) -> Option<bool> {
        let names = Names { at: 0, len: text.len() as u64, libraries };
        names_are_quiet(&names, &mut [0; WINDOW_LEN], |buf, at| {
            let rest = &text[at as usize..];
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Some(len)
        })
    }

    #[test]
    fn names_decide() {
        assert_eq!(names(b"\0read\0libc.so.6\0getenv\0", 1), Some(true));
        assert_eq!(names(b"\0read\0libc.so.6\0__environ\0", 1), Some(false));
        assert_eq!(names(b"\0vfork\0libc.so.6\0", 1), Some(false));
        assert_eq!(names(b"\0read\0libpq.so.5\0", 1), Some(false));
        assert_eq!(names(b"\0read\0libc.so.6\0", 2), Some(false), "one that is not called so");
        assert_eq!(names(b"\0read\0libc.so.6\0write", 1), None, "no end");
        let mut long = b"\0libc.so.6\0".to_vec();
        for index in 0..300 {
            long.extend_from_slice(format!("name_{index}\0").as_bytes());
        }
        assert_eq!(names(&long, 1), Some(true));
        long.extend_from_slice(b"execvp\0");
        assert_eq!(names(&long, 1), Some(false), "behind the first window");
        assert_eq!(names(&[b'x'; 2000], 0), None);
    }

    #[test]
    fn the_library_is_left_out() {
        let left = |given: &[&CStr]| {
            let mut given: Vec<_> = given.iter().map(|variable| variable.as_ptr()).collect();
            given.push(core::ptr::null());
            let mut room = Variables::new();
            // SAFETY: an array of C strings with its end.
            let left = unsafe { room.leave_out(b"/libsd.so", given.as_ptr()) };
            left.map(|_| room.0.iter().take_while(|variable| !variable.is_null()).count())
        };
        assert_eq!(left(&[c"A=1", c"LD_PRELOAD=/libsd.so", c"B=2"]), Some(4));
        for kept in [
            &[c"A=1"][..],
            &[c"LD_PRELOAD=/libsd.so:/other.so"],
            &[c"LD_PRELOAD=/libsd.so", c"LD_LIBRARY_PATH=/x"],
        ] {
            assert_eq!(left(kept), None, "{kept:?}");
        }
        assert_eq!(left(&[c"LD_PRELOAD=/libsd.so", c"LD_PRELOAD=/libsd.so"]), None);
        let mut many = vec![c"A=1"; VARIABLES_MAX];
        assert_eq!(left(&many), None);
        many[0] = c"LD_PRELOAD=/libsd.so";
        assert_eq!(left(&many), Some(VARIABLES_MAX + 1));
        many.push(c"B=2");
        assert_eq!(left(&many), None);
    }
}
