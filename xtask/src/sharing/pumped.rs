//! The pump between two processes is stopped, and killed, and its monitor is; bytes are counted at both ends (ADR 72).
//!
//! Over Linux alone there is nobody in between: what a pump's death does is left out.

use super::crash::Observer;
use super::{served, start};
use harness::lab::{Lab, Side};
use harness::scratch::send;
use harness::{Result, fail, procfs, retry, ss};
use nix::sys::signal::Signal;
use std::time::Duration;

type Plain = fn(&mut Lab) -> Result<String>;

pub(super) const PARTS: [(&str, Plain); 3] =
    [("pump-stopped", stopped), ("pump-killed", killed), ("pump-monitor-killed", monitor_killed)];

const CONNECTIONS: usize = 4;
/// More than the small region of a ring holds, and less than the large one.
const MUCH: u64 = 300_000;
const SOME: u64 = 10_000;
const SOON: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);

/// Two processes, and connections of one to the other.
struct Pair {
    near: Observer,
    far: Observer,
    sent: u64,
}

impl Pair {
    fn start(lab: &Lab) -> Result<Pair> {
        let (far, near) = (Observer::start(lab)?, Observer::start(lab)?);
        let mut pair = Pair { near, far, sent: 0 };
        pair.dial(lab)?;
        pair.send(lab, SOME)?;
        Ok(pair)
    }

    fn dial(&mut self, lab: &Lab) -> Result<()> {
        self.near.tell(&format!("dial {}:{CONNECTIONS}", self.far.port))?;
        self.sent = 0;
        self.await_unread(lab, 0)
    }

    /// Sends so much on each, and waits until all of it was read.
    fn send(&mut self, lab: &Lab, len: u64) -> Result<()> {
        self.offer(len)?;
        self.await_unread(lab, 0)
    }

    fn offer(&mut self, len: u64) -> Result<()> {
        self.sent += len;
        self.near.tell(&format!("send {len}"))
    }

    /// So much of what was sent on each is not read, as both ends are shown.
    fn await_unread(&self, lab: &Lab, len: u64) -> Result<()> {
        if lab.is_oracle() {
            return Ok(());
        }
        retry(SOON, || {
            let seen = lab.snapshot()?;
            let ends = seen.of_port(self.far.port);
            let of = |pid: u32| ends.iter().filter(move |end| end.pid == u64::from(pid));
            // Before them comes the byte that says what to do with them.
            let sent = self.sent + 1;
            let is_right = of(self.near.proc.pid())
                .all(|end| (end.bytes, end.queues) == ([0, sent], [0, len]))
                && of(self.far.proc.pid()).all(|end| (end.bytes, end.queues) == ([sent - len, 0], [len, 0]));
            let is_carried = |end: &&ss::Connection| end.carrier.as_deref() == Some("loopback");
            if ends.len() != 2 * CONNECTIONS || !ends.iter().all(is_carried) || !is_right {
                let all: Vec<_> = ends.iter().map(|end| (ss::describe(end), end.bytes, end.queues)).collect();
                fail!("not {len} bytes unread on each of {CONNECTIONS} carried connections: {all:?}");
            }
            Ok(())
        })
    }

    /// What has come on each is all that was sent until now, and the end at both is this.
    fn expect(&mut self, sent: u64, end: &str) -> Result<()> {
        for (observer, len) in [(&mut self.near, 0), (&mut self.far, sent)] {
            let expected = vec![format!("conn {len} intact {end} 0"); CONNECTIONS];
            let seen = observer.report()?;
            if seen != expected {
                fail!("{seen:?} instead of {expected:?}: {}", observer.proc.last_words());
            }
        }
        Ok(())
    }

    /// Its connections end as connections do.
    fn finish(mut self) -> Result<()> {
        self.near.tell("shut")?;
        self.expect(self.sent, "EOF")?;
        self.end()
    }

    fn end(self) -> Result<()> {
        self.near.proc.terminate(SOON)?;
        self.far.proc.terminate(SOON).map(drop)
    }
}

/// A monitor with a pump takes the place of the one that has none: the pump.
fn begin(lab: &mut Lab) -> Result<u32> {
    if lab.is_oracle() {
        return Ok(0);
    }
    lab.kill_monitor();
    lab.set_pump("late");
    another_monitor(lab)
}

fn another_monitor(lab: &mut Lab) -> Result<u32> {
    std::fs::remove_file(lab.socket()).ok();
    lab.start_monitor()?;
    lab.wait_for_pump()
}

/// What is sent while nobody carries it comes when somebody does.
fn stopped(lab: &mut Lab) -> Result<String> {
    let pump = begin(lab)?;
    let (echo, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    start(lab, Side::Sd, &["chat", &port, "100"])?.wait(LIMIT)?.ok()?;
    let mut pair = Pair::start(lab)?;
    for _ in 0..3 {
        let is_there = !lab.is_oracle();
        is_there.then(|| send(pump, Signal::SIGSTOP));
        pair.offer(MUCH)?;
        pair.await_unread(lab, MUCH)?;
        let chat = start(lab, Side::Sd, &["chat", &port, "100"])?;
        std::thread::sleep(Duration::from_millis(500));
        is_there.then(|| send(pump, Signal::SIGCONT));
        chat.wait(LIMIT)?.ok()?;
        pair.await_unread(lab, 0)?;
    }
    let sent = pair.sent;
    pair.finish()?;
    echo.terminate(SOON)?;
    Ok(format!("3 times, {CONNECTIONS} connections, {sent} bytes on each"))
}

/// What it carried is reset at both ends, of which the reader has what had come. What comes later goes through another pump.
fn killed(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no pump".to_owned());
    }
    let mut pump = begin(lab)?;
    let (echo, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    for _ in 0..3 {
        let mut pair = Pair::start(lab)?;
        send(pump, Signal::SIGSTOP);
        pair.offer(MUCH)?;
        pair.await_unread(lab, MUCH)?;
        send(pump, Signal::SIGKILL);
        pair.expect(SOME, "RESET")?;
        start(lab, Side::Sd, &["chat", &port, "200"])?.wait(LIMIT)?.ok()?;
        let next = lab.wait_for_pump()?;
        if next == pump {
            fail!("the killed pump {pump} is still there");
        }
        pump = next;
        // The processes that it stood between go on as well.
        pair.dial(lab)?;
        pair.send(lab, MUCH)?;
        pair.finish()?;
    }
    echo.terminate(SOON)?;
    Ok(format!("3 pumps, {CONNECTIONS} connections of each reset after {SOME} bytes"))
}

/// How the life of a pump ends that has come back to another monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Its connections end.
    Idle,
    /// A process that it carries for is killed.
    PeerKilled,
    Killed,
    /// When the new monitor has begun, of which it may not know yet.
    KilledSoon,
    /// Before the new monitor is there.
    KilledBefore,
}

/// A pump carries on without a monitor, and for the next one, which has a pump of its own for what is new.
fn monitor_killed(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor".to_owned());
    }
    let mut pump = begin(lab)?;
    let (echo, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let all = [End::Idle, End::PeerKilled, End::Killed, End::KilledSoon, End::KilledBefore];
    for end in all {
        let next = outlive(lab, (pump, end), &port).map_err(|error| format!("{end:?}: {error}"))?;
        retry(SOON, || {
            match procfs::is_alive(pump) && procfs::process(pump).is_some_and(|it| it.state != 'Z') {
                true => fail!("{end:?}: the pump that carries nothing is still there"),
                false => Ok(()),
            }
        })?;
        pump = next;
    }
    echo.terminate(SOON)?;
    Ok(format!("{} monitors, {CONNECTIONS} connections each", all.len()))
}

/// The pump of the next monitor.
fn outlive(lab: &mut Lab, (pump, end): (u32, End), echo: &str) -> Result<u32> {
    let mut pair = Pair::start(lab)?;
    lab.kill_monitor();
    // Nobody shows how much has come.
    pair.offer(MUCH)?;
    if end == End::KilledBefore {
        // It has no reason to hold anything back.
        std::thread::sleep(Duration::from_secs(1));
        send(pump, Signal::SIGKILL);
    }
    let next = another_monitor(lab)?;
    if end == End::KilledBefore {
        // Of who has not come back after three seconds it is asked whether he lives.
        std::thread::sleep(Duration::from_secs(4));
        pair.expect(pair.sent, "RESET")?;
        pair.end()?;
        return Ok(next);
    }
    if end == End::KilledSoon {
        send(pump, Signal::SIGKILL);
        pair.expect(pair.sent, "RESET")?;
        pair.end()?;
        return Ok(next);
    }
    retry(SOON, || match lab.snapshot()?.twins {
        0 => fail!("the pump has not come back"),
        _ => Ok(()),
    })?;
    pair.await_unread(lab, 0)?;
    pair.send(lab, MUCH)?;
    start(lab, Side::Sd, &["chat", echo, "200"])?.wait(LIMIT)?.ok()?;
    match end {
        End::Killed => {
            send(pump, Signal::SIGKILL);
            pair.expect(pair.sent, "RESET")?;
            pair.end()?;
        }
        End::PeerKilled => {
            let expected = vec![format!("conn {} intact EOF 0", pair.sent); CONNECTIONS];
            pair.near.proc.kill();
            let seen = pair.far.report()?;
            if seen != expected {
                fail!("{seen:?} instead of {expected:?}");
            }
            pair.far.proc.terminate(SOON)?;
        }
        _ => pair.finish()?,
    }
    Ok(next)
}
