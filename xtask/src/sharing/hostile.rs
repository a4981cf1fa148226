//! Hostile peers: bare processes, one after the other, write anything anywhere in the segments that a client shares with
//! a server, while an honest client talks with the same server and checks every byte.
//!
//! Nobody may crash, not even the client whose segments they are: which of the two sides lies, neither library knows.

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, procfs, retry, until};
use std::path::Path;
use std::time::{Duration, Instant};

/// So long a segment is written into while its client lives, and after that.
const LIFE: Duration = Duration::from_millis(700);
const AFTERLIFE: Duration = Duration::from_millis(50);
/// Fewer writes by one vandal are no attack, on a machine however busy.
const WRITES_MIN: u64 = 20_000;

pub(super) fn run(lab: &mut Lab, vandals: u64, seed: u64, kind: &str) -> Result<String> {
    if lab.is_oracle() {
        return Ok("nothing is shared".to_owned());
    }
    let (mut server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let chat = |count: &str| start(lab, Side::Sd, &["chat", &port, count]);
    chat("200")?.wait(Duration::from_secs(30))?.ok()?;
    await_idle(&server)?;
    let before = procfs::fd_targets(server.pid());
    let mut all = Writes::default();
    for i in 0..vandals {
        let honest = chat("3000")?;
        let strangers = [server.pid(), honest.pid(), lab.monitor_pid().unwrap_or(0)];
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(i);
        let writes =
            attack(lab, &port, (seed, kind), strangers).map_err(|error| format!("vandal {seed}: {error}"))?;
        all.add(&writes);
        honest
            .wait(Duration::from_secs(60))?
            .ok()
            .map_err(|error| format!("beside vandal {seed}: {error}"))?;
        if let Some(status) = server.status() {
            fail!("vandal {seed} brought the server down ({status}): {}", server.last_words());
        }
        lab.snapshot()
            .map_err(|error| format!("after vandal {seed} the monitor does not answer: {error}"))?;
    }
    await_fds(&server, &before)?;
    await_idle(&server)?;
    server.terminate(Duration::from_secs(5))?;
    let Writes { any, segments, attacks } = all;
    Ok(format!("{vandals} vandals, {any} writes into {segments} segments, {attacks} attacks made to measure"))
}

/// What vandals have done, as they note it.
#[derive(Default)]
struct Writes {
    any: u64,
    segments: u64,
    attacks: u64,
}

impl Writes {
    fn of(note: &Path) -> Result<Writes> {
        let bytes = std::fs::read(note)?;
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default())).collect();
        let [any, segments, attacks @ ..] = words.as_slice() else { return Ok(Writes::default()) };
        Ok(Writes { any: *any, segments: *segments, attacks: attacks.iter().sum() })
    }

    fn add(&mut self, other: &Writes) {
        self.any += other.any;
        self.segments += other.segments;
        self.attacks += other.attacks;
    }
}

/// One client and one vandal. The client is killed, and the vandal goes on for a while.
fn attack(lab: &Lab, port: &str, (seed, kind): (u64, &str), strangers: [u32; 3]) -> Result<Writes> {
    let note = lab.path().join(format!("vandal-{seed}"));
    std::fs::write(&note, [])?;
    let mut client = start(lab, Side::Sd, &["scribbler", port, &seed.to_string()])?;
    client.wait_for_text("ready", Duration::from_secs(10))?;
    let (pid, seed) = (client.pid().to_string(), seed.to_string());
    let words = [pid, seed, kind.to_owned(), note.to_string_lossy().into_owned()];
    let words: Vec<String> = words.into_iter().chain(strangers.map(|pid| pid.to_string())).collect();
    let args: Vec<&str> = std::iter::once("vandal").chain(words.iter().map(String::as_str)).collect();
    let mut vandal = start(lab, Side::Kernel, &args)?;
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        if let Some(status) = client.status() {
            fail!("its client has ended ({status}): {}", client.last_words());
        }
        if let Some(status) = vandal.status() {
            fail!("it has ended ({status}): {}", vandal.last_words());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    client.kill();
    std::thread::sleep(AFTERLIFE);
    vandal.kill();
    let writes = Writes::of(&note)?;
    if writes.any < WRITES_MIN {
        fail!("only {} writes into {} segments", writes.any, writes.segments);
    }
    Ok(writes)
}

/// What the hostile connections used is given back.
pub(super) fn await_fds(server: &Proc, before: &[String]) -> Result<()> {
    retry(Duration::from_secs(10), || {
        let now = procfs::fd_targets(server.pid());
        if now.len() > before.len() {
            fail!("the server has {} and had {}", now.join(" "), before.join(" "));
        }
        Ok(())
    })
}

/// And the server sleeps when nobody talks to it.
pub(super) fn await_idle(server: &Proc) -> Result<()> {
    until("the server comes to rest", Duration::from_secs(10), || {
        let before = procfs::cpu_ns(server.pid());
        std::thread::sleep(Duration::from_millis(300));
        procfs::cpu_ns(server.pid()) == before
    })
}
