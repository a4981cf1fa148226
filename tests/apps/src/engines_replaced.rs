//! Two hosts whose engines are told to end, or make room for those of another version: no connection is lost.

use super::Scenario;
use crate::engines::{LIMIT, PORT, end, finish, forget_programs, hosts, start, started, wait_for_engine};
use crate::engines_end::{end_again_and_again, signal_engines, wait_for_successors};
use harness::host::Host;
use harness::lab::Lab;
use harness::scratch::send;
use harness::{Result, fail, network, procfs, product, retry, until};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-engine-ends", &["python3", network::PROGRAM], engine_ends)
        .ours()
        .limit_s(240),
    Scenario::between_hosts("between-hosts-engines-end", &["python3", network::PROGRAM], engines_end)
        .ours()
        .extra()
        .limit_s(180),
    Scenario::between_hosts(
        "between-hosts-engine-ends-beside-stopped",
        &["python3", network::PROGRAM],
        beside_stopped,
    )
    .ours()
    .extra()
    .limit_s(240),
    Scenario::between_hosts("between-hosts-upgrade", &["python3", network::PROGRAM], upgrade)
        .ours()
        .limit_s(240),
];

const CONNECTIONS: usize = 8;
/// Longer than programs have to go back by themselves.
const LONG: Duration = Duration::from_secs(70);
const REPLACED: &str = "the engine was replaced";

/// SIGTERM: an engine ends when all connections are the kernel's, and its monitor starts another, which carries them on.
fn engine_ends(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    for which in [&[0][..], &[1], &[0, 1]] {
        let (server, client) = start(&hosts, CONNECTIONS, 100_000)?;
        end_engines(&hosts, which)?;
        wait_for_engine(&hosts, CONNECTIONS)?;
        end(server, client, ("end", CONNECTIONS))?;
    }
    // In the middle of many bytes.
    let (server, mut client) = started(&hosts, CONNECTIONS, 10_000_000)?;
    for which in [&[0][..], &[1], &[0, 1]] {
        wait_for_engine(&hosts, CONNECTIONS)?;
        end_engines(&hosts, which)?;
    }
    client.wait_for_text("carried", LIMIT)?;
    end(server, client, ("end", CONNECTIONS))?;
    finish(hosts)
}

/// Again and again, whatever connections are doing: none is reset either.
fn engines_end(_: &mut Lab) -> Result<()> {
    end_again_and_again(Signal::SIGTERM, &["wrong", "early", "reset"])
}

/// A program that stands still cannot go back, while the other end has: it is waited for.
fn beside_stopped(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    let (server, client) = start(&hosts, CONNECTIONS, 100_000)?;
    for host in &hosts {
        let engine = host.engine()?;
        send(client.pid(), Signal::SIGSTOP);
        send(engine, Signal::SIGTERM);
        std::thread::sleep(LONG);
        let cpu_before = procfs::cpu_ns(engine);
        std::thread::sleep(LONG / 10);
        let (has_stayed, used) = (procfs::is_alive(engine), procfs::cpu_ns(engine) - cpu_before);
        send(client.pid(), Signal::SIGCONT);
        if !has_stayed || used > 10_000_000 {
            fail!(
                "an engine that waits for a program that stands still: {has_stayed}, {used} ns of a processor"
            );
        }
        until("the engine has ended", LIMIT, || !procfs::is_alive(engine))?;
        wait_for_engine(&hosts, CONNECTIONS)?;
    }
    end(server, client, ("end", CONNECTIONS))?;
    finish(hosts)
}

/// Waits until connections have gone back for that reason, and until there are successors.
fn end_engines(hosts: &[Host; 2], which: &[usize]) -> Result<()> {
    let before = signal_engines(hosts, which, Signal::SIGTERM)?;
    // They are offered again a second later.
    which.iter().try_for_each(|at| was_replaced(&hosts[*at]))?;
    wait_for_successors(hosts, which, before)
}

fn was_replaced(host: &Host) -> Result<()> {
    retry(Duration::from_secs(20), || {
        let seen = host.lab.snapshot()?;
        let all = seen.of_port(PORT);
        match all.iter().any(|c| c.moved.as_deref() == Some(REPLACED)) {
            true => Ok(()),
            false => fail!("none has gone back for the engine's end: {all:?}"),
        }
    })
}

/// Another file takes the place of `sd`, and another monitor that of the one before: its engine gets the connections.
fn upgrade(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    let new = hosts[0].lab.path().join("sd-new");
    std::fs::copy(product::sd(), &new)?;
    let (server, client) = start(&hosts, CONNECTIONS, 100_000)?;
    for host in &mut hosts {
        let old = host.engine()?;
        host.lab.kill_monitor();
        let file = host.hosts_file().display().to_string();
        host.lab.start_monitor_of_with(&new, &["--hosts", &file])?;
        until("the old engine has ended", LIMIT, || !procfs::is_alive(old))?;
        if program_of(host.engine()?)? != new {
            fail!("its successor is of another file");
        }
    }
    wait_for_engine(&hosts, CONNECTIONS)?;
    end(server, client, ("end", CONNECTIONS))?;
    hosts.iter_mut().try_for_each(forget_programs)?;
    finish(hosts)
}

fn program_of(pid: u32) -> Result<std::path::PathBuf> {
    Ok(std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"))?)
}
