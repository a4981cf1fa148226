//! Programs that a command starts, talks to line by line, and ends, each by its own process id.

use crate::failure::{Context, Failure, Result};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt ends the command in order: programs ended, directory removed.
pub fn note_signals() {
    extern "C" fn note(_signal: i32) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(i32) = note;
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// An error once the user has asked for the end.
pub fn check_interrupt() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        Err(Failure::new("interrupted").with_status(130))
    } else {
        Ok(())
    }
}

/// A running program. It is killed when this is dropped, or when this process dies.
pub struct Peer {
    child: Child,
    name: String,
    unread: Vec<u8>,
}

impl Peer {
    /// Starts it with pipes to all its standard descriptors.
    pub fn start(command: &mut Command, name: impl Into<String>) -> Result<Peer> {
        let name = name.into();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_us(command);
        let child = command.spawn().context(&name)?;
        Ok(Peer { child, name, unread: Vec::new() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line it prints, without its prefix `word` and a space.
    pub fn expect(&mut self, word: &str, limit: Duration) -> Result<String> {
        let line = self.line(limit)?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(Failure::new(format!("{}: said {line:?} instead of {word:?}", self.name))),
        }
    }

    /// Sends it a line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let Some(input) = &mut self.child.stdin else { return Err(self.failure("its input is closed")) };
        // All at once: a peer must not find a part of it and take the rest for another word.
        let written = input.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| self.failure(&error.to_string()))
    }

    /// Closes its standard input.
    pub fn hang_up(&mut self) {
        self.child.stdin = None;
    }

    /// Waits for a good end.
    pub fn finish(mut self, limit: Duration) -> Result<()> {
        self.hang_up();
        match wait(&mut self.child, limit) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failure(&status.to_string())),
            None => Err(self.failure("does not end")),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=at).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            check_interrupt()?;
            let Some(out) = &mut self.child.stdout else { return Err(Failure::new("no pipe")) };
            let left = end.saturating_duration_since(Instant::now());
            let ready = sd_sys::fd::poll_one(out.as_raw_fd(), libc::POLLIN, left.as_millis() as i32);
            if ready == Ok(0) && left.is_zero() {
                return Err(self.failure("does not answer"));
            }
            if ready.is_ok_and(|events| events != 0) {
                let mut buf = [0u8; 4096];
                match out.read(&mut buf) {
                    Ok(0) | Err(_) => return Err(self.ended()),
                    Ok(n) => self.unread.extend_from_slice(&buf[..n]),
                }
            }
        }
    }

    fn ended(&mut self) -> Failure {
        if let Err(interrupted) = check_interrupt() {
            return interrupted;
        }
        let status = wait(&mut self.child, Duration::from_secs(1));
        self.failure(&status.map_or("closed its output".to_owned(), |status| status.to_string()))
    }

    /// What went wrong, with the last line that it wrote to standard error.
    fn failure(&mut self, what: &str) -> Failure {
        let _ = self.child.kill();
        let mut text = Vec::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = errors.read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.map(|line| line.trim().trim_start_matches("sd: ")).unwrap_or(what);
        Failure::new(format!("{}: {last}", self.name))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program is killed when this one dies, however that happens.
pub fn die_with_us(command: &mut Command) {
    let kill_with_parent = || {
        // SAFETY: integer arguments only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(kill_with_parent) };
}

/// Waits at most so long.
pub fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(100);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(pause),
            _ => return None,
        }
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
