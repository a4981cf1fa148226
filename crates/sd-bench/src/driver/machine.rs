//! What is measured without sockets: `sd bench machine`, single operations for the paper's Table 2, and `sd bench queues`.

use super::Plan;
use super::report::{Figure, Row, rows_of};
use super::rounds::measure_with;
use super::stage::{Job, Outcome, Stage};
use crate::peer::Work;
use sd_cli::cli::System;
use sd_cli::cli::What;
use sd_cli::failure::{Failure, Result};

/// A row for each operation.
pub(crate) fn measure(stage: &Stage, plan: Plan, what: What, most: Option<usize>) -> Result<Vec<Row>> {
    let (bench, work) = match what {
        What::Queues => ("queues", Work::Queues),
        _ => ("machine", Work::Machine),
    };
    let job = Job { work, size: 0, millis: plan.millis, count: most.unwrap_or(100_000) };
    let series = measure_with(&[System::Machine], plan.rounds, |_, system| stage.measure(system, &job))?;
    if let Some(failure) = series.iter().find_map(|series| series.failure()) {
        return Err(Failure::new(failure));
    }
    let outcomes = series.iter().flat_map(|series| &series.outcomes);
    let mut names: Vec<String> = outcomes.flat_map(|outcome| outcome.client.items.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let figure = Figure { bench, item: None, unit: "ns", size: 0, count: None };
    let rows = |name: String| -> Vec<Row> {
        let value = |outcome: &Outcome| Some((*outcome.client.items.get(&name)?, None));
        let rows = rows_of(figure, &series, value);
        rows.into_iter().map(|row| Row { item: Some(name.clone().into()), ..row }).collect()
    };
    Ok(names.into_iter().flat_map(rows).collect())
}
