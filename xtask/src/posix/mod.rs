//! `cargo xtask posix`: runs each subject of `tests/posix` on the kernel and on SocksDirect, and compares.
//!
//! Modes: `kernel` (the oracle against itself, `--repeat` times), `both` (the whole subject under `sd run`), `server`
//! and `client` (only that side of a pair under `sd run`). Without `--mode` all but `kernel` are run. A subject passes
//! in a mode when its transcript is one that the kernel gives. One that differs once and then not is `unsteady`:
//! shown, and tolerated up to a limit, but never with `--repeat`. Builds nothing: `target/release` must hold `sd`,
//! `sd-posix` and `libsd.so`. Starts a monitor of its own with a private socket, and ends it by its pid.

mod aarch64;
mod between;
mod difference;
mod glibc;
mod musl;
mod program;
mod suite;

use between::Between;
use difference::excerpt;
use harness::again::{LOOKS, Tally};
use harness::cable::Faults;
use harness::monitor::{Monitor, from_the_first_byte};
use harness::report::Count;
use harness::scratch::Scratch;
use harness::ss::Snapshot;
use harness::{Result, fail, product};
use program::Program;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};
use suite::Suite;

const USAGE: &str = "usage: cargo xtask posix [--only SUBSTRING,...] [--mode kernel|both|server|client] \
    [--pump] [--late-pump] [--promote] [--demote] [--between] [--musl | --static | --static-glibc | --aarch64] [--no-ptrace] [--seed N] [--earned] [--repeat N] [--jobs N] [--list]";

/// After this a subject's starter is killed; the suite's own watchdog should have ended it before.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How many more transcripts the kernel may give before a difference counts.
const KERNEL_RETRIES: usize = 3;

/// Subjects that are named at the end, with their times.
const SLOWEST: usize = 12;

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let mut place = Place::find()?;
    if let Some(built) = options.program.build() {
        let Some(suite) = built? else {
            println!("{}", Count { passed: 0, failed: 0, skipped: 1 }.line());
            return Ok(());
        };
        place.suite = suite;
    }
    let subjects = list_subjects(&place, &options.only)?;
    if options.list {
        subjects.iter().for_each(|subject| println!("{} ({})", subject.name, subject.kind()));
        return Ok(());
    }
    let known = options.known()?;
    if options.between {
        return run_between(place, &options, &subjects, &known);
    }
    let monitor = match options.modes.as_slice() {
        [Mode::Kernel] => None,
        _ => {
            let arguments = options.monitor_args();
            let mut arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
            arguments.extend(from_the_first_byte(&arguments));
            Some(Monitor::start(&place.sd, &place.socket, &arguments, place.scratch.path())?)
        }
    };
    let tally = run_all(&place, &options, &subjects, &known);
    if let Some(mut monitor) = monitor {
        options.check(&harness::ss::snapshot(&place.sd, &place.socket)?)?;
        if let Some(status) = monitor.process().status() {
            println!("the monitor ended early: {status}");
        }
    }
    tally.finish("transcripts that differ from the kernel's")
}

/// Subjects of two processes, with a host for each.
fn run_between(
    mut place: Place,
    options: &Options,
    subjects: &[Subject],
    known: &BTreeMap<String, String>,
) -> Result<()> {
    let pairs: Vec<Subject> = subjects.iter().filter(|subject| subject.pair).cloned().collect();
    let arguments = options.monitor_args();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let faults = Faults { lost_ppm: options.lost_ppm, ..Faults::default() };
    place.between = Some(Between::new(&arguments, faults)?);
    let tally = run_all(&place, options, &pairs, known);
    place.between.take().map_or(Ok(()), Between::finish)?;
    tally.finish("transcripts that differ from the kernel's")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Kernel,
    Both,
    Server,
    Client,
}

impl Mode {
    fn parse(word: &str) -> std::result::Result<Mode, String> {
        match word {
            "kernel" => Ok(Mode::Kernel),
            "both" => Ok(Mode::Both),
            "server" | "server-only" => Ok(Mode::Server),
            "client" | "client-only" => Ok(Mode::Client),
            _ => Err(format!("unknown mode {word}; {USAGE}")),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Mode::Kernel => "kernel",
            Mode::Both => "both",
            Mode::Server => "server-only",
            Mode::Client => "client-only",
        }
    }
}

struct Options {
    only: String,
    modes: Vec<Mode>,
    repeat: usize,
    jobs: usize,
    list: bool,
    /// Accelerated connections go through a process in between, of this kind.
    pump: Option<&'static str>,
    /// All connections begin as the kernel's, and are moved to shared memory after a few messages.
    promote: bool,
    /// And moved back, at a moment that chance chooses, and so on.
    demote: bool,
    /// Of that chance.
    seed: u64,
    /// The first few connections of a process are the kernel's, until they have shown that they last.
    earned: bool,
    /// Server and client are on two hosts, with an engine each.
    between: bool,
    program: Program,
    /// Of a million packets between these so many are lost.
    lost_ppm: u32,
}

impl Options {
    /// What monitors are told.
    fn monitor_args(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            self.pump.into_iter().flat_map(|how| ["--loopback-pump".to_owned(), how.to_owned()]).collect();
        arguments.extend(self.promote.then(|| "--promote=all".to_owned()));
        arguments.extend(self.earned.then(|| "--promote=earned".to_owned()));
        if self.demote {
            println!("at bytes by chance: --seed {}", self.seed);
            // Even: see `sd_monitor`'s `wander`.
            arguments.push(format!("--demote={}", self.seed << 1));
        }
        arguments
    }

    /// What the monitor has counted shows that the subjects went the way that is on trial. Without an error all would pass where the library
    /// for another libc or processor is not loaded.
    fn check(&self, seen: &Snapshot) -> Result<()> {
        // A few chosen ones of the usual program may make no connection.
        let wants_shm = self.only.is_empty() || self.program != Program::Usual;
        let lacks = [
            (wants_shm && !self.promote && !self.earned && seen.routes_shm == 0, "was on shared memory"),
            (self.pump.is_some() && seen.twins == 0, "went through the pump"),
            (self.promote && seen.promotions == 0, "was promoted"),
        ];
        match lacks.iter().find(|(is_lacking, _)| *is_lacking) {
            Some((_, what)) => fail!("nothing {what}"),
            None => Ok(()),
        }
    }

    /// Subjects that may differ.
    fn known(&self) -> Result<BTreeMap<String, String>> {
        let mut known = known_differences("known-differences.txt")?;
        let lists = [
            (self.demote, "demote-failures.txt"),
            (self.promote, "promote-failures.txt"),
            (self.between, "between-failures.txt"),
        ];
        let lists = lists.iter().filter(|(is_read, _)| *is_read).map(|(_, list)| *list);
        for list in lists.chain(self.program.differences()) {
            known.extend(known_differences(list)?);
        }
        Ok(known)
    }

    fn parse(args: &[String]) -> Result<Options> {
        let modes = vec![Mode::Both, Mode::Server, Mode::Client];
        let mut options = Options {
            only: String::new(),
            modes,
            repeat: 1,
            // Most subjects wait most of the time.
            jobs: 4,
            list: false,
            pump: None,
            promote: false,
            demote: false,
            seed: UNIX_EPOCH.elapsed()?.as_nanos() as u64 & 0xffff_ffff,
            earned: false,
            between: false,
            program: Program::Usual,
            lost_ppm: 0,
        };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} wants a value; {USAGE}"));
            match word.as_str() {
                "--pump" | "--late-pump" => {
                    options.pump = Some(if word == "--pump" { "prompt" } else { "late" });
                    // Only there both sides are ours.
                    options.modes = vec![Mode::Both];
                }
                "--promote" | "--demote" | "--between" => {
                    options.promote = true;
                    options.between |= word == "--between";
                    options.demote |= word == "--demote";
                    options.modes = vec![Mode::Both];
                }
                "--earned" => {
                    options.earned = true;
                    options.modes = vec![Mode::Both];
                }
                "--no-ptrace" => harness::refusal::live_without_ptrace()?,
                "--lost-ppm" => options.lost_ppm = value()?.parse()?,
                "--seed" => options.seed = value()?.parse()?,
                "--list" => options.list = true,
                "--only" => options.only = value()?.clone(),
                "--mode" => options.modes = vec![Mode::parse(value()?)?],
                "--repeat" => options.repeat = value()?.parse::<usize>()?.max(1),
                "--jobs" => options.jobs = value()?.parse::<usize>()?.max(1),
                word => {
                    options.program =
                        Program::of(word).ok_or_else(|| format!("unknown word {word}; {USAGE}"))?;
                    options.modes = vec![Mode::Both];
                }
            }
        }
        Ok(options)
    }
}

/// Where things are.
struct Place {
    sd: PathBuf,
    suite: Suite,
    socket: PathBuf,
    scratch: Scratch,
    between: Option<Between>,
}

impl Place {
    fn find() -> Result<Place> {
        let scratch = Scratch::new("posix")?;
        let socket = scratch.path().join("monitor.sock");
        Ok(Place {
            sd: product::sd(),
            suite: Suite::of(product::target().join("release/sd-posix")),
            socket,
            scratch,
            between: None,
        })
    }
}

#[derive(Clone)]
struct Subject {
    name: String,
    pair: bool,
}

impl Subject {
    fn kind(&self) -> &'static str {
        if self.pair { "pair" } else { "solo" }
    }

    fn has(&self, mode: Mode) -> bool {
        self.pair || matches!(mode, Mode::Kernel | Mode::Both)
    }
}

fn list_subjects(place: &Place, only: &str) -> Result<Vec<Subject>> {
    let mut list = place.suite.plain();
    let output = list.args(["list", "--kinds"]).output().map_err(|error| format!("{list:?}: {error}"))?;
    let text = String::from_utf8(output.stdout)?;
    let words = text.lines().filter_map(|line| line.split_once(' '));
    let chosen = words.filter(|(name, _)| only.split(',').any(|only| name.contains(only)));
    Ok(chosen.map(|(name, kind)| Subject { name: name.to_owned(), pair: kind == "pair" }).collect())
}

/// Names of subjects that may differ, each with the reason.
fn known_differences(list: &str) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(product::root().join("tests/posix").join(list))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| match line.split_once(' ') {
        Some((name, reason)) => (name.to_owned(), reason.trim().to_owned()),
        None => (line.to_owned(), "no reason given".to_owned()),
    };
    Ok(lines.map(entry).collect())
}

/// What one subject gave: lines to print, the counts, and how long it took.
struct Report {
    lines: Vec<String>,
    tally: Tally,
    took: Duration,
}

/// The subjects that took longest: where the time of a run goes.
fn slowest(mut times: Vec<(Duration, &str)>) -> String {
    times.sort_unstable_by(|one, other| other.cmp(one));
    let first = times.iter().take(SLOWEST).map(|(took, name)| format!("{name} {:.1} s", took.as_secs_f64()));
    first.collect::<Vec<_>>().join(", ")
}

/// Runs the subjects on `jobs` threads, and prints the reports in the order of the list as they become complete.
fn run_all(
    place: &Place,
    options: &Options,
    subjects: &[Subject],
    known: &BTreeMap<String, String>,
) -> Tally {
    let next = AtomicUsize::new(0);
    let waiting = Mutex::new((0, BTreeMap::new(), Tally::default(), Vec::new()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(subject) = subjects.get(index) else { return };
            let report = check(place, options, subject, known.get(&subject.name));
            let mut guard = waiting.lock().expect("no thread panics while it prints");
            let (printed, reports, tally, times) = &mut *guard;
            times.push((report.took, subject.name.as_str()));
            reports.insert(index, report);
            while let Some(report) = reports.remove(printed) {
                report.lines.iter().for_each(|line| println!("{line}"));
                tally.add(&report.tally);
                *printed += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        (0..options.jobs).for_each(|_| drop(scope.spawn(work)));
    });
    let (_, _, tally, times) = waiting.into_inner().expect("no thread panics while it prints");
    println!("longest: {}", slowest(times));
    tally
}

/// Runs one subject in all chosen modes. A known difference counts neither way.
fn check(place: &Place, options: &Options, subject: &Subject, known: Option<&String>) -> Report {
    let start = Instant::now();
    let mut oracle = vec![transcript(place, subject, Mode::Kernel)];
    let (mut good, mut lines, mut tally) = (Vec::new(), Vec::new(), Tally::default());
    let left_out = place.between.as_ref().and_then(|_| between::needs_one_host(subject, &oracle[0]));
    if let Some((line, count)) = left_out {
        return Report { lines: vec![line], tally: Tally { count, ..tally }, took: start.elapsed() };
    }
    for mode in options.modes.iter().copied().filter(|mode| subject.has(*mode)) {
        let mut rounds = (0..options.repeat).map(|_| transcript(place, subject, mode));
        let Some(seen) = rounds.find(|seen| !agrees(place, subject, mode, seen, &mut oracle)) else {
            tally.count.passed += 1;
            good.push(mode.word());
            continue;
        };
        match known {
            Some(reason) => lines.push(format!("known {} ({}): {reason}", subject.name, mode.word())),
            None if options.repeat == 1 && is_unsteady(place, subject, mode, &mut oracle) => {
                tally.unsteady += 1;
                lines.push(format!("UNSTEADY {} ({}): - kernel, + here, once", subject.name, mode.word()));
            }
            None => {
                tally.count.failed += 1;
                lines.push(format!("DIFF  {} ({}): - kernel, + here", subject.name, mode.word()));
            }
        }
        lines.extend(excerpt(&oracle[0], &seen));
    }
    if !good.is_empty() {
        let note = if known.is_some() { "; listed as a known difference" } else { "" };
        lines.insert(0, format!("ok    {} ({}){note}", subject.name, good.join(", ")));
    }
    Report { lines, tally, took: start.elapsed() }
}

/// Whether a subject that has differed agrees with the kernel in all further looks.
fn is_unsteady(place: &Place, subject: &Subject, mode: Mode, oracle: &mut Vec<String>) -> bool {
    mode != Mode::Kernel
        && (0..LOOKS).all(|_| {
            let seen = transcript(place, subject, mode);
            agrees(place, subject, mode, &seen, oracle)
        })
}

/// Whether a transcript is one that the kernel gives. The kernel is asked again before a difference counts, unless it
/// is the kernel that is on trial.
fn agrees(place: &Place, subject: &Subject, mode: Mode, seen: &str, oracle: &mut Vec<String>) -> bool {
    if mode == Mode::Kernel {
        return oracle[0] == seen && !seen.lines().any(is_bad);
    }
    while !oracle.iter().any(|known| known == seen) {
        if oracle.len() > KERNEL_RETRIES {
            return false;
        }
        oracle.push(transcript(place, subject, Mode::Kernel));
    }
    true
}

/// What no subject prints that went as it should.
fn is_bad(line: &str) -> bool {
    ["TIMEOUT", "(TIMEOUT", "GIVE UP", "AWAIT", "ROLE PIPE"].iter().any(|word| line.starts_with(word))
}

/// Runs a subject once; what it printed, what it said on standard error, and how it ended.
fn transcript(place: &Place, subject: &Subject, mode: Mode) -> String {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let files = ["out", "err"].map(|end| place.scratch.path().join(format!("{serial}.{end}")));
    let end = run_once(place, subject, mode, &files);
    let [mut text, complaints] = files.map(|path| {
        let bytes = fs::read(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    for line in complaints.lines() {
        text.push_str(&format!("stderr: {line}\n"));
    }
    text.push_str(&end.unwrap_or_else(|error| format!("cannot run: {error}\n")));
    text
}

fn run_once(place: &Place, subject: &Subject, mode: Mode, files: &[PathBuf; 2]) -> Result<String> {
    let mut command = place.suite.command(place, subject, mode)?;
    command.stdout(File::create(&files[0])?).stderr(File::create(&files[1])?);
    let mut child = command.spawn()?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (status.code(), status.signal()) {
                (Some(0), _) => String::new(),
                (Some(code), _) => format!("exit status {code}\n"),
                (None, signal) => format!("killed by signal {}\n", signal.unwrap_or(0)),
            });
        }
        if Instant::now() > deadline {
            // The whole group: std can kill only the child itself.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
            let _ = child.wait();
            return Ok("KILLED after the watchdog failed\n".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
