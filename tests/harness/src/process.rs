//! Starting programs, with a time limit, their output in files, and an end that is certain.

use crate::scratch::{Scratch, send};
use crate::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running program. Dropped, it is asked to end, and made to after a grace period, with all it has started.
pub struct Proc {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Output {
    pub name: String,
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Proc {
    /// Starts a command with its output in files of `scratch`. Standard input stays what the command says, or empty.
    pub fn start(command: &mut Command, name: &str, scratch: &Path) -> Result<Proc> {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let stdout = scratch.join(format!("{serial:03}-{name}.out"));
        let stderr = scratch.join(format!("{serial:03}-{name}.err"));
        command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        // Servers that signal their whole process group at their end (Apache, lighttpd) must not mean us.
        std::os::unix::process::CommandExt::process_group(command, 0);
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => fail!("cannot start {:?}: {error}", command.get_program()),
        };
        Ok(Proc { name: name.to_owned(), child, status: None, stdout, stderr })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.poll().is_none()
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.poll()
    }

    /// Bytes that it has written to both outputs so far.
    pub fn output_len(&self) -> u64 {
        [&self.stdout, &self.stderr].iter().map(|path| path.metadata().map_or(0, |meta| meta.len())).sum()
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Takes the write end of a piped standard input.
    pub fn stdin(&mut self) -> Result<std::process::ChildStdin> {
        self.child.stdin.take().ok_or_else(|| "standard input is not a pipe".into())
    }

    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            send(self.pid(), signal);
        }
    }

    /// What it has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stdout).unwrap_or_default()).into_owned()
    }

    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// Waits until standard output contains `text`.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while !self.stdout_so_far().contains(text) {
            if !self.is_running() && !self.stdout_so_far().contains(text) {
                fail!("{} ended before it said {text:?}: {}", self.name, self.last_words());
            }
            if Instant::now() > end {
                fail!("{} has not said {text:?} within {limit:?}: {}", self.name, self.last_words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until the program listens on a port, without connecting to it.
    pub fn wait_listening(&mut self, port: u16) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(15);
        while !procfs::is_listening_near(self.pid(), port) {
            if !self.is_running() {
                fail!("{} ended before it listened: {}", self.name, self.last_words());
            }
            if Instant::now() > end {
                fail!("{} does not listen on port {port} after 15 s: {}", self.name, self.last_words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for the end; past the limit it is an error, and the program is ended.
    pub fn wait(mut self, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.poll() {
                break status;
            }
            if Instant::now() > end {
                let words = self.last_words();
                fail!("{} has not ended after {limit:?}: {words}", self.name);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stdout = std::fs::read(&self.stdout)?;
        Ok(Output { name: self.name.clone(), status, stdout, stderr: self.stderr_so_far() })
    }

    /// The ends of both outputs on one line.
    pub fn last_words(&self) -> String {
        let stdout = self.stdout_so_far();
        let stderr = self.stderr_so_far();
        format!("stdout {:?} stderr {:?}", tail(&stdout, 300), tail(&stderr, 500))
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        self.status = Some(ExitStatus::default());
    }

    /// SIGTERM, and waits; past the limit it is an error.
    pub fn terminate(self, limit: Duration) -> Result<Output> {
        self.signal(Signal::SIGTERM);
        self.wait(limit)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if self.poll().is_some() {
            return;
        }
        let family = procfs::descendants(self.pid());
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + Duration::from_secs(2);
        while self.poll().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.poll().is_none() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
        for process in family {
            // A number can be given out again, so only the same program is ended.
            if procfs::process(process.pid).is_some_and(|now| now.comm == process.comm) {
                send(process.pid, Signal::SIGKILL);
            }
        }
    }
}

impl Output {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless the program ended with status 0.
    pub fn ok(self) -> Result<Output> {
        if !self.status.success() {
            let stdout = self.text();
            fail!(
                "{} ended with {}: stdout {:?} stderr {:?}",
                self.name,
                self.status,
                tail(&stdout, 300),
                tail(&self.stderr, 500)
            );
        }
        Ok(self)
    }
}

/// At most the last `bytes_max` bytes, cut at a character.
pub fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim()
}

/// Runs a short helper program and returns its standard output.
pub fn output_of(program: impl AsRef<OsStr>, args: &[&str]) -> Result<String> {
    let scratch = Scratch::new("run")?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = Proc::start(&mut command, "run", scratch.path())?.wait(Duration::from_secs(60))?;
    Ok(output.ok()?.text())
}

/// Looks a program up in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// Below those that connections get, so that none of them has a port before its server binds it.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<u16> {
    static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    for _ in 0..PORTS.len() {
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(97).wrapping_add(serial) % PORTS.len() as u32;
        let port = PORTS.start + place as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    fail!("no port of {PORTS:?} is free")
}

/// What a command says; it must end well.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        fail!("{:?} failed: {} {}", command.get_program(), said.trim(), errors.trim());
    }
    Ok(said)
}
