//! Processes, signals and time.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use super::{Ret, errno, errno_name, give_up, pause, signal_name, sleep};

pub(crate) fn alarm(seconds: u32) {
    call!(libc::alarm(seconds));
}

/// Leaves the process without running anything else.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

pub(crate) fn signal(number: i32, action: usize) -> Ret {
    // SAFETY: callers pass SIG_IGN or SIG_DFL.
    let old = unsafe { libc::signal(number, action) };
    Ret::of(old as i64)
}

/// Installs a handler.
pub(crate) fn handle(number: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: all-zero bytes are a valid sigaction: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    call!(libc::sigaction(number, &raw const action, std::ptr::null_mut()));
}

static COUNTS: [AtomicU32; 65] = [const { AtomicU32::new(0) }; 65];

extern "C" fn count(number: i32) {
    COUNTS[number as usize].fetch_add(1, Ordering::Relaxed);
}

/// The address of the handler that counts, see [`taken`].
pub(crate) fn counter() -> usize {
    count as *const () as usize
}

/// Counts a signal from now on. Without `SA_RESTART` in `flags` it interrupts calls.
pub(crate) fn count_signal(number: i32, flags: i32) {
    COUNTS[number as usize].store(0, Ordering::Relaxed);
    handle(number, count, flags);
}

/// How often a counted signal came since the last question.
pub(crate) fn taken(number: i32) -> u32 {
    COUNTS[number as usize].swap(0, Ordering::Relaxed)
}

/// Whether a counted signal has come since the last question, or comes within two seconds.
pub(crate) fn comes(number: i32) -> bool {
    (0..2000).any(|_| {
        pause(1);
        taken(number) > 0
    })
}

/// Prints how often a counted signal came since the last question.
pub(crate) fn show_taken(number: i32) {
    say!("{} count {}", signal_name(number), taken(number));
}

/// From now on a signal comes to this process every so many microseconds.
pub(crate) fn every(number: i32, microseconds: i64) {
    // SAFETY: all-zero bytes are valid for each of these.
    let (mut event, mut time): (libc::sigevent, libc::itimerspec) = unsafe { (mem::zeroed(), mem::zeroed()) };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, number);
    let mut timer = std::ptr::null_mut();
    call!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer));
    time.it_interval.tv_nsec = microseconds * 1000;
    time.it_value = time.it_interval;
    call!(libc::timer_settime(timer, 0, &raw const time, std::ptr::null_mut()));
}

pub(crate) fn signal_set(numbers: &[i32]) -> libc::sigset_t {
    // SAFETY: all-zero bytes are an empty sigset_t.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    for number in numbers {
        call!(libc::sigaddset(&raw mut set, *number));
    }
    set
}

/// Blocks or unblocks one signal in this thread.
pub(crate) fn block_signal(number: i32, blocked: bool) {
    let set = signal_set(&[number]);
    let how = if blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    call!(libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()));
}

pub(crate) fn kill(pid: i32, number: i32) -> Ret {
    call!(libc::kill(pid, number))
}

pub(crate) fn unshare(flags: i32) -> Ret {
    call!(libc::unshare(flags))
}

pub(crate) fn setns(fd: i32, kind: i32) -> Ret {
    call!(libc::setns(fd, kind))
}

pub(crate) fn getpid() -> i32 {
    call!(libc::getpid()).fd()
}

/// Sends SIGUSR1 to the thread that made it, again and again, until it is dropped.
pub(crate) struct Pinger {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pinger {
    /// Starts at once, one signal every three milliseconds.
    pub(crate) fn start() -> Pinger {
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let target = current_thread();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                pause(3);
                call!(super::pthread_kill(target, libc::SIGUSR1));
            }
        });
        Pinger { done, thread: Some(thread) }
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends five SIGUSR1 to this thread from another one, and then does something else there.
pub(crate) fn ping_then(action: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let target = current_thread();
    std::thread::spawn(move || {
        for _ in 0..5 {
            sleep(4);
            call!(super::pthread_kill(target, libc::SIGUSR1));
        }
        sleep(4);
        action();
    })
}

fn current_thread() -> super::ThreadId {
    // SAFETY: pthread_self has no preconditions. The targets outlive the threads that signal them: both are joined.
    unsafe { super::pthread_self() }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Forks; the child runs `body` and exits with what it returns. It dies with its parent and has its own watchdog.
pub(crate) fn fork_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: subjects fork while no other thread of theirs runs, or the child only makes system calls.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => give_up(&format!("fork failed: {}", errno_name(errno()))),
        0 => {
            call!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL));
            alarm(9);
            exit_now(body())
        }
        pid => pid,
    }
}

/// Stops a child, and waits until it has stopped.
pub(crate) fn stop(pid: i32) {
    kill(pid, libc::SIGSTOP);
    call!(libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED));
}

/// Waits for a child and says how it ended.
pub(crate) fn wait_child(pid: i32) -> String {
    let mut status = 0;
    loop {
        let result = call!(libc::waitpid(pid, &raw mut status, 0));
        match result.ok() {
            true if libc::WIFEXITED(status) => return format!("exit {}", libc::WEXITSTATUS(status)),
            true => return format!("killed by {}", signal_name(libc::WTERMSIG(status))),
            false if result.errno == libc::EINTR => {}
            false => return result.to_string(),
        }
    }
}
