//! `sd monitor`: the monitor in the foreground.

use crate::cli::MonitorOptions;
use crate::failure::{Failure, Result};
use crate::place;
use std::path::PathBuf;

/// Runs until it is told to end.
pub(crate) fn main(options: MonitorOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    // A reader of the log who goes away must not take the monitor along.
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // Its own file, also when another one has taken the name.
    let helper = Some("/proc/self/exe".into());
    sd_monitor::run(sd_monitor::Options { socket, policy: options.policy, helper })
        .map_err(|error| Failure::new(error.to_string()))
}

/// The user's own place.
pub(crate) fn default_socket() -> PathBuf {
    sd_monitor::default_socket_path()
}

/// Makes a directory for a socket.
pub(crate) fn make_directory(folder: &std::path::Path) -> std::io::Result<()> {
    sd_monitor::make_socket_directory(folder)
}
