//! What connections cost when nothing happens: processor time and shared memory.

use super::table::{Load, Row};
use super::{Scenario, python, rates};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::report::median;
use harness::{Result, fail, procfs, product};
use std::process::Stdio;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("idle-100-clients-cpu", &["python3", "nc"], idle_cpu).slow().at_first_byte(),
    Scenario::new("idle-2000-connections-memory", &["python3"], memory).slow().limit_s(120).at_first_byte(),
    Scenario::new("start-up-cost", &["true", "ls"], start_up).slow().ours(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "programs that make no socket",
    version: &["dpkg-query", "-W", "-f", "${Version}", "dash"],
    scenarios: "start-up-",
    features: "what a shell starts is executed without the library",
    load: Some(Load { unit: "programs/s, /bin/true in dash, one after the other", rate: programs_rate }),
}];

const LIMIT: Duration = Duration::from_secs(60);

fn programs_rate(lab: &Lab, side: Side) -> Result<f64> {
    const TIMES: u32 = 200;
    let script = format!("i=0; while [ $i -lt {TIMES} ]; do /bin/true; i=$((i+1)); done");
    let per_second = rates::per_second(|| lab.run(side, "dash", &["-c", &script], LIMIT).map(drop))?;
    Ok(per_second * f64::from(TIMES))
}

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

/// 2000 connections, each used once in both directions, hold less than 1.5 KiB of shared memory each, on both sides.
fn memory(lab: &mut Lab) -> Result<()> {
    const CONNECTIONS: u64 = 2000;
    const BYTES_MAX: u64 = 1536;
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
    std::thread::sleep(Duration::from_secs(5));
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

/// A program that does nothing starts less than a millisecond later, and one that lists its descriptors finds no low
/// number taken.
fn start_up(lab: &mut Lab) -> Result<()> {
    const RUNS: usize = 300;
    const ADDED_MAX_MS: f64 = 1.0;
    let command = |side: Side, program: &str, args: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(args).stdin(Stdio::null()).env_remove("LD_PRELOAD");
        if side == Side::Sd {
            command.env("LD_PRELOAD", product::libsd()).env("SD_MONITOR", lab.socket());
        }
        command
    };
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..RUNS {
        for (side, times) in [Side::Kernel, Side::Sd].into_iter().zip(&mut times) {
            let start = Instant::now();
            if !command(side, "/bin/true", &[]).status()?.success() {
                fail!("/bin/true failed");
            }
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
    }
    let [kernel, sd] = times.map(|times| median(&times));
    eprintln!("start-up: {kernel:.3} ms, preloaded {sd:.3} ms");
    if sd - kernel >= ADDED_MAX_MS {
        fail!("preloading adds {:.3} ms to /bin/true ({kernel:.3} ms)", sd - kernel);
    }
    let low = |side| -> Result<Vec<u32>> {
        let output = command(side, "/bin/ls", &["/proc/self/fd"]).output()?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(listed.lines().filter_map(|line| line.parse().ok()).filter(|&fd| fd < 1000).collect())
    };
    let (with, without) = (low(Side::Sd)?, low(Side::Kernel)?);
    if with != without {
        fail!("a program that lists its descriptors sees {with:?}, without us {without:?}");
    }
    Ok(())
}
