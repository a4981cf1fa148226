//! A monitor of a test's own.

use crate::network::Network;
use crate::process::Proc;
use crate::{Result, fail, ss};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one may take to answer for the first time, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// For a monitor of tests that are about connections which are on shared memory from their first byte, unless they say otherwise: it
/// promotes nothing, so the first connections of a process are as the others.
pub fn from_the_first_byte<'a>(args: &[&'a OsStr]) -> Option<&'a OsStr> {
    let is_about_it = |arg: &&OsStr| arg.as_encoded_bytes().starts_with(b"--promote");
    (!args.iter().any(is_about_it)).then_some(OsStr::new("--promote=off"))
}

/// A running monitor; it ends when this is dropped.
pub struct Monitor {
    process: Proc,
    socket: PathBuf,
}

impl Monitor {
    /// Starts `sd monitor` at this socket, its output in files of `folder`, and waits until it answers.
    pub fn start<A: AsRef<OsStr>>(sd: &Path, socket: &Path, args: &[A], folder: &Path) -> Result<Monitor> {
        Monitor::start_on(None, sd, socket, args, folder)
    }

    /// As `start`, in this network.
    pub fn start_on<A: AsRef<OsStr>>(
        network: Option<&Network>,
        sd: &Path,
        socket: &Path,
        args: &[A],
        folder: &Path,
    ) -> Result<Monitor> {
        let mut command = Command::new(sd);
        command.arg("monitor").arg("--socket").arg(socket).args(args).stdin(Stdio::null());
        network.map_or(Ok(()), |network| network.host(&mut command))?;
        let process = Proc::start(&mut command, "monitor", folder)?;
        let mut monitor = Monitor { process, socket: socket.to_owned() };
        let end = Instant::now() + TIMEOUT;
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

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.stderr_so_far()
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
