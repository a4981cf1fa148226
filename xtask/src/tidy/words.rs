//! Words that say where something was written rather than what it is: paths of one machine, hosts, private tools.

use super::Findings;

/// Stored backwards, so that this file passes its own check.
const BACKWARDS: &[&str] = &[
    "/krow/",
    "/toor/",
    "/emoh/",
    "-tegrat/pmt/",
    "sboj_hsab",
    "oi.setarc.xedni",
    "oi.setarc.citats",
    "gro.ipyp",
    "gro.naibed.bed",
    "gro.sjmpn.yrtsiger",
    "gnalog.yxorp",
    "hcneb-mraf",
    "wohs seussi",
    "ngised/derahs",
    "dm.noissim",
    "ksa-sresu",
];

/// Files whose content others decide.
const FOREIGN: &[&str] = &["Cargo.lock"];

pub(crate) fn check(name: &str, text: &str) -> Findings {
    if FOREIGN.contains(&name) {
        return Findings::new();
    }
    let mut findings = Findings::new();
    for word in BACKWARDS.iter().map(|word| word.chars().rev().collect::<String>()) {
        for (index, line) in text.lines().enumerate() {
            if line.contains(&word) {
                findings.push(format!("{name}:{}: {word:?} must not be in the repository", index + 1));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found() {
        let path: String = "x/krow/ ees".chars().rev().collect();
        assert_eq!(check("a.md", &format!("fine\n{path}\n")).len(), 1);
        assert_eq!(check("Cargo.lock", &path), Findings::new());
    }
}
