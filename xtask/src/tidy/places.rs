//! Where the documents send a reader, something is.

use super::Findings;
use std::path::{Path, PathBuf};

/// Documents that say where things are. ADRs say where they were.
const GUIDES: &[&str] = &["docs/ARCHITECTURE.md", "docs/GLOSSARY.md", "docs/HACKING.md"];
/// How a path in backticks begins, from the root or from `crates/`.
const BEGINNINGS: &[&str] = &["crates/", "tests/", "xtask/", "sd-"];

pub(crate) fn check(files: &[(PathBuf, String)]) -> Findings {
    let guides = files.iter().filter(|(path, _)| GUIDES.iter().any(|guide| path == Path::new(guide)));
    let missing = guides.flat_map(|(path, text)| {
        text.lines().enumerate().flat_map(move |(number, line)| {
            let gone = paths(line).into_iter().filter(|place| !exists(place, files));
            gone.map(move |place| format!("{}:{}: there is no {place}", path.display(), number + 1))
        })
    });
    missing.collect()
}

/// The paths in backticks; `a/{b,c}.rs` is two.
fn paths(line: &str) -> Vec<String> {
    let quoted = line.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        word.contains('/')
            && BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
            && !word.contains(|c: char| c.is_whitespace() || "<>*".contains(c))
    };
    quoted.filter(is_path).flat_map(alternatives).collect()
}

fn alternatives(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (names, after))) => {
            names.split(',').map(|name| format!("{before}{name}{after}")).collect()
        }
        None => vec![path.to_owned()],
    }
}

fn exists(place: &str, files: &[(PathBuf, String)]) -> bool {
    let below = Path::new(if place.starts_with("sd-") { "crates" } else { "" }).join(place);
    files.iter().any(|(path, _)| path.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_moved_is_found() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let guide =
            "`sd-x/src/a.rs`, `sd-x/src/{a,b}.rs`, `tests/y`\n`cargo test a/b`, `sd-x`, `sd-gone/src`";
        let files =
            [file("docs/GLOSSARY.md", guide), file("crates/sd-x/src/a.rs", ""), file("tests/y/z.rs", "")];
        let found = check(&files);
        assert_eq!(
            found,
            ["docs/GLOSSARY.md:1: there is no sd-x/src/b.rs", "docs/GLOSSARY.md:2: there is no sd-gone/src",]
        );
    }
}
