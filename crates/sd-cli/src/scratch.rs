//! A directory of a command's own, and a monitor in it; both gone afterwards.

use crate::client;
use crate::failure::{Context, Failure, Result};
use crate::process::{die_with_us, wait};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A path longer than this leaves no room for a socket's name in it.
const PATH_LEN_MAX: usize = 80;

/// Removed with everything in it when dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A fresh directory that only this user can enter, named after what it is for.
    pub fn new(purpose: &str) -> Result<Scratch> {
        let mut base = std::env::temp_dir();
        if base.as_os_str().len() > PATH_LEN_MAX - 30 {
            base = PathBuf::from("/tmp");
        }
        for attempt in 0..1000 {
            let path = base.join(format!("sd-{purpose}-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).context(path.display()),
            }
        }
        Err(Failure::new(format!("{}: no free name for a directory", base.display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A monitor that ends with the command. Where connections can be on shared memory they are from their first byte: it promotes nothing.
pub struct PrivateMonitor {
    child: Child,
    socket: PathBuf,
}

impl PrivateMonitor {
    /// Starts it and waits until it answers.
    pub fn start(program: &Path, folder: &Path) -> Result<PrivateMonitor> {
        PrivateMonitor::start_with(program, folder, &[])
    }

    /// The same, with more arguments.
    pub fn start_with(program: &Path, folder: &Path, args: &[String]) -> Result<PrivateMonitor> {
        let socket = folder.join("monitor.sock");
        let log = folder.join("monitor.err");
        let errors = std::fs::File::create(&log).context(log.display())?;
        let mut command = Command::new(program);
        command
            .args(["monitor", "--promote=off", "--socket"])
            .arg(&socket)
            .args(args)
            .env_remove("LD_PRELOAD");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        die_with_us(&mut command);
        let child = command.spawn().context("the monitor")?;
        let mut monitor = PrivateMonitor { child, socket };
        let end = Instant::now() + Duration::from_secs(3);
        while !client::answers(&monitor.socket) {
            let ended = monitor.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > end {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let last = text.lines().last().unwrap_or("no word from it").trim_start_matches("sd: ");
                return Err(Failure::new(format!("the monitor does not start: {last}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(monitor)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for PrivateMonitor {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for yet, so the id is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        if wait(&mut self.child, Duration::from_secs(2)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
