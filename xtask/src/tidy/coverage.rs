//! `docs/coverage` against the subjects of `tests/posix`, and the hooked functions against what calls them.
//!
//! A subject that a table names must exist; `topic/*` stands for all of a topic. Each hooked function must be called by
//! a subject, or by the program that compares libc's results with and without the library.

use super::Findings;
use crate::process::output_of;
use crate::{Result, product};
use std::path::{Path, PathBuf};

const TABLES: &str = "docs/coverage/";
/// Who calls hooked functions.
const CALLERS: [&str; 2] = ["tests/posix/src/", "crates/sd-preload/examples/every_call/"];

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
    let calls: Vec<&str> =
        CALLERS.iter().flat_map(|folder| below(folder)).map(|(_, text)| text.as_str()).collect();
    let hooks = files.iter().find(|(path, _)| path == Path::new("docs/hooks.txt"));
    findings.extend(hooks.into_iter().flat_map(|(_, text)| never_called(text, &calls)));
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

/// Functions that the list calls hooked and that no text has as a word.
fn never_called(hooks: &str, texts: &[&str]) -> Findings {
    let hooked = hooks.lines().filter_map(|line| line.split('#').next()?.trim().strip_suffix(" hooked"));
    let is_missing = |name: &&str| !texts.iter().any(|text| has_word(text, name));
    hooked
        .map(str::trim)
        .filter(is_missing)
        .map(|name| format!("no subject calls {name}, which is hooked"))
        .collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !is_part(before) && !is_part(after)
    })
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
        let hooks = "# list\nread hooked\n__read hooked\npread left-out: why\n";
        let found = never_called(hooks, &["libc::pread(); libc::read()"]);
        assert_eq!(found, ["no subject calls __read, which is hooked"]);
    }
}
