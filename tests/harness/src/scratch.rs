//! Temporary directories, and the promise that nothing is left behind.
//!
//! Guarantees that at the end of a command (return, error, panic, SIGINT, SIGTERM) every process that descends from
//! it is ended and every `Scratch` directory is gone. It works because this process is a child subreaper: a process
//! whose parent died becomes our child and stays findable. A `kill -9` of this process itself is not covered.

use crate::{Result, procfs};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A private directory that lives as long as this value.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new(purpose: &str) -> Result<Scratch> {
        use std::os::unix::fs::DirBuilderExt;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("sd-{purpose}-{}-{serial}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o755).create(&path)?;
        if let Ok(mut directories) = DIRECTORIES.lock() {
            directories.push(path.clone());
        }
        Ok(Scratch { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        if let Ok(mut directories) = DIRECTORIES.lock() {
            directories.retain(|path| path != &self.path);
        }
    }
}

/// Takes charge of orphans, of Ctrl-C and of panics. To be called once, before any thread or child exists.
pub fn guard() -> Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    // A handler, and not a blocked signal: a mask would be inherited by everything we start.
    // Clients of stress-ng tell their parent by SIGALRM to end; once that is gone, we are the parent.
    // SAFETY: the handler does nothing.
    unsafe { signal(Signal::SIGALRM, SigHandler::Handler(nothing)) }?;
    on_interruption()?;
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        clean();
    }));
    Ok(())
}

extern "C" fn nothing(_: i32) {}

/// Where the handler writes.
static INTERRUPTED: AtomicI32 = AtomicI32::new(-1);

/// Cleans up, in a thread, when a signal asks this process to end.
fn on_interruption() -> Result<()> {
    let (mut told, tells) = std::io::pipe()?;
    INTERRUPTED.store(tells.into_raw_fd(), Ordering::Relaxed);
    for ending in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only writes a byte.
        unsafe { signal(ending, SigHandler::Handler(interrupted)) }?;
    }
    std::thread::spawn(move || {
        if told.read_exact(&mut [0]).is_ok() {
            eprintln!("\ninterrupted, cleaning up");
            clean();
            std::process::exit(130);
        }
    });
    Ok(())
}

extern "C" fn interrupted(_: i32) {
    // SAFETY: write(2) may be called in a handler, and reads one byte.
    unsafe { nix::libc::write(INTERRUPTED.load(Ordering::Relaxed), [0u8].as_ptr().cast(), 1) };
}

/// Ends every descendant and removes every directory.
pub fn clean() {
    end_descendants(Duration::from_secs(1));
    if let Ok(mut directories) = DIRECTORIES.try_lock() {
        for path in directories.drain(..) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Asks every descendant of this process to end, waits for `grace`, then makes it. Returns what was still there.
pub fn end_descendants(grace: Duration) -> Vec<String> {
    end_descendants_but(None, grace)
}

/// As `end_descendants`, and spares one process.
pub fn end_descendants_but(spared: Option<u32>, grace: Duration) -> Vec<String> {
    let others = || {
        let mut all = procfs::descendants(std::process::id());
        all.retain(|process| Some(process.pid) != spared);
        all
    };
    let found = others();
    let names = found.iter().map(|p| format!("{} ({})", p.comm, p.pid)).collect();
    for process in &found {
        send(process.pid, Signal::SIGTERM);
    }
    let end = Instant::now() + grace;
    while Instant::now() < end && !others().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    for process in others() {
        send(process.pid, Signal::SIGKILL);
    }
    names
}

/// Reaps the dead that are this process's since their parents died: each has a pid until then, and a kernel has few. Not while a child of
/// its own is waited for.
pub fn reap_orphans() {
    let next = || waitpid(None, Some(WaitPidFlag::WNOHANG));
    while next().is_ok_and(|status| status != WaitStatus::StillAlive) {}
}

/// Sends a signal to one pid that this process started; that it is gone already is no error.
pub fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid as i32), signal);
}
