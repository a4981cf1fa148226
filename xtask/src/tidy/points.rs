//! A SYNC POINT, where two sides each write and then look, has a name and two ends at least. Each end in the code names the others
//! by function and file, and a loom model of that name runs in `cargo xtask test`.
//!
//! ```text
//! SYNC POINT: sleepers, with `wake` in crates/sd-socket/src/link/peer.rs
//! ```
//! Several functions of a file are joined by "and" or commas; so are several files.

use super::{Findings, source};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const MARK: &str = "SYNC POINT:";
/// Where the models are. Each begins with the mark and a name.
const MODELS: &str = "crates/sd-ring/tests/";

/// One end, as its comment says.
struct End {
    name: String,
    /// Functions and the file that has them.
    others: Vec<(String, String)>,
}

pub(crate) fn check(files: &[(PathBuf, String)]) -> Findings {
    let text_of: BTreeMap<String, &str> =
        files.iter().map(|(path, text)| (path.display().to_string(), text.as_str())).collect();
    let mut findings = Findings::new();
    let mut places: BTreeMap<String, BTreeSet<(String, usize)>> = BTreeMap::new();
    for (name, text) in text_of.iter().filter(|(name, _)| is_code(name)) {
        for (at, end) in ends(text) {
            let place = format!("{name}:{at}");
            if end.others.is_empty() {
                findings.push(format!("{place}: {MARK} {} names no other end: `function` in path", end.name));
            }
            for (function, file) in &end.others {
                findings.extend(fault(&place, &end.name, function, file, &text_of));
            }
            places.entry(end.name).or_default().insert((name.clone(), at));
        }
    }
    for (name, ends) in &places {
        if ends.len() < 2 {
            findings.push(format!("{MARK} {name} has one end only"));
        }
        let mark = format!("{MARK} {name}.");
        if !text_of.iter().any(|(file, text)| file.starts_with(MODELS) && joined(text).contains(&mark)) {
            findings.push(format!("{MARK} {name} has no loom model: none in {MODELS} says \"{mark}\""));
        }
    }
    findings
}

fn is_code(name: &str) -> bool {
    name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs")
}

fn fault(
    place: &str,
    name: &str,
    function: &str,
    file: &str,
    text_of: &BTreeMap<String, &str>,
) -> Option<String> {
    let Some(text) = text_of.get(file) else {
        return Some(format!("{place}: {MARK} {name}: there is no {file}"));
    };
    if !source::mask(text).contains(&format!("fn {function}")) {
        return Some(format!("{place}: {MARK} {name}: {file} has no function {function}"));
    }
    (!ends(text).iter().any(|(_, end)| end.name == name))
        .then(|| format!("{place}: {MARK} {name}: {file} does not say that it is an end of it"))
}

/// The ends that comments of a file name, with their lines.
fn ends(text: &str) -> Vec<(usize, End)> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("//")) {
        for (column, _) in line.match_indices(MARK) {
            // The comment may go on in the next lines.
            let more = lines[at + 1..].iter().take_while(|line| line.starts_with("//"));
            let rest: Vec<&str> =
                core::iter::once(&line[column + MARK.len()..]).chain(more.map(|line| words(line))).collect();
            found.push((at + 1, end(&rest.join(" "))));
        }
    }
    found
}

/// A line of a comment, less its slashes.
fn words(line: &str) -> &str {
    line.trim_start_matches(['/', '!']).trim_start()
}

fn joined(text: &str) -> String {
    text.lines().map(|line| words(line.trim_start())).collect::<Vec<_>>().join(" ")
}

/// `name, with `a` and `b` in path.rs, and `c` in other.rs; and so on`.
fn end(text: &str) -> End {
    let text = text.trim_start();
    let name_len = text.find(|c: char| !c.is_ascii_lowercase() && c != ' ').unwrap_or(text.len());
    let (name, rest) = text.split_at(name_len);
    let mut end = End { name: name.trim().to_owned(), others: Vec::new() };
    let Some(mut rest) = rest.strip_prefix(", with ") else { return end };
    let mut functions = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        rest = rest.strip_prefix("and ").unwrap_or(rest);
        if let Some((function, after)) = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
            functions.push(function.to_owned());
            rest = after;
        } else if let Some(after) = rest.strip_prefix("in ") {
            let len = after.find(".rs").map_or(0, |at| at + 3);
            let (file, after) = after.split_at(len);
            end.others.extend(functions.drain(..).map(|function| (function, file.to_owned())));
            rest = after;
        } else {
            return end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(model: &str, one: &str, two: &str) -> Findings {
        let files = [
            ("crates/sd-ring/tests/m.rs", model),
            ("crates/a/src/one.rs", one),
            ("crates/b/src/two.rs", two),
        ];
        check(&files.map(|(name, text)| (PathBuf::from(name), text.to_owned())))
    }

    const MODEL: &str = "//! SYNC POINT: two words. It fails.";
    const ONE: &str = "/// Says so (SYNC POINT: two words, with `hear` and\n/// `see` in crates/b/src/two.rs).\nfn say() {}";
    const TWO: &str = "// SYNC POINT: two words, with `say` in crates/a/src/one.rs; the look is later.\nfn hear() {}\nfn see() {}";

    #[test]
    fn two_ends_that_name_each_other_and_have_a_model_are_in_order() {
        assert_eq!(findings(MODEL, ONE, TWO), Findings::new());
    }

    #[test]
    fn what_is_missing_is_told() {
        let is_told = |findings: Findings, what: &str| {
            assert!(findings.iter().any(|finding| finding.contains(what)), "{what}: {findings:?}");
        };
        is_told(findings("", ONE, TWO), "no loom model");
        is_told(findings(MODEL, ONE, ""), "has one end only");
        is_told(findings(MODEL, ONE, "fn hear() {}\nfn see() {}"), "does not say that it is an end");
        is_told(findings(MODEL, ONE, &TWO.replace("hear", "listen")), "has no function hear");
        is_told(findings(MODEL, &ONE.replace("two.rs", "gone.rs"), TWO), "there is no crates/b/src/gone.rs");
        is_told(findings(MODEL, "// (SYNC POINT: two words)\nfn say() {}", TWO), "names no other end");
    }
}
