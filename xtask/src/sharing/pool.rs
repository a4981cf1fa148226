//! Connections that were made while there was no monitor are moved to shared memory when one comes, while they are used (ADR 85).

use super::across::{Joint, Networks, SERVER};
use super::{Part, promote, served, start};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail, retry};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Less than an offer waits that found no other end.
const TOGETHER: Duration = Duration::from_secs(30);

pub(super) fn parts<'a>(seed: u64) -> impl Iterator<Item = Part<'a>> {
    let pool: Part = ("pool-before-monitor".to_owned(), Box::new(pool));
    let ways = promote::WAYS.map(|(way, bytes)| {
        let check = move |lab: &mut Lab| crossing(lab, (way, bytes), seed);
        (format!("crossing-before-monitor-{way}"), Box::new(check) as _)
    });
    let threads: Part = ("pool-of-threads".to_owned(), Box::new(threads));
    [pool, threads].into_iter().chain(ways)
}

/// A server and its clients' connections, before there is a monitor; then more, after it was killed.
fn pool(lab: &mut Lab) -> Result<String> {
    lab.kill_monitor();
    let port = free_port()?;
    let text = port.to_string();
    let redis = ["--port", &text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let mut server = lab.start(Side::Sd, "redis-server", &redis)?;
    server.wait_listening(port)?;
    let mut moved = 0;
    for count in [20, 5] {
        let before = connected(port)?;
        let client = clients(lab, &text, count)?;
        let made = retry(PATIENCE, || {
            let made: BTreeSet<u16> = connected(port)?.difference(&before).copied().collect();
            if made.len() < count { fail!("{} of {count} connections", made.len()) } else { Ok(made) }
        })?;
        if !lab.is_oracle() {
            lab.start_monitor_with(&["--promote=earned"])?;
            retry(PATIENCE, || all_are_moved(lab, port, &made))?;
            lab.kill_monitor();
        }
        moved += made.len();
        client.kill();
    }
    server.kill();
    Ok(format!("{moved} connections that were there before their monitor"))
}

/// Four threads serve eight in another network namespace, whose connections are moved all at once. For root.
fn threads(lab: &mut Lab) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    const ROUNDS: usize = 3;
    /// With the one that fills it; so many ends.
    const ENDS: usize = 9 * 2;
    const PORT: u16 = 7000;
    super::promote::let_earn(lab)?;
    for round in 0..ROUNDS {
        let networks = Networks::new(Joint::Bridge)?;
        let mut server =
            lab.command(Side::Sd, "memcached", &["-l", SERVER, "-p", "7000", "-U", "0", "-u", "root"])?;
        networks.server.host(&mut server)?;
        let server = Proc::start(&mut server, "memcached", lab.path())?;
        retry(PATIENCE, || networks.server.inside(|| Ok(TcpStream::connect((SERVER, PORT)).map(drop)?)))?;
        let servers = format!("--servers={SERVER}:{PORT}");
        let args = [&servers, "--test=get", "--concurrency=8", "--execute-number=400000"];
        let mut client = lab.command(Side::Sd, "memcslap", &args)?;
        networks.client.host(&mut client)?;
        let client = Proc::start(&mut client, "memcslap", lab.path())?;
        if !lab.is_oracle() {
            retry(TOGETHER, || {
                let seen = lab.snapshot()?;
                let ends = seen.of_port(PORT);
                let stay = ends.iter().find(|end| end.path != "shm");
                match (ends.len(), stay) {
                    (ENDS, None) => Ok(()),
                    (count, stay) => fail!("round {round}: {count} ends; {stay:?}"),
                }
            })?;
        }
        client.kill();
        server.kill();
    }
    Ok(format!("{ROUNDS} times eight threads"))
}

/// They ask for as long as they live, over the same connections.
fn clients(lab: &Lab, port: &str, count: usize) -> Result<Proc> {
    let count = count.to_string();
    lab.start(Side::Sd, "redis-benchmark", &["-p", port, "-t", "get", "-c", &count, "-n", "2000000000", "-q"])
}

/// Ports of the clients that the kernel has connected to a port of 127.0.0.1, as the clients see it.
fn connected(port: u16) -> Result<BTreeSet<u16>> {
    const ESTABLISHED: &str = "01";
    let text = std::fs::read_to_string("/proc/net/tcp")?;
    let port_of = |name: &str| u16::from_str_radix(name.split(':').nth(1)?, 16).ok();
    let client = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        (state == ESTABLISHED && port_of(remote) == Some(port)).then(|| port_of(local))?
    };
    Ok(text.lines().filter_map(client).collect())
}

/// Both ends of each.
fn all_are_moved(lab: &Lab, port: u16, clients: &BTreeSet<u16>) -> Result<()> {
    let seen = lab.snapshot()?;
    for client in clients {
        let ends = seen.of_port(*client);
        let moved = ends.iter().filter(|end| end.path == "shm" && end.reason.as_deref() == Some("promoted"));
        if moved.count() != 2 {
            fail!("{client} to {port}: {ends:?}");
        }
    }
    Ok(())
}

/// The monitor comes while known bytes are carried.
fn crossing(lab: &mut Lab, (way, bytes): (&str, &str), seed: u64) -> Result<String> {
    lab.kill_monitor();
    let seed = seed.to_string();
    // Longer than a monitor takes to come.
    let bytes = &format!("{bytes}0");
    let (mut server, port) = served(start(lab, Side::Sd, &["crossing", "serve", way, &seed, bytes])?)?;
    let mut client = start(lab, Side::Sd, &["crossing", &port, way, &seed, bytes])?;
    if !lab.is_oracle() {
        lab.start_monitor_with(&["--promote=all"])?;
    }
    for end in [&mut server, &mut client] {
        end.wait_for_text("carried", PATIENCE)?;
    }
    let promoted = promote::is_promoted(lab, port.parse()?)?;
    server.kill();
    client.kill();
    Ok(format!("{bytes} bytes each way, {}", if promoted { "promoted" } else { "not promoted" }))
}
