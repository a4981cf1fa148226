//! `sd run`: a program with the library in front of it, and a monitor behind.

use crate::starter;
use crate::starter::Started;
use sd_cli::cli::RunOptions;
use sd_cli::failure::{Failure, Result, warn};
use sd_cli::{client, library, place, program};

/// Becomes the program; returns only when that failed.
pub(crate) fn main(options: &RunOptions) -> Result<()> {
    let library = library::find().map_err(own)?;
    let preload = library::preload(&library, std::env::var_os("LD_PRELOAD").as_deref()).map_err(own)?;
    let socket = place::socket(options.monitor.as_deref());
    if let Err(reason) = ensure_monitor(options, &socket) {
        warn(&format!("warning: {reason}; connections go over the kernel"));
    }
    if let Some(reason) = options.command.first().and_then(|name| program::gains_rights(name)) {
        warn(&format!(
            "warning: {} {reason}, so the dynamic linker leaves the library out; connections go over the kernel",
            options.command[0].display()
        ));
    }
    if let Some(name) = options.command.first().filter(|name| program::is_static(name)) {
        warn(&format!(
            "warning: {} is statically linked, so there is no dynamic linker to load the library; connections go over the kernel",
            name.display()
        ));
    }
    program::set_variable("SD_MONITOR", socket.as_os_str());
    program::set_variable("LD_PRELOAD", &preload);
    match program::become_program(&options.command)? {}
}

fn own(text: String) -> Failure {
    Failure::new(text).with_status(125)
}

/// Finds a monitor that suits, or starts one. The error says why there is none.
fn ensure_monitor(options: &RunOptions, socket: &std::path::Path) -> std::result::Result<(), String> {
    let asked = client::is_alike(socket);
    match asked.and_then(|alike| if alike { Ok(None) } else { client::status(socket).map(Some) }) {
        Ok(None) => Ok(()),
        Ok(Some(status)) => match client::foreign_version(&status) {
            None => Ok(()),
            Some(version) => Err(format!(
                "the monitor at {} (process {}) has version {version}, this is {}",
                socket.display(),
                status["pid"],
                env!("CARGO_PKG_VERSION")
            )),
        },
        Err(client::Silence::Absent | client::Silence::Stale) if !options.no_start => {
            match starter::start(socket) {
                Started::Yes => Ok(()),
                Started::No(reason) => Err(format!("no monitor can be started: {reason}")),
            }
        }
        Err(silence) => Err(format!("{}: {silence}", socket.display())),
    }
}
