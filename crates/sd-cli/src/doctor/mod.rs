//! `sd doctor`: what works on this host, what does not, and what to do about it.
//!
//! One line for each check. A check never changes anything that outlives it; the self-test runs in a directory,
//! and with a monitor, of its own. Exit status 1 when a check failed.

mod container;
mod engine;
mod go;
mod kernel;
mod limits;
mod parts;
pub(crate) mod peer;
mod process;
mod promotion;
mod selftest;

use sd_cli::cli::DoctorOptions;
use sd_cli::failure::{Context, Failure, Result, print, printable};
use sd_cli::{client, place};
use serde::Serialize;
use std::io::IsTerminal;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, with less than there could be.
    Warn,
    /// Nothing is accelerated, or connections fail.
    Fail,
}

/// One line.
#[derive(Serialize, Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Ok, detail: detail.into(), advice: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Warn, detail: detail.into(), advice: Some(advice.into()) }
    }

    fn fail(name: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Fail, detail: detail.into(), advice: Some(advice.into()) }
    }
}

/// Checks everything and prints it.
pub(crate) fn main(options: &DoctorOptions) -> Result<()> {
    let socket = place::socket(None);
    let answer = client::status(&socket);
    let mut checks = match options.pid {
        Some(pid) => process::checks(pid, &answer),
        None => parts::checks(&socket, &answer),
    };
    if options.pid.is_none() {
        checks.extend(container::checks(&answer));
        checks.extend(promotion::check(&answer));
        checks.extend(engine::checks(&answer));
        checks.extend(kernel::checks());
        checks.extend(limits::checks());
        checks.push(selftest::check());
    }
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count();
    if options.json {
        let document = serde_json::json!({ "ok": failed == 0, "checks": checks });
        print(&format!("{}\n", serde_json::to_string(&document).context("JSON")?))?;
    } else {
        print(&checks.iter().map(line).collect::<String>())?;
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::new("1 check failed")),
        n => Err(Failure::new(format!("{n} checks failed"))),
    }
}

fn line(check: &Check) -> String {
    let (word, colour) = match check.verdict {
        Verdict::Ok => ("ok  ", "\x1b[32m"),
        Verdict::Warn => ("warn", "\x1b[33m"),
        Verdict::Fail => ("FAIL", "\x1b[31m"),
    };
    let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let word = if coloured { format!("{colour}{word}\x1b[0m") } else { word.to_owned() };
    let advice = check.advice.as_deref().map(|advice| format!(" -> {advice}")).unwrap_or_default();
    format!("{word} {:<18} {}\n", check.name, printable(&format!("{}{advice}", check.detail)))
}

/// A file of /proc or /sys, trimmed; empty when it is not there.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line() {
        let text = line(&Check::fail("x", "broken\nbadly", "mend it"));
        assert_eq!(text, "FAIL x                  broken badly -> mend it\n");
    }

    #[test]
    fn every_check_has_a_name_of_its_own_and_advice_when_it_is_not_ok() {
        let mut checks = kernel::checks();
        checks.extend(container::checks(&Err(client::Silence::Absent)));
        checks.extend(limits::checks());
        let mut names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len());
        assert!(checks.iter().all(|check| (check.verdict == Verdict::Ok) == check.advice.is_none()));
    }
}
