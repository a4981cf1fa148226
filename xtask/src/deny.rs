//! `cargo xtask deny`: licences, sources and versions of what we depend on, after `deny.toml`.
//!
//! `cargo deny` checks the same and the advisories, and takes minutes to be built; so it is run where it is installed, and
//! what can be checked without it is checked here always. It never fetches: advisories want a copy of RustSec's database, which
//! is to be had over the network alone and in no package registry. `DENY_DB` names a directory that has such copies, as
//! `cargo deny fetch db` makes them (`$CARGO_HOME/advisory-dbs`, where they are looked for as well).

use harness::report::Count;
use harness::scratch::Scratch;
use harness::{Result, fail, process, product};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn run() -> Result<()> {
    let rules = std::fs::read_to_string(product::root().join("deny.toml"))?;
    let mut faults =
        versions(&std::fs::read_to_string(product::root().join("Cargo.lock"))?, &list(&rules, "skip"));
    let args =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = product::cargo(&args).output()?;
    if !output.status.success() {
        fail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let allowed = list(&rules, "allow");
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or_default();
        if !is_allowed(license, &allowed) {
            faults.push(format!("{name}: licence {license:?}"));
        }
    }
    for fault in &faults {
        println!("FAIL {fault}");
    }
    faults.extend(cargo_deny(&rules)?);
    println!("{}", Count { passed: packages.len(), failed: faults.len(), skipped: 0 }.line());
    if !faults.is_empty() {
        fail!("deny: {} faults", faults.len());
    }
    Ok(())
}

/// Where the advisories are.
fn databases() -> Option<PathBuf> {
    let home = || std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let by_user = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let usual = || home().or_else(by_user).map(|cargo| cargo.join("advisory-dbs"));
    let path = std::env::var_os("DENY_DB").map(PathBuf::from).or_else(usual)?;
    path.read_dir().is_ok_and(|mut entries| entries.next().is_some()).then_some(path)
}

/// What `cargo deny` finds; it says itself what that is.
fn cargo_deny(rules: &str) -> Result<Option<String>> {
    if process::find_program("cargo-deny").is_none() {
        println!("skipped: advisories are not checked, as cargo-deny is not installed");
        return Ok(None);
    }
    let scratch = Scratch::new("deny")?;
    let config = scratch.path().join("deny.toml");
    let mut checks = vec!["bans", "licenses", "sources"];
    let mut text = rules.to_owned();
    match databases() {
        Some(path) => {
            // The last table of deny.toml is that of advisories.
            text.push_str(&format!("db-path = {:?}\n", path.display().to_string()));
            checks.push("advisories");
        }
        None => println!("skipped: advisories are not checked, as there is no database (DENY_DB)"),
    }
    std::fs::write(&config, text)?;
    let mut command = product::cargo(&["deny", "--offline", "check", "--disable-fetch", "--config"]);
    let status = command.arg(&config).args(checks).status()?;
    Ok((!status.success()).then(|| format!("cargo deny: {status}")))
}

/// Crates in two versions, and crates from elsewhere.
fn versions(lock: &str, skipped: &[&str]) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut faults = Vec::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        let (name, version) = (field("name").unwrap_or_default(), field("version").unwrap_or_default());
        found.entry(name).or_default().push(version);
        if field("source").is_some_and(|source| source != REGISTRY) {
            faults.push(format!("{name}: from {}", field("source").unwrap_or_default()));
        }
    }
    let twice = found.iter().filter(|(name, versions)| versions.len() > 1 && !skipped.contains(name));
    faults.extend(twice.map(|(name, versions)| format!("{name}: versions {}", versions.join(" and "))));
    faults
}

/// The words of a list in deny.toml.
fn list<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
    let start =
        rules.lines().position(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" = [")));
    let lines = rules.lines().skip(start.unwrap_or(usize::MAX));
    let mut words = Vec::new();
    for line in lines {
        words.extend(line.split('"').skip(1).step_by(2));
        if line.contains(']') {
            break;
        }
    }
    words
}

/// Of each part that has to hold, one of the alternatives is allowed. Parts are joined by AND, outside of parentheses
/// only.
fn is_allowed(license: &str, allowed: &[&str]) -> bool {
    let fits = |part: &str| {
        let part = part.trim().trim_start_matches('(').trim_end_matches(')');
        part.replace('/', " OR ").split(" OR ").any(|one| allowed.contains(&one.trim()))
    };
    !license.is_empty() && license.split(" AND ").all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for license in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert!(is_allowed(license, &allowed), "{license}");
        }
        for license in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND BSD"] {
            assert!(!is_allowed(license, &allowed), "{license}");
        }
    }

    #[test]
    fn two_versions_and_other_sources_are_found() {
        let package = |name: &str, version: &str, source: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"{source}\"\n")
        };
        let lock =
            [package("a", "1", REGISTRY), package("a", "2", REGISTRY), package("b", "1", "git+x")].concat();
        assert_eq!(versions(&lock, &[]).len(), 2);
        assert_eq!(versions(&lock, &["a"]), ["b: from git+x"]);
    }

    #[test]
    fn lists_of_the_rules() {
        assert_eq!(list("x\nallow = [\n  \"A\",\n  \"B\",\n]\n\"C\"", "allow"), ["A", "B"]);
        assert!(list("skip = []\nallow = [\"A\"]", "skip").is_empty());
    }
}
