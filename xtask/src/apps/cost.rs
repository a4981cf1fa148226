//! What connections cost when nothing happens: processor time and shared memory.

use super::{Scenario, python};
use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::{Result, fail, procfs};
use std::process::Stdio;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("idle-100-clients-cpu", &["python3", "nc"], idle_cpu).slow(),
    Scenario::new("idle-2000-connections-memory", &["python3"], memory).slow().limit_s(120),
];

const LIMIT: Duration = Duration::from_secs(60);

/// 50 clients in one process, 50 in a process each; with server and monitor under 1 % of a core over 10 s.
fn idle_cpu(lab: &mut Lab) -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(10);
    let (server, port) = python::start_echo_server(lab, Side::Sd, "asyncio")?;
    let watch = lab.watch(port);
    let args = [port.to_string(), "50".to_owned(), "100".to_owned()];
    let mut many = python::start(lab, Side::Sd, "idle_client.py", &args)?;
    many.wait_for_text("ready", LIMIT)?;
    let mut singles = Vec::new();
    for _ in 0..50 {
        let mut command = lab.command(Side::Sd, "nc", &["127.0.0.1", &port.to_string()])?;
        singles.push(Proc::start(command.stdin(Stdio::piped()), "nc", lab.path())?);
    }
    std::thread::sleep(Duration::from_secs(1));
    lab.check(watch, Side::Sd, Side::Sd)?;
    let mut pids = vec![server.pid(), many.pid()];
    pids.extend(singles.iter().map(Proc::pid));
    pids.extend(lab.monitor_pid());
    if let Some(pid) = pids.iter().find(|pid| !procfs::is_alive(**pid)) {
        fail!("process {pid} is gone");
    }
    let time = || pids.iter().map(|&pid| procfs::cpu_ns(pid)).sum::<u64>();
    let before = time();
    std::thread::sleep(WINDOW);
    let used = time() - before;
    let share = used as f64 / WINDOW.as_nanos() as f64;
    eprintln!("idle: {:.3} % of a core over {WINDOW:?}", share * 100.0);
    if share >= 0.01 {
        fail!("100 idle clients, their server and the monitor used {:.2} % of a core", share * 100.0);
    }
    many.terminate(Duration::from_secs(5))?;
    drop(singles);
    server.terminate(Duration::from_secs(5))?;
    Ok(())
}

/// 2000 connections, each used once in both directions, hold less than 4 KiB of shared memory each.
fn memory(lab: &mut Lab) -> Result<()> {
    const CONNECTIONS: u64 = 2000;
    const BYTES_MAX: u64 = 4096;
    let (server, port) = python::start_echo_server(lab, Side::Sd, "asyncio")?;
    let args = |count: u64| [port.to_string(), count.to_string(), "1000".to_owned()];
    let mut first = python::start(lab, Side::Sd, "idle_client.py", &args(1))?;
    first.wait_for_text("ready", LIMIT)?;
    let mut client = python::start(lab, Side::Sd, "idle_client.py", &args(CONNECTIONS))?;
    let mut pids = vec![server.pid(), first.pid(), client.pid()];
    pids.extend(lab.monitor_pid());
    let before = procfs::shared_memory_bytes(&[pids[0], pids[1], pids[pids.len() - 1]]);
    client.wait_for_text("ready", LIMIT)?;
    // Rings that were used are given back a moment later.
    std::thread::sleep(Duration::from_secs(3));
    let ends = if lab.is_oracle() { Vec::new() } else { lab.snapshot()?.connections };
    let over_shm = ends.iter().filter(|c| c.pid == u64::from(client.pid()) && c.path == "shm").count() as u64;
    if !lab.is_oracle() && over_shm != CONNECTIONS {
        fail!("sd ss shows {over_shm} of {CONNECTIONS} connections on shm, {} in all", ends.len());
    }
    let after = procfs::shared_memory_bytes(&pids);
    let each = after.saturating_sub(before) / CONNECTIONS;
    eprintln!("memory: {each} bytes of shared memory for each of {CONNECTIONS} connections");
    if each >= BYTES_MAX {
        fail!("{each} bytes of shared memory for each of {CONNECTIONS} idle connections");
    }
    client.terminate(Duration::from_secs(10))?;
    first.terminate(Duration::from_secs(5))?;
    server.terminate(Duration::from_secs(10))?;
    Ok(())
}
