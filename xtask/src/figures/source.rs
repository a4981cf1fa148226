//! `sd bench --json`, run and read.

use harness::process::Proc;
use harness::scratch::Scratch;
use harness::{Result, fail, product};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rows of `sd bench`, as they were printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows(pub(crate) Vec<Value>);

/// Runs `sd bench` with these arguments.
pub(crate) fn bench(args: &[&str], is_quick: bool) -> Result<Rows> {
    let scratch = Scratch::new("bench")?;
    let mut command = Command::new(product::sd());
    command.arg("bench").args(args).arg("--json").stdin(Stdio::null());
    command.env("TMPDIR", scratch.path()).env_remove("LD_PRELOAD").env_remove("SD_MONITOR");
    if is_quick {
        command.args(["--quick", "--rounds", "1"]);
    }
    let limit = Duration::from_secs(if is_quick { 180 } else { 1800 });
    let output = Proc::start(&mut command, "sd-bench", scratch.path())?.wait(limit)?;
    if !output.status.success() {
        fail!("sd bench {}: {}", args.join(" "), output.stderr.trim());
    }
    parse(&output.text())
}

fn parse(text: &str) -> Result<Rows> {
    let rows: std::result::Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    Ok(Rows(rows?))
}

impl Rows {
    /// In the order of their first rows.
    pub(crate) fn systems(&self) -> Vec<String> {
        let mut systems = Vec::new();
        for system in self.0.iter().filter_map(|row| row["system"].as_str()) {
            if !systems.iter().any(|known| known == system) {
                systems.push(system.to_owned());
            }
        }
        systems
    }

    pub(crate) fn of<'a>(&'a self, system: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |row| row["system"] == system)
    }

    /// Only the rows with this item, or with none.
    pub(crate) fn item(&self, item: Option<&str>) -> Rows {
        Rows(self.0.iter().filter(|row| row["item"].as_str() == item).cloned().collect())
    }

    /// The first median of a system, of an item and of a size, where these are given.
    pub(crate) fn median(&self, system: &str, item: Option<&str>, size: Option<u64>) -> Option<f64> {
        let fits = |row: &&Value| {
            item.is_none_or(|item| row["item"] == item) && size.is_none_or(|size| row["size"] == size)
        };
        self.of(system).find(fits)?["median"].as_f64()
    }

    /// The congestion control that the kernel's TCP had.
    pub(crate) fn congestion(&self) -> Option<String> {
        self.0.iter().find_map(|row| Some(row["congestion"].as_str()?.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"system":"tcp","size":8,"median":10.5,"congestion":"cubic"}
{"system":"ring","size":8,"median":2.0,"congestion":null}
{"system":"tcp","item":"send","size":64,"median":11.0,"congestion":null}"#;

    #[test]
    fn rows_are_found() {
        let rows = parse(TEXT).unwrap();
        assert_eq!(rows.systems(), ["tcp", "ring"]);
        assert_eq!(rows.median("tcp", None, Some(64)), Some(11.0));
        assert_eq!(rows.median("tcp", Some("send"), None), Some(11.0));
        assert_eq!(rows.median("unix", None, None), None);
        assert_eq!(rows.item(None).0.len(), 2);
        assert_eq!(rows.congestion().as_deref(), Some("cubic"));
        parse("not json").unwrap_err();
    }
}
