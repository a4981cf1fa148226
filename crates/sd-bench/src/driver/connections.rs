//! `sd bench connections`: round trips over very many open connections, and what each of them costs in memory.
//!
//! | item | what |
//! |---|---|
//! | | round trips per second, in turn over all connections, again and again |
//! | after a pause | the same when they have not been used for seconds, so that their memory was given back |
//! | memory of both sides | that of the processes and the monitor when all connections are idle |
//! | memory per connection | what each one adds |
//! | kernel memory per connection | what the kernel's allocator grew by for each one, on an otherwise quiet machine |
//! | opening | connections opened per second, by processes that have to be started |
//!
//! A process has as many connections as its limit of descriptors allows, which root may raise up to /proc/sys/fs/nr_open;
//! more of them are spread over several pairs of processes. Pairs run one at a time, each once over all that it has, so that
//! the next use of a connection comes after all others have been used. All numbers and systems are open at the same time and
//! take turns, so what is compared was measured within the same second.

use super::Plan;
use super::cost::{QUIET, activity, memory};
use super::report::{Figure, Row, progress, rows_of};
use super::rounds::{Series, ratio};
use super::stage::{Connected, Job, Outcome, Stage, TIMEOUT, result_of};
use crate::peer::{PER_TURN, Report, Work};
use sd_cli::cli::System;
use sd_cli::failure::{Failure, Result, warn};
use sd_cli::process::check_interrupt;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const COUNTS: [usize; 6] = [64, 1000, 10_000, 100_000, 1_000_000, 10_000_000];
/// What is measured unless more is asked for: hundreds of processes disturb what is measured beside them.
const MOST: usize = 100_000;
pub(crate) const MOST_QUICK: usize = 10_000;
/// The kernel would need gigabytes for more of its own.
const MOST_OF_KERNEL: usize = 100_000;
/// What the kernel needs for fewer does not stand out from what else it does.
const FEWEST_OF_KERNEL: usize = 1000;
/// Bytes that a connection is allowed for, ours and the kernel's, before it is known what it needs.
const ALLOWANCE: [usize; 2] = [1500, 16_000];
/// The rounds of housekeeping of an idle process (`sd_socket::idle`), and a little more.
const SETTLES: Duration = Duration::from_millis(3300);
/// The housekeeping of fewer connections does not show.
const FEWEST_TO_SETTLE: usize = 10_000;
const BATCH: &str = "messages per wait";
const PAUSE: &str = "after a pause";

/// So many connections of a system, open.
struct Crowd {
    system: System,
    count: usize,
    pairs: Vec<Connected>,
    /// Per connection, where there are enough kernel sockets for other uses of the allocator not to show.
    kernel_bytes: Option<f64>,
    /// Bytes of the monitor's.
    monitor_bytes: f64,
    opened_per_s: f64,
    failed: Option<String>,
    outcomes: Vec<Outcome>,
}

/// All rows.
pub(crate) fn measure(
    stage: &Stage,
    plan: Plan,
    most: Option<usize>,
    systems: &[System],
    failures: &mut Vec<String>,
) -> Result<Vec<Row>> {
    use System::*;
    let systems = [Socksdirect, Tcp, Sockmap, Unix].into_iter().filter(|system| systems.contains(system));
    let jobs = jobs(&systems.collect::<Vec<_>>(), most.unwrap_or(MOST));
    let mut crowds = Vec::with_capacity(jobs.len());
    for (system, count) in jobs {
        progress(&format!("opening {count} connections: {}", system.name()));
        match Crowd::open(stage, system, count, plan) {
            Ok(crowd) => crowds.push(crowd),
            Err(failure) => {
                check_interrupt()?;
                failures.push(format!("{count} connections: {}", failure.text));
            }
        }
    }
    for round in 1..=plan.rounds {
        for crowd in crowds.iter_mut().filter(|crowd| crowd.failed.is_none()) {
            progress(&format!("round {round} of {}: {} {}", plan.rounds, crowd.count, crowd.system.name()));
            if let Err(failure) = crowd.turn(plan).and_then(|()| crowd.settle()) {
                check_interrupt()?;
                crowd.failed = Some(failure.text);
            }
        }
    }
    progress("looking at idle connections");
    std::thread::sleep(QUIET);
    let memories: Vec<f64> = crowds.iter().map(Crowd::memory).collect();
    progress("");
    let rows = rows(&crowds, &memories);
    for crowd in crowds {
        failures.extend(crowd.close().err().map(|failure| failure.text));
    }
    Ok(rows)
}

/// What there is memory for, by number.
fn jobs(systems: &[System], most: usize) -> Vec<(System, usize)> {
    let mut left = available();
    let mut jobs = Vec::new();
    for count in COUNTS.into_iter().filter(|count| *count <= most) {
        for &system in systems {
            let is_ours = system == System::Socksdirect;
            if count > MOST_OF_KERNEL && !is_ours {
                continue;
            }
            match left.checked_sub(count * ALLOWANCE[usize::from(!is_ours)]) {
                Some(rest) => {
                    left = rest;
                    jobs.push((system, count));
                }
                None => warn(&format!("{count} connections, {}: not enough memory", system.name())),
            }
        }
    }
    jobs
}

impl Crowd {
    /// Opens them, and uses each once.
    fn open(stage: &Stage, system: System, count: usize, plan: Plan) -> Result<Crowd> {
        let (kernel_before, tcp_before) = (kernel_memory(), kernel_tcp());
        let monitor = || match (system, stage.monitor_pid()) {
            (System::Socksdirect, Some(pid)) => memory(pid),
            _ => 0.0,
        };
        let monitor_before = monitor();
        let pairs = count.div_ceil(crate::peer::raise_limit(count));
        let millis = if pairs == 1 { plan.millis } else { 0 };
        let mut crowd = Crowd {
            system,
            count,
            pairs: Vec::with_capacity(pairs),
            kernel_bytes: None,
            monitor_bytes: 0.0,
            opened_per_s: 0.0,
            failed: None,
            outcomes: Vec::new(),
        };
        let mut opening = Duration::ZERO;
        for number in 0..pairs {
            check_interrupt()?;
            let count = count * (number + 1) / pairs - count * number / pairs;
            let began = Instant::now();
            let pair = stage.connect(system, &Job { work: Work::Many, size: 8, millis, count })?;
            opening += began.elapsed();
            crowd.pairs.push(pair);
            crowd.use_all(number, count)?;
        }
        if system == System::Socksdirect && kernel_tcp() - tcp_before >= count as f64 {
            return Err(Failure::new("the connections went over the kernel"));
        }
        crowd.opened_per_s = count as f64 / opening.as_secs_f64();
        let kernel_bytes = (kernel_memory() - kernel_before) / count as f64;
        let is_seen = system != System::Socksdirect && count >= FEWEST_OF_KERNEL && kernel_bytes > 0.0;
        crowd.kernel_bytes = is_seen.then_some(kernel_bytes);
        crowd.monitor_bytes = (monitor() - monitor_before).max(0.0);
        Ok(crowd)
    }

    /// All of them, and again until the time is over. The others had their turns meanwhile, for seconds; so ours, which
    /// give memory back by then, are used once before.
    fn turn(&mut self, plan: Plan) -> Result<()> {
        let first = if self.system == System::Socksdirect { Some(self.cycle()?) } else { None };
        let mut all = Cycle::default();
        while all.seconds * 1e3 < plan.millis as f64 {
            all.add(self.cycle()?);
        }
        let mut items = BTreeMap::from([(BATCH.to_owned(), all.trips / all.waits)]);
        items.extend(first.map(|first| (PAUSE.to_owned(), first.trips / first.seconds)));
        let client = Report { value: all.trips / all.seconds, items, ..Report::default() };
        self.outcomes.push(Outcome { client, ..Outcome::default() });
        Ok(())
    }

    /// One pair after the other.
    fn cycle(&mut self) -> Result<Cycle> {
        let mut all = Cycle::default();
        let count = self.count.div_ceil(self.pairs.len());
        for number in 0..self.pairs.len() {
            all.add(self.use_all(number, count)?);
        }
        Ok(all)
    }

    /// One pair: all of its connections, but not more at a time than there is memory for.
    fn use_all(&mut self, number: usize, count: usize) -> Result<Cycle> {
        let mut all = Cycle::default();
        for turn in 0..count.div_ceil(PER_TURN) {
            if turn > 0 {
                self.settle()?;
            }
            let client = &mut self.pairs[number].client;
            client.say("go")?;
            let report = result_of(client, timeout(self.count))?;
            let trips = report.count.unwrap_or_default() as f64;
            let waits = trips / report.items.get(BATCH).copied().unwrap_or(1.0);
            all.add(Cycle { seconds: trips / report.value, trips, waits });
        }
        Ok(all)
    }

    /// Waits until the processes have given their connections' memory back, which would take time from the next turn.
    fn settle(&self) -> Result<()> {
        if self.system != System::Socksdirect || self.count < FEWEST_TO_SETTLE {
            return Ok(());
        }
        let pids: Vec<u32> = self.pids().collect();
        std::thread::sleep(SETTLES);
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            check_interrupt()?;
            let [before, _] = activity(&pids);
            std::thread::sleep(Duration::from_millis(200));
            let [after, _] = activity(&pids);
            if after - before < 1e6 {
                break;
            }
        }
        Ok(())
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.pairs.iter().flat_map(|pair| {
            std::iter::once(pair.client.pid()).chain(pair.server.as_ref().map(|server| server.pid()))
        })
    }

    /// Of both sides and the monitor. The kernel's own is not seen in /proc/PID.
    fn memory(&self) -> f64 {
        self.monitor_bytes + self.pids().map(memory).sum::<f64>()
    }

    fn close(self) -> Result<()> {
        for pair in self.pairs {
            pair.client.finish(timeout(self.count))?;
            pair.server.map_or(Ok(()), |server| server.finish(timeout(self.count)))?;
        }
        self.failed.map_or(Ok(()), |text| Err(Failure::new(text)))
    }
}

/// What was done once.
#[derive(Default)]
struct Cycle {
    seconds: f64,
    trips: f64,
    waits: f64,
}

impl Cycle {
    fn add(&mut self, other: Cycle) {
        self.seconds += other.seconds;
        self.trips += other.trips;
        self.waits += other.waits;
    }
}

/// A busy kernel takes milliseconds for the first use of a connection.
fn timeout(count: usize) -> Duration {
    TIMEOUT + Duration::from_millis(5 * count.min(100_000) as u64)
}

fn rows(crowds: &[Crowd], memories: &[f64]) -> Vec<Row> {
    let mut rows = Vec::new();
    for number in COUNTS {
        let of_number = || crowds.iter().zip(memories).filter(|(crowd, _)| crowd.count == number);
        let series = |value: &dyn Fn(&Crowd, f64) -> Vec<Outcome>| -> Vec<Series> {
            of_number().map(|(crowd, memory)| Series::done(crowd.system, value(crowd, *memory))).collect()
        };
        let figure = |item, unit| Figure { bench: "connections", item, unit, size: 8, count: Some(number) };
        let rate = |o: &Outcome| Some((o.client.value, None));
        let mut of_rate = rows_of(figure(None, "round trips/s"), &series(&|c, _| c.outcomes.clone()), rate);
        for row in &mut of_rate {
            row.ratio_to_fewest = to_fewest(crowds, row.system, number);
        }
        rows.extend(of_rate);
        for (item, unit) in [(BATCH, "messages"), (PAUSE, "round trips/s")] {
            let value = |o: &Outcome| Some((*o.client.items.get(item)?, None));
            rows.extend(rows_of(figure(Some(item), unit), &series(&|c, _| c.outcomes.clone()), value));
        }
        let ours = |c: &Crowd, values: &[f64]| match c.system {
            System::Socksdirect => values.iter().map(|value| once(*value)).collect(),
            _ => Vec::new(),
        };
        let all = series(&|c, memory| ours(c, &[memory]));
        rows.extend(rows_of(figure(Some("memory of both sides"), "bytes"), &all, rate));
        let each = series(&|c, memory| ours(c, each(crowds, memories, c, memory).as_slice()));
        rows.extend(rows_of(figure(Some("memory per connection"), "bytes"), &each, rate));
        let kernel = series(&|c, _| c.kernel_bytes.map(once).into_iter().collect());
        rows.extend(rows_of(figure(Some("kernel memory per connection"), "bytes"), &kernel, rate));
        let opening = series(&|c, _| vec![once(c.opened_per_s)]);
        rows.extend(rows_of(figure(Some("opening"), "connections/s"), &opening, rate));
    }
    for row in &mut rows {
        row.pairs = crowds.iter().find(|crowd| Some(crowd.count) == row.count).map(|crowd| crowd.pairs.len());
    }
    rows
}

/// A figure that was not measured round by round.
fn once(value: f64) -> Outcome {
    Outcome { client: Report { value, ..Report::default() }, ..Outcome::default() }
}

/// What a connection adds to pairs of processes that have the fewest.
fn each(crowds: &[Crowd], memories: &[f64], crowd: &Crowd, memory: f64) -> Option<f64> {
    let (fewest, least) = crowds.iter().zip(memories).find(|(c, _)| c.system == crowd.system)?;
    let pairs = crowd.pairs.len();
    let more = crowd.count.checked_sub(pairs * fewest.count).filter(|more| *more > 0)?;
    Some((memory - pairs as f64 * least) / more as f64)
}

fn to_fewest(crowds: &[Crowd], system: System, count: usize) -> Option<f64> {
    let values = |crowd: &Crowd| -> Vec<f64> { crowd.outcomes.iter().map(|o| o.client.value).collect() };
    let fewest = crowds.iter().find(|crowd| crowd.system == system)?;
    let this = crowds.iter().find(|crowd| crowd.system == system && crowd.count == count)?;
    ratio(&values(this), &values(fewest))
}

/// A field of /proc/meminfo, in bytes.
fn meminfo(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    super::cost::field(&text, name) * 1024.0
}

/// What the kernel's own allocator has for sockets, files, lists of events and the like.
fn kernel_memory() -> f64 {
    meminfo("Slab:")
}

/// The kernel's TCP sockets.
fn kernel_tcp() -> f64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    super::cost::field(&text, "TCP: inuse")
}

fn available() -> usize {
    meminfo("MemAvailable:") as usize
}
