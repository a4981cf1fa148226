//! Connections that are moved, and processes that let go of them.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Args)]
pub struct DemoteOptions {
    /// A process, or the name of one end of a connection, ADDRESS:PORT or :PORT; without it all
    #[arg(value_name = "PID|NAME", value_parser = demoted)]
    pub what: Option<Demoted>,
    /// Now, as before a checkpoint: what lies in shared memory comes through the kernel again
    #[arg(long)]
    pub at_once: bool,
    /// Wait so many seconds until they have gone back; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub timeout: u64,
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Args)]
pub struct AttachOptions {
    #[arg(value_name = "PID", required = true)]
    pub pids: Vec<u32>,
}

#[derive(Args)]
pub struct DetachOptions {
    #[arg(value_name = "PID", required = true)]
    pub pids: Vec<u32>,
    /// Wait so many seconds until they have done it
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub timeout: u64,
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Which connections are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demoted {
    /// Of a process.
    Process(u32),
    /// With this name at one end; an unspecified address stands for any.
    Name(SocketAddr),
}

fn demoted(text: &str) -> std::result::Result<Demoted, String> {
    if let Ok(pid @ 1..) = text.parse() {
        return Ok(Demoted::Process(pid));
    }
    let name = text.strip_prefix(':').map_or(text.to_owned(), |port| format!("0.0.0.0:{port}"));
    match name.parse::<SocketAddr>() {
        Ok(name) if name.port() != 0 => Ok(Demoted::Name(name)),
        _ => Err("must be a process id, ADDRESS:PORT or :PORT".to_owned()),
    }
}
