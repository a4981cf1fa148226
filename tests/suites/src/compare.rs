//! What became of each test on either side, and what that means.

use super::Choice;
use harness::{Result, fail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A test's name, and the runner's word for what became of it: `pass`, `fail`, `skip`, `HANG`, ...
pub(crate) type Outcomes = BTreeMap<String, String>;

/// The word for a test that made no progress until it was killed.
pub(crate) const HANG: &str = "HANG";

/// The word for a test that never ended, since its program did.
pub(crate) const CRASH: &str = "CRASH";

const ABSENT: &str = "absent";

/// `WHOLE: plan` is this where the whole counts its parts as it goes: their number may depend on the time.
pub(crate) const OPEN: &str = "open";

pub(crate) fn hanging(outcomes: &Outcomes) -> BTreeSet<String> {
    let hang = outcomes.iter().filter(|(_, outcome)| *outcome == HANG);
    hang.map(|(test, _)| test.clone()).collect()
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Same,
    /// The kernel's own outcomes differ from round to round.
    Flaky(String),
    Differs(String),
}

/// The outcomes of each test in all rounds on both sides.
#[derive(Default)]
pub(crate) struct Comparison {
    tests: BTreeMap<String, Seen>,
}

#[derive(Default)]
struct Seen {
    kernel: Vec<String>,
    ours: Vec<String>,
}

impl Comparison {
    /// Adds a round. In a repetition only the chosen tests count.
    pub(crate) fn add(&mut self, kernel: Outcomes, ours: Outcomes, choice: &Choice) {
        let names: BTreeSet<String> = kernel.keys().chain(ours.keys()).cloned().collect();
        let word = |outcomes: &Outcomes, name: &str| {
            outcomes.get(name).map_or_else(|| ABSENT.to_owned(), String::clone)
        };
        for name in names {
            if choice.only.as_ref().is_some_and(|only| !only.contains(&name))
                || is_one_more(&kernel, &ours, &name)
            {
                continue;
            }
            let seen = self.tests.entry(name.clone()).or_default();
            seen.kernel.push(word(&kernel, &name));
            let is_left_out = choice.without.contains(&name);
            seen.ours.push(word(if is_left_out { &kernel } else { &ours }, &name));
        }
    }

    /// The tests that differ so far, and whose outcome on the kernel has always been the same.
    pub(crate) fn unsettled(&self) -> BTreeSet<String> {
        let open = self.verdicts().into_iter().filter(|(_, verdict)| matches!(verdict, Verdict::Differs(_)));
        open.map(|(name, _)| name).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }

    pub(crate) fn verdicts(&self) -> Vec<(String, Verdict)> {
        self.tests.iter().map(|(name, seen)| (name.clone(), self.verdict(name, seen))).collect()
    }

    /// A line about a part, `WHOLE: PART`, that is only there when the part fails is as steady as the whole; one that
    /// is missing on a side is as steady as the number of the whole's lines.
    fn verdict(&self, name: &str, seen: &Seen) -> Verdict {
        let Some((whole, _)) = name.split_once(": ") else { return seen.verdict() };
        match seen.verdict() {
            Verdict::Differs(text) if self.is_unsteady(whole, seen) => Verdict::Flaky(text),
            verdict => verdict,
        }
    }

    fn is_unsteady(&self, whole: &str, part: &Seen) -> bool {
        let is_absent = |words: &[String]| words.iter().any(|word| word == ABSENT);
        let comes_and_goes =
            |seen: &Seen| is_absent(&seen.kernel) && seen.kernel.iter().any(|word| word != ABSENT);
        let mut parts = self.tests.range(whole.to_owned()..).take_while(|(name, _)| name.starts_with(whole));
        self.tests.get(whole).is_some_and(|seen| matches!(seen.verdict(), Verdict::Flaky(_)))
            || (is_absent(&part.kernel) || is_absent(&part.ours))
                && parts.any(|(_, seen)| comes_and_goes(seen))
    }
}

/// A part that passed on one side, and that the other side did not come to, of a whole that counts as it goes and
/// passed on both.
fn is_one_more(kernel: &Outcomes, ours: &Outcomes, name: &str) -> bool {
    let Some((whole, _)) = name.split_once(": ") else { return false };
    let is_open = |side: &Outcomes| {
        let word = |name: &str| side.get(name).map(String::as_str);
        word(whole) == Some("pass") && word(&format!("{whole}: plan")) == Some(OPEN)
    };
    let is_pass = |word: Option<&String>| word.is_some_and(|word| word == "pass");
    let (here, there) = (kernel.get(name), ours.get(name));
    is_open(kernel) && is_open(ours) && (is_pass(here) && there.is_none() || here.is_none() && is_pass(there))
}

impl Seen {
    fn verdict(&self) -> Verdict {
        let text = || format!("kernel {}; here {}", self.kernel.join(" "), self.ours.join(" "));
        let is_steady = |words: &[String]| words.windows(2).all(|pair| pair[0] == pair[1]);
        match is_steady(&self.kernel) {
            true if self.kernel == self.ours => Verdict::Same,
            true => Verdict::Differs(text()),
            false => Verdict::Flaky(text()),
        }
    }
}

/// Differences that have to stay: lines of suite, test (a final `*` stands for anything), and reason.
pub(crate) struct Known {
    lines: Vec<(String, String, String)>,
}

impl Known {
    pub(crate) fn read(path: &Path) -> Result<Known> {
        Known::parse(&std::fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Known> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut fields = line.split('|').map(str::trim);
            let (Some(suite), Some(test), Some(reason)) = (fields.next(), fields.next(), fields.next())
            else {
                fail!("a known difference is SUITE | TEST | REASON, not: {line}");
            };
            lines.push((suite.to_owned(), test.to_owned(), reason.to_owned()));
        }
        Ok(Known { lines })
    }

    pub(crate) fn reason(&self, suite: &str, test: &str) -> Option<&str> {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => test.starts_with(start),
            None => test == pattern,
        };
        let line = self.lines.iter().find(|(known, pattern, _)| known == suite && fits(pattern));
        line.map(|(_, _, reason)| reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(words: &[(&str, &str)]) -> Outcomes {
        words.iter().map(|(name, word)| ((*name).to_owned(), (*word).to_owned())).collect()
    }

    fn is_differing(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Differs(_))
    }

    #[test]
    fn failing_on_both_sides_is_the_same() {
        let mut comparison = Comparison::default();
        comparison.add(outcomes(&[("a", "fail")]), outcomes(&[("a", "fail")]), &Choice::default());
        assert_eq!(comparison.verdicts(), vec![("a".to_owned(), Verdict::Same)]);
    }

    #[test]
    fn a_missing_test_differs() {
        let mut comparison = Comparison::default();
        comparison.add(
            outcomes(&[("a", "pass"), ("b", "pass")]),
            outcomes(&[("a", "pass")]),
            &Choice::default(),
        );
        assert_eq!(comparison.unsettled(), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn only_a_kernel_that_flips_makes_a_test_flaky() {
        let mut comparison = Comparison::default();
        let pass = || outcomes(&[("a", "pass")]);
        comparison.add(pass(), outcomes(&[("a", "fail")]), &Choice::default());
        let again = Choice { only: Some(comparison.unsettled()), ..Choice::default() };
        comparison.add(pass(), pass(), &again);
        assert!(is_differing(&comparison.verdicts()[0].1));
        comparison.add(outcomes(&[("a", "fail")]), pass(), &again);
        assert!(matches!(comparison.verdicts()[0].1, Verdict::Flaky(_)));
    }

    #[test]
    fn a_part_is_as_flaky_as_the_whole() {
        let mut comparison = Comparison::default();
        let failed = || outcomes(&[("a", "fail"), ("a: part", "fail")]);
        comparison.add(outcomes(&[("a", "pass")]), failed(), &Choice::default());
        assert!(is_differing(&comparison.verdicts()[1].1));
        comparison.add(outcomes(&[("a", "fail")]), failed(), &Choice::default());
        assert!(matches!(comparison.verdicts()[1].1, Verdict::Flaky(_)));
        assert!(comparison.unsettled().is_empty());
    }

    #[test]
    fn a_number_of_lines_that_changes_is_flaky() {
        let mut comparison = Comparison::default();
        let four = || outcomes(&[("a: 1", "pass"), ("a: 2", "pass"), ("a: 3", "pass"), ("a: 4", "pass")]);
        comparison.add(outcomes(&[("a: 1", "pass")]), four(), &Choice::default());
        assert_eq!(comparison.unsettled().len(), 3);
        comparison.add(outcomes(&[("a: 1", "pass"), ("a: 2", "pass")]), four(), &Choice::default());
        assert!(comparison.unsettled().is_empty());
    }

    #[test]
    fn a_file_that_counts_as_it_goes_may_count_more() {
        let side = |end: &str, parts: &[(&str, &str)]| {
            let whole = [("a", end), ("a: plan", OPEN)];
            outcomes(&[&whole, parts].concat())
        };
        let (one, two) = ([("a: 1", "pass")], [("a: 1", "pass"), ("a: 2", "pass")]);
        let unsettled = |kernel, ours| {
            let mut comparison = Comparison::default();
            comparison.add(kernel, ours, &Choice::default());
            comparison.unsettled().len()
        };
        assert_eq!(unsettled(side("pass", &one), side("pass", &two)), 0);
        assert_eq!(unsettled(side("pass", &two), side("pass", &one)), 0);
        assert_eq!(unsettled(side("pass", &one), side("pass", &[("a: 1", "pass"), ("a: 2", "fail")])), 1);
        assert_eq!(unsettled(side("fail", &one), side("fail", &two)), 1);
        assert_eq!(unsettled(side("pass", &two), outcomes(&[("a", "pass"), ("a: plan", "none")])), 3);
    }

    #[test]
    fn what_hangs_on_the_kernel_is_left_out_and_the_same() {
        let kernel = outcomes(&[("a", HANG)]);
        let choice = Choice { without: hanging(&kernel), ..Choice::default() };
        assert!(!choice.has("a") && choice.has("b"));
        let mut comparison = Comparison::default();
        comparison.add(kernel, Outcomes::new(), &choice);
        assert_eq!(comparison.verdicts(), vec![("a".to_owned(), Verdict::Same)]);
    }

    #[test]
    fn known_differences() {
        let known = Known::parse("# words\nlibuv | tcp_* | because\n").unwrap();
        assert_eq!(known.reason("libuv", "tcp_open"), Some("because"));
        assert_eq!(known.reason("perl", "tcp_open"), None);
        assert!(Known::parse("libuv tcp_open").is_err());
    }
}
