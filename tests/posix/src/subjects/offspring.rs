//! Every function of libc that forks or executes, each with a connection that the child goes on with.

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

use super::exec::ask;
use super::spawn::environ;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("offspring/forks", forks),
    solo("offspring/forks_new_sockets", forks_new_sockets),
    solo("offspring/vfork_and_exec", vfork_and_exec),
    solo("offspring/vfork_and_exit", vfork_and_exit),
    solo("offspring/vfork_shares_memory", vfork_shares_memory),
    solo("offspring/execs", execs),
    solo("offspring/execs_fail", execs_fail),
    solo("offspring/variadic_execs", variadic_execs),
    solo("offspring/daemon", detached),
    solo("offspring/daemon_keeps", daemon_keeps),
    solo("offspring/forkpty", terminal),
    solo("offspring/login_tty", login),
    solo("offspring/login_tty_of_a_socket", login_of_a_socket),
    solo("offspring/limits", limits),
    solo("offspring/limits_of_descriptors", limits_of_descriptors),
];

type Argv = *const *const c_char;

unsafe extern "C" {
    fn __fork() -> libc::pid_t;
    fn _Fork() -> libc::pid_t;
    fn vfork() -> libc::pid_t;
    fn __vfork() -> libc::pid_t;
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    fn execvpe(file: *const c_char, argv: Argv, environment: Argv) -> c_int;
    fn execveat(fd: c_int, path: *const c_char, argv: Argv, environment: Argv, flags: c_int) -> c_int;
}

type Fork = unsafe extern "C" fn() -> libc::pid_t;
const FORKS: [(&str, Fork); 3] = [("fork", libc::fork), ("__fork", __fork), ("_Fork", _Fork)];

/// A child made in the given way, which ends with what `body` returns.
fn child_by(fork: Fork, body: impl FnOnce() -> i32) -> i32 {
    match call!(fork()).fd() {
        0 => {
            call!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL));
            alarm(9);
            exit_now(body())
        }
        pid => pid,
    }
}

/// Answers one word in upper case.
fn answer(fd: i32) -> i32 {
    let mut buffer = [0; 64];
    let got = recv(fd, &mut buffer, 0).count();
    send(fd, &buffer[..got].to_ascii_uppercase(), 0);
    0
}

fn forks() {
    for (name, fork) in FORKS {
        let pair = connected();
        let child = child_by(fork, || answer(pair.server));
        close(pair.server);
        say!("{name}: {}", ask(pair.client, "to the child"));
        say!("{name}: {}", wait_child(child));
        await_events(pair.client, libc::POLLRDHUP);
        show_recv(name, pair.client, 8, 0);
    }
}

/// A grandchild by the same way, which connects to a listener of the first.
fn forks_new_sockets() {
    for (name, fork) in FORKS {
        let (listening, addr) = listener();
        let child = child_by(fork, || {
            close(listening);
            let grandchild = child_by(fork, || answer(dial(&addr)));
            i32::from(wait_child(grandchild) != "exit 0")
        });
        let server = accept(listening).fd();
        say!("{name}: {}", ask(server, "to the grandchild"));
        say!("{name}: {}", wait_child(child));
        close_all(&[listening, server]);
    }
}

/// The words of this program's helper.
struct Words {
    _words: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Words {
    fn of(what: &str, fd: i32) -> Words {
        let words = ["sd-posix", "helper", what].map(str::to_owned).into_iter().chain([fd.to_string()]);
        let words: Vec<CString> = words.map(|word| CString::new(word).expect("no NUL")).collect();
        let mut pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(null());
        Words { _words: words, pointers }
    }

    fn argv(&self) -> Argv {
        self.pointers.as_ptr()
    }
}

const SELF: *const c_char = c"/proc/self/exe".as_ptr();

/// What vfork is for: the child executes at once. A vfork returns twice on one stack, so it is not wrapped.
#[inline(never)]
fn vfork_and_exec() {
    for (name, fork) in [("vfork", vfork as Fork), ("__vfork", __vfork as Fork)] {
        let pair = connected();
        let words = Words::of("once", pair.server);
        // SAFETY: the child only executes, or ends.
        let child = unsafe {
            match fork() {
                0 => {
                    libc::execve(SELF, words.argv(), environ.cast());
                    libc::_exit(127)
                }
                pid => pid,
            }
        };
        close(pair.server);
        say!("{name}: {}", ask(pair.client, "to the new image"));
        say!("{name}: {}", wait_child(child));
        await_events(pair.client, libc::POLLRDHUP);
        show_recv(name, pair.client, 8, 0);
    }
}

/// A child that ends at once, or cannot execute: its copies of the sockets end nothing.
#[inline(never)]
fn vfork_and_exit() {
    for (name, fork) in [("vfork", vfork as Fork), ("__vfork", __vfork as Fork)] {
        let pair = connected();
        let words = Words::of("once", pair.server);
        // SAFETY: the child only tries to execute, and ends.
        let child = unsafe {
            match fork() {
                0 => {
                    libc::execve(c"/nonexistent".as_ptr(), words.argv(), environ.cast());
                    libc::_exit(5)
                }
                pid => pid,
            }
        };
        say!("{name}: {}", wait_child(child));
        show_send("client", pair.client, b"still there", 0);
        show_recv("server", pair.server, 16, 0);
        show_recv("no end", pair.server, 16, libc::MSG_DONTWAIT);
    }
}

static TOLD: AtomicI32 = AtomicI32::new(0);

extern "C" fn of_the_parent(_: c_int) {
    TOLD.store(100, Ordering::Relaxed);
}

extern "C" fn of_the_child(_: c_int) {
    TOLD.store(200, Ordering::Relaxed);
}

/// What a child does to a process that has no socket yet: it stores words of its parent's, and leaves descriptors, limits and
/// handlers alone, whatever it does to its own.
#[inline(never)]
fn vfork_shares_memory() {
    let signal = |handler: extern "C" fn(c_int)| {
        // SAFETY: the handlers store a word.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) }
    };
    for (name, fork) in [("vfork", vfork as Fork), ("__vfork", __vfork as Fork)] {
        signal(of_the_parent);
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: the child stores words, makes calls about itself, and ends.
        let child = unsafe {
            match fork() {
                0 => {
                    TOLD.store(7, Ordering::Relaxed);
                    signal(of_the_child);
                    libc::setrlimit(libc::RLIMIT_NOFILE, &few);
                    libc::close(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
                    libc::_exit(libc::epoll_create1(0).signum() + 2)
                }
                pid => pid,
            }
        };
        say!("{name}: told {}, {}", TOLD.load(Ordering::Relaxed), wait_child(child));
        // SAFETY: no pointers but to a local variable.
        unsafe {
            let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::raise(libc::SIGUSR1);
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut now);
            say!("{name}: handled {}, limited {}", TOLD.load(Ordering::Relaxed), now.rlim_cur == 64);
        }
    }
    let pair = connected();
    show_send("client", pair.client, b"and then", 0);
    show_recv("server", pair.server, 16, 0);
}

type Exec = fn(*const c_char, Argv) -> Ret;

const EXECS: &[(&str, Exec)] = &[
    ("execve", |path, argv| call!(libc::execve(path, argv, environ.cast()))),
    ("execv", |path, argv| call!(libc::execv(path, argv))),
    ("execvp", |path, argv| call!(libc::execvp(path, argv))),
    ("execvpe", |path, argv| call!(execvpe(path, argv, environ.cast()))),
    ("execveat", |path, argv| call!(execveat(libc::AT_FDCWD, path, argv, environ.cast(), 0))),
    ("execveat of a descriptor", |path, argv| {
        let program = call!(libc::open(path, libc::O_PATH | libc::O_CLOEXEC)).fd();
        call!(execveat(program, c"".as_ptr(), argv, environ.cast(), libc::AT_EMPTY_PATH))
    }),
    ("fexecve", |path, argv| {
        let program = call!(libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC)).fd();
        call!(libc::fexecve(program, argv, environ.cast()))
    }),
];

fn execs() {
    for (name, exec) in EXECS {
        let pair = connected();
        let child = fork_child(|| {
            exec(SELF, Words::of("once", pair.server).argv());
            127
        });
        close(pair.server);
        say!("{name}: {}", ask(pair.client, "to the new image"));
        say!("{name}: {}", wait_child(child));
        close(pair.client);
    }
}

/// The process goes on with its sockets.
fn execs_fail() {
    let pair = connected();
    for (name, exec) in EXECS {
        for (what, path) in [
            ("of nothing", c"/nonexistent"),
            ("of a folder", c"/tmp"),
            ("of no program", c"/proc/self/status"),
        ] {
            say!("{name} {what} = {}", exec(path.as_ptr(), Words::of("once", pair.server).argv()));
        }
        send(pair.client, b"still here", 0);
        show_recv(name, pair.server, 16, 0);
    }
    let end: *const c_char = null();
    show("execl", call!(libc::execl(c"/nonexistent".as_ptr(), SELF, end)));
    show("execlp", call!(libc::execlp(c"nonexistent-program".as_ptr(), SELF, end)));
    show("execle", call!(libc::execle(c"/nonexistent".as_ptr(), SELF, end, environ)));
    show_send("client", pair.client, b"still here", 0);
    show_recv("server", pair.server, 16, 0);
}

fn variadic_execs() {
    let end: *const c_char = null();
    let (name, helper, once) = (c"sd-posix".as_ptr(), c"helper".as_ptr(), c"once".as_ptr());
    for which in ["execl", "execlp", "execle"] {
        let pair = connected();
        let number = CString::new(pair.server.to_string()).expect("no NUL");
        let fd = number.as_ptr();
        let child = fork_child(|| {
            match which {
                "execl" => call!(libc::execl(SELF, name, helper, once, fd, end)),
                "execlp" => call!(libc::execlp(SELF, name, helper, once, fd, end)),
                _ => call!(libc::execle(SELF, name, helper, once, fd, end, environ)),
            };
            127
        });
        close(pair.server);
        say!("{which}: {}", ask(pair.client, "to the new image"));
        say!("{which}: {}", wait_child(child));
        close(pair.client);
    }
}

/// Reports over the connection where it is and what it has: the output is /dev/null.
fn tell_about_daemon(fd: i32, result: Ret) {
    let leads = call!(libc::getsid(0)).fd() == getpid();
    let root = std::env::current_dir().is_ok_and(|folder| folder.as_os_str() == "/");
    let said = format!("{result} leads {leads} root {root} {}", proc_link(1) == "/dev/null");
    send(fd, said.as_bytes(), 0);
}

fn detached() {
    let pair = connected();
    let (listening, addr) = listener();
    let starter = fork_child(|| {
        let result = call!(daemon(0, 0));
        alarm(9);
        tell_about_daemon(pair.server, result);
        answer(pair.server);
        answer(dial(&addr));
        0
    });
    close(pair.server);
    say!("starter: {}", wait_child(starter));
    await_readable(pair.client);
    show_recv("daemon", pair.client, 64, 0);
    say!("{}", ask(pair.client, "to the daemon"));
    say!("{}", ask(accept(listening).fd(), "to its new socket"));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("daemon", pair.client, 64, 0);
}

/// A daemon that keeps its folder and its streams, one of which is a connection.
fn daemon_keeps() {
    let pair = connected();
    let starter = fork_child(|| {
        dup2(pair.server, 0);
        close(pair.server);
        let result = call!(daemon(1, 1));
        alarm(9);
        tell_about_daemon(0, result);
        answer(0);
        0
    });
    close(pair.server);
    say!("starter: {}", wait_child(starter));
    await_readable(pair.client);
    show_recv("daemon", pair.client, 64, 0);
    say!("{}", ask(pair.client, "to its input"));
    await_events(pair.client, libc::POLLRDHUP);
}

/// Everything that comes from a terminal until its last process is gone.
fn read_all(fd: i32) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 256];
    loop {
        match read(fd, &mut buffer) {
            got if got.value > 0 => text.extend_from_slice(&buffer[..got.count()]),
            end => return format!("{:?}, then {end}", String::from_utf8_lossy(&text)),
        }
    }
}

fn terminal() {
    let pair = connected();
    let mut main = -1;
    let child = call!(libc::forkpty(&raw mut main, null_mut(), null(), null())).fd();
    if child == 0 {
        alarm(9);
        say!("streams {} {} {}", isatty(0), isatty(1), isatty(2));
        say!("{}", descriptor_flags(pair.client));
        exit_now(answer(pair.server));
    }
    close(pair.server);
    say!("{} {}", file_type(main), ask(pair.client, "to the terminal"));
    say!("{}", read_all(main));
    say!("child: {}", wait_child(child));
}

fn login() {
    let pair = connected();
    let (mut main, mut terminal) = (-1, -1);
    show("openpty", call!(libc::openpty(&raw mut main, &raw mut terminal, null_mut(), null(), null())));
    let child = fork_child(|| {
        // The connection stands where the terminal goes.
        dup2(pair.server, 0);
        show("login_tty", call!(libc::login_tty(terminal)));
        say!("streams {} {} {}", isatty(0), isatty(1), isatty(2));
        say!("leads {}, {}", call!(libc::getsid(0)).fd() == getpid(), descriptor_flags(terminal));
        answer(pair.server)
    });
    close_all(&[terminal, pair.server]);
    say!("{}", ask(pair.client, "to the session"));
    say!("{}", read_all(main));
    say!("child: {}", wait_child(child));
}

fn login_of_a_socket() {
    let pair = connected();
    let child = fork_child(|| {
        show("a connection", call!(libc::login_tty(pair.server)));
        show("a listener", call!(libc::login_tty(listener().0)));
        show("nothing", call!(libc::login_tty(-1)));
        say!("{} {}", file_type(pair.server), call!(libc::getsid(0)).fd() == getpid());
        answer(pair.server)
    });
    let answer = ask(pair.client, "to the session");
    say!("child: {}", wait_child(child));
    say!("{answer}");
}

type Limits = (Ret, u64, u64);

fn limits() {
    let pair = connected();
    let child = fork_child(|| {
        let mut now = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        let new = libc::rlimit64 { rlim_cur: 1 << 40, rlim_max: 1 << 41 };
        for resource in [libc::RLIMIT_AS, libc::RLIMIT_CORE, libc::RLIMIT_FSIZE, libc::RLIMIT_STACK] {
            let mut seen: Vec<Limits> = Vec::new();
            let mut add = |result: Ret, now: &libc::rlimit64| seen.push((result, now.rlim_cur, now.rlim_max));
            add(call!(libc::setrlimit64(resource, &raw const new)), &new);
            add(call!(libc::getrlimit64(resource, &raw mut now)), &now);
            let less = libc::rlimit64 { rlim_cur: 1 << 39, ..new };
            add(call!(libc::prlimit64(0, resource, &raw const less, &raw mut now)), &now);
            let none: *const libc::rlimit = null();
            add(call!(libc::prlimit(getpid(), resource, none, (&raw mut now).cast())), &now);
            add(call!(libc::setrlimit64(resource, &libc::rlimit64 { rlim_cur: 2, rlim_max: 1 })), &now);
            for (result, soft, hard) in seen {
                say!("{result} {soft} {hard}");
            }
        }
        show("nobody", call!(libc::prlimit(i32::MAX, libc::RLIMIT_AS, null(), null_mut())));
        show("nothing of that kind", call!(libc::prlimit64(0, 99, null(), null_mut())));
        show("nothing of that kind", call!(libc::getrlimit64(99, &raw mut now)));
        let (listening, addr) = listener();
        let fresh = connect_to(listening, &addr);
        send(fresh.client, b"x", 0);
        show_recv("fresh", fresh.server, 8, 0);
        answer(pair.server)
    });
    let answer = ask(pair.client, "within limits");
    say!("child: {}", wait_child(child));
    say!("{answer}");
}

/// RLIMIT_NOFILE by each function: sockets and files stop at the same number.
fn limits_of_descriptors() {
    let pair = connected();
    let soft = lowest_free() as u64 + 1;
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    show("getrlimit64", call!(libc::getrlimit64(libc::RLIMIT_NOFILE, &raw mut old)));
    let new = libc::rlimit64 { rlim_cur: soft, ..old };
    let (new, none) = (&raw const new, null_mut());
    for which in ["setrlimit64", "prlimit64", "prlimit"] {
        let result = match which {
            "setrlimit64" => call!(libc::setrlimit64(libc::RLIMIT_NOFILE, new)),
            "prlimit64" => call!(libc::prlimit64(0, libc::RLIMIT_NOFILE, new, none)),
            _ => call!(libc::prlimit(0, libc::RLIMIT_NOFILE, new.cast(), null_mut())),
        };
        let last = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let beyond = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        say!("{which} = {result}, the last {}, then {beyond}, dup {}", last.fd() as u64 + 1 == soft, dup(1));
        let mut now = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        call!(libc::prlimit64(0, libc::RLIMIT_NOFILE, &raw const old, &raw mut now));
        say!("it was as set: {}", now.rlim_cur == soft);
        close(last.fd());
    }
    show_send("client", pair.client, b"within limits", 0);
    show_recv("server", pair.server, 16, 0);
}
