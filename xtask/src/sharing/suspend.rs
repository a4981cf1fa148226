//! Processes that are stopped: all at once, as when a host is suspended, and a single one in the middle of a send.

use super::crash::{Observer, Victim};
use super::{served, start};
use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::scratch::send;
use crate::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Longer than what the monitor, or the keeper of a passed connection, is waited for.
const STOP: Duration = Duration::from_millis(2500);

/// Stops everything that this process has started, for a while.
pub(super) fn everything() {
    let own = std::process::id();
    // Again until nobody new is found: a fork may have been under way.
    loop {
        let mut running = procfs::descendants(own);
        running.retain(|process| process.state != 'T');
        if running.is_empty() {
            break;
        }
        running.iter().for_each(|process| send(process.pid, Signal::SIGSTOP));
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(STOP);
    procfs::descendants(own).iter().for_each(|process| send(process.pid, Signal::SIGCONT));
}

/// Busy clients of a server, the server and the monitor.
pub(super) fn host(lab: &mut Lab) -> Result<String> {
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    for _ in 0..3 {
        let count = if lab.is_oracle() { "400" } else { "6000" };
        let clients: Vec<Proc> =
            (0..4).map(|_| start(lab, Side::Sd, &["chat", &port, count])).collect::<Result<_>>()?;
        std::thread::sleep(Duration::from_millis(100));
        everything();
        for client in clients {
            client.wait(Duration::from_secs(60))?.ok()?;
        }
    }
    server.terminate(Duration::from_secs(5))?;
    Ok("4 clients, 3 times".to_owned())
}

/// The monitor alone stands still for ten seconds while programs make first contacts, fork, listen and end: no connection
/// is lost, and all of it goes on afterwards.
pub(super) fn monitor(lab: &mut Lab) -> Result<String> {
    let (known, known_port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let (new, new_port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = start(lab, Side::Sd, &["patient", &known_port, &new_port, "11"])?;
        client.wait_for_text("connected\n", Duration::from_secs(10))?;
        clients.push(client);
    }
    let monitor = lab.monitor_pid();
    monitor.into_iter().for_each(|pid| send(pid, Signal::SIGSTOP));
    // Meets the monitor for the first time.
    clients.push(start(lab, Side::Sd, &["patient", &known_port, &new_port, "4"])?);
    std::thread::sleep(Duration::from_secs(10));
    monitor.into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
    for client in clients {
        client.wait(Duration::from_secs(60))?.ok()?;
    }
    // Everybody is known to it still.
    start(lab, Side::Sd, &["chat", &new_port, "200"])?.wait(Duration::from_secs(60))?.ok()?;
    known.terminate(Duration::from_secs(5))?;
    new.terminate(Duration::from_secs(5))?;
    Ok("3 clients, 10 s".to_owned())
}

/// One of two processes that write to the same connection is stopped anywhere in its sends. The other one waits, or
/// goes on; when both have come to their end, every message is whole.
pub(super) fn in_a_send(lab: &mut Lab, stops: u64, seed: u64) -> Result<String> {
    let mut observer = Observer::start(lab)?;
    let (mut chance, mut went_on) = (seed | 1, 0);
    for _ in 0..stops {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let steps = (chance >> 33) % 6000;
        let victim = Victim::start(lab, "in-turn", observer.port)?;
        victim.stop_after(steps)?;
        victim.tell(1, 1)?;
        let end = Instant::now() + Duration::from_millis(150);
        while victim.note(1) != 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        went_on += u64::from(victim.note(1) == 2);
        victim.go_on()?;
        let seen = observer.report()?;
        let expected = format!("conn {} intact EOF 0", 2 * 40 * 64);
        if seen != [expected.clone()] {
            fail!("stopped after {steps} instructions: {seen:?} instead of {expected:?}");
        }
    }
    observer.proc.terminate(Duration::from_secs(5))?;
    Ok(format!("{stops} stops, the other went on in {went_on}"))
}
