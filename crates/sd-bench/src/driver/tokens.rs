//! `sd bench tokens`: a socket that threads or processes share.
//!
//! A take-over stands beside the round trip of the bare ring, measured in the same rounds. What sharing costs those
//! who are not disturbed stands beside the same calls of processes with one thread, which take no token.

use super::Plan;
use super::report::{Figure, Row, rows_of};
use super::rounds::{Series, measure_jobs, ratio};
use super::stage::{Job, Stage};
use crate::peer::Work;
use sd_cli::cli::System;
use sd_cli::failure::Result;

const TAKE_OVERS: [(&str, Work); 4] = [
    ("take-over, threads in turn", Work::TakeThreads),
    ("take-over, processes in turn", Work::TakeProcesses),
    ("take-over, from a holder, threads", Work::HolderThreads),
    ("take-over, from a holder, processes", Work::HolderProcesses),
];
/// Holders that are robbed in one round.
const HOLDERS: usize = 48;

/// All figures for these systems.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let job = |work| Job { work, size: 8, millis: plan.millis, count: HOLDERS };
    let mut rows = Vec::new();
    for (item, work) in TAKE_OVERS {
        let jobs: Vec<(System, Job)> = systems
            .iter()
            .filter_map(|system| match system {
                System::Socksdirect | System::Tcp | System::Unix => Some((*system, job(work))),
                System::Ring => Some((*system, job(Work::Latency))),
                _ => None,
            })
            .collect();
        let series = measure_jobs(stage, &jobs, plan.rounds)?;
        failures.extend(series.iter().filter_map(Series::failure));
        let figure = Figure { bench: "tokens", item: Some(item), unit: "ns", size: 8, count: None };
        rows.extend(rows_of(figure, &series, |o| Some((o.client.value, o.client.p99))));
    }
    for system in [System::Socksdirect, System::Tcp] {
        if systems.contains(&system) {
            rows.extend(undisturbed(stage, plan, system, failures)?);
        }
    }
    Ok(rows)
}

/// send and recv of processes with a second thread, which does nothing, beside the same with one thread.
fn undisturbed(stage: &Stage, plan: Plan, system: System, failures: &mut Vec<String>) -> Result<Vec<Row>> {
    let job = |work| (system, Job { work, size: 8, millis: plan.millis / 2, count: 1 });
    let series = measure_jobs(stage, &[job(Work::Calls), job(Work::CallsShared)], plan.rounds)?;
    failures.extend(series.iter().filter_map(Series::failure));
    let send = |series: &Series| series.outcomes.iter().map(|o| o.client.value).collect::<Vec<_>>();
    let recv = |series: &Series| {
        series.outcomes.iter().filter_map(|o| Some(o.server.as_ref()?.value)).collect::<Vec<_>>()
    };
    let [alone, shared] = [&series[..1], &series[1..]];
    let figure = |item| Figure { bench: "tokens", item: Some(item), unit: "ns", size: 8, count: None };
    let mut rows = Vec::new();
    rows.extend(rows_of(figure("send, one thread"), alone, |o| Some((o.client.value, o.client.p99))));
    let with = rows_of(figure("send, with tokens"), shared, |o| Some((o.client.value, o.client.p99)));
    let to = ratio(&send(&shared[0]), &send(&alone[0]));
    rows.extend(with.into_iter().map(|row| Row { ratio_to_without: to, ..row }));
    let server = |o: &super::stage::Outcome| o.server.as_ref().map(|s| (s.value, s.p99));
    rows.extend(rows_of(figure("recv, one thread"), alone, server));
    let to = ratio(&recv(&shared[0]), &recv(&alone[0]));
    let with = rows_of(figure("recv, with tokens"), shared, server);
    rows.extend(with.into_iter().map(|row| Row { ratio_to_without: to, ..row }));
    Ok(rows)
}
