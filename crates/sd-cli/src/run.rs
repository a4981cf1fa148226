//! `sd run`: a program with the library in front of it, and a monitor behind.

use crate::starter;
use crate::starter::Started;
use sd_attach::Tracer;
use sd_attach::loader::Loader;
use sd_cli::cli::RunOptions;
use sd_cli::failure::{Failure, Result, warn};
use sd_cli::program::{self, Executed};
use sd_cli::{client, library, place};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Becomes the program; returns only when that failed.
pub(crate) fn main(options: &RunOptions) -> Result<()> {
    let library = library::find().map_err(own)?;
    let preload = library::preload(&library, std::env::var_os("LD_PRELOAD").as_deref()).map_err(own)?;
    let socket = place::socket(options.monitor.as_deref());
    if let Err(reason) = ensure_monitor(options, &socket) {
        warn(&format!("warning: {reason}; connections go over the kernel"));
    }
    let name = options.command.first();
    let found = name.and_then(|name| Executed::of(name));
    let rights = found.as_ref().and_then(Executed::gains_rights);
    if let (Some(name), Some(reason)) = (name, rights) {
        warn(&format!(
            "warning: {} {reason}, so the library is left out; connections go over the kernel",
            name.display()
        ));
    }
    program::set_variable("SD_MONITOR", socket.as_os_str());
    program::set_variable("LD_PRELOAD", &preload);
    let company = found
        .filter(|found| rights.is_none() && found.is_without_libc())
        .and_then(|found| accompany(name?, &found, &library));
    let by = match &company {
        Some(Company::Loader(loader, file)) => Some((loader, file.as_c_str())),
        _ => None,
    };
    let failure = program::become_program(&options.command, by);
    if let Some(Company::Tracer(tracer)) = company {
        tracer.dismiss();
    }
    match failure? {}
}

/// Brings the library into a static program.
enum Company {
    Tracer(Tracer),
    /// With the library's file.
    Loader(Loader, CString),
}

/// No dynamic linker will load the library into a static program: has it brought there, or says why not.
fn accompany(name: &OsStr, program: &Executed, library: &Path) -> Option<Company> {
    let reason = match program.can_be_led() {
        Err(reason) => format!("is statically linked, {reason}"),
        Ok(()) => {
            let path = library.with_file_name(OsStr::from_bytes(sd_attach::FILE.to_bytes()));
            let text = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
            let errno = match sd_attach::accompany(&text) {
                Ok(tracer) => return Some(Company::Tracer(tracer)),
                Err(errno) => errno,
            };
            if let Some(loader) = program.load_by(&text) {
                return Some(Company::Loader(loader, text));
            }
            let error = std::io::Error::from_raw_os_error(errno.0);
            format!("is statically linked, and {} cannot be brought into it: {error}", path.display())
        }
    };
    warn(&format!("warning: {} {reason}; connections go over the kernel", name.display()));
    None
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
