//! Starting the user's monitor in the background.
//!
//! ```text
//! sd run --fork--> middle --fork--> sd monitor      a session of its own, child of init
//!   |<---pid------ exits
//!   +--connect until it answers, at most 3 s
//! ```
//! The monitor must not be a child of the program that `sd run` becomes, which may wait for any child.
//! Two starters at once are fine: the monitor takes a lock, the second one ends, and both find the first. The second starter goes on when its monitor
//! has ended, so that none comes up later, when the first is gone.

use sd_cli::{client, library, place};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(3);
/// How long another starter's monitor may still take after ours has given way to it.
const TIMEOUT_AFTER_END: Duration = Duration::from_millis(500);

/// How it went.
pub(crate) enum Started {
    Yes,
    /// Why not.
    No(String),
}

/// Starts a monitor at this socket and waits until it answers.
pub(crate) fn start(socket: &Path) -> Started {
    match place::prepare_directory(socket).and_then(|()| spawn(socket).map_err(|error| error.to_string())) {
        Ok(monitor) => wait(socket, &monitor),
        Err(reason) => Started::No(reason),
    }
}

/// The monitor that was started.
struct Ours {
    pid: i32,
    /// Readable when it has ended; none where the kernel has no such thing.
    pidfd: Option<OwnedFd>,
}

impl Ours {
    fn has_ended(&self, timeout: Duration) -> bool {
        let timeout = timeout.as_millis() as i32;
        let ended = |fd: &OwnedFd| sd_sys::fd::poll_one(fd.as_raw_fd(), libc::POLLIN, timeout);
        self.pidfd.as_ref().is_some_and(|fd| ended(fd).is_ok_and(|events| events != 0))
    }
}

/// Starts it detached.
fn spawn(socket: &Path) -> std::io::Result<Ours> {
    let (mut pid_reader, pid_writer) = std::io::pipe()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("monitor").arg("--socket").arg(socket).current_dir("/").stdin(Stdio::null());
    command.env_remove("LD_PRELOAD");
    if let Some(others) = std::env::var_os("LD_PRELOAD").and_then(|v| library::preload_without_ours(&v)) {
        command.env("LD_PRELOAD", others);
    }
    match log(socket) {
        Some(log) => command.stdout(log.try_clone()?).stderr(log),
        None => command.stdout(Stdio::null()).stderr(Stdio::null()),
    };
    let mut writer = Some(File::from(OwnedFd::from(pid_writer)));
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(move || detach(writer.as_mut())) };
    let mut middle = command.spawn()?;
    drop(command);
    middle.wait()?;
    let mut pid = [0u8; 4];
    pid_reader.read_exact(&mut pid)?;
    let pid = i32::from_ne_bytes(pid);
    Ok(Ours { pid, pidfd: sd_sys::fd::pidfd_open(pid).ok().map(sd_monitor::std_fd) })
}

/// In the middle process: leaves the session, forks the monitor, tells its pid and ends. The monitor
/// inherits no descriptor beyond the standard ones, or a reader at the other end would wait for ever.
fn detach(pid_to: Option<&mut File>) -> std::io::Result<()> {
    // SAFETY: plain system calls; the child goes on to exec, the parent ends at once.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => return Err(std::io::Error::last_os_error()),
            0 => {}
            pid => {
                let told = pid_to.is_some_and(|file| file.write_all(&pid.to_ne_bytes()).is_ok());
                libc::_exit(i32::from(!told));
            }
        }
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}

/// A log longer than this is begun anew.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The log beside the socket, if it can be written.
fn log(socket: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(place::log_file(socket)).ok()?;
    let meta = file.metadata().ok()?;
    if meta.is_file() && meta.len() > LOG_BYTES_MAX {
        file.set_len(0).ok()?;
    }
    meta.is_file().then_some(file)
}

/// Waits until somebody answers, or our monitor has ended and nobody else does.
fn wait(socket: &Path, ours: &Ours) -> Started {
    let end = Instant::now() + TIMEOUT;
    let mut give_up = end;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(pid) = client::who_answers(socket) {
            if pid != ours.pid {
                ours.has_ended(TIMEOUT_AFTER_END);
            }
            return Started::Yes;
        }
        let ended = ours.has_ended(Duration::ZERO);
        if ended {
            give_up = give_up.min(Instant::now() + TIMEOUT_AFTER_END);
        }
        if Instant::now() >= give_up {
            return Started::No(last_words(socket, ended));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Why it did not come up, as far as its log says.
fn last_words(socket: &Path, ended: bool) -> String {
    if !ended {
        return format!("it did not answer within {} s", TIMEOUT.as_secs());
    }
    let log = place::log_file(socket);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => line.trim().trim_start_matches("sd: ").to_owned(),
        None => "it ended at once".to_owned(),
    }
}
