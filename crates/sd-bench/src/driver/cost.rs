//! `sd bench cost`: single calls, idle connections, starting a program.

use super::Plan;
use super::report::{Figure, Row, progress, rows_of};
use super::rounds::{self, Series, median};
use super::stage::{Connected, Job, Outcome, Stage};
use crate::peer::{Report, Work};
use sd_cli::cli::System;
use sd_cli::failure::{Context, Failure, Result};
use sd_cli::process::check_interrupt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Connections that idle, where the limits allow it.
const IDLE_CONNECTIONS: usize = 1000;
/// Where the memory stands among the idle figures.
const MEMORY: usize = 2;
/// After so long both sides of idle connections have given back what they do not need.
pub(crate) const QUIET: Duration = Duration::from_millis(2500);
/// Programs started per round.
const STARTS: u32 = 10;

/// All figures for these systems.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    quick: bool,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let among = |wanted: &[System]| -> Vec<System> {
        systems.iter().copied().filter(|system| wanted.contains(system)).collect()
    };
    let mut rows = Vec::new();
    let job = Job { work: Work::Calls, size: 8, millis: plan.millis / 2, count: 1 };
    let sockets = among(&[System::Socksdirect, System::Tcp, System::Unix]);
    let series = rounds::measure(stage, &job, &sockets, plan.rounds)?;
    failures.extend(series.iter().filter_map(Series::failure));
    let figure = |item, unit, size| Figure { bench: "cost", item: Some(item), unit, size, count: None };
    rows.extend(rows_of(figure("send", "ns", 8), &series, |o| Some((o.client.value, o.client.p99))));
    rows.extend(rows_of(figure("recv", "ns", 8), &series, |o| o.server.as_ref().map(|s| (s.value, s.p99))));
    rows.extend(rows_of(figure("fcntl", "ns", 0), &series, |o| o.client.fcntl_ns.map(|ns| (ns, None))));

    let starts = starts(stage, &among(&[System::Socksdirect, System::Tcp]), plan.rounds)?;
    rows.extend(rows_of(figure("start of /bin/true", "us", 0), &starts, |o| Some((o.client.value, None))));

    let count = if quick { 100 } else { IDLE_CONNECTIONS.min(sd_sys::fd::nofile_limit() as usize / 4) };
    let time = Duration::from_millis(if quick { 500 } else { 3000 });
    let mut idle = Vec::new();
    for system in among(&[System::Socksdirect, System::Tcp]) {
        progress(&format!("{count} idle connections: {}", system.name()));
        match idle_figures(stage, system, count, time) {
            Ok(figures) => idle.push((system, figures)),
            Err(failure) => {
                check_interrupt()?;
                failures.push(failure.text);
            }
        }
    }
    progress("");
    for (index, item, unit) in [
        (0, "idle CPU", "ms/s"),
        (1, "idle wake-ups", "1/s"),
        (MEMORY, "memory per idle connection", "bytes"),
    ] {
        let mut series: Vec<Series> =
            idle.iter().map(|(system, f)| Series::of(*system, &[f[index]])).collect();
        // The kernel's own memory is not seen in /proc/PID.
        series.retain(|series| index != MEMORY || series.system == System::Socksdirect);
        rows.extend(rows_of(figure(item, unit, 0), &series, |o| Some((o.client.value, None))));
    }
    Ok(rows)
}

impl Series {
    /// Figures that were not measured by peers.
    fn of(system: System, values: &[f64]) -> Series {
        let outcome = |value: &f64| Outcome {
            client: Report { value: *value, ..Report::default() },
            ..Outcome::default()
        };
        Series::done(system, values.iter().map(outcome).collect())
    }
}

/// Microseconds from the start of a program that does nothing to its end, with the library and without.
fn starts(stage: &Stage, systems: &[System], rounds: u32) -> Result<Vec<Series>> {
    let mut values: Vec<(System, Vec<f64>)> = systems.iter().map(|system| (*system, Vec::new())).collect();
    for round in 0..rounds {
        check_interrupt()?;
        progress(&format!("round {} of {rounds}: starting programs", round + 1));
        for (system, values) in &mut values {
            let times: Result<Vec<f64>> = (0..STARTS).map(|_| one_start(stage, *system)).collect();
            values.extend(median(&times?));
        }
    }
    Ok(values.iter().map(|(system, values)| Series::of(*system, values)).collect())
}

fn one_start(stage: &Stage, system: System) -> Result<f64> {
    let mut command = stage.launch(system, Path::new("/bin/true"));
    let began = Instant::now();
    let status = command.status().context("/bin/true")?;
    if !status.success() {
        return Err(Failure::new(format!("/bin/true: {status}")));
    }
    Ok(began.elapsed().as_nanos() as f64 / 1e3)
}

/// CPU (ms per second), wake-ups per second, bytes per connection: of both sides and the monitor.
fn idle_figures(stage: &Stage, system: System, count: usize, time: Duration) -> Result<[f64; 3]> {
    let (_, few_bytes) = idle(stage, system, 1, Duration::ZERO)?;
    let ([cpu, wake_ups], bytes) = idle(stage, system, count, time)?;
    Ok([cpu, wake_ups, (bytes - few_bytes) / (count - 1) as f64])
}

/// Opens connections, lets them idle, and looks at /proc.
fn idle(stage: &Stage, system: System, count: usize, time: Duration) -> Result<([f64; 2], f64)> {
    let job = Job { work: Work::Idle, size: 64, millis: 0, count };
    let Connected { mut client, server } = stage.connect(system, &job)?;
    client.say("go")?;
    let mut pids = vec![client.pid()];
    pids.extend(server.as_ref().map(|server| server.pid()));
    pids.extend(stage.monitor_pid().filter(|_| system == System::Socksdirect));
    std::thread::sleep(QUIET);
    let bytes: f64 = pids.iter().map(|pid| memory(*pid)).sum();
    let (before, began) = (activity(&pids), Instant::now());
    std::thread::sleep(time);
    let (after, seconds) = (activity(&pids), began.elapsed().as_secs_f64());
    client.finish(Duration::from_secs(10))?;
    if let Some(server) = server {
        server.finish(Duration::from_secs(10))?;
    }
    Ok(([(after[0] - before[0]) / 1e6 / seconds, (after[1] - before[1]) / seconds], bytes))
}

/// Nanoseconds of CPU and voluntary context switches so far, over all threads.
pub(crate) fn activity(pids: &[u32]) -> [f64; 2] {
    let mut sum = [0.0; 2];
    for pid in pids {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            sum[0] += read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
            sum[1] += field(&read("status"), "voluntary_ctxt_switches:");
        }
    }
    sum
}

/// Bytes of memory that a process has to itself, plus its part of what it shares.
pub(crate) fn memory(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    (field(&rollup, "Pss_Anon:") + field(&rollup, "Pss_Shmem:")) * 1024.0
}

/// The number after a name at the start of a line.
pub(crate) fn field(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let me = [std::process::id()];
        let before = activity(&me);
        std::thread::sleep(Duration::from_millis(10));
        let after = activity(&me);
        assert!(after[0] > 0.0 && after[1] > before[1]);
        assert!(memory(me[0]) > 4096.0);
    }
}
