//! The systems take turns; medians of what they did.

use super::report;
use super::stage::{Job, Outcome, Stage};
use sd_cli::cli::System;
use sd_cli::failure::Result;
use sd_cli::process::check_interrupt;

/// What one system did, round by round.
pub(crate) struct Series {
    pub(crate) system: System,
    pub(crate) outcomes: Vec<Outcome>,
    failed: Option<String>,
}

impl Series {
    /// What is known already.
    pub(crate) fn done(system: System, outcomes: Vec<Outcome>) -> Series {
        Series { system, outcomes, failed: None }
    }

    /// Why it did not finish all rounds.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failed.clone()
    }
}

/// The same job for each system.
pub(crate) fn measure(stage: &Stage, job: &Job, systems: &[System], rounds: u32) -> Result<Vec<Series>> {
    measure_jobs(stage, &systems.iter().map(|system| (*system, *job)).collect::<Vec<_>>(), rounds)
}

/// A, B, C, A, B, C, ... What fails once is left out from then on.
pub(crate) fn measure_jobs(stage: &Stage, jobs: &[(System, Job)], rounds: u32) -> Result<Vec<Series>> {
    let systems: Vec<System> = jobs.iter().map(|(system, _)| *system).collect();
    measure_with(&systems, rounds, |index, system| stage.measure(system, &jobs[index].1))
}

/// The same with anything that makes an outcome, given a number and a system.
pub(crate) fn measure_with(
    systems: &[System],
    rounds: u32,
    measure: impl Fn(usize, System) -> Result<Outcome>,
) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = systems.iter().map(|system| Series::done(*system, Vec::new())).collect();
    for round in 1..=rounds {
        for (index, series) in all.iter_mut().enumerate().filter(|(_, series)| series.failed.is_none()) {
            report::progress(&format!("round {round} of {rounds}: {}", series.system.name()));
            match measure(index, series.system) {
                Ok(outcome) => series.outcomes.push(outcome),
                Err(failure) => {
                    check_interrupt()?;
                    series.failed = Some(failure.text);
                }
            }
        }
    }
    report::progress("");
    Ok(all)
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = *sorted.get(sorted.len() / 2)?;
    let low = if sorted.len().is_multiple_of(2) { *sorted.get(sorted.len() / 2 - 1)? } else { high };
    Some((low + high) / 2.0)
}

/// The median of each round's own ratio.
pub(crate) fn ratio(values: &[f64], to: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> =
        values.iter().zip(to).filter(|(_, base)| **base > 0.0).map(|(v, b)| v / b).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine became ten times slower after the first round; the ratio did not change.
        assert_eq!(ratio(&[2.0, 20.0, 20.0], &[1.0, 10.0, 10.0]), Some(2.0));
        assert_eq!(ratio(&[1.0], &[]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
