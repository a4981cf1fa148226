//! Cache lines that an operation writes, counted: what two pairs of threads have in common decides whether they scale.
//!
//! `sd-bench peer lines` runs under valgrind's lackey, whose trace has a line for every access:
//!
//! ```text
//! I  ADDRESS,LEN     instruction
//!  L ADDRESS,LEN     load       S  store       M  both
//! ```

use harness::lab::{Lab, Side};
use harness::{Result, fail, product};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;
use std::time::Duration;

const LINE_LEN: u64 = 64;

/// What one operation does to memory.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Writes {
    pub(crate) operation: String,
    /// Stores to memory that other processes share, per operation.
    pub(crate) stores: f64,
    /// Different lines of such memory that are written, per operation.
    pub(crate) lines: f64,
    /// Lines that one pair writes and the other reads or writes, of all memory, in all operations together.
    pub(crate) contended: usize,
}

/// Runs and counts.
pub(crate) fn measure() -> Result<Vec<Writes>> {
    let lab = Lab::from_the_first_byte(false)?;
    let log = lab.path().join("lackey.out");
    let log_arg = format!("--log-file={}", log.display());
    let program = product::sd_bench().display().to_string();
    let args = ["--tool=lackey", "--trace-mem=yes", &log_arg, &program, "peer", "lines"];
    let output = lab.run(Side::Sd, "valgrind", &args, Duration::from_secs(120))?;
    let plan = Plan::read(&output.text())?;
    let trace = std::io::BufReader::new(std::fs::File::open(&log)?);
    let writes = plan.count(trace.lines().map_while(std::result::Result::ok))?;
    drop(std::fs::remove_file(&log));
    lab.finish()?;
    Ok(writes)
}

/// What the program says that it will do.
#[derive(Default)]
struct Plan {
    marks: u64,
    times: f64,
    /// By number: operation and pair.
    phases: Vec<(String, usize)>,
    shared: Vec<(u64, u64)>,
}

impl Plan {
    fn read(said: &str) -> Result<Plan> {
        let mut plan = Plan::default();
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
        for line in said.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["marks", address] => plan.marks = hex(address)?,
                ["times", times] => plan.times = times.parse()?,
                ["phase", _, operation, pair] => plan.phases.push((operation.to_owned(), pair.parse()?)),
                ["shared", range, ..] => {
                    let (from, to) = range.split_once('-').ok_or("a mapping without its end")?;
                    plan.shared.push((hex(from)?, hex(to)?));
                }
                _ => {}
            }
        }
        if plan.phases.is_empty() || plan.times == 0.0 {
            fail!("nothing was run: {said:?}");
        }
        Ok(plan)
    }

    /// The phase that a store to this address begins; `Some(None)` for the end of one.
    fn mark(&self, address: u64) -> Option<Option<usize>> {
        let number = address.checked_sub(self.marks)? / 8;
        let is_mark = number < 16 && address.is_multiple_of(8);
        is_mark.then(|| Some(number as usize).filter(|number| *number < self.phases.len()))
    }

    fn count(&self, trace: impl Iterator<Item = String>) -> Result<Vec<Writes>> {
        let mut phase = None;
        let mut stores = vec![0u64; self.phases.len()];
        let mut lines: Vec<HashMap<u64, ()>> = vec![HashMap::new(); self.phases.len()];
        let pairs = self.phases.iter().map(|(_, pair)| pair + 1).max().unwrap_or(0);
        let mut written = vec![HashSet::new(); pairs];
        let mut touched = vec![HashSet::new(); pairs];
        for line in trace {
            let Some((kind, address)) = access(&line) else { continue };
            if let Some(begun) = self.mark(address).filter(|_| kind != Kind::Load) {
                phase = begun;
                continue;
            }
            let Some(number) = phase else { continue };
            let (pair, at) = (self.phases[number].1, address / LINE_LEN);
            touched[pair].insert(at);
            if kind == Kind::Load {
                continue;
            }
            written[pair].insert(at);
            if self.shared.iter().any(|(from, to)| (*from..*to).contains(&address)) {
                stores[number] += 1;
                lines[number].insert(at, ());
            }
        }
        let contended = (0..pairs)
            .flat_map(|one| (0..pairs).filter(move |other| *other != one).map(move |other| (one, other)))
            .flat_map(|(one, other)| written[one].intersection(&touched[other]))
            .collect::<HashSet<_>>()
            .len();
        // The pairs do the same; the worst of them counts.
        let mut operations: BTreeMap<&str, Writes> = BTreeMap::new();
        for (number, (operation, _)) in self.phases.iter().enumerate() {
            let writes = operations.entry(operation).or_default();
            writes.operation.clone_from(operation);
            writes.stores = writes.stores.max(stores[number] as f64 / self.times);
            writes.lines = writes.lines.max(lines[number].len() as f64 / self.times);
            writes.contended = contended;
        }
        if stores.contains(&0) {
            fail!("the trace has no stores to shared memory in some operation");
        }
        Ok(operations.into_values().collect())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
}

/// A data access of the trace.
fn access(line: &str) -> Option<(Kind, u64)> {
    let kind = match line.as_bytes().get(..3)? {
        b" L " => Kind::Load,
        b" S " | b" M " => Kind::Store,
        _ => return None,
    };
    let (address, _) = line[3..].split_once(',')?;
    Some((kind, u64::from_str_radix(address, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "marks 0x1000\ntimes 2\nphase 0 send 0\nphase 1 send 1\nshared 8000-9000 /memfd:x\n";
    const TRACE: &str = " S 8000,8\nI  00400000,3\n S 1000,8\n S 8000,8\n S 8008,8\n S 8040,8\n S 7000,4\n L 7100,4\n\
                         S 1078,8\n S 8080,8\n S 1008,8\n M 8100,8\n L 7000,4\n S 1078,8\n";

    #[test]
    fn lines_are_counted_between_marks() {
        let writes = Plan::read(SAID).unwrap().count(TRACE.lines().map(|line| {
            // Accesses begin with a space in the trace.
            if line.starts_with('S') { format!(" {line}") } else { line.to_owned() }
        }));
        let expected = Writes { operation: "send".into(), stores: 1.5, lines: 1.0, contended: 1 };
        assert_eq!(writes.unwrap(), [expected]);
    }
}
