//! `sd monitor`: the monitor in the foreground.

use crate::cli::MonitorOptions;
use crate::failure::{Failure, Result};
use crate::place;
use std::path::PathBuf;

/// Runs until it is told to end.
#[cfg(feature = "monitor")]
pub(crate) fn main(options: MonitorOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    sd_monitor::run(sd_monitor::Options { socket, policy: options.policy })
        .map_err(|error| Failure::new(error.to_string()))
}

/// The user's own place.
#[cfg(feature = "monitor")]
pub(crate) fn default_socket() -> PathBuf {
    sd_monitor::default_socket_path()
}

#[cfg(not(feature = "monitor"))]
pub(crate) fn main(options: MonitorOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    Err(Failure::new(format!("{}: built without the monitor {:?}", socket.display(), options.policy)))
}

#[cfg(not(feature = "monitor"))]
pub(crate) fn default_socket() -> PathBuf {
    let uid = unsafe { libc::getuid() };
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("socksdirect/monitor.sock"),
        None => PathBuf::from(format!("/tmp/socksdirect-{uid}/monitor.sock")),
    }
}
