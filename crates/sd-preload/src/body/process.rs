//! fork and the functions of glibc that fork or duplicate inside.

use crate::edge::Slot;
use crate::table::{hook, real};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{pid_t, termios, winsize};
use sd_socket::{Outcome, calls};
use sd_sys::{Errno, libcs};

/// Forks by `real`, whose fork handlers (see `start`) prepare `sd_socket`; the parent then says which child it has.
pub(crate) fn fork(real: impl FnOnce() -> pid_t) -> pid_t {
    fork_begins();
    let pid = real();
    if pid == 0 {
        calls::fork_late();
    } else {
        calls::fork_announce(pid);
    }
    pid
}

/// Before a fork. Functions are found at their first call; a server's children would each look up anew what only they call.
pub(super) fn fork_begins() {
    static ARE_FOUND: AtomicBool = AtomicBool::new(false);
    if calls::fork_early() && !ARE_FOUND.swap(true, Ordering::Relaxed) {
        crate::table::resolve_all();
    }
}

/// Forks by `real`, which runs no fork handlers.
pub(crate) fn fork_bare(real: impl FnOnce() -> pid_t) -> pid_t {
    fork_begins();
    calls::fork_prepare();
    let pid = real();
    if pid == 0 {
        calls::fork_child_bare();
        calls::fork_late();
    } else {
        calls::fork_parent();
        calls::fork_announce(pid);
    }
    pid
}

/// libc's vfork, which no function can stand for, since it returns twice on one stack.
static VFORK: Slot = Slot::new();

/// What vfork(2) is: libc's, where the child may have the parent's memory, or else fork.
pub(crate) extern "C" fn choose_fork() -> *const c_void {
    let libcs = match VFORK.get() {
        address if address.is_null() => VFORK.resolve(c"vfork"),
        address => address,
    };
    match !libcs.is_null() && calls::vfork_begins() {
        true => libcs,
        false => fork_instead as *const c_void,
    }
}

extern "C" fn fork_instead() -> pid_t {
    // SAFETY: no arguments.
    unsafe { hook::fork() }
}

/// daemon(3): fork, new session, then the root directory and /dev/null unless declined. musl forks again, so that the daemon leads no
/// session.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn daemon(no_chdir: c_int, no_close: c_int) -> Outcome<c_int> {
    // SAFETY: libc's contract of fork: the child may go on as the program. No pointers but a literal.
    unsafe {
        if !goes_on_as_child() || libc::setsid() == -1 || libcs::is_musl() && !goes_on_as_child() {
            return Outcome::Done(-1);
        }
        if no_chdir == 0 {
            libc::chdir(c"/".as_ptr());
        }
    }
    if no_close == 0 { redirect_to_null() } else { Outcome::Done(0) }
}

/// The parent ends. False, with errno set: there is no child.
///
/// # Safety
/// As for fork(2).
unsafe fn goes_on_as_child() -> bool {
    // SAFETY: by contract; no arguments that matter.
    unsafe {
        let child = hook::fork();
        if child > 0 {
            libc::_exit(0);
        }
        child == 0
    }
}

fn redirect_to_null() -> Outcome<c_int> {
    // SAFETY: an all-zero stat is valid.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the path is a literal, and `stat` is ours; fstat(2) is not hooked.
    let fd = unsafe {
        let fd = hook::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0);
        if fd == -1 || libc::fstat(fd, &mut stat) == -1 {
            hook::close(fd);
            return Outcome::Done(-1);
        }
        fd
    };
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR || stat.st_rdev != libc::makedev(1, 3) {
        // SAFETY: the descriptor is ours to close.
        unsafe { hook::close(fd) };
        return Outcome::Errno(Errno::ENODEV);
    }
    onto_standard(fd);
    Outcome::Done(0)
}

/// Moves `fd` onto 0, 1 and 2.
fn onto_standard(fd: c_int) {
    // SAFETY: no pointers.
    unsafe {
        for standard in 0..=2 {
            hook::dup2(fd, standard);
        }
        if fd > 2 {
            hook::close(fd);
        }
    }
}

/// login_tty(3): a new session with terminal `fd`, which becomes 0, 1 and 2.
pub(crate) fn login_tty(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        libc::setsid();
        if hook::ioctl(fd, libc::TIOCSCTTY, 0) == -1 {
            return -1;
        }
    }
    onto_standard(fd);
    0
}

/// forkpty(3): fork, with the child on a new terminal.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn forkpty(
    main: *mut c_int,
    name: *mut c_char,
    mode: *const termios,
    size: *const winsize,
) -> pid_t {
    let (mut main_fd, mut terminal) = (-1, -1);
    // SAFETY: libc's contract for the caller's pointers; the others are our own variables.
    unsafe {
        if real::openpty(&mut main_fd, &mut terminal, name, mode, size) == -1 {
            return -1;
        }
        let pid = hook::fork();
        match pid {
            -1 => {
                hook::close(main_fd);
                hook::close(terminal);
            }
            0 => {
                hook::close(main_fd);
                if login_tty(terminal) == -1 {
                    libc::_exit(1);
                }
            }
            _ => {
                *main = main_fd;
                hook::close(terminal);
            }
        }
        pid
    }
}

/// After pthread_cancel.
pub(crate) fn cancelled(thread: libc::pthread_t, ret: c_int) -> c_int {
    if ret == 0 {
        sd_socket::calls::cancelled(thread as usize);
    }
    ret
}
