//! Two hosts whose connections are used in all ways while engines are killed and paused, monitors killed, and the path is cut and lossy.
//!
//! Who uses them (`soak.py`) compares each byte and each end with what Linux gives. An end that Linux would not have given is a reset, of a
//! connection during whose life an engine has died: all others go on as if nothing had happened.

use super::Scenario;
use crate::engines::{LIMIT, PORT, finish, start, wait_for_engine};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::{Result, fail, network, retry};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    // Ten minutes as issue 16 asks for, a minute, or SECONDS_OF_SOAK; by their names only. FAULTS_OF_SOAK=Killed,Cut: only these.
    Scenario::between_hosts("between-hosts-soak", PROGRAMS, |_| soak(seconds(600)))
        .ours()
        .extra()
        .limit_s(3600),
    Scenario::between_hosts("between-hosts-wander", PROGRAMS, |_| wander(seconds(60)))
        .ours()
        .extra()
        .limit_s(3600),
];

const PROGRAMS: &[&str] = &["python3", network::PROGRAM];
const PROGRAM: &str = include_str!("../py/soak.py");
const CONNECTIONS: &str = "12";
/// Of packets of ordinary size, so that some can be lost. A lost one of a million is none.
const SOUND: Faults =
    Faults { lost_ppm: 1, doubled_ppm: 0, delay: Duration::ZERO, jitter: Duration::ZERO, is_cut: false };
const LOSSY: Faults = Faults {
    lost_ppm: 10_000,
    doubled_ppm: 10_000,
    delay: Duration::from_micros(300),
    jitter: Duration::from_micros(300),
    is_cut: false,
};

fn seconds(default: u64) -> u64 {
    number("SECONDS_OF_SOAK", default)
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What happens beneath connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Killed,
    Ended,
    Paused,
    NoMonitor,
    Cut,
    Lossy,
}

const FAULTS: [Fault; 6] =
    [Fault::Killed, Fault::Ended, Fault::Paused, Fault::NoMonitor, Fault::Cut, Fault::Lossy];

/// So many connections that ended otherwise are said.
const SHOWN: usize = 4;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn pause(&mut self, [least, most]: [u64; 2]) {
        std::thread::sleep(Duration::from_millis(least + self.below(most - least)));
    }
}

/// Seconds, by the clock that the programs say too, but for suspensions.
fn now() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let Some(seconds) = text.split_whitespace().next() else { fail!("/proc/uptime is empty") };
    Ok(seconds.parse()?)
}

/// What was done, and when engines died.
#[derive(Default)]
struct Done {
    counts: BTreeMap<Fault, usize>,
    acts: Vec<(f64, Fault, usize)>,
    deaths: Vec<f64>,
}

impl Done {
    /// One of them, at a host or on the path, for as long as it lasts.
    fn act(&mut self, fault: Fault, at: usize, hosts: &mut [Host; 2], dice: &mut Dice) -> Result<()> {
        *self.counts.entry(fault).or_default() += 1;
        self.acts.push((now()?, fault, at));
        let both = if dice.below(4) == 0 { vec![0, 1] } else { vec![at] };
        match fault {
            Fault::Killed => both.iter().try_for_each(|at| self.ends(&hosts[*at], Signal::SIGKILL)),
            Fault::Ended => both.iter().try_for_each(|at| self.ends(&hosts[*at], Signal::SIGTERM)),
            Fault::Paused => {
                let Some(engine) = hosts[at].engines()?.first().copied() else { return Ok(()) };
                kill(Pid::from_raw(engine as i32), Signal::SIGSTOP)?;
                dice.pause([1000, 3000]);
                Ok(kill(Pid::from_raw(engine as i32), Signal::SIGCONT)?)
            }
            Fault::NoMonitor => {
                hosts[at].lab.kill_monitor();
                dice.pause([1, 1000]);
                hosts[at].start_monitor()
            }
            Fault::Cut => {
                set_cable(hosts, Faults { is_cut: true, ..SOUND })?;
                dice.pause([500, 1500]);
                set_cable(hosts, SOUND)
            }
            Fault::Lossy => {
                set_cable(hosts, LOSSY)?;
                dice.pause([1000, 3000]);
                set_cable(hosts, SOUND)
            }
        }
    }

    /// The engine that carries there ends; another one takes its place.
    fn ends(&mut self, host: &Host, signal: Signal) -> Result<()> {
        let Some(engine) = host.engines()?.first().copied() else { return Ok(()) };
        self.deaths.push(now()?);
        Ok(kill(Pid::from_raw(engine as i32), signal)?)
    }

    /// What was done between these moments: seconds behind the first.
    fn acts_between(&self, begin: f64, end: f64) -> Vec<(f64, Fault, usize)> {
        let within = self.acts.iter().filter(|act| begin - 10.0 < act.0 && act.0 < end);
        within.map(|(at, fault, side)| ((at - begin).round(), *fault, *side)).collect()
    }

    /// Whether an engine has died between these moments.
    fn has_death(&self, begin: f64, end: f64) -> bool {
        self.deaths.iter().any(|death| begin - 0.1 < *death && *death < end + 0.1)
    }
}

fn set_cable(hosts: &[Host; 2], faults: Faults) -> Result<()> {
    let Some(cable) = &hosts[0].cable else { fail!("there is no cable") };
    cable.set(faults);
    Ok(())
}

fn soak(seconds: u64) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut hosts = host::two_with_engines(SOUND, 1)?;
    let wanted = std::env::var("FAULTS_OF_SOAK").unwrap_or_default();
    let is_wanted =
        |fault: &Fault| wanted.is_empty() || wanted.split(',').any(|it| it == format!("{fault:?}"));
    let faults: Vec<Fault> = FAULTS.into_iter().filter(is_wanted).collect();
    run(&mut hosts, seconds, &faults)?;
    sleep_when_idle(hosts)
}

/// Nothing happens beneath connections, but that they go to and fro between the kernel and engines all the time.
fn wander(seconds: u64) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut hosts = host::two_with_engines_told(Faults::default(), 1, &["--promote=all", "--demote=4"])?;
    run(&mut hosts, seconds, &[])?;
    finish(hosts)
}

/// Connections for so long, while some of these happen.
fn run(hosts: &mut [Host; 2], seconds: u64, faults: &[Fault]) -> Result<()> {
    let seed = number("SEED_OF_SOAK", 16);
    let (mut dice, mut done) = (Dice(seed), Done::default());
    let (address, port) = (hosts[1].address.to_string(), PORT.to_string());
    let until = Instant::now() + Duration::from_secs(seconds);
    let loses = faults.iter().any(|fault| matches!(fault, Fault::Cut | Fault::Lossy));
    let args = ["-c", PROGRAM, "serve", &address, &port, "probes"];
    let args = if loses { &args[..] } else { &args[..5] };
    let mut server = hosts[1].lab.serve(Side::Sd, PORT, "python3", args)?;
    let args = ["-c", PROGRAM, "connect", &address, &port, CONNECTIONS, &seconds.to_string()];
    let mut client = hosts[0].lab.start(Side::Sd, "python3", &args)?;
    wait_for_engine(hosts, 1)?;
    while client.is_running() && Instant::now() < until {
        // Connections have to go over before anything can happen to them.
        dice.pause([500, 4000]);
        let at = dice.below(2) as usize;
        if !faults.is_empty() {
            let fault = faults[dice.below(faults.len() as u64) as usize];
            done.act(fault, at, hosts, &mut dice)?;
        }
    }
    // Those that are open are used up to their ends.
    let said = client.wait(2 * LIMIT)?.ok()?.text();
    let asked = match judge(&said, &done) {
        Ok(asked) => asked,
        // What it was at the other end says which of the two went wrong.
        Err(error) => fail!("client: {error}; server: {:?}", judge(&server.stdout_so_far(), &done)),
    };
    let heard = retry(LIMIT, || {
        let heard = judge(&server.stdout_so_far(), &done)?;
        match heard.all == asked.all {
            true => Ok(heard),
            false => fail!("the client has had {asked:?}, the server {heard:?}"),
        }
    })?;
    println!("seed {seed}: {:?}; client {asked:?}, server {heard:?}", done.counts);
    server.is_running();
    server.kill();
    Ok(())
}

/// Connections, as one side has said.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    all: usize,
    /// That were reset, as an engine had died.
    reset: usize,
}

/// Whether all of these were as on Linux, or may be otherwise.
fn judge(said: &str, done: &Done) -> Result<Counts> {
    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    for line in said.lines().filter(|line| !["listens", "over"].contains(line)) {
        counts.all += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let [_, how, begin, end, ..] = words[..] else { fail!("what is {line:?}?") };
        match how {
            "done" => {}
            "reset" if done.has_death(begin.parse()?, end.parse()?) => counts.reset += 1,
            _ => wrong.push(format!("{line} {:?}", done.acts_between(begin.parse()?, end.parse()?))),
        }
    }
    match wrong.len() {
        0 => Ok(counts),
        // Of a message only the end is kept where it is long.
        more => fail!("{more} of {}: {}", counts.all, wrong[..more.min(SHOWN)].join(" | ")),
    }
}

/// Connections that lie idle, and then none: engines sleep. The first ones show that both have a successor by now.
fn sleep_when_idle(hosts: [Host; 2]) -> Result<()> {
    let (server, client) = start(&hosts, 4, 1000)?;
    crate::engines::end(server, client, ("end", 4))?;
    crate::engines::must_sleep(&hosts)?;
    finish(hosts)
}
