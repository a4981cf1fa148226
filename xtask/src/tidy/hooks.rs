//! What `libsd.so` exports against `docs/hooks.txt`, the list of glibc's functions that take or make descriptors.
//!
//! Each line of the list is `name hooked` or `name left-out: reason`; `#` begins a comment. A hooked one must be
//! exported, and whatever is exported must be hooked by the list.

use super::Findings;
use harness::process::output_of;
use harness::{Result, product};
use std::collections::{BTreeMap, BTreeSet};

const LIST: &str = "docs/hooks.txt";

/// Symbols that the linker puts into every library.
const LINKER: &[&str] = &["_init", "_fini", "_edata", "_end", "__bss_start"];

/// Exported, and no function of libc.
const FOR_SANITIZERS: &str = "__asan_default_options";

pub(crate) fn check() -> Result<Findings> {
    let library = product::libsd();
    if !library.exists() {
        return Ok(vec![format!("{} is not there; run cargo xtask build first", library.display())]);
    }
    let exported = exported(&output_of("nm", &["-D", "--defined-only", &library.display().to_string()])?);
    let text = match std::fs::read_to_string(product::root().join(LIST)) {
        Ok(text) => text,
        Err(error) => return Ok(vec![format!("{LIST}: {error}")]),
    };
    let mut findings = Findings::new();
    let list = parse(&text, &mut findings);
    findings.extend(compare(&list, &exported));
    Ok(findings)
}

/// Names from `address type name[@version]` lines.
fn exported(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let kind = fields.next()?;
        let name = fields.next()?.split('@').next()?;
        // An absolute symbol is the name of a version.
        (kind != "A" && !LINKER.contains(&name) && name != FOR_SANITIZERS).then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// The list: whether each name is hooked. What cannot be read is a finding.
fn parse(text: &str, findings: &mut Findings) -> BTreeMap<String, bool> {
    let mut list = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (name, word) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let word = word.trim();
        let reason = word.strip_prefix("left-out:").map(str::trim);
        let is_clear = word == "hooked" || reason.is_some_and(|reason| !reason.is_empty());
        if !is_clear {
            findings.push(format!("{LIST}:{}: wanted \"hooked\" or \"left-out: reason\"", index + 1));
        }
        if list.insert(name.to_owned(), word == "hooked").is_some() {
            findings.push(format!("{LIST}:{}: {name} is listed twice", index + 1));
        }
    }
    list
}

fn compare(list: &BTreeMap<String, bool>, exported: &BTreeSet<String>) -> Findings {
    let mut findings = Findings::new();
    for (name, is_hooked) in list {
        if *is_hooked && !exported.contains(name) {
            findings.push(format!("{LIST}: {name} is hooked, but libsd.so does not export it"));
        }
        if !*is_hooked && exported.contains(name) {
            findings.push(format!("{LIST}: {name} is left out, but libsd.so exports it"));
        }
    }
    for name in exported.iter().filter(|name| !list.contains_key(*name)) {
        findings.push(format!("{LIST}: libsd.so exports {name}, which is not in the list"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_against_library() {
        let nm = "00000000000011f0 T accept\n0000000000001200 W read@@SD_1\n0000000000000000 A SD_1\n\
                  0000000000001210 T _init\n0000000000001220 T extra\n0000000000001230 T mmap\n";
        let mut findings = Findings::new();
        let list = "# glibc\naccept hooked\nread hooked\nwrite hooked\nmmap left-out: takes a file\n";
        let list = parse(list, &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        let found = compare(&list, &exported(nm));
        assert_eq!(found.len(), 3, "{found:?}");
        for (finding, name) in found.iter().zip(["mmap", "write", "extra"]) {
            assert!(finding.contains(name), "{finding}");
        }
    }

    #[test]
    fn unclear_lines() {
        let mut findings = Findings::new();
        parse("a\nb left-out:\nc hooked\nc hooked\n", &mut findings);
        assert_eq!(findings.len(), 3, "{findings:?}");
    }
}
