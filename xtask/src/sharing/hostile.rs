//! Hostile peers: one process after the other writes anything anywhere in the segments that it shares with a server,
//! while an honest client talks with the same server and checks every byte.

use super::program;
use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::{Result, fail, procfs};
use std::time::{Duration, Instant};

/// A scribbler that its own writes have hung is killed after this.
const LIFE: Duration = Duration::from_secs(3);

pub(super) fn run(lab: &mut Lab, scribblers: u64, seed: u64) -> Result<String> {
    if lab.is_oracle() {
        return Ok("nothing is shared".to_owned());
    }
    let program = program().to_string_lossy().into_owned();
    let start = |args: &[&str]| Proc::start(&mut lab.command(Side::Sd, &program, args)?, args[0], lab.path());
    let mut server = start(&["echo"])?;
    server.wait_for_text("\n", Duration::from_secs(10))?;
    let port = server.stdout_so_far().trim().trim_start_matches("port ").to_owned();
    let chat = |count: &str| start(&["chat", &port, count]);
    chat("200")?.wait(Duration::from_secs(30))?.ok()?;
    let before = procfs::fd_count(server.pid());
    let mut writes = 0;
    for i in 0..scribblers {
        let honest = chat("3000")?;
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(i).to_string();
        let scribbler = start(&["scribbler", &port, &seed])?;
        writes += end_of(scribbler)?;
        honest
            .wait(Duration::from_secs(60))?
            .ok()
            .map_err(|error| format!("beside scribbler {seed}: {error}"))?;
        if !server.is_running() {
            fail!("scribbler {seed} brought the server down: {}", server.last_words());
        }
        lab.snapshot()
            .map_err(|error| format!("after scribbler {seed} the monitor does not answer: {error}"))?;
    }
    await_fds(&server, before)?;
    await_idle(&server)?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("{scribblers} scribblers, {writes} writes"))
}

/// Waits for a scribbler's end, whatever it is; how much it has written, as far as it says.
fn end_of(mut scribbler: Proc) -> Result<u64> {
    let end = Instant::now() + LIFE;
    while scribbler.is_running() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = scribbler.stdout_so_far();
    if said.is_empty() && scribbler.stderr_so_far().contains("no segment") {
        fail!("{}", scribbler.last_words());
    }
    scribbler.kill();
    Ok(said.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// What the hostile connections used is given back.
pub(super) fn await_fds(server: &Proc, before: usize) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while procfs::fd_count(server.pid()) > before {
        if Instant::now() > end {
            let now = procfs::fd_targets(server.pid()).join(" ");
            fail!("the server had {before} descriptors and has now: {now}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// And the server sleeps when nobody talks to it.
pub(super) fn await_idle(server: &Proc) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let before = procfs::cpu_ns(server.pid());
        std::thread::sleep(Duration::from_millis(300));
        if procfs::cpu_ns(server.pid()) == before {
            return Ok(());
        }
        if Instant::now() > end {
            fail!("the server does not come to rest");
        }
    }
}
