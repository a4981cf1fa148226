//! The monitor is replaced, under load, by one of another version, and that by one of ours again: connections go on,
//! new ones are the kernel's meanwhile, and nobody crashes, hangs or spins.

use super::hostile::await_idle;
use super::program;
use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::{Result, fail, ss};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor".to_owned());
    }
    let mut server = start(lab, &["echo"])?;
    server.wait_for_text("\n", Duration::from_secs(10))?;
    let port = server.stdout_so_far().trim().trim_start_matches("port ").to_owned();
    let early = clients(lab, &port, "2000")?;
    std::thread::sleep(Duration::from_millis(30));
    lab.kill_monitor();
    std::fs::remove_file(lab.socket()).ok();
    let mut other = start(lab, &["other-monitor", &lab.socket().to_string_lossy()])?;
    other.wait_for_text("ready", Duration::from_secs(10))?;
    let late = clients(lab, &port, "60")?;
    for client in early.into_iter().chain(late) {
        client.wait(LIMIT)?.ok()?;
    }
    await_idle(&server).map_err(|error| format!("with a monitor of another version: {error}"))?;
    let asked = other.stdout_so_far().lines().count().saturating_sub(1);
    if asked == 0 {
        fail!("nobody has asked the other monitor");
    }
    other.kill();
    std::fs::remove_file(lab.socket()).ok();
    lab.start_monitor()?;
    comes_back(lab, &port)?;
    await_idle(&server)?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("the other monitor was asked {asked} times"))
}

fn start(lab: &Lab, args: &[&str]) -> Result<Proc> {
    Proc::start(&mut lab.command(Side::Sd, &program().to_string_lossy(), args)?, args[0], lab.path())
}

fn clients(lab: &Lab, port: &str, count: &str) -> Result<Vec<Proc>> {
    (0..4).map(|_| start(lab, &["chat", port, count])).collect()
}

/// The server registers with the new monitor, and clients find it there.
fn comes_back(lab: &Lab, port: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while lab.snapshot()?.listeners.is_empty() {
        if Instant::now() > end {
            fail!("the server does not come back to a monitor of its version");
        }
        // It notices when it waits.
        start(lab, &["chat", port, "1"])?.wait(LIMIT)?.ok()?;
    }
    let watch = lab.watch_every(port.parse()?, Duration::from_millis(5));
    start(lab, &["chat", port, "5000"])?.wait(LIMIT)?.ok()?;
    match watch {
        Some(watch) => ss::require_shm(&watch.finish()?),
        None => Ok(()),
    }
}
