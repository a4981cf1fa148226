//! Connections both ends of which wander, while the way that their bytes take changes under them: both ends are handed on by fork, exec and
//! SCM_RIGHTS, and killed; connections begin as the kernel's, and go to shared memory and back; the monitor is killed, and started again.
//!
//! Whatever happened, each end has got what the other one sent, as far as Linux would have delivered it, and an end as Linux would have ended it:
//!
//! | the other end | what an end must have seen |
//! |---|---|
//! | ended by itself | all bytes, then the end of the stream |
//! | was killed, and nothing had come that it had not read | the same |
//! | was killed, and something had | that, or some of the bytes, and a reset |

use super::{Part, program, soak};
use harness::lab::{Lab, Side};
use harness::{Result, fail, ss};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Pairs at a time.
const AT_ONCE: usize = 5;
/// An end whose other one is over follows it in this time.
const PATIENCE: Duration = Duration::from_secs(40);
const STEPS_MOST: u64 = 6_000;
/// At least: it takes three seconds until a monitor says of an end that its predecessor knew that it is dead.
const MONITOR_LIVES_MS: u64 = 3_500;

/// What happens to the connections of a part.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// How they are handed on: letters of fork, exec, pass.
    moves: &'static str,
    /// Each end does some of these only: who is handed to something without the library is the kernel's for good.
    some_moves: bool,
    /// What the monitors are told of roads.
    monitor_args: &'static [&'static str],
    monitor_dies: bool,
    /// Two of three connections have an end that is killed.
    deaths: bool,
}

const STAY: &[&str] = &[];
const THERE: &[&str] = &["--promote=all"];
const THERE_AND_BACK: &[&str] = &["--promote=all", "--demote"];

const fn kind(name: &'static str, moves: &'static str, monitor_args: &'static [&'static str]) -> Kind {
    Kind { name, moves, monitor_args, some_moves: false, monitor_dies: false, deaths: false }
}

const KINDS: [Kind; 10] = [
    Kind { deaths: true, ..kind("roam-in-shm", "fep", STAY) },
    Kind { deaths: true, monitor_dies: true, ..kind("roam-there", "-", THERE) },
    kind("roam-back", "-", THERE_AND_BACK),
    kind("roam-by-fork", "f", THERE),
    kind("roam-by-exec", "e", THERE_AND_BACK),
    kind("roam-relatives", "f", THERE_AND_BACK),
    Kind { monitor_dies: true, ..kind("roam-monitors", "-", THERE_AND_BACK) },
    kind("roam-by-pass", "p", THERE_AND_BACK),
    Kind { deaths: true, ..kind("roam-killed", "-", THERE_AND_BACK) },
    Kind { some_moves: true, deaths: true, monitor_dies: true, ..kind("roam-mixed", "fep", THERE_AND_BACK) },
];

impl Kind {
    fn are_promoted(&self) -> bool {
        !self.monitor_args.is_empty()
    }
}

/// A generator whose numbers a seed repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

/// What an end has noted, see `tests/sharing/src/roamer.rs`.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    intended: u64,
    sent: u64,
    received: u64,
    end: u64,
    begun: u64,
}

const KILLED: u64 = 0;
const EOF: u64 = 1;
const RESET: u64 = 2;

/// One end: the group that all processes belong to that have had it.
struct End {
    group: Pid,
    kill_at: Option<Instant>,
    is_over: bool,
}

impl End {
    fn look(&mut self) {
        if !self.is_over && self.kill_at.is_some_and(|at| Instant::now() > at) {
            let _ = killpg(self.group, Signal::SIGKILL);
        }
        self.is_over = self.is_over || soak::is_over(self.group);
    }
}

/// A connection. That of the server is the first of its ends.
struct Pair {
    path: PathBuf,
    port: String,
    ends: Vec<End>,
    /// Which end is killed, so long after both were connected; one of three is not.
    death: Option<(usize, Duration)>,
    one_over_since: Option<Instant>,
}

impl Pair {
    fn start(lab: &Lab, kind: Kind, serial: u64, chance: &mut Chance) -> Result<Pair> {
        let path = lab.path().join(format!("pair-{serial}"));
        for end in 0..2 {
            std::fs::write(note_of(&path, end), [0; 40])?;
        }
        let mut pair =
            Pair { path, port: String::new(), ends: Vec::new(), death: None, one_over_since: None };
        let said = pair.path.with_extension("port");
        pair.run(lab, kind, "serve", Stdio::from(std::fs::File::create(&said)?), chance)?;
        let is_said = || std::fs::read_to_string(&said).is_ok_and(|text| text.ends_with('\n'));
        harness::until("a port", Duration::from_secs(20), is_said)?;
        pair.port = std::fs::read_to_string(&said)?.trim().trim_start_matches("port ").to_owned();
        let port = pair.port.clone();
        pair.run(lab, kind, &port, Stdio::null(), chance)?;
        let victim = if kind.deaths { chance.below(3) as usize } else { 2 };
        pair.death = (victim < 2).then(|| (victim, Duration::from_micros(chance.below(600_000))));
        Ok(pair)
    }

    fn run(&mut self, lab: &Lab, kind: Kind, place: &str, stdout: Stdio, chance: &mut Chance) -> Result<()> {
        let [seed, steps] = [1 << 31, STEPS_MOST].map(|limit| chance.below(limit).to_string());
        let is_done = |_: &char| !kind.some_moves || chance.below(3) == 0;
        let moves = format!("-{}", kind.moves.chars().filter(is_done).collect::<String>());
        let args = ["roamer", place, &self.path.to_string_lossy(), &moves, &seed, &steps];
        let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
        let leader = command.process_group(0).stdout(stdout).stderr(Stdio::null()).spawn()?;
        self.ends.push(End { group: Pid::from_raw(leader.id() as i32), kill_at: None, is_over: false });
        Ok(())
    }

    /// Whether both ends are over; an error if one is and the other one does not follow.
    fn is_over(&mut self) -> Result<bool> {
        if let Some((victim, life)) = self.death
            && self.notes().iter().all(|note| note.begun != 0)
        {
            self.death = None;
            self.ends[victim].kill_at = Some(Instant::now() + life);
        }
        self.ends.iter_mut().for_each(End::look);
        let over = self.ends.iter().filter(|end| end.is_over).count();
        if over == 1 && self.one_over_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            fail!("an end has not noticed that the other one is over");
        }
        Ok(over == 2)
    }

    fn kill(&mut self) {
        self.ends.iter_mut().for_each(|end| end.kill_at = Some(Instant::now()));
        while !self.ends.iter().all(|end| end.is_over) {
            self.ends.iter_mut().for_each(End::look);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn notes(&self) -> [Note; 2] {
        [0, 1].map(|end| {
            let bytes = std::fs::read(note_of(&self.path, end)).unwrap_or_default();
            let word = |at: usize| {
                bytes
                    .get(at * 8..at * 8 + 8)
                    .map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
            };
            Note { intended: word(0), sent: word(1), received: word(2), end: word(3), begun: word(4) }
        })
    }

    /// What each end has got is what it should have.
    fn check(&self) -> Result<[Note; 2]> {
        let notes = self.notes();
        for (i, name) in ["the server", "the client"].iter().enumerate() {
            let (own, other, is_killed) = (notes[i], notes[1 - i], self.ends[i].kill_at.is_some());
            verdict(own, other, is_killed).map_err(|error| format!("{name} {error}"))?;
        }
        Ok(notes)
    }

    /// What an end has done where.
    fn log(&self, end: usize) -> String {
        let path = format!("{}.log", note_of(&self.path, end).display());
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// All that is known of one that went wrong.
    fn describe(&self) -> String {
        let logs = [0, 1].map(|end| harness::process::tail(&self.log(end), 300).to_owned());
        let [server, client] = self.notes();
        let was_killed = self.ends.iter().map(|end| end.kill_at.is_some()).collect::<Vec<_>>();
        format!(
            "port {}, to be killed {was_killed:?}\n     server {server:?} {}\n     client {client:?} {}",
            self.port, logs[0], logs[1]
        )
    }
}

fn note_of(path: &Path, end: usize) -> PathBuf {
    format!("{}-{end}", path.display()).into()
}

/// What one end has seen of the other.
fn verdict(own: Note, other: Note, may_be_killed: bool) -> Result<()> {
    if own.received > other.intended {
        fail!("got more than was sent");
    }
    match (own.end, other.end) {
        (KILLED, _) if may_be_killed => Ok(()),
        (KILLED, _) => fail!("is gone without a word"),
        (EOF, EOF) if own.received != other.sent => fail!("has not got everything"),
        (EOF, KILLED) if own.received < other.sent => fail!("has not got everything before the end"),
        (EOF, EOF | KILLED) => Ok(()),
        // Who is killed with something unread resets the connection.
        (RESET, KILLED) if own.intended > other.received => Ok(()),
        (RESET, _) => fail!("was reset"),
        _ => fail!("failed"),
    }
}

/// What has come of a run.
#[derive(Default)]
struct Tally {
    pairs: u64,
    bytes: u64,
    bad: u64,
    ends: BTreeMap<String, u64>,
    /// What was done to the connections.
    done: Done,
    monitors: u64,
}

/// See [`Tally::done`].
#[derive(Default)]
struct Done {
    /// Connections that went to shared memory. There and back are two.
    promotions: u64,
    kills: u64,
    /// As the ends have noted them.
    forks: usize,
    execs: usize,
    passes: usize,
}

impl Done {
    fn add(&mut self, pair: &Pair) {
        // Some are over before it is their time.
        self.kills += pair.notes().iter().filter(|note| note.end == KILLED).count() as u64;
        for end in 0..2 {
            let log = pair.log(end);
            for (name, count) in
                [("fork@", &mut self.forks), ("exec@", &mut self.execs), ("pass@", &mut self.passes)]
            {
                *count += log.matches(name).count();
            }
        }
    }
}

impl Tally {
    fn add(&mut self, lab: &Lab, pair: &mut Pair, over: Result<bool>) {
        self.pairs += 1;
        self.done.add(pair);
        let checked = over.and_then(|_| pair.check());
        let ends = match &checked {
            Ok(notes) => {
                self.bytes += notes.iter().map(|note| note.received).sum::<u64>();
                notes.map(|note| {
                    ["killed", "EOF", "reset"].get(note.end as usize).copied().unwrap_or("failed")
                })
            }
            Err(_) => ["bad", "bad"],
        };
        *self.ends.entry(ends.join("-")).or_default() += 1;
        if let Err(error) = checked {
            self.bad += 1;
            println!("     {error}: {}", pair.describe());
            let seen = lab.snapshot().map(|seen| {
                seen.of_port(pair.port.parse().unwrap_or(0)).into_iter().map(ss::describe).collect::<Vec<_>>()
            });
            println!("     seen: {:?}", seen.unwrap_or_default());
        }
        pair.kill();
        for path in std::fs::read_dir(lab.path()).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_of_pair = path.to_string_lossy().starts_with(&*format!("{}-", pair.path.display()));
            if is_of_pair {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// The monitor, which is there for a while, and then not.
struct Keeper {
    kind: Kind,
    until: Instant,
}

impl Keeper {
    /// Kills it, or starts another, when it is time.
    fn look(&mut self, lab: &mut Lab, tally: &mut Tally, chance: &mut Chance) -> Result<()> {
        if lab.is_oracle() || !self.kind.monitor_dies || Instant::now() < self.until {
            return Ok(());
        }
        let next = if lab.monitor_pid().is_some() {
            tally.done.promotions += lab.snapshot()?.promotions;
            lab.kill_monitor();
            chance.below(400)
        } else {
            tally.monitors += 1;
            lab.start_monitor_with(self.kind.monitor_args)?;
            MONITOR_LIVES_MS + chance.below(4_000)
        };
        self.until = Instant::now() + Duration::from_millis(next);
        Ok(())
    }
}

/// A fifth of the soak each; all of it if it is the only one.
pub(super) fn parts(options: &super::Options) -> impl Iterator<Item = Part<'_>> {
    KINDS.into_iter().map(move |kind| {
        let seconds = if options.only == kind.name { options.soak } else { options.soak.div_ceil(5) };
        let check = move |lab: &mut Lab| run(lab, kind, seconds, options.seed);
        (kind.name.to_owned(), Box::new(check) as _)
    })
}

/// Pairs for so many seconds.
fn run(lab: &mut Lab, kind: Kind, seconds: u64, seed: u64) -> Result<String> {
    let (mut chance, mut tally) = (Chance(seed | 1), Tally::default());
    if kind.are_promoted() && !lab.is_oracle() {
        lab.kill_monitor();
        lab.start_monitor_with(kind.monitor_args)?;
    }
    let mut keeper = Keeper { kind, until: Instant::now() + Duration::from_secs(1) };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut pairs, mut serial): (Vec<Pair>, u64) = (Vec::new(), 0);
    while Instant::now() < end || !pairs.is_empty() {
        while pairs.len() < AT_ONCE && Instant::now() < end {
            serial += 1;
            pairs.push(Pair::start(lab, kind, serial, &mut chance)?);
        }
        for at in (0..pairs.len()).rev() {
            let over = pairs[at].is_over();
            if !matches!(over, Ok(false)) {
                let mut pair = pairs.swap_remove(at);
                tally.add(lab, &mut pair, over);
            }
        }
        keeper.look(lab, &mut tally, &mut chance)?;
        soak::bury_bridges(&[lab.monitor_pid()]).map_err(|error| format!("{error}: {}", lab.last_said()))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    if lab.monitor_pid().is_none() && !lab.is_oracle() {
        lab.start_monitor()?;
    }
    if !lab.is_oracle() {
        tally.done.promotions += lab.snapshot()?.promotions;
    }
    let Tally { pairs, bytes, bad, ends, done, monitors } = tally;
    let Done { promotions, kills, forks, execs, passes } = done;
    let counts = format!(
        "{pairs} connections, {bytes} bytes, {promotions} times to shared memory, {forks} forks, {execs} execs, {passes} passes, {kills} kills, \
         {monitors} monitors, ends {ends:?}, wrong: {bad}"
    );
    if bad > 0 {
        fail!("{counts}");
    }
    if kind.are_promoted() && promotions == 0 && !lab.is_oracle() {
        fail!("none of {pairs} connections was promoted");
    }
    Ok(counts)
}
