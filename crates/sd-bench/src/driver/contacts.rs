//! `sd bench connect`: connections that carry a byte each way, and what the monitor has to do for them.
//!
//! | item | what |
//! |---|---|
//! | | connect, accept, one byte each way, close, one after the other |
//! | batches of 64 | the same, 64 connections of the client's being open at a time |
//! | first contacts | the same one after the other, each to an address that the client has not connected to before |
//! | monitor: first contact | the monitor's processor time for each of these |
//! | monitor: introduction | that for each pair of processes that have not been connected before |

use super::Plan;
use super::report::{Figure, Row, rows_of};
use super::rounds::{Series, measure_with};
use super::stage::{Connected, Job, Outcome, Stage, TIMEOUT, result_of};
use crate::peer::Work;
use sd_cli::cli::System;
use sd_cli::failure::Result;

/// More connections in one round would meet closed ones that still keep their ports.
const COUNT: usize = 10_000;
/// Processes that a client is introduced to in one round.
const STRANGERS: usize = 32;

/// All figures.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let wanted = [System::Socksdirect, System::Tcp, System::Sockmap, System::Unix];
    let among = |but: &[System]| -> Vec<System> {
        let is_wanted = |system: &System| wanted.contains(system) && !but.contains(system);
        systems.iter().copied().filter(is_wanted).collect()
    };
    let mut rows = Vec::new();
    let figure = |item, unit| Figure { bench: "connect", item, unit, size: 1, count: None };
    for (item, work, systems) in [
        (None, Work::Churn, among(&[])),
        (Some("batches of 64"), Work::ChurnBatches, among(&[])),
        (Some("first contacts"), Work::ChurnStrangers, among(&[System::Unix])),
    ] {
        let job = Job { work, size: 1, millis: plan.millis, count: COUNT };
        let series = measure_with(&systems, plan.rounds, |_, system| churn(stage, system, &job))?;
        failures.extend(series.iter().filter_map(Series::failure));
        rows.extend(rows_of(figure(item, "connections/s"), &series, |o| Some((o.client.value, None))));
        if work == Work::ChurnStrangers {
            let figure = figure(Some("monitor: first contact"), "ns");
            rows.extend(rows_of(figure, &series, |o| o.monitor_ns.map(|ns| (ns, None))));
        }
    }
    if systems.contains(&System::Socksdirect) {
        let series = measure_with(&[System::Socksdirect], plan.rounds, |_, _| introductions(stage))?;
        failures.extend(series.iter().filter_map(Series::failure));
        let figure = figure(Some("monitor: introduction"), "ns");
        rows.extend(rows_of(figure, &series, |o| o.monitor_ns.map(|ns| (ns, None))));
    }
    Ok(rows)
}

/// Many connections, and the monitor's time for each.
fn churn(stage: &Stage, system: System, job: &Job) -> Result<Outcome> {
    let Connected { mut client, server } = stage.connect_anew(system, job)?;
    stage.go(system, &mut client)?;
    let before = monitor_ns(stage, system);
    let report = result_of(&mut client, TIMEOUT)?;
    let after = monitor_ns(stage, system);
    let count = report.count.unwrap_or(0).max(1) as f64;
    client.finish(TIMEOUT)?;
    if let Some(server) = server {
        server.finish(TIMEOUT)?;
    }
    let monitor_ns = before.zip(after).map(|(before, after)| (after - before) / count);
    Ok(Outcome { client: report, monitor_ns, ..Outcome::default() })
}

/// A client that connects to processes that it has not been connected with.
fn introductions(stage: &Stage) -> Result<Outcome> {
    let system = System::Socksdirect;
    let job = Job { work: Work::Crowd, size: 8, millis: 1, count: STRANGERS };
    let servers =
        (0..STRANGERS).map(|_| stage.server(system, &Job { work: Work::Latency, ..job }, stage.cpus[1]));
    let (servers, addresses): (Vec<_>, Vec<_>) = servers.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let before = monitor_ns(stage, system);
    let mut client = stage.client(system, &job, &addresses.join(","))?;
    let after = monitor_ns(stage, system);
    stage.go(system, &mut client)?;
    let report = result_of(&mut client, TIMEOUT)?;
    client.finish(TIMEOUT)?;
    servers.into_iter().try_for_each(|server| server.finish(TIMEOUT))?;
    let monitor_ns = before.zip(after).map(|(before, after)| (after - before) / STRANGERS as f64);
    Ok(Outcome { client: report, monitor_ns, ..Outcome::default() })
}

/// What the monitor has used of processors so far.
fn monitor_ns(stage: &Stage, system: System) -> Option<f64> {
    let pid = stage.monitor_pid().filter(|_| system == System::Socksdirect)?;
    let [ns, _] = super::cost::activity(&[pid]);
    Some(ns)
}
