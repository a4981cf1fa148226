//! `docs/coverage` against the subjects of `tests/posix`, and the hooked functions against what calls them.
//!
//! A subject that a table names must exist; `topic/*` stands for all of a topic. Each hooked function must be called by
//! at least two subjects.

use super::{Findings, callers};
use crate::process::output_of;
use crate::{Result, product};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const TABLES: &str = "docs/coverage/";
const SUITE: &str = "tests/posix/src/";

pub(crate) fn check(files: &[(PathBuf, String)]) -> Result<Findings> {
    let suite = product::target().join("release/sd-posix");
    if !suite.exists() {
        return Ok(vec![format!("{} is not there; run cargo xtask build first", suite.display())]);
    }
    let list = output_of(suite.display().to_string(), &["list"])?;
    let subjects: Vec<&str> = list.lines().collect();
    let below = |folder: &'static str| files.iter().filter(move |(path, _)| path.starts_with(folder));
    let mut findings = Findings::new();
    for (path, text) in below(TABLES) {
        findings.extend(unknown_subjects(path, text, &subjects));
    }
    let counts = callers::count(below(SUITE).map(|(_, text)| text.as_str()));
    let hooks = files.iter().find(|(path, _)| path == Path::new("docs/hooks.txt"));
    findings.extend(hooks.into_iter().flat_map(|(_, text)| rarely_called(text, &counts)));
    Ok(findings)
}

/// Subjects in the tables that do not exist.
fn unknown_subjects(path: &Path, text: &str, subjects: &[&str]) -> Findings {
    let mut findings = Findings::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains('/')) {
            let exists = match name.strip_suffix('*') {
                Some(topic) => subjects.iter().any(|subject| subject.starts_with(topic)),
                None => subjects.contains(&name),
            };
            if !exists {
                findings.push(format!("{}:{}: there is no subject {name}", path.display(), index + 1));
            }
        }
    }
    findings
}

/// Functions that the list calls hooked and that fewer than two subjects call.
fn rarely_called(hooks: &str, counts: &BTreeMap<String, usize>) -> Findings {
    let hooked = hooks.lines().filter_map(|line| line.split('#').next()?.trim().strip_suffix(" hooked"));
    hooked
        .map(str::trim)
        .map(|name| (name, counts.get(name).copied().unwrap_or(0)))
        .filter(|(_, count)| *count < 2)
        .map(|(name, count)| format!("{name} is hooked, and {count} subjects call it: at least two must"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_against_subjects() {
        let table =
            "`none/such` in a sentence\n| says | `epoll/level`, `epoll/*`, `epoll/gone`, `other/*` |\n";
        let found = unknown_subjects(Path::new("x.md"), table, &["epoll/level", "poll/many"]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("x.md:2") && found[0].contains("epoll/gone"), "{found:?}");
    }

    #[test]
    fn hooks_against_calls() {
        let hooks = "# list\nread hooked\n__read hooked\nrecv hooked\npread left-out: why\n";
        let counts = BTreeMap::from([("read".to_owned(), 2), ("recv".to_owned(), 1)]);
        let found = rarely_called(hooks, &counts);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("__read ") && found[1].starts_with("recv "), "{found:?}");
    }
}
