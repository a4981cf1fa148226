//! Many hosts with an engine each: everybody talks with everybody, some leave, some come, one is slow, and one is hostile.
//!
//! ```text
//!  hosts 1 ... N on a switch:   server <── a connection from each client        each server and client is one process, of one thread
//!  the one in the middle is hostile: it has an address and a key in all files, and no engine; the last two come late, the first and the last but two leave
//! ```

use super::Scenario;
use harness::host::{self, ENGINE_PORT, Host};
use harness::lab::Side;
use harness::network::{self, Switch};
use harness::process::Proc;
use harness::{Result, fail, procfs, retry, ss};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-many", PROGRAMS, |_| run(10)).ours().limit_s(180),
    // As many as issue 16 asks for; by its name only.
    Scenario::new("many-hosts-32", PROGRAMS, |_| run(32)).ours().extra().limit_s(900),
];

/// Their number, and the size of each; 0: of all sizes.
type Pieces = (u32, u32);
const PIECES: Pieces = (150, 0);
const PROGRAMS: &[&str] = &["python3", network::PROGRAM];
const SERVER: &str = include_str!("../py/many_server.py");
const CLIENT: &str = include_str!("../py/many_client.py");
const HOSTILE: &str = include_str!("../py/many_hostile.py");
const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_secs(60);
/// What no hosts file has, at the hostile host.
const NOBODY: &str = "10.77.0.250";
/// What greetings and connections of somebody without a key may cost an engine.
const ENGINE_KIB_MORE: u64 = 4 << 10;
/// Greetings that are heard at once, of each of two peers at most, and what the moment adds.
const ENGINE_FDS_MORE: usize = 16;

/// In one write: a line in two is read as two.
fn say(input: &mut ChildStdin, line: &str) -> Result<()> {
    Ok(input.write_all(format!("{line}\n").as_bytes())?)
}

/// A host with its programs.
struct Place {
    host: Host,
    server: Option<(Proc, ChildStdin)>,
    client: Option<(Proc, ChildStdin)>,
    /// Rounds that the client was told to carry, by server.
    asked: BTreeMap<String, usize>,
}

impl Place {
    fn new(host: Host) -> Place {
        Place { host, server: None, client: None, asked: BTreeMap::new() }
    }

    fn address(&self) -> String {
        self.host.address.to_string()
    }

    /// Its monitor and engine, and both programs.
    fn start(&mut self) -> Result<()> {
        self.host.start_engine()?;
        let (address, port) = (self.address(), PORT.to_string());
        self.server = Some(self.program(&["-c", SERVER, &address, &port])?);
        self.client = Some(self.program(&["-c", CLIENT, &port])?);
        Ok(())
    }

    fn program(&self, args: &[&str]) -> Result<(Proc, ChildStdin)> {
        let lab = &self.host.lab;
        let mut command = lab.command(Side::Sd, "python3", args)?;
        let mut process = Proc::start(command.stdin(Stdio::piped()), "python3", lab.path())?;
        let input = process.stdin()?;
        Ok((process, input))
    }

    fn wait_for_server(&mut self) -> Result<()> {
        let Some((server, _)) = &mut self.server else { fail!("there is no server") };
        server.wait_for_text("listens", LIMIT)
    }

    fn tell_server(&mut self, line: &str) -> Result<()> {
        let Some((_, input)) = &mut self.server else { fail!("there is no server") };
        say(input, line)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let Some((_, input)) = &mut self.client else { fail!("there is no client") };
        say(input, line)
    }

    /// The client sends so many pieces of this size to a server, and compares what comes back.
    fn carry(&mut self, other: &str, (pieces, size): Pieces) -> Result<()> {
        *self.asked.entry(other.to_owned()).or_default() += 1;
        self.tell(&format!("carry {other} {pieces} {size}"))
    }

    /// Lines of the client that begin so.
    fn said(&self, begin: &str) -> Vec<String> {
        let text = self.client.as_ref().map(|(client, _)| client.stdout_so_far()).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }

    /// Rounds that the client has carried with this server, of those that it was told to.
    fn rounds(&self, other: &str) -> (usize, usize) {
        let done = self.said("carried ").iter().filter(|line| line[8..] == *other).count();
        (done, self.asked.get(other).copied().unwrap_or(0))
    }

    /// Waits until the client has done all that with these.
    fn wait_for(&self, others: &[String]) -> Result<()> {
        retry(LIMIT, || {
            if let Some(wrong) = self.said("wrong").first() {
                fail!("{}: {wrong}", self.address());
            }
            let is_behind = |other: &&String| {
                let (done, asked) = self.rounds(other);
                done < asked
            };
            let Some(other) = others.iter().find(is_behind) else { return Ok(()) };
            let (own, rounds, ended) = (self.address(), self.rounds(other), self.said("ended"));
            let words = self.client.as_ref().map(|(client, _)| client.last_words());
            fail!("{own} has carried {rounds:?} rounds with {other}; {ended:?}; {words:?}")
        })
    }

    /// Its connections that the engine carries, at either end.
    fn carried(&self) -> Result<usize> {
        let seen = self.host.lab.snapshot()?;
        let is_carried = |c: &&ss::Connection| c.path == "engine" && c.carrier.as_deref() != Some("loopback");
        Ok(seen.of_port(PORT).into_iter().filter(is_carried).count())
    }

    /// Ends both programs, and then its monitor with a check that nothing is left.
    fn finish(mut self) -> Result<()> {
        for (program, input) in [self.client.take(), self.server.take()].into_iter().flatten() {
            drop(input);
            program.wait(LIMIT)?.ok()?;
        }
        self.host.finish()
    }
}

fn addresses(places: &[Place]) -> Vec<String> {
    places.iter().map(Place::address).collect()
}

fn others(place: &Place, all: &[String]) -> Vec<String> {
    let own = place.address();
    all.iter().filter(|other| **other != own).cloned().collect()
}

/// Every client does so with every server but its own host's.
fn all_to_all(
    places: &mut [Place],
    all: &[String],
    act: impl Fn(&mut Place, &str) -> Result<()>,
) -> Result<()> {
    let each = |place: &mut Place| others(place, all).iter().try_for_each(|other| act(place, other));
    places.iter_mut().try_for_each(each)
}

/// Every client has a connection to every server, and has used it.
fn connect(places: &mut [Place], all: &[String]) -> Result<()> {
    all_to_all(places, all, |place, other| {
        place.tell(&format!("connect {other}"))?;
        place.carry(other, PIECES)
    })?;
    wait_for_all(places, all)
}

fn carry(places: &mut [Place], all: &[String], pieces: Pieces) -> Result<()> {
    all_to_all(places, all, |place, other| place.carry(other, pieces))
}

fn wait_for_all(places: &[Place], all: &[String]) -> Result<()> {
    places.iter().try_for_each(|place| place.wait_for(&others(place, all)))
}

/// Most connections go through the engines, as all hosts say. They move there when they are used.
fn wait_for_engines(places: &mut [Place]) -> Result<()> {
    // Of each pair of hosts two connections, and of each an end here.
    let all = addresses(places);
    let ends = all.len() * (all.len() - 1) * 2;
    retry(LIMIT, || {
        carry(places, &all, (20, 64))?;
        wait_for_all(places, &all)?;
        let counts = places.iter().map(Place::carried).collect::<Result<Vec<_>>>()?;
        match counts.iter().sum::<usize>() {
            carried if carried * 10 >= ends * 9 => Ok(()),
            carried => fail!("{carried} of {ends} ends go through engines: {counts:?}"),
        }
    })
}

fn run(count: u8) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let (switch, hosts) = host::many(count, 1)?;
    let mut places: Vec<Place> = hosts.into_iter().map(Place::new).collect();
    let late = places.split_off(places.len() - 2);
    let hostile = places.remove(places.len() / 2);
    begin(&mut places)?;
    slow(&mut places)?;
    let hostile = Hostile::start(&hostile, &places)?;
    let gone = leave(&mut places)?;
    join(&mut places, late)?;
    hostile.finish(&places)?;
    places.into_iter().try_for_each(Place::finish)?;
    drop::<(Vec<Place>, Switch)>((gone, switch));
    Ok(())
}

/// All of them carry, through engines.
fn begin(places: &mut [Place]) -> Result<()> {
    places.iter_mut().try_for_each(Place::start)?;
    places.iter_mut().try_for_each(Place::wait_for_server)?;
    let all = addresses(places);
    connect(places, &all)?;
    wait_for_engines(places)
}

/// One reads nothing for a while: nobody but who talks with it waits, and nothing is lost.
fn slow(places: &mut [Place]) -> Result<()> {
    let all = addresses(places);
    let (slow, rest) = (all[1].clone(), [&all[..1], &all[2..]].concat());
    places[1].tell_server("stop")?;
    let Some((server, _)) = &mut places[1].server else { fail!("there is no server") };
    server.wait_for_text("stopped", LIMIT)?;
    // More than rings and sockets hold, in both directions.
    carry(places, std::slice::from_ref(&slow), (1, 4_000_000))?;
    carry(places, &rest, PIECES)?;
    wait_for_all(places, &rest)?;
    let has_answered = |place: &&Place| {
        let (done, asked) = place.rounds(&slow);
        asked > 0 && done == asked
    };
    if let Some(place) = places.iter().find(has_answered) {
        fail!("who reads nothing has answered {}", place.address());
    }
    places[1].tell_server("go")?;
    wait_for_all(places, &all)
}

/// Everything at two hosts is killed at once: what they had with others ends, and nothing else. Their kernels, which say so, are to be kept.
fn leave(places: &mut Vec<Place>) -> Result<Vec<Place>> {
    let before = addresses(places);
    let gone = [before[0].clone(), before[before.len() - 1].clone()];
    let is_gone = |place: &Place| gone.contains(&place.address());
    let (mut killed, left): (Vec<Place>, Vec<Place>) = std::mem::take(places).into_iter().partition(is_gone);
    killed.iter_mut().try_for_each(|place| place.host.kill_all())?;
    *places = left;
    retry(LIMIT, || {
        for place in places.iter() {
            let ended = place.said("ended ");
            let is_of = |line: &&String| gone.iter().any(|gone| line.contains(&format!(" {gone} ")));
            if let Some(other) = ended.iter().find(|line| !is_of(line)) {
                fail!("{}: {other}", place.address());
            }
            if ended.len() < 2 {
                fail!("{} has only seen {ended:?} of {gone:?}", place.address());
            }
            let ends = place.server.as_ref().map(|(server, _)| server.stdout_so_far()).unwrap_or_default();
            match ends.lines().filter(|line| ["end", "reset"].contains(line)).count() {
                2 => {}
                count => fail!("the server of {} has seen {count} of 2 ends", place.address()),
            }
        }
        Ok(())
    })?;
    let all = addresses(places);
    carry(places, &all, PIECES)?;
    wait_for_all(places, &all)?;
    Ok(killed)
}

/// Two that were known and never there.
fn join(places: &mut Vec<Place>, mut late: Vec<Place>) -> Result<()> {
    late.iter_mut().try_for_each(Place::start)?;
    late.iter_mut().try_for_each(Place::wait_for_server)?;
    let (before, new) = (addresses(places), addresses(&late));
    connect(places, &new)?;
    connect(&mut late, &[&before[..], &new].concat())?;
    places.extend(late);
    wait_for_engines(places)
}

/// What an engine holds.
#[derive(Clone, Copy, Debug)]
struct Holds {
    pid: u32,
    kib: u64,
    fds: usize,
}

fn holds(places: &[Place]) -> Result<Vec<Holds>> {
    let of = |place: &Place| {
        let pid = place.host.engine()?;
        Ok(Holds { pid, kib: procfs::anonymous_kib(pid), fds: procfs::fd_count(pid) })
    };
    places.iter().map(of).collect()
}

/// A program in the place of an engine.
struct Hostile {
    program: Proc,
    input: ChildStdin,
    /// Engines that are not to end because of it.
    engines: Vec<u32>,
}

impl Hostile {
    /// Returns when it has done all that it does some times, and no engine holds much more.
    fn start(place: &Place, places: &[Place]) -> Result<Hostile> {
        let Some(network) = place.host.lab.network() else { fail!("it has no network") };
        network.inside(|| network::configure(&format!("address add {NOBODY}/24 dev eth0\n")))?;
        let before = holds(places)?;
        let (own, port, victims) = (place.address(), ENGINE_PORT.to_string(), addresses(places));
        let mut args = vec!["-c", HOSTILE, &own, NOBODY, &port];
        args.extend(victims.iter().map(String::as_str));
        let lab = &place.host.lab;
        let mut command = lab.command(Side::Kernel, "python3", &args)?;
        let mut program = Proc::start(command.stdin(Stdio::piped()), "hostile", lab.path())?;
        let input = program.stdin()?;
        program.wait_for_text("round 3 ", LIMIT)?;
        let after = holds(places)?;
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            if after.kib > before.kib + ENGINE_KIB_MORE || after.fds > before.fds + ENGINE_FDS_MORE {
                fail!("the engine of {} held {before:?}, and now {after:?}", victims[at]);
            }
        }
        let engines = before.iter().map(|before| before.pid).collect();
        Ok(Hostile { program, input, engines })
    }

    /// It has gone on until now, and no engine was started anew because of it.
    fn finish(mut self, places: &[Place]) -> Result<()> {
        if !self.program.is_running() {
            fail!("the hostile program has ended: {}", self.program.last_words());
        }
        let late = 2;
        for place in &places[..places.len() - late] {
            let engine = place.host.engine()?;
            if !self.engines.contains(&engine) {
                fail!("the engine of {} has ended: {}", place.address(), place.host.lab.last_said());
            }
        }
        drop(self.input);
        self.program.wait(LIMIT)?.ok().map(|_| ())
    }
}
