//! `sd pump`, hidden: a process that carries the connections of a monitor which was told to use one (`sd_pump`).

use sd_cli::cli::PumpOptions;
use sd_cli::failure::{Failure, Result};
use sd_cli::place;
use std::path::Path;
use std::process::{Command, Stdio};
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
    for _ in 0..TRIES {
        match sd_pump::run(&socket) {
            Err(sd_pump::Error::System("reach the monitor", _)) => std::thread::sleep(PAUSE),
            done => return done.map_err(|error| Failure::new(error.to_string())),
        }
    }
    Err(Failure::new(format!("no monitor answers at {}", socket.display())))
}

/// Starts one for a monitor that is about to listen there.
pub(crate) fn start(socket: &Path) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("pump").arg("--socket").arg(socket).stdin(Stdio::null()).env_remove("LD_PRELOAD");
    command.spawn().map(drop).map_err(|error| Failure::new(format!("the pump cannot be started: {error}")))
}

/// Four descriptors for each two channels.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes and then reads one limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
