//! What SECURITY.md names as the test of a promise exists: tests of `cargo xtask hostile`, by their names.

use super::Findings;
use std::path::PathBuf;

pub(crate) fn check(files: &[(PathBuf, String)]) -> Findings {
    let of = |start: &'static str| files.iter().filter(move |(path, _)| path.starts_with(start));
    let sources = of("xtask/src/hostile").map(|(_, text)| text.as_str());
    let names: Vec<&str> =
        sources.flat_map(|text| text.split("(\"").skip(1)).filter_map(|s| s.split('"').next()).collect();
    of("SECURITY.md").flat_map(|(_, text)| missing(text, &names)).collect()
}

/// Of the table's last column. `-read` behind `finding-06-x` is short for one that begins and ends so.
fn missing(text: &str, names: &[&str]) -> Findings {
    let mut first = String::new();
    let mut found = Findings::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let column = line.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        for name in column.split('`').skip(1).step_by(2) {
            let is_short = name.starts_with('-') && !name.starts_with("--") && !first.is_empty();
            let is_test = |start: &&str| name.starts_with(*start);
            let (begin, end) = match name.strip_suffix('*') {
                Some(begin) => (begin.to_owned(), ""),
                None if is_short => (first.clone(), name),
                None => (name.to_owned(), name),
            };
            if !is_short && !["finding-", "hang-", "lock-", "matrix", "stopped-"].iter().any(is_test) {
                continue;
            }
            first = begin.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
            let fits = |test: &&str| test.starts_with(&begin) && test.ends_with(end);
            if !names.iter().any(fits) {
                found.push(format!("SECURITY.md: cargo xtask hostile has no test {name}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_promise_without_its_test_is_found() {
        let names = ["finding-06-privsep-read", "finding-06-privsep-write", "lock-slab"];
        let text = "| promise | `finding-06-privsep-read`, `-write`; `lock-*`; `cargo xtask miri` |\n";
        assert!(super::missing(text, &names).is_empty());
        let text = "| promise | `finding-06-privsep-read`, `-throw`; `lock-epoll`; `matrix` |\n";
        assert_eq!(super::missing(text, &names).len(), 3);
    }
}
