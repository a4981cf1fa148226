//! What a stranger can make others pay for: memory that they touch because it says so.

use super::Test;
use super::world::{TIMEOUT, User, With, World};
use crate::sharing::group::Group;
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use nix::sys::signal::Signal;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("charge-server", server),
    ("charge-group", in_group),
    ("charge-left", what_is_left),
    ("charge-unread", unread),
    ("charge-unaccepted", unread_unaccepted),
];

/// Connections of mallory's, one after the other; on each she announces 2 MiB.
const COUNT: &str = "100";
/// Large rings of one channel into which a server looks, and what its words and small rings are at most.
const MOST_KIB: u64 = 8 * 2048 + 3 * 1024;
/// A server's group.
const GROUP_MIB: u64 = 64;

fn start(world: &World) -> Result<(Proc, String)> {
    let port = free_port()?.to_string();
    let mut server = world.start(User::Bob, With::Sd, &["swallow", &port])?;
    server.wait_for_text("listening", TIMEOUT)?;
    Ok((server, port))
}

fn bulk(world: &World, port: &str, [count, mib]: [&str; 2]) -> Result<()> {
    world.run(User::Alice, With::Sd, &["bulk", port, count, mib], Duration::from_secs(60)).map(drop)
}

/// The number before a word in what an attack has said.
fn number(said: &str, before: &str) -> Result<u64> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let found = words.windows(2).find_map(|pair| (pair[1] == before).then(|| pair[0].parse().ok())?);
    found.ok_or_else(|| format!("mallory said {said:?}").into())
}

/// She writes some bytes of each ring, and bob's server reads them all.
fn server(world: &mut World) -> Result<String> {
    let (_server, port) = start(world)?;
    let attack = world.attack(&["charge", &port, COUNT, "stay"])?;
    let said = attack.stdout_so_far();
    let kib = number(&said, "KiB")?;
    if said.contains("not read") || kib > MOST_KIB {
        fail!("bob's server made {kib} KiB of memory ({said:?})");
    }
    bulk(world, &port, ["12", "4"])?;
    Ok(format!("{COUNT} connections made {kib} KiB"))
}

/// The same where bob's server has little memory; honest users do not notice how it reads then.
fn in_group(world: &mut World) -> Result<String> {
    let Some(group) = Group::new("charge") else {
        return Ok("skipped: no memory cgroup can be made here".to_owned());
    };
    group.limit(GROUP_MIB)?;
    let (mut server, port) = start(world)?;
    std::fs::write(group.processes(), server.pid().to_string())?;
    let attack = world.attack(&["charge", &port, COUNT, "stay"])?;
    let said = attack.stdout_so_far();
    let (kib, most) = (number(&said, "KiB")?, group.most());
    if said.contains("not read") || kib > 3 * 1024 || !server.is_running() {
        fail!(
            "bob's group had {most} KiB of {GROUP_MIB} MiB, {kib} of it mallory's ({said:?}); {}",
            server.last_words()
        );
    }
    bulk(world, &port, ["12", "4"])?;
    if !server.is_running() {
        fail!("bob's server is gone: {}", server.last_words());
    }
    drop((attack, server));
    Ok(format!(
        "{COUNT} connections made {kib} KiB; {most} KiB in the group, {} with 12 honest ones",
        group.most()
    ))
}

/// She ends, but a parent of hers keeps the segment, and with it what others have paid for.
fn what_is_left(world: &mut World) -> Result<String> {
    let (_server, port) = start(world)?;
    let attack = world.attack(&["charge", &port, COUNT, "leave"])?;
    let said = attack.stdout_so_far();
    let line = said.lines().find(|line| line.starts_with("kept")).unwrap_or_default();
    if !line.ends_with("then 0 KiB") {
        fail!("{said:?}");
    }
    bulk(world, &port, ["12", "4"])?;
    Ok(line.to_owned())
}

/// What has ended has left bytes that nobody has read yet: they are there until somebody has.
fn unread(world: &mut World) -> Result<String> {
    read_late(world, false)
}

/// The same where all have ended before the first is accepted: the server stands still meanwhile.
fn unread_unaccepted(world: &mut World) -> Result<String> {
    read_late(world, true)
}

fn read_late(world: &World, stands: bool) -> Result<String> {
    const CLIENTS: usize = 6;
    let port = free_port()?.to_string();
    let mut server = world.start(User::Bob, With::Sd, &["late", &port, &CLIENTS.to_string()])?;
    server.wait_for_text("listening", TIMEOUT)?;
    if stands {
        server.signal(Signal::SIGSTOP);
    }
    let mut sent = Vec::new();
    for _ in 0..CLIENTS {
        let said = world.run(User::Mallory, With::Sd, &["burst", &port], TIMEOUT)?.text();
        sent.push(said.split_whitespace().last().unwrap_or_default().to_owned());
    }
    if stands {
        server.signal(Signal::SIGCONT);
    }
    for round in 1..=CLIENTS {
        let is_there = |server: &Proc| server.stdout_so_far().matches("bytes").count() >= round;
        let end = std::time::Instant::now() + TIMEOUT;
        while !is_there(&server) && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let said = server.stdout_so_far();
    let mut read: Vec<String> =
        said.lines().filter_map(|line| line.strip_suffix(" bytes, right").map(str::to_owned)).collect();
    sent.sort();
    read.sort();
    if sent != read {
        fail!("sent {sent:?}, but {said:?}");
    }
    Ok(format!("{CLIENTS} times {} bytes", read.first().map_or("0", String::as_str)))
}
