//! `sd pump`, hidden: a process that carries the connections of a monitor which was told to use one (`sd_pump`).

use sd_cli::cli::PumpOptions;
use sd_cli::failure::{Failure, Result};
use sd_cli::place;
use sd_proto::ErrorCode;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A monitor that has just been started is waited for so often, and so long.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Runs until the monitor has ended, and all that is carried.
pub(crate) fn main(options: &PumpOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    raise_descriptor_limit();
    unblock_signals();
    for _ in 0..TRIES {
        match sd_pump::run(&socket) {
            Err(sd_pump::Error::System("reach the monitor", _)) => std::thread::sleep(PAUSE),
            // It has not heard yet that the one before is gone.
            Err(sd_pump::Error::Refused(Some(ErrorCode::InUse))) => std::thread::sleep(PAUSE),
            done => return done.map_err(|error| Failure::new(error.to_string())),
        }
    }
    Err(Failure::new(format!("no monitor answers at {}", socket.display())))
}

/// Starts one for a monitor that is about to listen there, and another one whenever that was killed.
pub(crate) fn start(socket: &Path) -> Result<()> {
    let socket = socket.to_owned();
    keep("pump", move || {
        let mut command = Command::new("/proc/self/exe");
        command.arg("pump").arg("--socket").arg(&socket);
        command
    })
}

/// Starts a process of the monitor's, and another one whenever that was killed.
pub(crate) fn keep(name: &str, command: impl Fn() -> Command + Send + 'static) -> Result<()> {
    let spawn = move || command().stdin(Stdio::null()).env_remove("LD_PRELOAD").spawn();
    let started: std::io::Result<Child> = spawn();
    let mut child =
        started.map_err(|error| Failure::new(format!("the {name} cannot be started: {error}")))?;
    // The signals that end the monitor are for its own thread.
    // SAFETY: a set is plain numbers, of which zeros are valid.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are valid; the second is written.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
    }
    std::thread::spawn(move || {
        while let Ok(status) = child.wait()
            && status.code().is_none()
        {
            std::thread::sleep(PAUSE);
            match spawn() {
                Ok(next) => child = next,
                Err(_) => return,
            }
        }
    });
    // SAFETY: the set is what the line above has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    Ok(())
}

/// One that was started by a thread with blocked signals (see [`keep`]) is to end by them all the same.
pub(crate) fn unblock_signals() {
    // SAFETY: a set is plain numbers; both pointers are valid.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Four descriptors for each two channels.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes and then reads one limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
