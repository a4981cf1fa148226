//! Connections that wander from process to process by fork, exec and SCM_RIGHTS, and end in `kill -9` or close.
//!
//! Whatever happened, the reader has every byte that was acknowledged, none that was not sent, and an end of file; and
//! afterwards nothing is left.

use super::crash::Observer;
use super::program;
use crate::lab::{Lab, Side};
use crate::{Result, fail};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Connections at a time.
const AT_ONCE: usize = 6;

/// A wanderer: the leader of the group that all its descendants belong to.
struct Wanderer {
    leader: Child,
    kill_at: Instant,
}

pub(super) fn run(lab: &mut Lab, seconds: u64, seed: u64) -> Result<String> {
    let mut observer = Observer::start(lab)?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut wanderers: Vec<Wanderer> = Vec::new();
    let (mut last, mut chance) = (seed << 32, seed | 1);
    while Instant::now() < end || !wanderers.is_empty() {
        if wanderers.len() < AT_ONCE && Instant::now() < end {
            last += 1;
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let life = Duration::from_micros(2_000 + (chance >> 33) % 400_000);
            wanderers
                .push(Wanderer { leader: start(lab, observer.port, last)?, kill_at: Instant::now() + life });
        }
        // Those that came to their end by themselves are killed too: their descendants may be at it.
        wanderers.retain_mut(|wanderer| {
            let is_due = Instant::now() > wanderer.kill_at;
            if is_due {
                kill_group(&mut wanderer.leader);
            }
            !is_due
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    let seen = observer.report()?;
    let count = check(lab, &seen)?;
    observer.proc.terminate(Duration::from_secs(5))?;
    Ok(count)
}

/// Kills a process and all that it has started. It is not reaped before, so the number is still its group's.
fn kill_group(leader: &mut Child) {
    let group = Pid::from_raw(leader.id() as i32);
    let _ = killpg(group, Signal::SIGKILL);
    let _ = leader.wait();
    // Its orphans are ours.
    let any_of_group = Pid::from_raw(-group.as_raw());
    while waitpid(any_of_group, None).is_ok() {}
}

fn note(lab: &Lab, id: u64) -> std::path::PathBuf {
    lab.path().join(format!("note-{id}"))
}

fn start(lab: &Lab, port: u16, id: u64) -> Result<Child> {
    let note = note(lab, id);
    std::fs::write(&note, [0; 8])?;
    let args = ["wanderer", &port.to_string(), &note.to_string_lossy(), &id.to_string()];
    let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
    Ok(command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// Compares what came with what was acknowledged.
fn check(lab: &Lab, seen: &[String]) -> Result<String> {
    let (mut bytes, mut bad, mut ends) = (0, 0, BTreeMap::<String, u64>::new());
    for line in seen {
        let words: Vec<&str> = line.split(' ').collect();
        let ["conn", got, intact, end, id] = words.as_slice() else { fail!("an odd report: {line:?}") };
        let (got, id): (u64, u64) = (got.parse()?, id.parse()?);
        let noted = std::fs::read(note(lab, id)).unwrap_or_default();
        let acknowledged = noted.as_slice().try_into().map_or(0, u64::from_ne_bytes);
        if *intact != "intact" || got < acknowledged || *end != "EOF" {
            let log = std::fs::read_to_string(note(lab, id).with_extension("log")).unwrap_or_default();
            println!("     {line}, {acknowledged} acknowledged, {log}");
            bad += 1;
        }
        bytes += got;
        *ends.entry((*end).to_owned()).or_default() += 1;
    }
    if bad > 0 {
        fail!("{bad} of {} connections lost something", seen.len());
    }
    Ok(format!("{} connections, {bytes} bytes, ends {ends:?}", seen.len()))
}
