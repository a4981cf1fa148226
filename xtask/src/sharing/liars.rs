//! Peers that tell one lie each, at the worst moment, and are killed: whoever waits for them learns that they are gone.

use super::hostile::{await_fds, await_idle};
use super::{served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, procfs, retry};
use std::time::Duration;

/// Lies for both servers: for one that sleeps in epoll_wait, and one that sleeps in read.
const LIES: [&str; 5] = ["closed", "free", "finished", "unfinished", "asking"];
/// Only the first can be made to wait for room.
const PLAYS: [(&str, &[&str]); 3] = [("echo", &LIES), ("echo", &["closed-and-full"]), ("sink", &LIES)];

/// A sleeper that is not woken by then sleeps for ever.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("nothing is shared".to_owned());
    }
    let mut told = 0;
    for (server, lies) in PLAYS {
        for lie in lies {
            tell(lab, server, lie).map_err(|error| format!("{lie}, to {server}: {error}"))?;
            told += 1;
        }
    }
    Ok(format!("{told} lies"))
}

/// A peer that takes away what wakes a server: others' connections with it do not notice.
pub(super) fn eaten_wake_ups(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("nothing is shared".to_owned());
    }
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let mut eater = start(lab, Side::Sd, &["eater", &port])?;
    eater.wait_for_text("eventfds", TIMEOUT)?;
    // After three seconds of quiet the server sleeps without a timer, which would help it.
    start(lab, Side::Sd, &["chat", &port, "4", "3500"])?.wait(Duration::from_secs(60))?.ok()?;
    let said = eater.stdout_so_far().trim().to_owned();
    eater.kill();
    server.terminate(TIMEOUT)?;
    Ok(said)
}

/// One server, one liar: all that its connection used is given back, and a thread that slept in read(2) has returned.
fn tell(lab: &Lab, server: &str, lie: &str) -> Result<()> {
    let (serving, port) = served(start(lab, Side::Sd, &[server])?)?;
    let mut before = Vec::new();
    for round in 1..=3 {
        let said = start(lab, Side::Sd, &["liar", &port, lie])?.wait(Duration::from_secs(30))?;
        if !said.stderr.is_empty() {
            fail!("the liar could not: {}", said.stderr);
        }
        if server == "sink" {
            await_ends(&serving, round)?;
        }
        if round == 1 {
            // A process keeps some of what its first connection needed.
            await_idle(&serving)?;
            before = procfs::fd_targets(serving.pid());
        }
    }
    await_fds(&serving, &before)?;
    await_idle(&serving)?;
    serving.terminate(TIMEOUT)?;
    Ok(())
}

fn await_ends(sink: &Proc, wanted: usize) -> Result<()> {
    retry(TIMEOUT, || {
        if sink.stdout_so_far().matches("end after").count() < wanted {
            fail!("a thread of the server still sleeps in read: {}", sink.stdout_so_far());
        }
        Ok(())
    })
}
