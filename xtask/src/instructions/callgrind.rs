//! What callgrind writes: self costs by object, function and source file.
//!
//! The format is that of its manual, chapter "Callgrind Format Specification", without compression:
//!
//! ```text
//! desc: Trigger: Client Request: NAME
//! ob=OBJECT  fl=FILE  fn=FUNCTION     what follows is there; fi= and fe= name the file of inlined code
//! LINE INSTRUCTIONS CALLS ...        system calls; zeros at the end are left out
//! calls=...                           the next line is the cost of a call, which is counted in the callee
//! ```

use harness::{Result, fail};
use std::collections::BTreeMap;
use std::path::Path;

/// Instructions of one operation, by function and by the file that the code comes from.
#[derive(Debug, PartialEq)]
pub(crate) struct Operation {
    pub(crate) name: String,
    /// `function (file)` -> instructions.
    pub(crate) parts: BTreeMap<String, f64>,
    pub(crate) system_calls: f64,
}

impl Operation {
    pub(crate) fn total(&self) -> f64 {
        self.parts.values().sum()
    }

    /// The greatest first; files below half an instruction together.
    pub(crate) fn by_file(&self) -> Vec<(String, f64)> {
        let mut files: BTreeMap<&str, f64> = BTreeMap::new();
        for (part, cost) in &self.parts {
            let file = part.rsplit_once('(').map_or("", |(_, file)| file.trim_end_matches(')'));
            *files.entry(file).or_default() += cost;
        }
        let (large, small): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, cost)| *cost >= 0.5);
        let mut rows: Vec<(String, f64)> = large.into_iter().map(|(file, c)| (file.to_owned(), c)).collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        let rest: f64 = small.iter().map(|(_, cost)| cost).sum();
        rows.extend((rest > 0.0).then(|| ("others".to_owned(), rest)));
        rows
    }
}

/// The operations that the program says it has counted, from the files that callgrind numbered in this order.
pub(crate) fn read(said: &str, out: &Path, program: &str) -> Result<Vec<Operation>> {
    let counted = said.lines().filter_map(|line| line.strip_prefix("counted ")?.split_once(' '));
    let mut operations = Vec::new();
    for (index, (times, name)) in counted.enumerate() {
        let path = format!("{}.{}", out.display(), index + 1);
        let Ok(text) = std::fs::read_to_string(&path) else { fail!("callgrind wrote no {path}") };
        let trigger = format!("desc: Trigger: Client Request: {name}");
        if !text.lines().any(|line| line == trigger) {
            fail!("{path} is not about {name}");
        }
        operations.push(costs(name, &text, program, times.parse()?));
    }
    if operations.is_empty() {
        fail!("nothing was counted: {said:?}");
    }
    Ok(operations)
}

/// Self costs per operation of everything but the program itself.
fn costs(name: &str, text: &str, program: &str, times: f64) -> Operation {
    let (mut object, mut function, mut own_file, mut file) = ("", "", "", "");
    let mut is_call = false;
    let mut parts = BTreeMap::new();
    let mut system_calls = 0.0;
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.len() <= 5) {
            match key {
                "ob" => object = value,
                "fl" => (own_file, file) = (value, value),
                "fi" | "fe" => file = value,
                "fn" => (function, file) = (value, own_file),
                "calls" => is_call = true,
                _ => {}
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let mut costs = line.split_ascii_whitespace().skip(1).map(|cost| cost.parse().unwrap_or(0.0));
            if !std::mem::take(&mut is_call) && object != program {
                let part = parts.entry(format!("{} ({})", short(function), place(file))).or_default();
                *part += costs.next().unwrap_or(0.0) / times;
                system_calls += costs.next().unwrap_or(0.0) / times;
            }
        }
    }
    Operation { name: name.to_owned(), parts, system_calls }
}

/// A function without the compiler's hash.
fn short(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

/// A source file as a reader of the repository knows it; inlined code of the standard library as one.
fn place(file: &str) -> &str {
    match file.rsplit_once("/crates/") {
        Some((_, ours)) => ours,
        None if file.contains("/library/") => "core",
        None => file.rsplit('/').next().unwrap_or(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "desc: Trigger: Client Request: send\nevents: Ir\n\
        ob=/x/sd-bench\nfl=/x/crates/sd-bench/src/peer/count.rs\nfn=sd::count\n10 5\n\
        cob=/x/libsd.so\ncfn=send\ncalls=2 4\n12 90 7\n\
        ob=/x/libsd.so\nfl=/x/crates/sd-preload/src/edge.rs\nfn=send::h0123456789abcdef\n4 6\n\
        fi=/rustc/5/library/core/src/cmp.rs\n7 2 4\nfe=/x/crates/sd-preload/src/edge.rs\n9 2\n\
        fn=ask\n20 4\n";

    #[test]
    fn self_costs_outside_of_the_program() {
        let Operation { parts, system_calls, .. } = costs("send", TEXT, "/x/sd-bench", 2.0);
        assert_eq!(system_calls, 2.0);
        let expected = [("ask (sd-preload/src/edge.rs)", 2.0), ("send (core)", 1.0)];
        let expected = expected.into_iter().chain([("send (sd-preload/src/edge.rs)", 4.0)]);
        assert_eq!(parts, expected.map(|(part, cost)| (part.to_owned(), cost)).collect());
    }

    #[test]
    fn files_are_summed_up_over_functions() {
        let operation = costs("send", TEXT, "/x/sd-bench", 2.0);
        assert_eq!(operation.total(), 7.0);
        assert_eq!(operation.by_file(), [("sd-preload/src/edge.rs".into(), 6.0), ("core".into(), 1.0)]);
    }
}
