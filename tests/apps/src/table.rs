//! `cargo xtask apps --table`: the table of docs/APPLICATIONS.md, from versions found and figures measured now.
//!
//! A figure is what a load generator reports with both ends over the kernel and with both ends over SocksDirect, in
//! turn, the median of some rounds. With a choice by name the table is printed only.

use super::Scenario;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::report::{Progress, median, thousands};
use harness::scratch::end_descendants;
use harness::{Result, fail, product};
use std::process::{Command, Stdio};
use std::time::Duration;

/// An application of the matrix.
pub(crate) struct Row {
    pub(crate) application: &'static str,
    /// Program and arguments that print the version.
    pub(crate) version: &'static [&'static str],
    /// Its scenarios are those whose names begin so.
    pub(crate) scenarios: &'static str,
    pub(crate) features: &'static str,
    /// `None` where no load generator exists.
    pub(crate) load: Option<Load>,
}

/// A load that can be put on an application, and what it reports; more is better.
pub(crate) struct Load {
    /// What is counted, and how it is made: `requests/s, wrk, 50 connections`.
    pub(crate) unit: &'static str,
    pub(crate) rate: fn(&Lab, Side) -> Result<f64>,
}

const ROUNDS: usize = 3;
const BEGIN: &str = "<!-- table: written by cargo xtask apps --table -->\n";
const END: &str = "<!-- end of table -->\n";

pub(crate) fn run(rows: &[&Row], scenarios: &[&Scenario], is_whole: bool) -> Result<()> {
    if rows.is_empty() {
        fail!("no application is named like that");
    }
    let mut table = String::from(
        "| application | version | scenarios | features exercised | load | kernel | SocksDirect | gain |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut progress = Progress::new(rows.len());
    let mut failed = Vec::new();
    for row in rows {
        progress.step(row.application);
        table.push_str(&line(row, scenarios, &mut failed));
        end_descendants(Duration::from_secs(1));
    }
    progress.finish();
    print!("{table}");
    if is_whole {
        let path = product::root().join("docs/APPLICATIONS.md");
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, replace(&text, &table)?)?;
    }
    if !failed.is_empty() {
        fail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// The text with the part between the marks replaced.
fn replace(text: &str, table: &str) -> Result<String> {
    let (Some((before, _)), Some((_, after))) = (text.split_once(BEGIN), text.split_once(END)) else {
        fail!("docs/APPLICATIONS.md has lost the marks around its table")
    };
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

fn line(row: &Row, scenarios: &[&Scenario], failed: &mut Vec<String>) -> String {
    let count = scenarios.iter().filter(|s| s.name.starts_with(row.scenarios)).count();
    let Row { application, features, .. } = row;
    let version = version(row).unwrap_or_else(|| "not installed".to_owned());
    let figures = match row.load.as_ref().map(|load| (load.unit, measure(load))) {
        None => "| none | | | ".to_owned(),
        Some((unit, Ok([kernel, sd]))) => {
            format!("| {unit} | {} | {} | {:.2} ", figure(kernel), figure(sd), sd / kernel)
        }
        Some((unit, Err(error))) => {
            failed.push(format!("{application}, {unit}: {error}"));
            format!("| {unit} | failed | | ")
        }
    };
    format!("| {application} | {version} | {count} | {features} {figures}|\n")
}

fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { thousands(value) }
}

/// Medians over the kernel and over SocksDirect.
fn measure(load: &Load) -> Result<[f64; 2]> {
    let sides = [Side::Kernel, Side::Sd];
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (side, rates) in sides.into_iter().zip(&mut rates) {
            let lab = Lab::new(false)?;
            rates.push((load.rate)(&lab, side)?);
            lab.finish()?;
        }
    }
    Ok(rates.map(|rates| median(&rates)))
}

/// The first word with a digit and a point that the program prints.
fn version(row: &Row) -> Option<String> {
    let (program, args) = row.version.split_first()?;
    let scratch = harness::scratch::Scratch::new("version").ok()?;
    let mut command = Command::new(harness::lab::locate(program)?);
    command.args(args).stdin(Stdio::null());
    let output =
        Proc::start(&mut command, "version", scratch.path()).ok()?.wait(Duration::from_secs(20)).ok()?;
    find_version(&format!("{} {}", output.text(), output.stderr))
}

fn find_version(text: &str) -> Option<String> {
    text.split(|c: char| c.is_whitespace() || "/=,()".contains(c))
        .map(|word| {
            word.trim_start_matches(|c: char| !c.is_ascii_digit())
                .trim_end_matches(".jar")
                .trim_end_matches('.')
        })
        .find(|word| word.contains('.') && word.split('.').next().is_some_and(|n| n.parse::<u32>().is_ok()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, wanted) in [
            ("nginx version: nginx/1.22.1", "1.22.1"),
            ("HAProxy version 2.6.12-1+deb12u2 2025/04/16 - https://haproxy.org/", "2.6.12-1+deb12u2"),
            ("Server version: Apache/2.4.65 (Debian)", "2.4.65"),
            ("v20.20.2", "20.20.2"),
            ("/usr/share/java/netty-transport-native-unix-common-4.1.48.Final.jar", "4.1.48.Final"),
            ("Redis server v=7.0.15 sha=00000000:0", "7.0.15"),
        ] {
            assert_eq!(find_version(text).as_deref(), Some(wanted));
        }
        assert_eq!(find_version("no number."), None);
    }

    #[test]
    fn table_is_replaced() {
        let text = format!("a\n{BEGIN}old\n{END}z\n");
        assert_eq!(replace(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}z\n"));
        replace("a", "b").unwrap_err();
    }
}
