//! The whole of it, once: two programs under `sd run`, a monitor, a connection, a look at its path.

use super::{Check, peer};
use sd_cli::failure::{Context, Failure, Result};
use sd_cli::process::Peer;
use sd_cli::scratch::{PrivateMonitor, Scratch};
use sd_cli::status;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn check() -> Check {
    let name = "self-test";
    match ping_pong() {
        Ok(ns) => {
            Check::ok(name, format!("two programs under sd run: path shm, 8 B there and back in {ns} ns"))
        }
        Err(failure) => {
            let advice = "see the lines above; sd ss shows why a connection uses the kernel";
            Check::fail(name, failure.text, advice)
        }
    }
}

/// Median round trip in nanoseconds; an error unless it went over shared memory.
fn ping_pong() -> Result<u64> {
    let program = std::env::current_exe().context("the path of sd itself")?;
    sd_cli::library::find().map_err(Failure::new)?;
    let scratch = Scratch::new("doctor")?;
    let monitor = PrivateMonitor::start(&program, scratch.path())?;
    let start = |role: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["run", "--no-start", "--monitor"]).arg(monitor.socket()).arg("--").arg(&program);
        command.arg(peer::NAME).args(role);
        Peer::start(&mut command, role[0])
    };
    let mut server = start(&["server"])?;
    let address = server.expect("ready", TIMEOUT)?;
    let mut client = start(&["client", &address])?;
    client.expect("connected", TIMEOUT)?;
    status::require_shm(monitor.socket(), client.pid())?;
    client.say("go")?;
    let ns = client.expect("result", TIMEOUT)?.parse().context("result of a peer")?;
    client.finish(TIMEOUT)?;
    server.finish(TIMEOUT)?;
    Ok(ns)
}
