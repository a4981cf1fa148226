//! libsd.so exports the hooks and nothing else: docs/hooks.txt has all and only those as hooked.

mod common;

use common::{library, run};
use std::collections::BTreeSet;

const LIST: &str = include_str!("../../../docs/hooks.txt");

/// Exported though libc has no such function.
const FOR_SANITIZERS: &str = "__asan_default_options";

fn symbols(library: &str) -> BTreeSet<String> {
    let nm = run(&["nm", "-D", "--defined-only", library], false);
    let name = |line: &str| Some(line.split_whitespace().nth(2)?.split('@').next()?.to_owned());
    String::from_utf8_lossy(&nm.stdout).lines().filter_map(name).collect()
}

/// Name and word of each line of the list.
fn list() -> impl Iterator<Item = (&'static str, &'static str)> {
    LIST.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '))
}

#[test]
fn exactly_the_hooks() {
    let mut hooked: BTreeSet<_> =
        list().filter(|(_, word)| *word == "hooked").map(|(name, _)| name.to_owned()).collect();
    hooked.insert(FOR_SANITIZERS.to_owned());
    assert_eq!(symbols(library().to_str().unwrap()), hooked);
}

/// A misspelt name would hook nothing.
#[test]
fn every_name_is_a_function_of_libc() {
    let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        libc.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let libc = symbols(libc.unwrap());
    for (name, word) in list() {
        assert!(libc.contains(name), "{name} {word}: libc has no such function");
    }
}

/// Each library that ours needs would be loaded into each program that is executed.
#[test]
fn needs_libc_only() {
    let said = run(&["readelf", "-dW", library().to_str().unwrap()], false);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let needed = said.lines().filter(|line| line.contains("(NEEDED)"));
    let names: Vec<_> = needed.filter_map(|line| line.split(['[', ']']).nth(1)).collect();
    assert_eq!(names, ["libc.so.6"]);
}
