//! What the library takes of its caller's stack, which may be small: a thread's of 16 KiB (PTHREAD_STACK_MIN), a fiber's, a handler's of 8,
//! of which the kernel's frame has taken some. See ADR 118.
//!
//! Found by objdump(1): what each function takes, and whom it calls. Calls through pointers are not followed, of two calls that
//! exclude each other the deeper one counts, and a circle is gone through once: it is a measure, and not a proof. Calls are followed from the
//! hooked functions; the library without libc has one entry for all system calls, exec among them, so of that only single functions are looked at.

use super::Findings;
use harness::process::output_of;
use harness::{Result, product};
use std::collections::{BTreeMap, BTreeSet};

/// The most that one function may take, in bytes.
const FRAME_MAX: u64 = 3 << 10;
/// The most that a call of a hooked function may take with all that it calls.
const CALL_MAX: u64 = 16 << 10;

/// In the names of functions that run on a stack of the library's own, or when a program begins: they may take more.
const AT_BEGIN: [&str; 4] = ["9sd_attach", "2sd5begin", "2sd5start", "2sd5sites5patch"];
/// In the names of hooked functions that leave a program for another one, or may be asked for that by its number.
const EXECS: [&str; 5] = ["exec", "spawn", "popen", "system", "syscall"];

pub(crate) fn check() -> Result<Findings> {
    let mut findings = Findings::new();
    if !cfg!(target_arch = "x86_64") {
        return Ok(findings);
    }
    for library in [product::libsd(), product::freestanding()] {
        if !library.exists() {
            findings.push(format!("{} is not there; run cargo xtask build first", library.display()));
            continue;
        }
        let path = library.display().to_string();
        let code = Code::of(&output_of("objdump", &["-d", "--no-show-raw-insn", &path])?);
        let hooks = output_of("nm", &["-D", "--defined-only", &path])?;
        let hooks = hooks.lines().filter_map(|line| line.rsplit([' ', '@']).next());
        findings
            .extend(code.faults(&hooks.collect::<Vec<_>>()).iter().map(|fault| format!("{path}: {fault}")));
    }
    Ok(findings)
}

#[derive(Default)]
struct Function {
    name: String,
    /// Bytes, with the return address.
    frame: u64,
    /// Where it goes, and whether its own frame is still there then.
    to: BTreeSet<(u64, bool)>,
}

/// All functions by their addresses.
#[derive(Default)]
struct Code(BTreeMap<u64, Function>);

impl Code {
    fn of(text: &str) -> Code {
        let mut code = Code::default();
        let mut now = 0;
        for line in text.lines() {
            if let Some((address, name)) = heading(line) {
                now = address;
                code.0.insert(now, Function { name: name.to_owned(), frame: 8, ..Function::default() });
            } else if let Some(function) = code.0.get_mut(&now) {
                function.add(line);
            }
        }
        code
    }

    fn faults(&self, hooks: &[&str]) -> Findings {
        let is_one = |of: &[&str], function: &Function| of.iter().any(|part| function.name.contains(part));
        let large = self.0.values().filter(|it| it.frame > FRAME_MAX && !is_one(&AT_BEGIN, it));
        let mut faults: Findings =
            large.map(|it| format!("{} takes {} bytes of the stack", it.name, it.frame)).collect();
        let mut known = BTreeMap::new();
        let is_hook = |it: &Function| hooks.contains(&it.name.as_str()) && !is_one(&EXECS, it);
        for (address, function) in self.0.iter().filter(|(_, function)| is_hook(function)) {
            let depth = self.depth(*address, &mut known, &mut BTreeSet::new());
            if depth > CALL_MAX {
                faults.push(format!(
                    "{} may take {depth} bytes of the stack: {}",
                    function.name,
                    self.deepest(*address, &known)
                ));
            }
        }
        faults.sort();
        faults
    }

    /// What a call may take; a function that calls itself counts once.
    fn depth(&self, address: u64, known: &mut BTreeMap<u64, u64>, above: &mut BTreeSet<u64>) -> u64 {
        if let Some(depth) = known.get(&address) {
            return *depth;
        }
        let Some(function) = self.0.get(&address).filter(|_| above.insert(address)) else { return 0 };
        let below = |(to, stays): &(u64, bool)| {
            self.depth(*to, known, above) + if *stays { function.frame } else { 0 }
        };
        let depth = function.to.iter().map(below).max().unwrap_or(0).max(function.frame);
        above.remove(&address);
        known.insert(address, depth);
        depth
    }

    /// The way down, with each frame.
    fn deepest(&self, mut address: u64, known: &BTreeMap<u64, u64>) -> String {
        let mut way = Vec::new();
        while let Some(function) = self.0.get(&address).filter(|_| way.len() < 100) {
            way.push(format!("{} {}", function.frame, function.name));
            let below = |(to, _): &&(u64, bool)| known.get(to).copied().unwrap_or(0);
            match function.to.iter().max_by_key(below) {
                Some((to, _)) => address = *to,
                None => break,
            }
        }
        way.join(", ")
    }
}

impl Function {
    /// One line of it.
    fn add(&mut self, line: &str) {
        let mut words = line.split_whitespace().skip(1);
        let (what, operands) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        match what {
            "push" => self.frame += 8,
            "sub" => {
                let size = operands.strip_prefix('$').and_then(|text| number(text.strip_suffix(",%rsp")?));
                self.frame += size.unwrap_or(0);
            }
            // Larger ones are touched page by page, down to here; the first page is a `sub` as well.
            "lea" => {
                let size =
                    operands.strip_prefix('-').and_then(|text| number(text.strip_suffix("(%rsp),%r11")?));
                self.frame += size.unwrap_or(0).saturating_sub(0x1000);
            }
            _ if what == "call" || what.starts_with('j') => {
                if let Ok(to) = u64::from_str_radix(operands, 16) {
                    self.to.insert((to, what == "call"));
                }
            }
            _ => {}
        }
    }
}

/// `0000000000012340 <name>:`.
fn heading(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
0000000000001000 <send>:
    1000:\tpush   %rbx
    1001:\tsub    $0x100,%rsp
    1008:\tcall   2000 <below>
    100d:\tjne    1001 <send+0x1>

0000000000002000 <below>:
    2000:\tlea    -0x5000(%rsp),%r11
    2008:\tsub    $0x1000,%rsp
    200f:\tcmp    %r11,%rsp
    2012:\tjmp    3000 <last>

0000000000003000 <last>:
    3000:\tsub    $0x10,%rsp
    3004:\tcall   1000 <send>

0000000000004000 <execve>:
    4000:\tcall   2000 <below>

0000000000005000 <_ZN9sd_attach6tracer4main17h0E>:
    5000:\tsub    $0x4000,%rsp
";

    #[test]
    fn frames_and_calls_are_summed() {
        let code = Code::of(TEXT);
        assert_eq!(code.0[&0x1000].frame, 8 + 8 + 0x100);
        assert_eq!(code.0[&0x2000].frame, 8 + 0x5000);
        let depth = code.depth(0x1000, &mut BTreeMap::new(), &mut BTreeSet::new());
        assert_eq!(depth, 272 + 8 + 0x5000);
    }

    #[test]
    fn large_frames_and_deep_calls_are_found() {
        let faults = Code::of(TEXT).faults(&["send", "execve"]);
        let [below, send] = &faults[..] else { panic!("{faults:?}") };
        assert!(below.starts_with("below takes 20488"), "{below}");
        assert!(send.starts_with("send may take 20760 bytes of the stack: 272 send, 20488 below"), "{send}");
    }
}
