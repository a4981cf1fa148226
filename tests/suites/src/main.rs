//! `cargo xtask suites`: test suites that others wrote, run on the kernel first, then on us, and compared test by test.
//!
//! Each item (a module of CPython's tests, libuv's tests, ...) runs twice under `target/suites`: plainly, and under
//! `sd run` with a monitor of its own, each time in a network of its own (`network`), so that nobody else has a port
//! that it needs, and several items can run at a time (`lanes`). What counts is the outcome of every single test: one that fails or is skipped on
//! the kernel too is the same. A test that differs is repeated alone on both sides; it is flaky only if it flips on the
//! kernel as well. Differences that have to stay are in `tests/suites/known-differences.txt`, each with its reason. At
//! the end of an item nothing may be left in the monitor. What runs, and what could not be had: docs/SUITES.md.

mod between;
mod compare;
mod cpython;
mod curl;
mod each;
mod go;
mod lanes;
mod network;
mod python;
mod redis;
mod sources;
mod stage;
mod stress;

use clap::Parser;
use compare::{Known, Outcomes, Verdict};
use harness::report::Count;
use harness::{Result, fail, install, product};
use stage::Stage;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// How often tests that differ are repeated on both sides.
const ROUNDS: usize = 4;

/// A part of a suite that is run as one, and gives one line.
pub(crate) struct Item {
    pub(crate) suite: &'static str,
    pub(crate) name: &'static str,
    /// Programs and files that it needs; the absence of one skips the item.
    pub(crate) needs: &'static [&'static str],
    /// Part of `--fast`.
    pub(crate) is_fast: bool,
    /// Fetches and builds what is not packaged, before the item is cut off from other machines.
    pub(crate) source: Option<fn() -> Result<PathBuf>>,
    /// Runs all tests, or those chosen, and says what became of each.
    pub(crate) run: fn(&Stage, &Item, &Choice) -> Result<Outcomes>,
}

/// Which tests of an item are run. A runner may run more than `only`; it may not run those of `without`.
#[derive(Default)]
pub(crate) struct Choice {
    pub(crate) only: Option<BTreeSet<String>>,
    /// They hang on the kernel, so there is nothing to compare.
    pub(crate) without: BTreeSet<String>,
}

impl Choice {
    pub(crate) fn has(&self, test: &str) -> bool {
        !self.without.contains(test) && self.only.as_ref().is_none_or(|only| only.contains(test))
    }
}

#[derive(Parser)]
#[command(
    name = "sd-suites",
    bin_name = "cargo xtask suites",
    about = "Run the test suites of others on the kernel and on us, and compare them test by test"
)]
struct Options {
    /// Run only the items whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the names of the items
    #[arg(long)]
    list: bool,
    /// Only the items that together take less than two minutes
    #[arg(long)]
    fast: bool,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
    /// Use the programs that are there; install nothing
    #[arg(long)]
    no_install: bool,
    /// How many items run at a time
    #[arg(long, default_value_t = 1, value_name = "N")]
    jobs: usize,
    /// Run one item in this very process
    #[arg(long, hide = true, value_name = "ITEM")]
    inside: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    harness::command("suites", || run(&options))
}

fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(stage::logs())?;
    if let Some(title) = &options.inside {
        let Some(item) = items().find(|item| item.title() == *title) else { fail!("no item {title}") };
        let known = Known::read(&product::root().join("tests/suites/known-differences.txt"))?;
        println!("{}", check(&item, &known).line());
        return Ok(());
    }
    let chosen: Vec<Item> = items()
        .filter(|item| options.only.is_empty() || options.only.iter().any(|part| item.title().contains(part)))
        .filter(|item| item.is_fast || !options.fast)
        .collect();
    if options.list {
        chosen.iter().for_each(|item| println!("{}", item.title()));
        return Ok(());
    }
    if chosen.is_empty() {
        fail!("no item is named like that; see cargo xtask suites --list");
    }
    let needs = chosen.iter().flat_map(|item| item.needs.iter().copied());
    let missing = install::missing_of(&needs.chain([harness::network::PROGRAM]).collect::<Vec<_>>());
    if !options.no_install && !missing.is_empty() {
        install::run(&missing)?;
    }
    if !options.no_build {
        product::build()?;
    }
    let count = lanes::run(&chosen, options.jobs);
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("{} tests differ from the kernel; their logs are in {}", count.failed, stage::logs().display());
    }
    Ok(())
}

fn items() -> impl Iterator<Item = Item> {
    let here = cpython::items().chain(redis::items()).chain(each::items()).chain(stress::items());
    here.chain(curl::items()).chain(python::items()).chain(go::items()).chain(between::items())
}

impl Item {
    fn title(&self) -> String {
        format!("{} {}", self.suite, self.name)
    }
}

/// Runs one item on both sides and prints its line. Skipped are known differences and flaky tests.
fn check(item: &Item, known: &Known) -> Count {
    let title = item.title();
    if let Some(need) = item.needs.iter().find(|need| !install::is_there(need)) {
        println!("skip {title:<36} {need} is not installed");
        return Count { skipped: 1, ..Count::default() };
    }
    let start = Instant::now();
    let verdicts = compare_sides(item);
    let seconds = start.elapsed().as_secs_f64();
    let verdicts = match verdicts {
        Ok(verdicts) => verdicts,
        Err(error) => {
            println!("FAIL {title:<36} {seconds:>6.1} s  {error}");
            return Count::one(false);
        }
    };
    let mut lines = Vec::new();
    let (mut count, mut flaky, mut accepted) = (Count::default(), 0, 0);
    for (test, verdict) in &verdicts {
        match (verdict, known.reason(item.suite, test)) {
            (Verdict::Same, _) => count.passed += 1,
            (Verdict::Flaky(seen), _) => {
                flaky += 1;
                lines.push(format!("     flaky {test}: {seen}"));
            }
            (Verdict::Differs(seen), Some(reason)) => {
                accepted += 1;
                lines.push(format!("     known {test}: {seen}: {reason}"));
            }
            (Verdict::Differs(seen), None) => {
                count.failed += 1;
                lines.push(format!("     DIFF  {test}: {seen}"));
            }
        }
    }
    count.skipped = flaky + accepted;
    let word = if count.failed == 0 { "ok  " } else { "DIFF" };
    let (tests, same, differ) = (verdicts.len(), count.passed, count.failed);
    println!(
        "{word} {title:<36} {seconds:>6.1} s  {tests} tests: {same} same, {differ} differ, {accepted} known, {flaky} flaky"
    );
    lines.iter().for_each(|line| println!("{line}"));
    count
}

/// Runs an item on both sides, and what differs again.
fn compare_sides(item: &Item) -> Result<Vec<(String, Verdict)>> {
    sources::prepare(item)?;
    let mut choice = Choice::default();
    let mut comparison = compare::Comparison::default();
    for round in 0..=ROUNDS {
        let kernel = on_side(item, true, &choice, round)?;
        if round == 0 {
            choice.without = compare::hanging(&kernel);
        }
        let ours = on_side(item, false, &choice, round)?;
        comparison.add(kernel, ours, &choice);
        let differing = comparison.unsettled();
        if differing.is_empty() {
            break;
        }
        choice.only = Some(differing);
    }
    if comparison.is_empty() {
        fail!("no test ran");
    }
    Ok(comparison.verdicts())
}

fn on_side(item: &Item, is_oracle: bool, choice: &Choice, round: usize) -> Result<Outcomes> {
    let stage = Stage::new(item, is_oracle, round)?;
    let mut outcomes = (item.run)(&stage, item, choice)?;
    // As a test of its own: whoever leaves something in the monitor differs from the kernel.
    let end = match stage.finish() {
        Ok(()) => "pass".to_owned(),
        Err(error) => format!("{error}"),
    };
    outcomes.insert("(nothing left in the monitor)".to_owned(), end);
    Ok(outcomes)
}
