//! Executes a program with a library, in one of several ways: `caller WAY LIBRARY PROGRAM ARGUMENTS`. For
//! `tests/attach.rs`. Where the library is `-` there is no tracer, and nothing else is different.

use sd_attach::{Tracer, accompany};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

struct Exec {
    library: CString,
    program: Vec<CString>,
}

impl Exec {
    fn accompany(&self) -> Option<Tracer> {
        (self.library.as_c_str() != c"-").then(|| accompany(&self.library).expect("a tracer"))
    }

    /// Returns when the exec has failed.
    fn execute(&self) {
        let words: Vec<*const c_char> =
            self.program.iter().map(|word| word.as_ptr()).chain([null()]).collect();
        // SAFETY: C strings, and a null pointer behind them.
        unsafe { libc::execv(words[0], words.as_ptr()) };
    }

    fn run(&self) {
        let tracer = self.accompany();
        self.execute();
        dismiss(tracer);
        println!("no such program");
    }

    /// By the child of a fork or a vfork; the time until it has ended, and with which code.
    fn in_child(&self, is_vfork: bool, is_accompanied: bool) -> (Duration, i32) {
        let is_accompanied = is_accompanied && self.library.as_c_str() != c"-";
        let words: Vec<*const c_char> =
            self.program.iter().map(|word| word.as_ptr()).chain([null()]).collect();
        let (began, mut status) = (Instant::now(), 0);
        // SAFETY: the child of a vfork, if it is one, calls nothing but what is async-signal-safe, and writes only to
        // what the parent does not read.
        unsafe {
            #[allow(deprecated)]
            let child = if is_vfork { libc::vfork() } else { libc::fork() };
            if child == 0 {
                if is_accompanied && let Err(errno) = accompany(&self.library) {
                    libc::_exit(100 + errno.0);
                }
                libc::execv(words[0], words.as_ptr());
                libc::_exit(99);
            }
            libc::waitpid(child as i32, &mut status, 0);
        }
        (began.elapsed(), libc::WEXITSTATUS(status))
    }
}

fn path(text: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

fn dismiss(tracer: Option<Tracer>) {
    if let Some(tracer) = tracer {
        tracer.dismiss();
    }
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: a set, which is made empty first.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        signals.iter().for_each(|signal| _ = libc::sigaddset(&mut set, *signal));
        set
    }
}

fn block(signals: &[i32]) {
    // SAFETY: reads a set.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set_of(signals), null_mut()) };
}

fn ignore(signal: i32) {
    // SAFETY: no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// A filter: `action` for one call where its third argument is `third`, if that is given; everything else is allowed
/// (seccomp(2)).
fn filter(call: i64, third: Option<i32>, action: u32) {
    const THIRD_AT: u32 = 16 + 2 * 8;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, is_equal) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let mut steps = [
        step(load, 0, 0, 0),
        step(is_equal, 0, 3, call as u32),
        step(load, 0, 0, if third.is_some() { THIRD_AT } else { 0 }),
        step(is_equal, 0, 1, third.map_or(call as u32, |third| third as u32)),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, action),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 6, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel reads a program of that length.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(done, 0);
}

/// A process that sends signals to this one until it has gone.
fn storm(signals: &[i32]) {
    let target = std::process::id() as i32;
    // SAFETY: the child makes system calls only.
    unsafe {
        if libc::fork() == 0 {
            loop {
                for signal in signals {
                    if libc::kill(target, *signal) != 0 || libc::getppid() != target {
                        libc::_exit(0);
                    }
                    libc::usleep(20);
                }
            }
        }
    }
}

/// Who traces this thread.
fn tracer() -> i32 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:\t"));
    line.unwrap().parse().unwrap()
}

/// What must be as before: the tracer, children, and mappings that nobody may touch.
fn state() -> (i32, i32, usize) {
    // SAFETY: no pointers.
    let child = unsafe { libc::waitpid(-1, null_mut(), libc::WNOHANG | libc::__WALL) };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (tracer(), child, maps.lines().filter(|line| line.contains(" ---p ")).count())
}

/// Ends who traces this thread, if anybody does.
fn kill_tracer() {
    match tracer() {
        0 => {}
        // SAFETY: no pointers; the id is a child's that nobody has waited for.
        pid => _ = unsafe { libc::kill(pid, libc::SIGKILL) },
    }
    while tracer() != 0 {}
}

/// Waits for what must come to be.
fn until(is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not come to be");
}

/// Plainly, with one thing of the caller's different.
fn in_a_way(way: &str, exec: Exec) {
    match way {
        "plainly" => exec.run(),
        "in-a-thread" => std::thread::spawn(move || exec.run()).join().unwrap(),
        "in-fork" => std::process::exit(exec.in_child(false, true).1),
        "in-vfork" => {
            let before = state();
            let code = exec.in_child(true, true).1;
            // The tracer has unmapped its stack, which was in this memory, or does so soon.
            until(|| state() == before);
            std::process::exit(code);
        }
        "with-blocked" => {
            block(&[libc::SIGCHLD]);
            exec.run();
        }
        "with-pending" => {
            block(&[libc::SIGUSR1, libc::SIGTRAP]);
            // SAFETY: signals of this process, which are blocked.
            unsafe { (libc::raise(libc::SIGTRAP), libc::kill(libc::getpid(), libc::SIGUSR1)) };
            exec.run();
        }
        "as-the-reaper" => {
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
            exec.run();
        }
        "with-ignored" => {
            [libc::SIGCHLD, libc::SIGTRAP].into_iter().for_each(ignore);
            exec.run();
        }
        "in-a-storm" => {
            ignore(libc::SIGUSR1);
            storm(&[libc::SIGUSR1, libc::SIGSTOP, libc::SIGCONT]);
            exec.run();
        }
        "stopped" => {
            let tracer = exec.accompany();
            stop();
            exec.execute();
            dismiss(tracer);
        }
        "large" => {
            let memory = vec![1u8; 400 << 20];
            let (time, code) = exec.in_child(false, true);
            eprintln!("a caller with {} MiB: {} us", memory.len() >> 20, time.as_micros());
            std::process::exit(code);
        }
        other => in_trouble(other, exec),
    }
}

/// Something goes wrong.
fn in_trouble(way: &str, exec: Exec) {
    match way {
        "in-vain" => {
            let before = state();
            exec.run();
            assert_eq!(before, state());
            exec.run();
        }
        "twice" => {
            let first = exec.accompany();
            println!("{:?}", accompany(&exec.library).map(drop));
            dismiss(first);
            exec.run();
        }
        "killed" => {
            let first = exec.accompany();
            kill_tracer();
            dismiss(first);
            assert_eq!((0, -1), (state().0, state().1));
            let _ = exec.accompany();
            kill_tracer();
            exec.execute();
        }
        // The library's file, a copy that the test has made, is another one at the exec.
        "replaced" => {
            let _tracer = exec.accompany();
            if exec.library.as_c_str() != c"-" {
                std::fs::copy(path(&exec.program[0]), path(&exec.library)).unwrap();
            }
            exec.execute();
        }
        // Another thread executes the program.
        "elsewhere" => {
            let _tracer = exec.accompany();
            std::thread::spawn(move || exec.execute()).join().unwrap();
        }
        "elsewhere-by-leader" => {
            let exec = std::sync::Arc::new(exec);
            let (says, hears) = std::sync::mpsc::channel();
            let other = exec.clone();
            std::thread::spawn(move || {
                says.send(other.accompany().is_some()).unwrap();
                std::thread::sleep(Duration::from_secs(60));
            });
            hears.recv().unwrap();
            exec.execute();
        }
        other => without_rights(other, exec),
    }
}

/// Something refuses: accompany's answer is said, and the program executed without a tracer, if there is none.
fn without_rights(way: &str, exec: Exec) {
    let before = state();
    match way {
        "refused" => {}
        "filtered" => filter(libc::SYS_ptrace, None, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        "killed-by-filter" => filter(libc::SYS_ptrace, None, libc::SECCOMP_RET_KILL_PROCESS),
        "as-nobody" => become_nobody(true),
        "undumpable" => become_nobody(false),
        // In the new program.
        "unwritable" => {
            filter(libc::SYS_process_vm_writev, None, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)
        }
        // After the reservation and the first segment.
        "unmappable" => {
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            filter(libc::SYS_mmap, Some(prot), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        }
        "in-new-namespace" => {
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        }
        other => panic!("no such way: {other}"),
    }
    if exec.library.as_c_str() == c"-" {
        return exec.execute();
    }
    match accompany(&exec.library) {
        Ok(_) => {}
        Err(errno) => {
            println!("{errno:?}");
            assert_eq!(before, state());
        }
    }
    // In the namespace its init must be none of ours.
    if way == "in-new-namespace" {
        std::process::exit(exec.in_child(false, false).1);
    }
    exec.execute();
}

fn become_nobody(is_dumpable: bool) {
    const NOBODY: u32 = 65534;
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(
            (libc::setresgid(NOBODY, NOBODY, NOBODY), libc::setresuid(NOBODY, NOBODY, NOBODY)),
            (0, 0)
        );
        libc::prctl(libc::PR_SET_DUMPABLE, i32::from(is_dumpable));
    }
}

/// Stops this process; a child lets it go on when it has seen that.
fn stop() {
    let (target, path) = (std::process::id(), format!("/proc/{}/stat", std::process::id()));
    let is_stopped =
        || std::fs::read_to_string(&path).is_ok_and(|text| text.contains(") T ") || text.contains(") t "));
    // SAFETY: this process has one thread, so that its child may do anything.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            while !is_stopped() {}
            libc::kill(target as i32, libc::SIGCONT);
            libc::_exit(0);
        }
        libc::raise(libc::SIGSTOP);
        libc::waitpid(child, null_mut(), 0);
    }
}

fn median(mut times: Vec<Duration>) -> u128 {
    times.sort();
    times.get(times.len() / 2).map_or(0, Duration::as_micros)
}

fn measure(exec: &Exec, rounds: usize) {
    let mut times = [const { Vec::new() }; 2];
    for round in 0..2 * rounds {
        let (time, code) = exec.in_child(true, round % 2 == 1);
        assert!(code < 99, "{code}");
        times[round % 2].push(time);
    }
    let [without, with] = times.map(median);
    eprintln!("vfork, exec, wait: median of {rounds}: {without} us without, {with} us with");
    let once = |_| {
        let began = Instant::now();
        let tracer = exec.accompany();
        let time = began.elapsed();
        dismiss(tracer);
        (time, began.elapsed())
    };
    let (begun, ended): (Vec<_>, Vec<_>) = (0..rounds).map(once).unzip();
    eprintln!("accompany: {} us; with dismiss: {} us", median(begun), median(ended));
}

fn main() {
    let words: Vec<CString> = std::env::args().skip(1).map(|word| CString::new(word).unwrap()).collect();
    let [way, library, program @ ..] = words.as_slice() else { panic!("wanted: WAY LIBRARY PROGRAM") };
    let exec = Exec { library: library.clone(), program: program.to_vec() };
    match way.to_str().unwrap() {
        "measure" => measure(&exec, 100),
        way => in_a_way(way, exec),
    }
}
