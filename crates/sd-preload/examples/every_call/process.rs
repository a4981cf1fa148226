//! Forks, execs and what glibc builds of them.

use crate::report::{close, show, show_success};
use libc::{c_char, c_int, c_void, pid_t, size_t};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn __fork() -> pid_t;
    fn vfork() -> pid_t;
    fn __vfork() -> pid_t;
    fn _Fork() -> pid_t;
    fn __clone(entry: Entry, stack: *mut c_void, flags: c_int, argument: *mut c_void, ...) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    fn execveat(
        fd: c_int,
        path: *const c_char,
        argv: *const *const c_char,
        env: *const *const c_char,
        flags: c_int,
    ) -> c_int;
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    fn __sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn bsd_signal(number: c_int, handler: usize) -> usize;
    fn ssignal(number: c_int, handler: usize) -> usize;
    fn sysv_signal(number: c_int, handler: usize) -> usize;
    fn __sysv_signal(number: c_int, handler: usize) -> usize;
    fn sigset(number: c_int, handler: usize) -> usize;
    fn getcwd(buf: *mut c_char, len: size_t) -> *mut c_char;
}

const ECHO: *const c_char = c"/bin/echo".as_ptr();
const NAME: *const c_char = c"echo".as_ptr();
const ENV: *const c_char = c"/usr/bin/env".as_ptr();

type Entry = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Entry, *mut c_void, c_int, *mut c_void, ...) -> c_int;

pub(crate) fn run() {
    // SAFETY: all pointers are literals or local variables of the right kind; children exec or _exit.
    unsafe {
        forks();
        execs();
        variadic_execs();
        started_by_libc();
        detached();
        terminals();
        limits();
        threads();
        handlers();
    }
}

extern "C" fn handler(number: c_int) {
    println!("signal {number}");
}

/// Handlers of signals: what was there before, and that they run.
unsafe fn handlers() {
    let ours = handler as *const () as usize;
    let told = |name: &str, before: usize| {
        println!(
            "{name}: {}",
            if before == ours {
                "ours"
            } else if before < 3 {
                "none"
            } else {
                "other"
            }
        );
        // SAFETY: to this process.
        show(name, unsafe { libc::raise(libc::SIGWINCH) });
    };
    // SAFETY: the handler is a function of this program; an all-zero action is valid.
    unsafe {
        told("signal", libc::signal(libc::SIGWINCH, ours));
        told("bsd_signal", bsd_signal(libc::SIGWINCH, ours));
        told("ssignal", ssignal(libc::SIGWINCH, ours));
        told("sigset", sigset(libc::SIGWINCH, ours));
        told("sysv_signal", sysv_signal(libc::SIGWINCH, ours));
        told("__sysv_signal", __sysv_signal(libc::SIGWINCH, ours));
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ours;
        show("sigaction", libc::sigaction(libc::SIGWINCH, &action, null_mut()));
        let mut old: libc::sigaction = std::mem::zeroed();
        show("__sigaction", __sigaction(libc::SIGWINCH, null(), &mut old));
        told("__sigaction", old.sa_sigaction);
    }
}

/// Runs `body` in a child made by `fork`, and shows how the child ended.
unsafe fn child(name: &str, fork: unsafe extern "C" fn() -> pid_t, body: impl FnOnce() -> c_int) {
    // SAFETY: the child only runs `body`.
    unsafe {
        match fork() {
            0 => libc::_exit(body()),
            pid => {
                let mut status = 0;
                let waited = libc::waitpid(pid, &mut status, 0);
                show_success(name, pid);
                show(name, waited - pid);
                println!("{name}: status {status:#x}");
            }
        }
    }
}

extern "C" fn its_argument(argument: *mut c_void) -> c_int {
    argument as c_int
}

/// A child with a stack of its own, and one in the same memory that the parent waits for.
unsafe fn clones(name: &str, clone: Clone) {
    let mut stack = vec![0u128; 1 << 14];
    for flags in [0, libc::CLONE_VM | libc::CLONE_VFORK] {
        // SAFETY: the child only returns its argument.
        unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            let pid = clone(its_argument, top, flags | libc::SIGCHLD, 8 as *mut c_void);
            let mut status = 0;
            show(name, libc::waitpid(pid, &mut status, 0) - pid);
            println!("{name}: status {status:#x}");
        }
    }
}

unsafe fn forks() {
    // SAFETY: see `run`.
    unsafe {
        child("fork", libc::fork, || 3);
        child("__fork", __fork, || 4);
        child("vfork", vfork, || 5);
        child("__vfork", __vfork, || 6);
        child("_Fork", _Fork, || 7);
        clones("clone", libc::clone);
        clones("__clone", __clone);
    }
}

unsafe fn execs() {
    let argv = |name: &'static std::ffi::CStr| [NAME, name.as_ptr(), null()];
    let env = [c"A=1".as_ptr(), null()];
    let bad = [null()];
    // SAFETY: see `run`.
    unsafe {
        show("execve", libc::execve(c"/nonexistent".as_ptr(), bad.as_ptr(), bad.as_ptr()));
        child("execve", libc::fork, || libc::execve(ECHO, argv(c"execve").as_ptr(), env.as_ptr()));
        child("execv", libc::fork, || libc::execv(ECHO, argv(c"execv").as_ptr()));
        child("execvp", libc::fork, || libc::execvp(NAME, argv(c"execvp").as_ptr()));
        child("execvpe", libc::fork, || execvpe(NAME, argv(c"execvpe").as_ptr(), env.as_ptr()));
        child("fexecve", libc::fork, || {
            let fd = libc::open(ECHO, libc::O_RDONLY);
            libc::fexecve(fd, argv(c"fexecve").as_ptr(), env.as_ptr())
        });
        child("execveat", libc::fork, || {
            execveat(libc::AT_FDCWD, ECHO, argv(c"execveat").as_ptr(), env.as_ptr(), 0)
        });
    }
}

unsafe fn variadic_execs() {
    let end: *const c_char = null();
    let env = [c"B=2".as_ptr(), null()];
    let (a, b) = (c"a".as_ptr(), c"b".as_ptr());
    // SAFETY: see `run`.
    unsafe {
        child("execl", libc::fork, || libc::execl(ECHO, NAME, c"execl".as_ptr(), a, b, a, b, a, b, a, end));
        child("execlp", libc::fork, || libc::execlp(NAME, NAME, c"execlp".as_ptr(), end));
        child("execle", libc::fork, || libc::execle(ENV, c"env".as_ptr(), end, env.as_ptr()));
        show("execl", libc::execl(c"/nonexistent".as_ptr(), NAME, end));
    }
}

unsafe fn started_by_libc() {
    let argv = [NAME, c"spawned".as_ptr(), null()].map(<*const c_char>::cast_mut);
    let env = [null_mut()];
    // SAFETY: see `run`.
    unsafe {
        type Spawn = unsafe extern "C" fn(
            *mut pid_t,
            *const c_char,
            *const libc::posix_spawn_file_actions_t,
            *const libc::posix_spawnattr_t,
            *const *mut c_char,
            *const *mut c_char,
        ) -> c_int;
        let calls: [(&str, Spawn, _); 2] =
            [("posix_spawn", libc::posix_spawn, ECHO), ("posix_spawnp", libc::posix_spawnp, NAME)];
        for (name, call, path) in calls {
            let (mut pid, mut status) = (0, 0);
            let result = call(&mut pid, path, null(), null(), argv.as_ptr(), env.as_ptr());
            libc::waitpid(pid, &mut status, 0);
            show(name, result + status);
        }
        show("system", libc::system(c"exit 3".as_ptr()));
        let stream = libc::popen(c"echo through a pipe".as_ptr(), c"r".as_ptr());
        show("popen", libc::fgetc(stream));
        show("pclose", libc::pclose(stream));
    }
}

/// A daemon reports over a pipe, which ends with it.
unsafe fn detached() {
    // SAFETY: see `run`.
    unsafe {
        let mut pipe = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        child("daemon", libc::fork, || {
            let ret = daemon(0, 0);
            let mut cwd = [0u8; 100];
            getcwd(cwd.as_mut_ptr().cast(), cwd.len());
            dprintf(
                pipe[1],
                c"%d, cwd %s, session leader %d, next fd %d, pipe %d\n".as_ptr(),
                ret,
                cwd.as_ptr(),
                (libc::getsid(0) == libc::getpid()) as c_int,
                libc::dup(0),
                pipe[1],
            );
            0
        });
        close(pipe[1]);
        print_all("daemon", pipe[0]);
        close(pipe[0]);
    }
}

unsafe fn terminals() {
    // SAFETY: see `run`.
    unsafe {
        let mut main = -1;
        let pid = libc::forkpty(&mut main, null_mut(), null(), null());
        if pid == 0 {
            println!("terminal {} {} {}", libc::isatty(0), libc::isatty(1), libc::isatty(2));
            libc::_exit(0);
        }
        show("forkpty", main);
        print_all("forkpty", main);
        libc::waitpid(pid, null_mut(), 0);
        close(main);
        let (mut main, mut terminal) = (-1, -1);
        show("openpty", libc::openpty(&mut main, &mut terminal, null_mut(), null(), null()));
        child("login_tty", libc::fork, || {
            let ret = libc::login_tty(terminal);
            println!("login_tty: {ret}, terminal {}, next fd {}", libc::isatty(1), libc::dup(0));
            0
        });
        close(terminal);
        print_all("login_tty", main);
        show("login_tty", libc::login_tty(-1));
        close(main);
    }
}

/// Prints what comes from `fd` until its end (EIO on a terminal).
unsafe fn print_all(name: &str, fd: c_int) {
    let mut text = Vec::new();
    let mut bytes = [0u8; 256];
    loop {
        // SAFETY: the buffer is ours.
        match unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) } {
            len if len <= 0 => break,
            len => text.extend_from_slice(&bytes[..len as usize]),
        }
    }
    println!("{name}: {}", String::from_utf8_lossy(&text).trim_end());
}

/// Limits that come out again as they went in, and a filter that is none.
/// Cancels a thread that waits in the kernel.
unsafe fn threads() {
    extern "C" fn wait(_: *mut c_void) -> *mut c_void {
        // SAFETY: no pointers.
        unsafe { libc::pause() };
        null_mut()
    }
    // SAFETY: the thread is joined, and its result is no pointer.
    unsafe {
        let (mut thread, mut result) = (0, null_mut());
        show("pthread_create", libc::pthread_create(&mut thread, null(), wait, null_mut()));
        show("pthread_cancel", pthread_cancel(thread));
        libc::pthread_join(thread, &mut result);
        println!("cancelled: {}", result as isize == -1);
    }
}

unsafe fn limits() {
    // SAFETY: see `run`.
    unsafe {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let mut now64 = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        let new = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 41 };
        let new64 = libc::rlimit64 { rlim_cur: 1 << 39, rlim_max: 1 << 41 };
        show("setrlimit", libc::setrlimit(libc::RLIMIT_AS, &new));
        show("getrlimit", libc::getrlimit(libc::RLIMIT_AS, &mut now));
        println!("getrlimit: {} {}", now.rlim_cur, now.rlim_max);
        show("setrlimit64", libc::setrlimit64(libc::RLIMIT_AS, &new64));
        show("getrlimit64", libc::getrlimit64(libc::RLIMIT_AS, &mut now64));
        println!("getrlimit64: {} {}", now64.rlim_cur, now64.rlim_max);
        show("prlimit", libc::prlimit(0, libc::RLIMIT_AS, &new, &mut now));
        println!("prlimit: {} {}", now.rlim_cur, now.rlim_max);
        show("prlimit64", libc::prlimit64(0, libc::RLIMIT_CORE, null(), &mut now64));
        show("setrlimit", libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: 2, rlim_max: 1 }));
        show("sysconf", libc::sysconf(libc::_SC_OPEN_MAX) as c_int);
        show("getdtablesize", libc::getdtablesize());
        show("mlockall", libc::mlockall(64));
        show("prctl", libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, null::<u8>()));
        show("prctl", libc::prctl(-1));
        show("unshare", libc::unshare(libc::CLONE_NEWNET | 1));
        show("setns", libc::setns(-1, libc::CLONE_NEWNET));
        show("chroot", libc::chroot(c"/nowhere/at/all".as_ptr()));
        show("syscall", libc::syscall(libc::SYS_dup, -1) as c_int);
    }
}
