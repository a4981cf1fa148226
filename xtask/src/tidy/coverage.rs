//! `docs/coverage` against the subjects of `tests/posix`, and the hooked functions against what calls them.
//!
//! A subject that a table names must exist; `topic/*` stands for all of a topic. In the table of errors, each subject
//! must print one of its row's errnos when it runs on the kernel, and each errno must be printed by one of them. Each
//! hooked function must be called by at least two subjects.

use super::{Findings, callers};
use harness::process::output_of;
use harness::{Result, product};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const TABLES: &str = "docs/coverage/";
const ERRORS: &str = "docs/coverage/errnos.md";
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
    let errors = files.iter().find(|(path, _)| path == Path::new(ERRORS));
    let rows: Vec<Row> = errors.iter().flat_map(|(_, text)| text.lines().filter_map(row)).collect();
    let printed = transcripts(&suite, rows.iter().flat_map(|row| row.subjects.iter().copied()));
    findings.extend(rows.iter().flat_map(|row| unprinted(row, &printed)));
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

/// A row of the table of errors.
struct Row<'a> {
    errnos: Vec<&'a str>,
    subjects: Vec<&'a str>,
}

/// A line of the table, unless it is its head, or says why the error cannot be provoked.
fn row(line: &str) -> Option<Row<'_>> {
    let mut cells = line.strip_prefix("| ")?.split(" | ").skip(1);
    let (errnos, _, last) = (cells.next()?, cells.next()?, cells.next()?);
    let subjects = last.split('`').skip(1).step_by(2);
    let is_provoked = errnos.starts_with('E') && !last.starts_with('-');
    is_provoked.then(|| Row { errnos: errnos.split(", ").collect(), subjects: subjects.collect() })
}

/// What subjects print on the kernel; nothing of those that fail.
fn transcripts<'a>(suite: &Path, names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, String> {
    let printed: BTreeMap<&str, Mutex<String>> = names.map(|name| (name, Mutex::default())).collect();
    let waiting = Mutex::new(printed.iter());
    let work = || {
        let next = || waiting.lock().ok()?.next();
        while let Some((name, place)) = next() {
            // Ports that a subject found unused may be another's when it binds them.
            let text = (0..3).find_map(|_| output_of(suite, &["run", name]).ok()).unwrap_or_default();
            place.lock().into_iter().for_each(|mut place| *place = text.clone());
        }
    };
    // Most of them wait most of the time.
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
    printed.into_iter().map(|(name, text)| (name, text.into_inner().unwrap_or_default())).collect()
}

/// What is wrong with a row.
fn unprinted(row: &Row, printed: &BTreeMap<&str, String>) -> Findings {
    let prints = |subject: &str, errno: &str| {
        let text = printed.get(subject).map_or("", String::as_str);
        text.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|word| word == errno)
    };
    let idle = row.subjects.iter().filter(|subject| !row.errnos.iter().any(|errno| prints(subject, errno)));
    let idle = idle.map(|subject| format!("{ERRORS}: {subject} prints none of {}", row.errnos.join(", ")));
    let lost = row.errnos.iter().filter(|errno| !row.subjects.iter().any(|subject| prints(subject, errno)));
    let lost = lost.map(|errno| format!("{ERRORS}: none of {} prints {errno}", row.subjects.join(", ")));
    idle.chain(lost).collect()
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
    fn errors_against_transcripts() {
        assert!(row("| call | errno | when | subject |").is_none());
        assert!(row("|---|---|---|---|").is_none());
        assert!(row("| bind | ENOMEM | no memory | - (exhausted, see `a/b`) |").is_none());
        let row = row("| bind | EBADF, EINVAL | odd | `bind/errors`, `bind/none` |").unwrap();
        let printed = BTreeMap::from([("bind/errors", "bind = -1 EBADF\n".to_owned())]);
        let found = unprinted(&row, &printed);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("bind/none prints none") && found[1].ends_with("prints EINVAL"),
            "{found:?}"
        );
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
