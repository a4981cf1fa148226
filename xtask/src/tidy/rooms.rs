//! The folders of sd-socket stand one above the other, and a file uses only folders below its own.
//!
//! What still points upwards stands in `xtask/upward.txt`, one `FILE -> FOLDER` a line, a reason behind `#`. The file can only
//! shrink: a use that is not in it is a fault, and so is a line that no use needs any more.

use super::{Findings, deps, source};
use harness::{Result, product};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

pub(super) const CRATE: &str = "crates/sd-socket/src/";
const EXCEPTIONS: &str = "xtask/upward.txt";

/// From the top to the bottom. `docs/ARCHITECTURE.md` draws them.
const ORDER: [&str; 17] = [
    "calls", "family", "numbers", "data", "poll", "options", "setup", "epoll", "wait", "route", "backlog",
    "memory", "socket", "link", "monitor", "process", "fd",
];

/// Files that declare a table of functions which a folder above fills in (`process::above`).
const TABLES: [&str; 4] = ["monitor/sink.rs", "process/detaching.rs", "socket/life.rs", "wait/duties.rs"];

pub(crate) fn check(files: &[(PathBuf, String)]) -> Result<Findings> {
    let mut upward = BTreeSet::new();
    let mut downward = BTreeMap::new();
    let mut findings = Findings::new();
    for (path, text) in files {
        let name = path.display().to_string();
        let Some(file) = name.strip_prefix(CRATE).filter(|file| file.ends_with(".rs") && *file != "lib.rs")
        else {
            continue;
        };
        let folder = file.split(['/', '.']).next().unwrap_or_default();
        let Some(rank) = rank(folder) else {
            findings.push(format!("{name}: {folder} has no place in the order of xtask/src/tidy/rooms.rs"));
            continue;
        };
        if source::without_tests(&source::mask(text)).contains("Above::empty()") && !TABLES.contains(&file) {
            findings.push(format!("{name}: a table for folders above, which only {TABLES:?} have"));
        }
        let below = used(text).into_iter().filter(|used| self::rank(used).is_some_and(|other| other > rank));
        downward.entry(folder.to_owned()).or_insert_with(BTreeSet::new).extend(below);
        let above = used(text).into_iter().filter(|used| self::rank(used).is_some_and(|other| other < rank));
        upward.extend(above.map(|used| format!("{file} -> {used}")));
    }
    for (path, text) in files {
        let name = path.display().to_string();
        let folder = name.strip_prefix(CRATE).and_then(|file| file.strip_suffix("/mod.rs"));
        let used = folder.and_then(|folder| downward.get(folder));
        findings.extend(used.and_then(|used| said(&name, text, used)));
    }
    let text = std::fs::read_to_string(product::root().join(EXCEPTIONS))?;
    findings.extend(compare(&upward, &text));
    Ok(findings)
}

/// What the head of a folder's `mod.rs` says of the folders that it uses is so.
fn said(name: &str, text: &str, used: &BTreeSet<String>) -> Option<String> {
    let list = text.split("*Uses*: ").nth(1).and_then(|rest| rest.split('.').next()).unwrap_or_default();
    let is_all = list.starts_with("every folder below");
    let said: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
    let is_so = is_all || said == used.iter().map(String::as_str).collect();
    (!is_so).then(|| format!("{name}: *Uses*: {said:?}, but the folder uses {used:?}"))
}

fn rank(folder: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == folder)
}

/// First names after `crate::`, outside of comments and tests.
fn used(text: &str) -> BTreeSet<String> {
    let code = source::without_tests(&source::mask(text));
    let uses = code.match_indices("crate::");
    uses.flat_map(|(at, word)| deps::modules(&code[at + word.len()..])).collect()
}

fn compare(upward: &BTreeSet<String>, exceptions: &str) -> Findings {
    let known = exceptions.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let known: BTreeSet<&str> = known.filter(|line| !line.is_empty()).collect();
    let new = upward.iter().filter(|edge| !known.contains(edge.as_str()));
    let gone = known.iter().filter(|edge| !upward.contains(**edge));
    let new = new.map(|edge| format!("{CRATE}{edge}: the folder stands above the file's"));
    new.chain(gone.map(|edge| format!("{EXCEPTIONS}: {edge} is not needed any more: delete it"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses() {
        let text = "use crate::{fd::table, wait};\n// crate::epoll\nfn a() { crate::data::b() }\n\
                    #[cfg(test)]\nmod tests { use crate::route; }\n";
        assert_eq!(used(text).into_iter().collect::<Vec<_>>(), ["data", "fd", "wait"]);
    }

    #[test]
    fn heads() {
        let used = BTreeSet::from(["fd".to_owned(), "link".to_owned()]);
        assert_eq!(said("a", "//! *Owns*: it. *Uses*: `link`, `fd`. *Locks*: `x`.", &used), None);
        assert_eq!(said("a", "//! *Uses*: every folder below.", &used), None);
        assert!(said("a", "//! *Uses*: `link`.", &used).is_some());
        assert!(said("a", "//! nothing", &used).is_some());
    }

    #[test]
    fn only_shrinks() {
        let upward = BTreeSet::from(["fd/ops.rs -> epoll".to_owned(), "fd/ops.rs -> data".to_owned()]);
        let found =
            compare(&upward, "fd/ops.rs -> epoll # close(2) ends a registration\nfd/pin.rs -> data\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("fd/ops.rs -> data") && found[1].contains("fd/pin.rs -> data is not needed")
        );
    }
}
