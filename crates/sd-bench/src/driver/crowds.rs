//! Figures by a number: pairs of threads, processes on one processor, stages of a pipeline.
//!
//! | bench | paper | each number is |
//! |---|---|---|
//! | scale | Fig. 9 | pairs of threads, each with two processors |
//! | processes | Fig. 10 | processes that share one processor and answer one client |
//! | pipeline | Fig. 12 | processes that hand packets on |

use super::Plan;
use super::report::{Figure, Row, rows_of};
use super::rounds::{Series, measure_with};
use super::stage::{Connected, Job, Outcome, Stage, TIMEOUT, has_sockets, result_of};
use crate::peer::{Report, Work};
use sd_cli::cli::System;
use sd_cli::cli::What;
use sd_cli::failure::{Failure, Result};

const PROCESSES: [usize; 5] = [1, 2, 4, 8, 16];
const STAGES: [usize; 4] = [1, 2, 4, 8];

/// The numbers that are measured, up to `most` if that is given.
fn numbers(stage: &Stage, what: What, most: Option<usize>) -> Vec<usize> {
    let usual = match what {
        What::Scale => match most {
            Some(most) => return (1..=most).collect(),
            None => (1..=(stage.all_cpus.len() / 2).max(1)).collect(),
        },
        What::Processes => PROCESSES.to_vec(),
        _ => STAGES.to_vec(),
    };
    usual.into_iter().filter(|number| most.is_none_or(|most| *number <= most)).collect()
}

/// All rows of one of these.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    what: What,
    most: Option<usize>,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    use System::*;
    let (bench, unit, wanted): (_, _, &[System]) = match what {
        What::Scale => ("scale", "messages/s", &[Socksdirect, Tcp, Sockmap, Unix, Ring]),
        What::Processes => ("processes", "ns", &[Socksdirect, Tcp, Sockmap, Unix]),
        _ => ("pipeline", "packets/s", &[Socksdirect, Tcp, Sockmap, Unix, Pipe]),
    };
    let systems: Vec<System> = systems.iter().copied().filter(|system| wanted.contains(system)).collect();
    let mut rows = Vec::new();
    for number in numbers(stage, what, most) {
        let series = measure_with(&systems, plan.rounds, |_, system| match what {
            What::Scale => pairs(stage, system, number, plan),
            What::Processes => processes(stage, system, number, plan),
            _ => pipeline(stage, system, number, plan),
        })?;
        failures.extend(series.iter().filter_map(Series::failure));
        let figure = Figure { bench, item: None, unit, size: 8, count: Some(number) };
        rows.extend(rows_of(figure, &series, |o| Some((o.client.value, o.client.p99))));
    }
    Ok(rows)
}

/// One way, over so many pairs of threads at once; the bare ring over pairs of processes.
fn pairs(stage: &Stage, system: System, count: usize, plan: Plan) -> Result<Outcome> {
    if has_sockets(system) {
        return stage.measure(system, &Job { work: Work::Scale, size: 8, millis: plan.millis, count });
    }
    let job = Job { work: Work::Stream, size: 8, millis: plan.millis, count: 1 };
    let cpu = |place: usize| stage.all_cpus.get(place % stage.all_cpus.len().max(1)).copied().unwrap_or(0);
    let start = |pair: usize| stage.pair(system, &job, [cpu(2 * pair), cpu(2 * pair + 1)]);
    let mut all = (0..count).map(start).collect::<Result<Vec<Connected>>>()?;
    all.iter_mut().try_for_each(|pair| pair.client.say("go"))?;
    let mut sum = 0.0;
    for mut pair in all {
        sum += result_of(&mut pair.client, TIMEOUT)?.value;
        pair.client.finish(TIMEOUT)?;
    }
    Ok(Outcome { client: Report { value: sum, ..Report::default() }, ..Outcome::default() })
}

/// The time to an answer of each of so many processes on the second processor, asked all at once from the first.
fn processes(stage: &Stage, system: System, count: usize, plan: Plan) -> Result<Outcome> {
    let serve = Job { work: Work::Latency, size: 8, millis: plan.millis, count: 1 };
    let servers = (0..count).map(|_| stage.server(system, &serve, stage.cpus[1]));
    let (servers, addresses): (Vec<_>, Vec<_>) = servers.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    // The first answers of so many processes on one processor take their time.
    let millis = plan.millis + 2 * count as u64;
    let job = Job { work: Work::Crowd, size: 8, millis, count };
    let mut client = stage.client(system, &job, &addresses.join(","))?;
    stage.go(system, &mut client)?;
    let report = result_of(&mut client, TIMEOUT)?;
    client.finish(TIMEOUT)?;
    servers.into_iter().try_for_each(|server| server.finish(TIMEOUT))?;
    Ok(Outcome { client: report, ..Outcome::default() })
}

/// Packets per second through so many processes.
fn pipeline(stage: &Stage, system: System, count: usize, plan: Plan) -> Result<Outcome> {
    let job = Job { work: Work::Pipeline, size: 80, millis: plan.millis, count };
    if !has_sockets(system) {
        return stage.measure(system, &job);
    }
    let cpu = |place: usize| stage.all_cpus.get(place % stage.all_cpus.len().max(1)).copied().unwrap_or(0);
    let (mut sink, mut address) = stage.server(system, &job, cpu(count + 1))?;
    let mut functions = Vec::with_capacity(count);
    for place in (1..=count).rev() {
        let (function, own) = stage.function(system, &job, cpu(place), &address)?;
        functions.push(function);
        address = own;
    }
    let mut source = stage.client(system, &job, &address)?;
    stage.go(system, &mut source)?;
    let sent = result_of(&mut source, TIMEOUT)?.count;
    source.finish(TIMEOUT)?;
    functions.into_iter().try_for_each(|function| function.finish(TIMEOUT))?;
    let report = result_of(&mut sink, TIMEOUT)?;
    sink.finish(TIMEOUT)?;
    if report.count != sent {
        return Err(Failure::new(format!("{}: packets were lost", system.name())));
    }
    Ok(Outcome { client: report, ..Outcome::default() })
}
