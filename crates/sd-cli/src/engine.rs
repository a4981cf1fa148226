//! `sd engine`, hidden: a process that carries promoted connections to other hosts (`sd_engine`).

use crate::pump;
use sd_cli::cli::EngineOptions;
use sd_cli::failure::{Failure, Result};
use sd_cli::place;
use sd_engine::Hosts;
use sd_proto::ErrorCode;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// A monitor that has just been started is waited for so often.
const TRIES: u32 = 500;
/// The engine of a monitor that is gone carries on, and comes back to the next: its place is free only when it has ended. Where that cannot be waited
/// for, it is looked for so often.
const LONG_PAUSE: Duration = Duration::from_millis(200);

/// Memory of so many bytes has a mapping of its own.
const MAPPED_MIN: libc::c_int = 64 << 10;

/// Runs until it is ended.
pub(crate) fn main(options: &EngineOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    pump::raise_descriptor_limit();
    pump::unblock_signals();
    sd_monitor::start_log();
    // Buffers of trunks are large, and of most hosts hardly used: what has a mapping of its own costs the pages that were written.
    // SAFETY: no pointers.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN) };
    let hosts = read(&options.hosts)?;
    // SAFETY: no pointers but to a constant.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sd-engine".as_ptr()) };
    let parent = std::os::unix::process::parent_id();
    let mut tries = 0;
    // Whose monitor is gone is not needed; its successor has one of its own.
    while std::os::unix::process::parent_id() == parent {
        use sd_pump::control::Error::{Refused, System};
        match sd_engine::run(&socket, hosts.clone(), parent) {
            Err(sd_engine::Error::Listen(_, error)) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if !await_place(parent, hosts.listen) {
                    std::thread::sleep(LONG_PAUSE);
                }
                continue;
            }
            Err(sd_engine::Error::Control(
                System("reach the monitor", _) | Refused(Some(ErrorCode::InUse)),
            )) if tries < TRIES => {
                std::thread::sleep(PAUSE);
            }
            Ok(sd_engine::Ended::Asked) => {
                end_as_asked();
                return Ok(());
            }
            done => return done.map(|_| ()).map_err(|error| Failure::new(error.to_string())),
        }
        tries += 1;
    }
    Ok(())
}

/// By the signal that has asked for it: who has started this engine starts another ([`pump::keep`]).
fn end_as_asked() {
    pump::unblock_signals();
    // SAFETY: no pointers; nobody handles the signal.
    unsafe { libc::raise(libc::SIGTERM) };
}

/// Waits for the end of the engine at that address; meanwhile this process ends with its monitor. False: that one cannot be found.
fn await_place(parent: u32, listen: std::net::SocketAddr) -> bool {
    let end_with_parent = |signal: libc::c_int| {
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) }
    };
    end_with_parent(libc::SIGTERM);
    // It may have ended just before.
    let has_ended = std::os::unix::process::parent_id() == parent && sd_engine::await_end(listen);
    end_with_parent(0);
    has_ended
}

/// Starts one for a monitor that is about to listen there.
pub(crate) fn start(socket: &Path, hosts: &Path) -> Result<()> {
    read(hosts)?;
    let (socket, hosts) = (socket.to_owned(), hosts.to_owned());
    pump::keep("engine", move || {
        let mut command = Command::new("/proc/self/exe");
        command.arg("engine").arg("--socket").arg(&socket).arg("--hosts").arg(&hosts);
        command
    })
}

fn read(path: &Path) -> Result<Hosts> {
    Hosts::read(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
