//! Tests of whole programs that fail once: each is asked for again before it counts.
//!
//! Such a test runs real programs on a machine that does other work too, and a few hundred of them make one run. One
//! that fails, and then passes [`LOOKS`] times, is *unsteady*. It is printed with what it said, stands in the summary,
//! and more than [`UNSTEADY_MAX`] of them fail the run. `posix` has the same rule for its transcripts.

use crate::report::Count;
use crate::{Result, fail};

/// How often a test that failed once must pass after that.
pub const LOOKS: usize = 4;

/// More unsteady tests than that, and the run has failed.
pub const UNSTEADY_MAX: usize = 2;

/// How a test ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed(String),
    /// What it said when it failed.
    Unsteady(String),
    Failed(String),
}

/// Runs a test, and again when it fails: what it says of itself, or its error.
pub fn attempt(mut test: impl FnMut() -> Result<String>) -> Outcome {
    let first = match test() {
        Ok(note) => return Outcome::Passed(note),
        Err(error) => error.to_string(),
    };
    match (0..LOOKS).try_for_each(|_| test().map(drop)) {
        Ok(()) => Outcome::Unsteady(first),
        Err(_) => Outcome::Failed(first),
    }
}

/// The tests of a run so far.
#[derive(Default)]
pub struct Tally {
    pub count: Count,
    unsteady: usize,
}

impl Tally {
    /// Counts a test and prints its line. `title`: its name and its time.
    pub fn add(&mut self, title: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Passed(note) => println!("ok   {title}  {note}"),
            Outcome::Unsteady(first) => println!("UNSTEADY {title}  {LOOKS} times well after this: {first}"),
            Outcome::Failed(error) => println!("FAIL {title}  {error}"),
        }
        self.unsteady += usize::from(matches!(outcome, Outcome::Unsteady(_)));
        self.count.add(Count::one(!matches!(outcome, Outcome::Failed(_))));
    }

    /// Prints the closing line. An error where tests failed, or too many of them are unsteady.
    pub fn finish(&self, what: &str) -> Result<()> {
        if self.unsteady > 0 {
            println!("{} unsteady", self.unsteady);
        }
        println!("{}", self.count.line());
        match (self.count.failed, self.unsteady) {
            (0, 0..=UNSTEADY_MAX) => Ok(()),
            (0, many) => fail!("{what}: {many} tests fail now and then"),
            (failed, _) => fail!("{what}: {failed} tests failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that fails in these of its runs.
    fn failing(in_runs: &[usize]) -> Outcome {
        let mut run = 0;
        attempt(|| {
            run += 1;
            match in_runs.contains(&run) {
                true => fail!("run {run}"),
                false => Ok("well".to_owned()),
            }
        })
    }

    #[test]
    fn who_fails_once_is_unsteady_and_who_fails_twice_has_failed() {
        assert_eq!(failing(&[]), Outcome::Passed("well".to_owned()));
        assert_eq!(failing(&[1]), Outcome::Unsteady("run 1".to_owned()));
        assert_eq!(failing(&[1, LOOKS + 1]), Outcome::Failed("run 1".to_owned()));
        assert_eq!(failing(&[1, LOOKS + 2]), Outcome::Unsteady("run 1".to_owned()));
    }

    #[test]
    fn a_failure_or_many_unsteady_tests_fail_the_run() {
        let ends = |outcome: Outcome, times: usize| {
            let mut tally = Tally::default();
            (0..times).for_each(|_| tally.add("a test", &outcome));
            tally.finish("tests").is_ok()
        };
        assert!(ends(Outcome::Passed(String::new()), 1));
        assert!(!ends(Outcome::Failed(String::new()), 1));
        assert!(ends(Outcome::Unsteady(String::new()), UNSTEADY_MAX));
        assert!(!ends(Outcome::Unsteady(String::new()), UNSTEADY_MAX + 1));
    }
}
