//! curl's own tests: the packaged curl, and programs with the packaged libcurl, against curl's test servers.
//!
//! One run of `runtests.pl` per range of numbers, since its servers stay up from test to test. A test that it does not
//! run (it lacks a feature or a server) is named on neither side.

use super::compare::{HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item, sources};
use harness::Result;
use std::collections::BTreeSet;
use std::time::Duration;

const RANGES: &[(&str, u32, u32)] = &[
    ("1-199", 1, 199),
    ("200-499", 200, 499),
    ("500-799", 500, 799),
    ("800-1099", 800, 1099),
    ("1100-1399", 1100, 1399),
    ("1400-3099", 1400, 3099),
];

/// Some tests wait for a server's time-out.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn items() -> impl Iterator<Item = Item> {
    RANGES.iter().map(|(name, ..)| Item {
        suite: "curl",
        name,
        needs: &["curl", "perl", "gcc", "make", "stunnel4", "/usr/include/openssl/ssl.h"],
        is_fast: false,
        source: Some(sources::curl_tests),
        run,
    })
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tests = sources::curl_tests()?;
    let mut outcomes = Outcomes::new();
    let mut numbers = numbers(item, &tests.join("../../tests/data"))?;
    // Unless it is the run itself that differs.
    if choice.only.as_ref().is_none_or(|only| only.iter().all(|test| numbers.contains(test))) {
        numbers.retain(|test| choice.has(test));
    }
    let curl = "/usr/bin/curl";
    let options = ["-I../../tests", "../../tests/runtests.pl", "-n", "-a", "-am", "-c", curl, "-vc", curl];
    let mut args = options.to_vec();
    args.extend(numbers.iter().map(String::as_str));
    // Its SSH server refuses to run as root.
    args.extend(["!SFTP", "!SCP"]);
    let mut command = stage.command("perl", &args)?;
    command.current_dir(&tests).env("srcdir", "../../tests").env("USER", "tester");
    let ended = stage.watch(&mut command, item.name, None, TIMEOUT)?;
    // Not every failure has a line of its own; this one has all.
    let failed = ended.text.lines().find_map(|line| line.strip_prefix("TESTFAIL: These test cases failed: "));
    let failed = failed.unwrap_or("").split_whitespace().map(str::to_owned);
    outcomes.extend(failed.map(|number| (number, "fail".to_owned())));
    for line in ended.text.lines() {
        let (word, rest) = match line.split_once(": ") {
            Some(("PASS", rest)) => ("pass", rest),
            Some(("FAIL", rest)) => ("fail", rest),
            _ => continue,
        };
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        outcomes.insert(number, word.to_owned());
    }
    let end = if ended.is_hung { HANG.to_owned() } else { format!("exit status {:?}", ended.code) };
    outcomes.insert("(runtests)".to_owned(), end);
    Ok(outcomes)
}

/// The tests of a range.
fn numbers(item: &Item, data: &std::path::Path) -> Result<BTreeSet<String>> {
    let Some((_, first, last)) = RANGES.iter().find(|(name, ..)| *name == item.name) else {
        return Ok(BTreeSet::new());
    };
    let names = std::fs::read_dir(data)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let number = |name: String| name.strip_prefix("test")?.parse::<u32>().ok();
    Ok(names.filter_map(number).filter(|n| (first..=last).contains(&n)).map(|n| n.to_string()).collect())
}
