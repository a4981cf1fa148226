//! Processes that are stopped: all at once, as when a host is suspended, and a single one in the middle of a send.

use super::crash::{Observer, Victim};
use super::{program, served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::scratch::send;
use harness::{Result, fail, procfs, retry};
use nix::sys::signal::Signal;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Longer than what the monitor, or the keeper of a passed connection, is waited for.
const STOP: Duration = Duration::from_millis(2500);

type Plain = fn(&mut Lab) -> Result<String>;

/// Those that need nothing but a lab.
pub(super) const PARTS: [(&str, Plain); 3] =
    [("suspended-host", host), ("stopped-monitor", monitor), ("stopped-monitor-exits", exits)];

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
fn host(lab: &mut Lab) -> Result<String> {
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

/// The monitor alone stands still while programs make first contacts, fork, listen and end, and for as long as they do: no connection is
/// lost, and all of it goes on afterwards.
fn monitor(lab: &mut Lab) -> Result<String> {
    let (known, known_port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let (new, new_port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let patient = |turns: &str| {
        let args = ["patient", &known_port, &new_port, turns];
        let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
        let mut client = Proc::start(command.stdin(Stdio::piped()), "patient", lab.path())?;
        let orders = client.stdin()?;
        Ok::<_, harness::Error>((client, orders))
    };
    let mut clients = vec![patient("30")?, patient("30")?];
    for (client, _) in &mut clients {
        client.wait_for_text("connected\n", Duration::from_secs(10))?;
    }
    let monitor = lab.monitor_pid();
    monitor.into_iter().for_each(|pid| send(pid, Signal::SIGSTOP));
    // Meets the monitor for the first time.
    clients.push(patient("8")?);
    for (_, orders) in &mut clients {
        writeln!(orders, "begin")?;
    }
    for (client, _) in &mut clients {
        client.wait_for_text(" turns\n", Duration::from_secs(90))?;
    }
    monitor.into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
    for (client, mut orders) in clients {
        writeln!(orders, "it goes on")?;
        client.wait(Duration::from_secs(60))?.ok()?;
    }
    // Everybody is known to it still.
    start(lab, Side::Sd, &["chat", &new_port, "200"])?.wait(Duration::from_secs(60))?.ok()?;
    known.terminate(Duration::from_secs(5))?;
    new.terminate(Duration::from_secs(5))?;
    Ok("3 clients, 68 turns".to_owned())
}

/// Ways to end a connection.
const WAYS: [&str; 4] = ["exit", "kill", "exec", "close"];

/// Clients end while the monitor alone stands still for ten seconds. What their library can say is said at once; the end of
/// those that were killed, or execute another program, is the monitor's to tell, and is told when it goes on. Then it has
/// what it had before.
fn exits(lab: &mut Lab) -> Result<String> {
    let mut observer = Observer::start(lab)?;
    // What is made once.
    leave(lab, &mut observer, Duration::ZERO)?;
    let before = monitor_has(lab);
    let note = leave(lab, &mut observer, Duration::from_secs(10))?;
    retry(Duration::from_secs(5), || match monitor_has(lab).0 {
        now if now > before.0 => fail!("the monitor had {} descriptors, and has {now}", before.0),
        _ => Ok(()),
    })?;
    let kib = monitor_has(lab).1;
    if kib > before.1 + 2048 {
        fail!("the monitor had {} KiB, and has {kib} KiB", before.1);
    }
    observer.proc.terminate(Duration::from_secs(5))?;
    Ok(format!("{note}; {} descriptors as before, {} KiB more", before.0, kib.saturating_sub(before.1)))
}

/// Descriptors, and KiB in memory.
fn monitor_has(lab: &Lab) -> (usize, u64) {
    let Some(pid) = lab.monitor_pid() else { return (0, 0) };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    (procfs::fd_count(pid), line.trim().trim_end_matches(" kB").parse().unwrap_or(0))
}

/// Some clients of each way; how long after the monitor went on all ends were seen.
fn leave(lab: &Lab, observer: &mut Observer, stop: Duration) -> Result<String> {
    const EACH: usize = 5;
    let file = lab.path().join(format!("leave-{}", stop.as_secs()));
    let mut clients = Vec::new();
    for way in WAYS.iter().flat_map(|way| [way; EACH]) {
        let args = ["leaver", &observer.port.to_string(), way, &file.to_string_lossy()];
        let mut client = start(lab, Side::Sd, &args)?;
        client.wait_for_text("connected\n", Duration::from_secs(10))?;
        clients.push((way, client));
    }
    let monitor = lab.monitor_pid();
    monitor.into_iter().filter(|_| !stop.is_zero()).for_each(|pid| send(pid, Signal::SIGSTOP));
    std::fs::write(&file, "")?;
    clients.iter().filter(|(way, _)| **way == "kill").for_each(|(_, client)| client.signal(Signal::SIGKILL));
    std::thread::sleep(stop);
    monitor.into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
    let start = Instant::now();
    let seen = observer.report()?;
    let took = start.elapsed();
    if seen.len() != clients.len() || seen.iter().any(|line| line != "conn 5 intact EOF 0") {
        fail!("after {took:?}: {seen:?}");
    }
    Ok(format!("{} ends, all seen {} ms after the monitor went on", seen.len(), took.as_millis()))
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
