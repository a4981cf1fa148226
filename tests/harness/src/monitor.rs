//! A monitor of a test's own.

use crate::process::Proc;
use crate::{Result, fail, ss};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one may take to answer for the first time, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running monitor; it ends when this is dropped.
pub struct Monitor {
    process: Proc,
    socket: PathBuf,
}

impl Monitor {
    /// Starts `sd monitor` at this socket, its output in files of `folder`, and waits until it answers.
    pub fn start<A: AsRef<OsStr>>(sd: &Path, socket: &Path, args: &[A], folder: &Path) -> Result<Monitor> {
        let mut command = Command::new(sd);
        command.arg("monitor").arg("--socket").arg(socket).args(args);
        Monitor::start_command(&mut command, sd, socket, folder)
    }

    /// As `start`, by a command that does that in its own way.
    pub fn start_command(command: &mut Command, sd: &Path, socket: &Path, folder: &Path) -> Result<Monitor> {
        let process = Proc::start(command.stdin(Stdio::null()), "monitor", folder)?;
        let mut monitor = Monitor { process, socket: socket.to_owned() };
        let end = Instant::now() + PATIENCE;
        while let Err(error) = ss::snapshot(sd, socket) {
            if !monitor.process.is_running() || Instant::now() > end {
                fail!("the monitor does not answer ({error}): {}", monitor.process.last_words());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The descriptor of the question itself is closed a moment after the answer.
        std::thread::sleep(Duration::from_millis(50));
        Ok(monitor)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn process(&mut self) -> &mut Proc {
        &mut self.process
    }

    /// `kill -9`.
    pub fn kill(self) {
        self.process.kill();
    }

    /// SIGTERM; it must end well, and take its socket away.
    pub fn terminate(self) -> Result<()> {
        self.process.terminate(Duration::from_secs(5))?.ok()?;
        if self.socket.exists() {
            fail!("the monitor left its socket file behind");
        }
        Ok(())
    }
}
