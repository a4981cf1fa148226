//! Files of sd-socket that use each other in a circle cannot be read, or tested, one after the other.
//!
//! A use is a `crate::` path to another file; a name that a folder's `mod.rs` hands on is the file's that has it. lib.rs is nobody's
//! folder and not counted. The biggest circle has a limit that only shrinks: [`LIMIT`] is lowered with it.

use super::{Findings, rooms, source};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Files in the biggest circle.
const LIMIT: usize = 7;

type Graph = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn check(files: &[(PathBuf, String)]) -> Findings {
    let inside = files.iter().filter_map(|(path, text)| {
        let name = path.display().to_string();
        let file = name.strip_prefix(rooms::CRATE)?.strip_suffix(".rs")?;
        let code = source::without_tests(&source::mask(text));
        (file != "lib").then(|| (file.trim_end_matches("/mod").to_owned(), code))
    });
    let inside: BTreeMap<String, String> = inside.collect();
    let circle = biggest_circle(&graph(&inside));
    let names = circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match circle.len() {
        LIMIT => Findings::new(),
        more if more > LIMIT => {
            vec![format!("sd-socket: a circle of {more} files, {LIMIT} allowed: {names}")]
        }
        less => {
            vec![format!("xtask/src/tidy/circles.rs: LIMIT is {LIMIT}, the biggest circle {less}: lower it")]
        }
    }
}

fn graph(files: &BTreeMap<String, String>) -> Graph {
    let uses = |(name, code): (&String, &String)| {
        let paths = code.match_indices("crate::").flat_map(|(at, word)| paths(&code[at + word.len()..]));
        let mut used: BTreeSet<String> = paths.filter_map(|path| file_of(files, &path)).collect();
        used.remove(name);
        (name.clone(), used)
    };
    files.iter().map(uses).collect()
}

/// The file that a path leads to.
fn file_of(files: &BTreeMap<String, String>, path: &[String]) -> Option<String> {
    let known =
        (1..=path.len()).rev().map(|len| path[..len].join("/")).find(|name| files.contains_key(name))?;
    let depth = known.split('/').count();
    let handed_on = path.get(depth).and_then(|name| handed_on(&files[&known], name));
    let child = handed_on.map(|child| format!("{known}/{child}")).filter(|child| files.contains_key(child));
    Some(child.unwrap_or(known))
}

/// The child of a module from which it hands a name on.
fn handed_on(module: &str, name: &str) -> Option<String> {
    let uses = module.split("pub(crate) use ").skip(1);
    let mut all = uses.flat_map(paths).filter(|path| path.len() == 2);
    let mut any = None;
    let named = all.find(|path| {
        if path[1] == "*" {
            any = Some(path[0].clone());
        }
        path[1] == name
    });
    named.map(|path| path[0].clone()).or(any)
}

/// The paths of a use tree, or the one that stands there.
fn paths(rest: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    walk(rest, &mut Vec::new(), &mut found);
    found
}

/// Takes one tree off the front; what is left.
fn walk<'a>(mut rest: &'a str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let depth = before.len();
    loop {
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                rest = walk(rest, before, found);
                rest = rest.trim_start_matches(|c: char| c != ',' && c != '}');
                rest = rest.trim_start_matches(',').trim_start();
            }
            before.truncate(depth);
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        before.push(rest[..end].to_owned());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) if more.starts_with(|c: char| is_name(c) || c == '{') => rest = more,
            _ => break,
        }
    }
    found.push(before.clone());
    before.truncate(depth);
    rest
}

/// The largest set of files each of which leads to each other.
fn biggest_circle(graph: &Graph) -> BTreeSet<String> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = graph[from].iter().collect();
        while let Some(file) = next.pop() {
            if seen.insert(file.clone()) {
                next.extend(&graph[file]);
            }
        }
        seen
    };
    let reached: Graph = graph.keys().map(|file| (file.clone(), reach(file))).collect();
    let circle = |file: &String| {
        let back = reached[file].iter().filter(|other| reached[*other].contains(file));
        back.cloned().collect::<BTreeSet<_>>()
    };
    graph.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(name, code)| ((*name).to_owned(), (*code).to_owned())).collect()
    }

    #[test]
    fn trees() {
        let found: Vec<String> =
            paths("a::{b::{self, c}, d::*};").iter().map(|path| path.join("/")).collect();
        assert_eq!(found, ["a/b/self", "a/b/c", "a/d/*"]);
        assert_eq!(paths("a::b(c)"), [["a", "b"]]);
    }

    #[test]
    fn a_circle_over_a_name_that_is_handed_on() {
        let files = files(&[
            ("a", "pub(crate) use inner::{ring, stop};"),
            ("a/inner", "use crate::b;"),
            ("b", "fn f() { crate::a::ring() }"),
            ("c", "use crate::{a, b};"),
        ]);
        let circle = biggest_circle(&graph(&files));
        assert_eq!(circle.into_iter().collect::<Vec<_>>(), ["a/inner", "b"]);
    }
}
