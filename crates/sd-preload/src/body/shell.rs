//! system(3) and popen(3) for programs that pass a socket of ours to the shell; see `spawn`.

use super::file_actions::Step;
use super::spawn::{Attributes, Program, start};
use crate::edge::last_errno;
use crate::table::{hook, real};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use libc::{FILE, pid_t, sigset_t};
use sd_socket::{Outcome, calls};
use sd_sys::Errno;
use sd_sys::lock::Lock;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Starts `sh -c command`.
///
/// # Safety
/// `command` is a C string.
unsafe fn start_shell(
    command: *const c_char,
    steps: &[Step],
    attributes: &Attributes,
) -> Result<pid_t, Errno> {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), command, null()];
    // SAFETY: libc's variable; the rest are literals and by contract.
    unsafe {
        let (path, argv, environment) = (c"/bin/sh".as_ptr(), argv.as_ptr(), environ);
        start(Program { path, argv, environment, is_searched: false }, steps, attributes)
    }
}

/// What system(3) has changed while any thread is inside.
struct Ignoring {
    threads: u32,
    interrupt: libc::sigaction,
    quit: libc::sigaction,
}

// SAFETY: an all-zero action is valid.
static IGNORING: Lock<Ignoring> = Lock::new(unsafe { MaybeUninit::zeroed().assume_init() });

/// SIGINT and SIGQUIT are the shell's business; which of them were not ignored before.
fn ignore_keys() -> sigset_t {
    let mut state = IGNORING.lock();
    let Ignoring { threads, interrupt, quit } = &mut *state;
    let mut heeded = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; an all-zero action is valid.
    unsafe {
        libc::sigemptyset(heeded.as_mut_ptr());
        if *threads == 0 {
            let mut ignore: libc::sigaction = core::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(libc::SIGINT, &ignore, interrupt);
            libc::sigaction(libc::SIGQUIT, &ignore, quit);
        }
        *threads += 1;
        for (signal, before) in [(libc::SIGINT, interrupt), (libc::SIGQUIT, quit)] {
            if before.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(heeded.as_mut_ptr(), signal);
            }
        }
        heeded.assume_init()
    }
}

fn heed_keys() {
    let mut state = IGNORING.lock();
    state.threads -= 1;
    if state.threads == 0 {
        // SAFETY: what `ignore_keys` has saved.
        unsafe {
            libc::sigaction(libc::SIGINT, &state.interrupt, null_mut());
            libc::sigaction(libc::SIGQUIT, &state.quit, null_mut());
        }
    }
}

/// Waits for a child to end; its status, or -1 with errno set.
fn reap(pid: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: our own variable.
    while unsafe { libc::waitpid(pid, &mut status, 0) } == -1 {
        if last_errno() != Errno::EINTR {
            return -1;
        }
    }
    status
}

/// system(3).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn system(command: *const c_char) -> Outcome<c_int> {
    if command.is_null() || !calls::spawn_passes_sockets(&[]) {
        return Outcome::Kernel;
    }
    let heeded = ignore_keys();
    let (mut child, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets are initialised by the calls.
    let before: sigset_t = unsafe {
        libc::sigemptyset(child.as_mut_ptr());
        libc::sigaddset(child.as_mut_ptr(), libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, child.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    // SAFETY: libc's contract.
    let status = match unsafe { start_shell(command, &[], &Attributes::signals(heeded, before)) } {
        Ok(pid) => reap(pid),
        // As if the shell had ended with 127.
        Err(_) => 127 << 8,
    };
    heed_keys();
    // SAFETY: read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut()) };
    Outcome::Done(status)
}

/// A stream of popen(3) that was made here.
struct Stream {
    address: usize,
    fd: c_int,
    shell: pid_t,
}

static STREAMS: Lock<Vec<Stream>> = Lock::new(Vec::new());

/// popen(3).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn popen(command: *const c_char, mode: *const c_char) -> Outcome<*mut FILE> {
    if !calls::spawn_passes_sockets(&[]) {
        return Outcome::Kernel;
    }
    // SAFETY: libc's contract: `mode` is a C string.
    let Some((reads, stays_open)) = parse(unsafe { CStr::from_ptr(mode) }.to_bytes()) else {
        return Outcome::Kernel;
    };
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two numbers.
    if unsafe { hook::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == -1 {
        return Outcome::Done(null_mut());
    }
    let [read_end, write_end] = ends;
    let (fd, shells) = if reads { (read_end, write_end) } else { (write_end, read_end) };
    // The shell has no other popen's stream (POSIX).
    let mut steps: Vec<Step> = STREAMS.lock().iter().map(|stream| Step::Close { fd: stream.fd }).collect();
    steps.push(Step::Duplicate { from: shells, to: c_int::from(reads) });
    // SAFETY: libc's contract for the command; the descriptors are ours, and the modes are literals.
    unsafe {
        let stream = real::fdopen(fd, if reads { c"r".as_ptr() } else { c"w".as_ptr() });
        let started = match stream.is_null() {
            true => Err(Errno::ENOMEM),
            false => start_shell(command, &steps, &Attributes::none()),
        };
        hook::close(shells);
        match started {
            Ok(shell) => {
                if stays_open {
                    real::fcntl(fd, libc::F_SETFD, 0);
                }
                STREAMS.lock().push(Stream { address: stream as usize, fd, shell });
                Outcome::Done(stream)
            }
            Err(errno) => {
                if stream.is_null() {
                    hook::close(fd);
                } else {
                    libc::fclose(stream);
                }
                Outcome::Errno(errno)
            }
        }
    }
}

/// "r" or "w", with "e" for close-on-exec: whether the program reads, and whether its end stays open.
fn parse(mode: &[u8]) -> Option<(bool, bool)> {
    match mode {
        b"r" => Some((true, true)),
        b"w" => Some((false, true)),
        b"re" | b"er" => Some((true, false)),
        b"we" | b"ew" => Some((false, false)),
        _ => None,
    }
}

/// pclose(3).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn pclose(stream: *mut FILE) -> Outcome<c_int> {
    let found = {
        let mut streams = STREAMS.lock();
        let at = streams.iter().position(|known| known.address == stream as usize);
        at.map(|at| streams.swap_remove(at))
    };
    match found {
        Some(Stream { shell, .. }) => {
            // SAFETY: libc's contract.
            unsafe { libc::fclose(stream) };
            Outcome::Done(reap(shell))
        }
        None => Outcome::Kernel,
    }
}
