//! Dependencies point one way, and the preload library's crates stay off the parts of std that call libc.

use super::{Findings, source};
use harness::process::tail;
use harness::{Result, fail, product};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What each crate may depend on inside the workspace: only what stands below it.
const ALLOWED: &[(&str, &[&str])] = &[
    ("sd-proto", &[]),
    ("sd-sys", &[]),
    ("sd-ring", &["sd-sys"]),
    ("sd-shm", &["sd-sys", "sd-ring", "sd-proto"]),
    ("sd-attach", &["sd-sys"]),
    ("sd-socket", &["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-attach"]),
    ("sd-preload", &["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-attach", "sd-socket"]),
    ("sd-monitor", &["sd-sys", "sd-ring", "sd-shm", "sd-proto"]),
    ("sd-link", &[]),
    ("sd-keys", &["sd-link"]),
    ("sd-verbs", &["sd-ring"]),
    ("sd-carrier", &["sd-verbs"]),
    ("sd-pump", &["sd-sys", "sd-ring", "sd-shm", "sd-proto"]),
    (
        "sd-engine",
        &["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-pump", "sd-link", "sd-keys", "sd-carrier"],
    ),
    (
        "sd-cli",
        &[
            "sd-sys",
            "sd-shm",
            "sd-proto",
            "sd-attach",
            "sd-socket",
            "sd-monitor",
            "sd-pump",
            "sd-engine",
            "sd-keys",
        ],
    ),
    // The laboratory stands above the product: nothing of ours may need it.
    ("sd-bench", &["sd-sys", "sd-ring", "sd-shm", "sd-cli"]),
];

/// Crates of others that may be linked into the programs of strangers.
const GUESTS: &[&str] = &["libc", "loom"];

/// Parts of std that end in libc calls, which would enter our own hooks.
const STD_BANNED: &[&str] = &["fs", "net", "io", "process", "thread"];

type Graph = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn check(files: &[(PathBuf, String)]) -> Result<Findings> {
    let graph = graph()?;
    let mut findings = Findings::new();
    for (name, needs) in &graph {
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| known == name) else { continue };
        for need in needs.iter().filter(|need| graph.contains_key(*need)) {
            if !allowed.contains(&need.as_str()) {
                findings.push(format!("crates/{name}/Cargo.toml: {name} must not depend on {need}"));
            }
        }
    }
    let inside = reachable(&graph, "sd-preload");
    for name in &inside {
        for need in graph[name].iter().filter(|need| !graph.contains_key(*need)) {
            if !GUESTS.contains(&need.as_str()) {
                findings.push(format!("crates/{name}/Cargo.toml: {need} must not be in the preload library"));
            }
        }
    }
    for (path, text) in files {
        let name = path.display().to_string();
        let is_inside = inside.iter().any(|name_| name.starts_with(&format!("crates/{name_}/src/")));
        if is_inside && name.ends_with(".rs") {
            findings.extend(banned_std(&name, text));
        }
    }
    Ok(findings)
}

/// Direct dependencies, without those of tests and build scripts.
fn graph() -> Result<Graph> {
    let output = product::cargo(&["metadata", "--no-deps", "--format-version", "1"]).output()?;
    if !output.status.success() {
        fail!("cargo metadata: {}", tail(&String::from_utf8_lossy(&output.stderr), 500));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut graph = Graph::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let needs = package["dependencies"].as_array().into_iter().flatten();
        let needs = needs.filter(|need| need["kind"].is_null());
        let needs = needs.filter_map(|need| Some(need["name"].as_str()?.to_owned())).collect();
        graph.insert(package["name"].as_str().unwrap_or_default().to_owned(), needs);
    }
    Ok(graph)
}

fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(name) = next.pop() {
        if let Some(needs) = graph.get(&name)
            && found.insert(name)
        {
            next.extend(needs.iter().cloned());
        }
    }
    found
}

fn banned_std(name: &str, text: &str) -> Findings {
    let code = source::without_tests(&source::mask(text));
    let mut findings = Findings::new();
    for (at, _) in code.match_indices("std::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        for module in modules(&code[at + "std::".len()..]) {
            if STD_BANNED.contains(&module.as_str()) {
                let line = 1 + code[..at].matches('\n').count();
                findings.push(format!("{name}:{line}: std::{module} calls libc, and so our own hooks"));
            }
        }
    }
    findings
}

/// First names after `std::`: one, or those of a `{group}`.
pub(super) fn modules(rest: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn std_uses() {
        let text = "use std::{mem, fs::{self, File}, time};\nlet x = std::net::Ipv4Addr::LOCALHOST;\n\
                    // std::io\n#[cfg(test)]\nmod tests { use std::thread; }\n";
        let found = banned_std("a.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("std::fs") && found[1].starts_with("a.rs:2"));
    }

    #[test]
    fn closure() {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        let graph =
            Graph::from([("a".into(), set(&["b", "libc"])), ("b".into(), set(&[])), ("c".into(), set(&[]))]);
        assert_eq!(reachable(&graph, "a"), set(&["a", "b"]));
    }
}
