//! `sd bench machine`: single operations of the machine and its kernel, for the paper's Table 2.

use super::report::{Figure, Row, rows_of};
use super::rounds::measure_with;
use super::stage::{Job, Outcome, Stage};
use super::{Plan, System};
use crate::failure::{Failure, Result};
use crate::peer::Work;

/// A row for each operation.
pub(crate) fn measure(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let job = Job { work: Work::Machine, size: 0, millis: plan.millis, count: 1 };
    let series = measure_with(&[System::Machine], plan.rounds, |_, system| stage.measure(system, &job))?;
    if let Some(failure) = series.iter().find_map(|series| series.failure()) {
        return Err(Failure::new(failure));
    }
    let outcomes = series.iter().flat_map(|series| &series.outcomes);
    let mut names: Vec<String> = outcomes.flat_map(|outcome| outcome.client.items.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let figure = Figure { bench: "machine", item: None, unit: "ns", size: 0, count: None };
    let rows = |name: String| -> Vec<Row> {
        let value = |outcome: &Outcome| Some((*outcome.client.items.get(&name)?, None));
        let rows = rows_of(figure, &series, value);
        rows.into_iter().map(|row| Row { item: Some(name.clone().into()), ..row }).collect()
    };
    Ok(names.into_iter().flat_map(rows).collect())
}
