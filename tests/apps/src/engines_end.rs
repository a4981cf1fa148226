//! Two hosts whose engines, monitors or programs die: what these have carried.

use super::Scenario;
use crate::engines::{
    ECHO, LIMIT, PORT, end, finish, forget_programs, hosts, hosts_on, must_sleep, start, start_again,
    started, uncut, wait_for_engine,
};
use harness::cable::Faults;
use harness::host::Host;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, network, procfs, retry, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-engine-killed", &["python3", network::PROGRAM], engine_killed)
        .ours()
        .limit_s(240),
    Scenario::between_hosts(
        "between-hosts-engine-killed-one-way",
        &["python3", network::PROGRAM],
        engine_killed_one_way,
    )
    .ours()
    .limit_s(240),
    Scenario::between_hosts("between-hosts-engines-die", &["python3", network::PROGRAM], engines_die)
        .ours()
        .extra()
        .limit_s(180),
    Scenario::between_hosts("between-hosts-monitor-killed", &["python3", network::PROGRAM], monitor_killed)
        .ours()
        .limit_s(240),
    Scenario::between_hosts("between-hosts-cut-off", &["python3", network::PROGRAM], cut_off).ours(),
    Scenario::between_hosts("between-hosts-orphan", &["python3", network::PROGRAM], orphan).ours(),
];

/// No byte is missing: connections go back to the kernel's at exact bytes, and to the engine's successor from there.
fn engine_killed(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    for at in [0, 1] {
        let (server, mut client) = start(&hosts, CONNECTIONS, 100_000)?;
        kill_engines(&hosts, &[at])?;
        carried_again(&hosts, &mut client)?;
        end(server, client, ("end", CONNECTIONS))?;
    }
    let (server, mut client) = started(&hosts, CONNECTIONS, 10_000_000)?;
    for killed in [&[0][..], &[1], &[0, 1]] {
        carried_again(&hosts, &mut client)?;
        kill_engines(&hosts, killed)?;
    }
    client.wait_for_text("carried", LIMIT)?;
    end(server, client, ("end", CONNECTIONS))?;
    finish_with_successors(hosts)
}

/// Nothing comes through any more: what the engines carry ends as the kernel's own connections do, and after a time that follows from what the network
/// was told (tcp_retries2), not by a reset.
fn cut_off(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts_on(uncut())? else { return Ok(()) };
    for host in &mut hosts {
        let network = host.lab.network().ok_or("a host has no network")?;
        network.set(&[("net/ipv4/tcp_retries2", "3")])?;
        start_again(host)?;
    }
    let [here, there] = &hosts;
    let (address, port) = (there.address.to_string(), PORT.to_string());
    let server = there.lab.serve(Side::Sd, PORT, "python3", &["-c", ECHO, &address, &port])?;
    let count = CONNECTIONS.to_string();
    let call = |side| here.lab.start(side, "python3", &["-c", ASKER, &address, &port, &count]);
    let (ours, kernels) = (call(Side::Sd)?, call(Side::Kernel)?);
    wait_for_engine(&hosts, CONNECTIONS)?;
    let Some(cable) = &hosts[0].cable else { fail!("there is no cable") };
    cable.set(Faults { is_cut: true, ..Faults::default() });
    for (client, whose) in [(ours, "ours"), (kernels, "the kernel's")] {
        let said = client.wait(LIMIT)?.ok()?.text();
        // The second one where the kernel has asked for the other's Ethernet address meanwhile.
        let is_told = |word: &&str| ["ETIMEDOUT", "EHOSTUNREACH"].contains(word);
        if said.lines().count() != CONNECTIONS || !said.lines().all(|word| is_told(&word)) {
            fail!("nothing came through any more, and {whose} ended with {said:?}");
        }
    }
    drop(server);
    finish(hosts)
}

/// A successor may have to wait until its address is free; by then it carries.
fn finish_with_successors(hosts: [Host; 2]) -> Result<()> {
    let (server, client) = start(&hosts, 1, 1000)?;
    end(server, client, ("end", 1))?;
    finish(hosts)
}

/// Waits until all connections go through the engines.
fn carried_again(hosts: &[Host; 2], client: &mut Proc) -> Result<()> {
    wait_for_engine(hosts, CONNECTIONS).or_else(|error| {
        let said = client.stdout_so_far();
        fail!("{error}; the client said {said:?} {:?}", client.stderr_so_far())
    })
}

const CONNECTIONS: usize = 8;

/// Ends engines, once both ends of all connections know of each other's move to them, and waits for their successors.
fn kill_engines(hosts: &[Host; 2], which: &[usize]) -> Result<()> {
    end_engines(hosts, which, Signal::SIGKILL)
}

fn end_engines(hosts: &[Host; 2], which: &[usize], signal: Signal) -> Result<()> {
    std::thread::sleep(Duration::from_millis(1000));
    let before = signal_engines(hosts, which, signal)?;
    wait_for_successors(hosts, which, before)
}

/// Which they were.
pub(crate) fn signal_engines(hosts: &[Host; 2], which: &[usize], signal: Signal) -> Result<Vec<u32>> {
    let before: Vec<u32> = which.iter().map(|at| hosts[*at].engine()).collect::<Result<_>>()?;
    for pid in &before {
        kill(Pid::from_raw(*pid as i32), signal)?;
    }
    Ok(before)
}

pub(crate) fn wait_for_successors(hosts: &[Host; 2], which: &[usize], before: Vec<u32>) -> Result<()> {
    for (at, pid) in which.iter().zip(before) {
        retry(LIMIT, || if hosts[*at].engine()? == pid { fail!("it is still there") } else { Ok(()) })?;
    }
    Ok(())
}

/// Sends to all who come at once, slowly until a file is there, as who always has something unsent is not moved; closes when it has sent all, and hears nothing.
const PUSHER: &str = r#"
import os, random, socket, sys, threading, time
pattern = random.Random(5).randbytes(1 << 20) * 2
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
print("listens", flush=True)
def serve(connection, number):
    dice, at, total = random.Random(number), 0, int(sys.argv[3])
    try:
        while at < total:
            slowly = not os.path.exists(sys.argv[4])
            size = min(dice.choice([1, 64, 1000] if slowly else [1000, 30000, 300000]), total - at)
            begin = at % (1 << 20)
            connection.sendall(pattern[begin:begin + size])
            at += size
            slowly and time.sleep(0.003)
        connection.close()
        os.write(1, b"end\n")
    except OSError:
        os.write(1, b"reset\n")
number = 0
while True:
    threading.Thread(target=serve, args=[listener.accept()[0], number], daemon=True).start()
    number += 1
"#;

/// Hears so many of these to their ends, by an edge-triggered epoll.
const HEARER: &str = r#"
import random, select, socket, sys
address, port, count, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pattern = random.Random(5).randbytes(1 << 20) * 2
epoll, open = select.epoll(), {}
for _ in range(count):
    connection = socket.create_connection((address, port))
    connection.setblocking(False)
    open[connection.fileno()] = [connection, 0]
    epoll.register(connection, select.EPOLLIN | select.EPOLLET)
print("carried", flush=True)
while open:
    ready = epoll.poll(30)
    assert ready, f"nothing comes: {[at for _, at in open.values()]}"
    for number, _ in ready:
        entry = open.get(number)
        while entry:
            try:
                got = entry[0].recv(50000)
            except BlockingIOError:
                break
            if not got:
                assert entry[1] == total, f"ends at {entry[1]}"
                del open[number]
                entry[0].close()
                break
            begin = entry[1] % (1 << 20)
            assert got == pattern[begin:begin + len(got)], f"other bytes at {entry[1]}"
            entry[1] += len(got)
print("over", flush=True)
"#;

/// The same where bytes go one way only.
fn engine_killed_one_way(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    for killed in [&[0][..], &[1], &[0, 1]] {
        let [here, there] = &hosts;
        let (address, port) = (there.address.to_string(), PORT.to_string());
        let (count, total) = (CONNECTIONS.to_string(), "20000000");
        let file = there.lab.path().join(format!("fast-{killed:?}"));
        let args = ["-c", PUSHER, &address, &port, total, &file.display().to_string()];
        let server = there.lab.serve(Side::Sd, PORT, "python3", &args)?;
        let args = ["-c", HEARER, &address, &port, &count, total];
        let mut client = here.lab.start(Side::Sd, "python3", &args)?;
        carried_again(&hosts, &mut client)?;
        std::fs::write(file, "")?;
        kill_engines(&hosts, killed)?;
        end_one_way(server, client)?;
    }
    finish_with_successors(hosts)
}

/// Engines die again and again, whatever connections are doing. These may be reset, but no byte is wrong, none is missing before an end, and none
/// stands still.
fn engines_die(_: &mut Lab) -> Result<()> {
    end_again_and_again(Signal::SIGKILL, &["wrong", "early"])
}

/// The same by this signal; the client and the server must say none of these words.
pub(crate) fn end_again_and_again(signal: Signal, never: &[&str]) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    let [here, there] = &hosts;
    let (address, port) = (there.address.to_string(), PORT.to_string());
    let mut server =
        there.lab.serve(Side::Sd, PORT, "python3", &["-c", ALL_WAYS, "serve", &address, &port])?;
    let seconds = std::env::var("SECONDS_OF_DEATHS").unwrap_or_else(|_| "60".to_owned());
    let args = ["-c", ALL_WAYS, "connect", &address, &port, "12", &seconds];
    let mut client = here.lab.start(Side::Sd, "python3", &args)?;
    let mut count: usize = 0;
    while client.is_running() {
        std::thread::sleep(Duration::from_millis([3000, 2100, 4500][count % 3]));
        count += 1;
        // Now and then both at once. One may be on its way up.
        let which = [&[0][..], &[1], &[0, 1], &[1], &[0]][count % 5];
        if client.is_running() {
            let _ = end_engines(&hosts, which, signal);
        }
    }
    let output = client.wait(LIMIT)?.ok()?;
    let said = server.stdout_so_far();
    println!("{count} times: {} {}", output.text(), said);
    if never.iter().any(|word| output.text().contains(word) || said.contains(word)) {
        fail!("the client said {:?}, the server {said:?}", output.text());
    }
    server.is_running();
    server.kill();
    finish_with_successors(hosts)
}

/// Connections that send and hear in all ways there are to wait.
const ALL_WAYS: &str = include_str!("../py/all_ways.py");

fn end_one_way(mut server: Proc, client: Proc) -> Result<()> {
    let output = client.wait(LIMIT)?.ok()?;
    let said = server.stdout_so_far();
    if !output.text().contains("over") || said.contains("reset") {
        fail!("the client said {:?}, the server {said:?}", output.text());
    }
    server.is_running();
    server.kill();
    Ok(())
}

/// They go on, as do new ones once there is another monitor, to which the engine comes back.
fn monitor_killed(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    let (server, client) = start(&hosts, 3, 100_000)?;
    let first = [hosts[0].engine()?, hosts[1].engine()?];
    for host in &mut hosts {
        host.lab.kill_monitor();
        host.start_monitor()?;
    }
    wait_for_engine(&hosts, 3)?;
    end(server, client, ("end", 3))?;
    hosts.iter_mut().try_for_each(forget_programs)?;
    let (server, client) = start(&hosts, 3, 100_000)?;
    end(server, client, ("end", 3))?;
    // The new monitors' own engines wait for their places, and take them.
    let both = retry(LIMIT, || match hosts.iter().map(Host::engines).collect::<Result<Vec<_>>>()? {
        both if both.iter().all(|of_host| of_host.len() == 2) => Ok(both),
        both => fail!("engines: {both:?}"),
    })?;
    must_sleep(&hosts)?;
    for engine in both.iter().flatten().filter(|engine| first.contains(engine)) {
        kill(Pid::from_raw(*engine as i32), Signal::SIGKILL)?;
    }
    let (server, client) = start(&hosts, 3, 100_000)?;
    wait_for_engine(&hosts, 3)?;
    end(server, client, ("end", 3))?;
    finish(hosts)
}

/// An engine whose monitor and whose programs are gone, which nobody tells it, ends.
fn orphan(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    let (server, client) = start(&hosts, 3, 100_000)?;
    let engines = [hosts[0].engine()?, hosts[1].engine()?];
    hosts.iter_mut().for_each(|host| host.lab.kill_monitor());
    if !engines.iter().all(|engine| procfs::is_alive(*engine)) {
        fail!("an engine has ended with its monitor, though it carries something");
    }
    client.kill();
    server.kill();
    until("both engines have ended", LIMIT, || !engines.iter().any(|engine| procfs::is_alive(*engine)))
}

/// Asks on so many connections until each fails, and says how.
const ASKER: &str = r#"
import errno, os, socket, sys, threading
def ask(connection):
    how = "end"
    try:
        connection.sendall(b"x" * 64)
        while got := connection.recv(1000):
            connection.sendall(got)
    except OSError as error:
        how = errno.errorcode[error.errno]
    os.write(1, how.encode() + b"\n")
callers = []
for _ in range(int(sys.argv[3])):
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    callers.append(threading.Thread(target=ask, args=[connection]))
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
"#;
