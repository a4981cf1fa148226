//! Memory within a cgroup: readers that stall, and much more offered to them than the group may have. Over Linux alone that
//! works, and so it has to with rings, which are memory of the group of who sends. Version 2 of cgroups: `cargo xtask guest`.

use super::program;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, procfs, product, ss};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// In a guest everything takes long.
const LIMIT: Duration = Duration::from_secs(300);
/// The readers' group, where they have one of their own.
const READERS_MIB: u64 = 16;

/// Servers in a group with so much memory.
struct Case {
    mib: u64,
    /// The limit is not where the killer comes, but where the kernel slows processes down (version 2 only).
    is_high: bool,
    /// Readers of each server, bytes for each, servers, how they send, and whether they do it twice.
    args: [&'static str; 5],
    /// The readers are in another group.
    apart: bool,
    /// What each reader is sent at least while nobody reads, so that all have a part.
    least: u64,
}

const fn case(mib: u64, args: [&'static str; 5], least: u64) -> Case {
    Case { mib, is_high: false, args, apart: false, least }
}

/// For all readers together more than the memory.
const MIB: &str = "1048576";

const CASES: &[Case] = &[
    case(64, ["100", "8388608", "1", "nonblocking", ""], 130_000),
    case(64, ["50", MIB, "1", "nonblocking", "again"], 130_000),
    case(32, ["100", MIB, "1", "small", ""], 50_000),
    case(16, ["100", MIB, "1", "nonblocking", ""], 900),
    case(64, ["50", MIB, "1", "blocking", ""], 50_000),
    // Together they can have less than one first step for each reader.
    case(64, ["100", MIB, "8", "nonblocking", ""], 900),
    Case { apart: true, ..case(64, ["50", MIB, "1", "nonblocking", ""], 130_000) },
    Case { is_high: true, ..case(64, ["100", MIB, "1", "nonblocking", ""], 130_000) },
];

/// A memory cgroup of its own, which is removed in the end.
pub(crate) struct Group {
    place: PathBuf,
    names: &'static Names,
}

/// Files of one version.
struct Names {
    mount: &'static str,
    limit: &'static str,
    high: Option<&'static str>,
    most: &'static str,
    current: &'static str,
}

const VERSIONS: [Names; 2] = [
    Names {
        mount: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        high: None,
        most: "memory.max_usage_in_bytes",
        current: "memory.usage_in_bytes",
    },
    Names {
        mount: "/sys/fs/cgroup",
        limit: "memory.max",
        high: Some("memory.high"),
        most: "memory.peak",
        current: "memory.current",
    },
];

impl Group {
    /// `None` where this may not be, or there is no controller for memory.
    pub(crate) fn new(name: &str) -> Option<Group> {
        VERSIONS.iter().find_map(|names| {
            let place = PathBuf::from(names.mount).join(format!("sd-sharing-{}-{name}", std::process::id()));
            fs::create_dir(&place).ok()?;
            let group = Group { place, names };
            group.place.join(names.limit).exists().then_some(group)
        })
    }

    pub(crate) fn limit(&self, mib: u64) -> Result<()> {
        self.set(self.names.limit, mib)
    }

    fn set(&self, limit: &str, mib: u64) -> Result<()> {
        Ok(fs::write(self.place.join(limit), format!("{mib}M"))?)
    }

    /// Who writes the number of a process there moves it.
    pub(crate) fn processes(&self) -> PathBuf {
        self.place.join("cgroup.procs")
    }

    /// The most that was used, in KiB; what is used now where the kernel does not say.
    pub(crate) fn most(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.place.join(name)).ok()?.trim().parse::<u64>().ok();
        read(self.names.most).or_else(|| read(self.names.current)).unwrap_or(0) >> 10
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.place).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A case under way. The process ends before its groups go.
struct Running {
    case: &'static Case,
    server: Proc,
    group: Group,
    readers: Option<Group>,
}

/// The part: all cases at the same time, each in groups of its own.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if Group::new("probe").is_none() {
        return Ok("skipped: no memory cgroup can be made here".to_owned());
    }
    let started: Vec<Option<Running>> =
        CASES.iter().enumerate().map(|(n, case)| start(lab, n, case)).collect::<Result<_>>()?;
    let notes: Vec<String> = started.into_iter().flatten().map(finish).collect::<Result<_>>()?;
    Ok(notes.join("; "))
}

/// The part: no limit but the machine's memory, and eight servers that offer more than that. A machine of our own
/// is not brought so far: `cargo xtask guest` has a small one.
pub(super) fn of_the_host(lab: &mut Lab) -> Result<String> {
    const OFFERED_KIB: u64 = 8 * 50 * 1024;
    let (total, free) = (procfs::memory_kib("MemTotal:"), procfs::memory_kib("MemAvailable:"));
    if total > OFFERED_KIB {
        return Ok("skipped: this machine has more memory than is offered".to_owned());
    }
    let args = ["stalled", "50", MIB, "8", "nonblocking", ""];
    let server = &mut lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
    let mut server = Proc::start(server, "stalled", lab.path())?;
    let (mut least, end) = (u64::MAX, Instant::now() + LIMIT);
    while server.is_running() && Instant::now() < end {
        least = least.min(procfs::memory_kib("MemAvailable:"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = server.wait(Duration::from_secs(1))?.ok()?;
    let count = String::from_utf8_lossy(&ended.stdout).lines().filter_map(range).count();
    Ok(format!("{count} servers, {free} KiB free at first, never less than {least}"))
}

const SHOWN_READERS: u64 = 20;
const SHOWN_OFFER: u64 = 4 << 20;

/// The part: what `sd ss` says of memory is what the processes have. A server with readers that stall, none of them short of it.
pub(super) fn shown(lab: &mut Lab) -> Result<String> {
    let (readers, offer) = (SHOWN_READERS.to_string(), SHOWN_OFFER.to_string());
    let args = ["stalled", &readers, &offer, "1", "nonblocking", ""];
    let mut server =
        Proc::start(&mut lab.command(Side::Sd, &program().to_string_lossy(), &args)?, "stalled", lab.path())?;
    server.wait_for_text("stalled at", LIMIT)?;
    if lab.is_oracle() {
        server.wait(LIMIT)?.ok()?;
        return Ok("nothing to be shown".to_owned());
    }
    let held = ss::memory(&product::sd(), &lab.socket())?;
    let serves = held.get(&u64::from(server.pid())).copied().unwrap_or_default();
    let reads = held.iter().filter(|(pid, _)| **pid != u64::from(server.pid())).map(|(_, held)| *held);
    let reads = reads.max_by_key(|held| held.memory).unwrap_or_default();
    let mapped = procfs::shared_resident_bytes(server.pid());
    let (least, most) = server.stdout_so_far().lines().find_map(range).unwrap_or_default();
    let sent = SHOWN_READERS * least;
    let figures = format!("server {serves:?}, reader {reads:?}, of {sent} bytes; resident {mapped}");
    server.wait(LIMIT)?.ok()?;
    // Segments hold some tables beside.
    let is_near = |bytes: u64, of: u64| bytes >= of && bytes < of + of / 2;
    let is_true = least > 0
        && is_near(serves.memory, sent)
        && is_near(reads.memory, sent)
        && serves.memory.abs_diff(mapped) < sent / 4
        && (sent..=SHOWN_READERS << 21).contains(&serves.fills)
        && (sent..=SHOWN_READERS * most).contains(&reads.waiting)
        && (serves.waiting, reads.fills) == (0, 0);
    if !is_true {
        fail!("{figures}");
    }
    Ok(figures)
}

/// Nothing where the kernel lacks what the case is about.
fn start(lab: &Lab, number: usize, case: &'static Case) -> Result<Option<Running>> {
    let Some(group) = Group::new(&number.to_string()) else { fail!("no group can be made") };
    let limit = if case.is_high { group.names.high } else { Some(group.names.limit) };
    let Some(limit) = limit else { return Ok(None) };
    group.set(limit, case.mib)?;
    let readers = if case.apart { Group::new(&format!("{number}-readers")) } else { None };
    let args = [&["stalled"], case.args.as_slice()].concat();
    let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
    if let Some(readers) = &readers {
        readers.set(readers.names.limit, READERS_MIB)?;
        command.env("SD_READERS_GROUP", readers.processes());
    }
    join(&mut command, &group.processes())?;
    let server = Proc::start(&mut command, "stalled", lab.path())?;
    Ok(Some(Running { case, server, group, readers }))
}

fn join(command: &mut Command, processes: &Path) -> Result<()> {
    let mut entry = fs::OpenOptions::new().write(true).open(processes)?;
    // SAFETY: a write of one byte; zero is who writes.
    unsafe { command.pre_exec(move || entry.write_all(b"0")) };
    Ok(())
}

fn finish(running: Running) -> Result<String> {
    let Running { case, server, group, readers } = running;
    let [count, _, workers, way, _] = case.args;
    let what =
        format!("{workers} x {count} {way} in {} MiB{}", case.mib, if case.is_high { " (high)" } else { "" });
    let ended = server.wait(LIMIT)?;
    if !ended.status.success() {
        fail!("{what}: {}: {}", ended.status, ended.stderr.trim());
    }
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let stalled: Vec<(u64, u64)> = said.lines().filter_map(range).collect();
    let least = stalled.iter().map(|(least, _)| *least).min().unwrap_or(0);
    let most = stalled.iter().map(|(_, most)| *most).max().unwrap_or(0);
    if least < case.least {
        fail!("{what}: while nobody read, one was sent {least} bytes only, another {most}");
    }
    let beside = readers.map(|group| format!(", the readers' group {} KiB", group.most()));
    let used = group.most() >> 10;
    Ok(format!("{what}: {least} to {most} bytes, at most {used} MiB{}", beside.unwrap_or_default()))
}

/// "stalled at 7 to 8 bytes".
fn range(line: &str) -> Option<(u64, u64)> {
    let (least, most) = line.strip_prefix("stalled at ")?.strip_suffix(" bytes")?.split_once(" to ")?;
    Some((least.parse().ok()?, most.parse().ok()?))
}
