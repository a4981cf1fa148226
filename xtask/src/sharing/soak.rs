//! Connections that wander from process to process by fork, exec and SCM_RIGHTS, and end in `kill -9` or close.
//!
//! Whatever happened, the reader has every byte that was acknowledged, none that was not sent, and an end of file; and
//! afterwards nothing is left.

use super::crash::Observer;
use super::program;
use harness::lab::{Lab, Side};
use harness::{Result, fail};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Connections at a time.
const AT_ONCE: usize = 8;

/// A wanderer: the group that all its descendants belong to.
struct Wanderer {
    group: Pid,
    kill_at: Instant,
}

/// Wanderers for so many seconds; in between everything is stopped for a while, `stops` times.
pub(super) fn run(lab: &mut Lab, seconds: u64, seed: u64, stops: u32) -> Result<String> {
    let mut observer = Observer::start(lab)?;
    let between = Duration::from_secs(seconds) / (stops + 1);
    let (mut end, mut next_stop) = (Instant::now() + Duration::from_secs(seconds), Instant::now() + between);
    let mut wanderers: Vec<Wanderer> = Vec::new();
    let first = seed << 32;
    let (mut last, mut chance) = (first, seed | 1);
    while Instant::now() < end || !wanderers.is_empty() {
        while wanderers.len() < AT_ONCE && Instant::now() < end {
            last += 1;
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let life = Duration::from_micros(2_000 + (chance >> 33) % 400_000);
            let leader = start(lab, observer.port, last)?;
            let group = Pid::from_raw(leader.id() as i32);
            wanderers.push(Wanderer { group, kill_at: Instant::now() + life });
        }
        wanderers.retain(|wanderer| !wanderer.is_over());
        if stops > 0 && Instant::now() > next_stop && Instant::now() < end {
            let start = Instant::now();
            super::suspend::everything();
            end += start.elapsed();
            next_stop = Instant::now() + between;
            wanderers.iter_mut().for_each(|wanderer| wanderer.kill_at += start.elapsed());
        }
        bury_bridges(&[Some(observer.proc.pid()), lab.monitor_pid()])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let last_killed = Instant::now();
    let seen = observer.report()?;
    let late_ms = last_killed.elapsed().as_millis();
    let count = check(lab, &seen, first + 1..=last)?;
    observer.proc.terminate(Duration::from_secs(5))?;
    Ok(format!("{count}, the last {late_ms} ms after the last death"))
}

impl Wanderer {
    /// Kills all that it has started when it is time, and says whether none of them is left.
    fn is_over(&self) -> bool {
        if Instant::now() > self.kill_at {
            let _ = killpg(self.group, Signal::SIGKILL);
        }
        is_over(self.group)
    }
}

/// None of a group is left. Orphans are ours; while one has not been waited for, its number is still the group's.
pub(super) fn is_over(group: Pid) -> bool {
    let any_of_group = Pid::from_raw(-group.as_raw());
    loop {
        match waitpid(any_of_group, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) => {}
            Err(_) => return true,
        }
    }
}

/// Waits for children of no group, whose numbers would not be free before the end of the run.
pub(super) fn bury_bridges(needed: &[Option<u32>]) -> Result<()> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    while let Some(pid) = waitid(Id::All, flags | WaitPidFlag::WNOWAIT).ok().and_then(|status| status.pid()) {
        if needed.contains(&Some(pid.as_raw() as u32)) {
            fail!("the observer or the monitor has ended");
        }
        let _ = waitpid(pid, None);
    }
    Ok(())
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
fn check(lab: &Lab, seen: &[String], started: RangeInclusive<u64>) -> Result<String> {
    let (mut bytes, mut bad, mut ends) = (0, 0, BTreeMap::<String, u64>::new());
    let mut reported = BTreeSet::new();
    let acknowledged = |id| {
        let noted = std::fs::read(note(lab, id)).unwrap_or_default();
        noted.as_slice().try_into().map_or(0, u64::from_ne_bytes)
    };
    let mut complain = |line: &str, id| {
        let log = std::fs::read_to_string(note(lab, id).with_extension("log")).unwrap_or_default();
        println!("     {line}, {} acknowledged, {log}", acknowledged(id));
        bad += 1;
    };
    for line in seen {
        let words: Vec<&str> = line.split(' ').collect();
        let ["conn", got, intact, end, id] = words.as_slice() else { fail!("an odd report: {line:?}") };
        let (got, id): (u64, u64) = (got.parse()?, id.parse()?);
        if *intact != "intact" || got < acknowledged(id) || *end != "EOF" {
            complain(line, id);
        }
        bytes += got;
        *ends.entry((*end).to_owned()).or_default() += 1;
        reported.insert(id);
    }
    let lost = |id: &u64| !reported.contains(id) && acknowledged(*id) != 0;
    started.filter(lost).for_each(|id| complain("never accepted", id));
    if bad > 0 {
        fail!("{bad} of {} connections lost something", seen.len());
    }
    Ok(format!("{} connections, {bytes} bytes, ends {ends:?}", seen.len()))
}
