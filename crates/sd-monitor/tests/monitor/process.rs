//! Processes that can be killed.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid};
use std::io::{Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A forked process, killed when dropped.
pub(crate) struct Process {
    pid: Option<Pid>,
    ready: std::io::PipeReader,
}

impl Process {
    /// Forks a process that does `work` and then waits to be killed.
    pub(crate) fn fork(work: impl FnOnce(&mut dyn FnMut())) -> Process {
        let (ready, mut tell) = pipe().unwrap();
        // SAFETY: the child uses nothing whose lock another thread may have held, but for malloc,
        // which glibc makes usable after fork.
        match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Parent { child } => Process { pid: Some(child), ready },
            ForkResult::Child => {
                drop(ready);
                let mut ready = || tell.write_all(&[1]).unwrap();
                let done = catch_unwind(AssertUnwindSafe(|| work(&mut ready)));
                if done.is_ok() {
                    std::thread::sleep(Duration::from_secs(60));
                }
                // SAFETY: ends the process without running anything of the test harness.
                unsafe { libc::_exit(1) }
            }
        }
    }

    /// Waits for the process to call the function it was given.
    pub(crate) fn wait_ready(&mut self) {
        self.ready.read_exact(&mut [0]).expect("the process failed");
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.unwrap().as_raw()
    }

    /// Whether it sleeps, interruptibly.
    pub(crate) fn is_asleep(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
    }

    /// kill -9; afterwards nothing is left of it, not even a zombie.
    pub(crate) fn kill(&mut self) {
        if let Some(pid) = self.pid.take() {
            kill(pid, Signal::SIGKILL).unwrap();
            waitpid(pid, None).unwrap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
