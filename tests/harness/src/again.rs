//! Tests of whole programs that fail once: each is asked for again before it counts.
//!
//! Such a test runs real programs on a machine that does other work too, and hundreds of them make one run. One that
//! fails, and then passes [`LOOKS`] times, is *unsteady*: it is printed with what it said, stands in the summary, and
//! counts as neither passed nor failed. More than [`UNSTEADY_MAX`] of them fail the run. Who has chosen a test by its name
//! looks for such failures: then nothing is asked for again. `posix` has this rule for its transcripts.
//!
//! Not for attacks (`hostile`): one that succeeds once has succeeded.

use crate::report::Count;
use crate::{Result, fail};
use std::time::Instant;

/// How often a test that failed once must pass after that.
pub const LOOKS: usize = 4;

/// More unsteady tests than that, and the run has failed.
pub const UNSTEADY_MAX: usize = 2;

/// How a test ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it says of itself.
    Passed(String),
    /// What it said when it failed.
    Unsteady(String),
    /// As [`Outcome::Unsteady`].
    Failed(String),
}

/// Runs a test, and again when it fails and `asks_again`.
fn attempt(asks_again: bool, mut test: impl FnMut() -> Result<String>) -> Outcome {
    let first = match test() {
        Ok(note) => return Outcome::Passed(note),
        Err(error) => error.to_string(),
    };
    if asks_again && (0..LOOKS).all(|_| test().is_ok()) {
        return Outcome::Unsteady(first);
    }
    Outcome::Failed(first)
}

/// The tests of a run so far.
#[derive(Default)]
pub struct Tally {
    pub count: Count,
    pub unsteady: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.count.add(other.count);
        self.unsteady += other.unsteady;
    }

    /// Runs a test, again if it fails and `asks_again`; counts it, and prints its line.
    pub fn run(&mut self, name: &str, asks_again: bool, test: impl FnMut() -> Result<String>) -> Outcome {
        let start = Instant::now();
        let outcome = attempt(asks_again, test);
        let title = format!("{name:<34} {:>6.1} s ", start.elapsed().as_secs_f64());
        match &outcome {
            Outcome::Passed(note) => println!("ok   {title} {note}"),
            Outcome::Unsteady(first) => println!("UNSTEADY {title} {LOOKS} times well after this: {first}"),
            Outcome::Failed(error) => println!("FAIL {title} {error}"),
        }
        self.count_in(&outcome);
        outcome
    }

    fn count_in(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed(_) => self.count.passed += 1,
            Outcome::Unsteady(_) => self.unsteady += 1,
            Outcome::Failed(_) => self.count.failed += 1,
        }
    }

    /// Prints the closing line. An error where tests of `what` failed, or too many of them are unsteady.
    pub fn finish(&self, what: &str) -> Result<()> {
        if self.unsteady > 0 {
            println!("{} unsteady", self.unsteady);
        }
        println!("{}", self.count.line());
        match (self.count.failed, self.unsteady) {
            (0, 0..=UNSTEADY_MAX) => Ok(()),
            (0, many) => fail!("{what}: {many} fail now and then"),
            (failed, _) => fail!("{what}: {failed} failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts its runs, and fails in these of them.
    fn failing<'a>(run: &'a mut usize, in_runs: &'a [usize]) -> impl FnMut() -> Result<String> + 'a {
        move || {
            *run += 1;
            match in_runs.contains(run) {
                true => fail!("run {run}"),
                false => Ok("well".to_owned()),
            }
        }
    }

    #[test]
    fn who_fails_once_is_unsteady_and_who_fails_twice_has_failed() {
        let outcome = |in_runs: &[usize]| attempt(true, failing(&mut 0, in_runs));
        assert_eq!(outcome(&[]), Outcome::Passed("well".to_owned()));
        assert_eq!(outcome(&[1]), Outcome::Unsteady("run 1".to_owned()));
        assert_eq!(outcome(&[1, LOOKS + 1]), Outcome::Failed("run 1".to_owned()));
        assert_eq!(outcome(&[1, LOOKS + 2]), Outcome::Unsteady("run 1".to_owned()));
    }

    #[test]
    fn who_is_not_asked_again_has_failed_at_once() {
        let mut runs = 0;
        assert_eq!(attempt(false, failing(&mut runs, &[1])), Outcome::Failed("run 1".to_owned()));
        assert_eq!(runs, 1);
    }

    #[test]
    fn a_failure_or_many_unsteady_tests_fail_the_run() {
        let ends = |in_runs: &[usize], times: usize| {
            let mut tally = Tally::default();
            (0..times).for_each(|_| drop(tally.run("a test", true, failing(&mut 0, in_runs))));
            let Count { passed, failed, .. } = tally.count;
            (tally.finish("tests").is_ok(), passed, failed)
        };
        assert_eq!(ends(&[], 1), (true, 1, 0));
        assert_eq!(ends(&[1, 2], 1), (false, 0, 1));
        assert_eq!(ends(&[1], UNSTEADY_MAX), (true, 0, 0));
        assert_eq!(ends(&[1], UNSTEADY_MAX + 1), (false, 0, 0));
    }
}
