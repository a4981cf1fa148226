//! `sd bench exec`: what programs pay that live for milliseconds.
//!
//! | item | what |
//! |---|---|
//! | start of /bin/true | by posix_spawn(3), from a program without the library |
//! | /bin/true in a shell's loop | for each: the shell has the library too, and forks |
//! | process with one connection | a program that connects to a server, exchanges a byte and ends |
//! | ...: processor time | the same, of all: the program's, and the server's and the monitor's where there are such |
//!
//! The last items are the ones to compare on a machine that does other work too.

use super::Plan;
use super::report::{Figure, Row, rows_of};
use super::rounds::{Series, measure_with};
use super::stage::{Job, Outcome, Stage};
use crate::peer::{Report, Work};
use sd_cli::cli::System;
use sd_cli::failure::{Context, Failure, Result, last_os_error};
use sd_cli::process::{Peer, check_interrupt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Programs started in one round, or in one of `--quick`.
const COUNT: u32 = 100;
const COUNT_QUICK: u32 = 5;

const TIME: &str = "time";
const PROCESSOR: &str = "processor";

/// What is done, and the names of its two figures.
const ITEMS: [(Kind, [&str; 2]); 3] = [
    (Kind::Start, ["start of /bin/true", "start of /bin/true: processor time"]),
    (Kind::Shell, ["/bin/true in a shell's loop", "/bin/true in a shell's loop: processor time"]),
    (Kind::Visit, ["process with one connection", "process with one connection: processor time"]),
];

#[derive(Clone, Copy)]
enum Kind {
    Start,
    Shell,
    Visit,
}

/// All figures for these systems.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    quick: bool,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let wanted = [System::Socksdirect, System::Tcp];
    let systems: Vec<System> = systems.iter().copied().filter(|system| wanted.contains(system)).collect();
    let count = if quick { COUNT_QUICK } else { COUNT };
    let mut rows = Vec::new();
    for (kind, items) in ITEMS {
        let series = measure_with(&systems, plan.rounds, |_, system| {
            check_interrupt()?;
            round(stage, system, kind, count)
        })?;
        failures.extend(series.iter().filter_map(Series::failure));
        for (item, key) in items.into_iter().zip([TIME, PROCESSOR]) {
            let figure = Figure { bench: "exec", item: Some(item), unit: "us", size: 0, count: None };
            let of = rows_of(figure, &series, |o| Some((*o.client.items.get(key)?, None)));
            // Which path so short a connection takes is the library's to choose.
            rows.extend(of.into_iter().map(|row| Row { path: None, ..row }));
        }
    }
    Ok(rows)
}

/// Microseconds for each program of `count`.
fn round(stage: &Stage, system: System, kind: Kind, count: u32) -> Result<Outcome> {
    let server = match kind {
        Kind::Visit => {
            let job = Job { work: Work::Churn, size: 1, millis: 0, count: 1 };
            Some(stage.server(system, &job, stage.cpus[1])?)
        }
        _ => None,
    };
    let mut others: Vec<u32> = server.iter().map(|(server, _)| Peer::pid(server)).collect();
    others.extend(stage.monitor_pid().filter(|_| system == System::Socksdirect));
    let used = || Ok(of_children()? + super::cost::activity(&others)[0] / 1e3);
    let (before, began) = (used()?, Instant::now());
    match (kind, &server) {
        (Kind::Shell, _) => {
            let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
            run(stage.launch(system, Path::new("/bin/sh")).arg("-c").arg(script))?;
        }
        (Kind::Visit, Some((_, address))) => {
            (0..count).try_for_each(|_| run(&mut stage.visit(system, address)))?;
        }
        _ => (0..count).try_for_each(|_| run(&mut stage.launch(system, Path::new("/bin/true"))))?,
    }
    let (elapsed, processor) = (began.elapsed().as_nanos() as f64 / 1e3, used()? - before);
    let each = |value: f64| value / f64::from(count);
    let items = [(TIME, each(elapsed)), (PROCESSOR, each(processor))];
    let items = items.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Ok(Outcome { client: Report { items, ..Report::default() }, ..Outcome::default() })
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().context(&name)?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{name}: {status}"))) }
}

/// Microseconds of processors that children of this process have used, which have ended and were waited for, and theirs.
fn of_children() -> Result<f64> {
    // SAFETY: an all-zero rusage is valid; the kernel writes one.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        match libc::getrusage(libc::RUSAGE_CHILDREN, &mut used) {
            0 => used,
            _ => return Err(last_os_error()).context("getrusage"),
        }
    };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    Ok(micros(used.ru_utime) + micros(used.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_use_is_seen() {
        let before = of_children().unwrap();
        run(Command::new("/bin/sh").args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]))
            .unwrap();
        assert!(of_children().unwrap() > before);
        assert!(run(&mut Command::new("/bin/false")).is_err());
    }
}
