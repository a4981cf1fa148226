//! The monitor is replaced, under load, by one of another version, and that by one of ours again: connections go on,
//! new ones are the kernel's meanwhile, and nobody crashes, hangs or spins. Once by a stranger of which only the answer
//! is known, and once by the next version itself, which has a library and programs of its own.

use super::hostile::await_idle;
use super::{program, served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, product, ss};
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor".to_owned());
    }
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let early = clients(lab, &port, "2000")?;
    std::thread::sleep(Duration::from_millis(30));
    lab.kill_monitor();
    std::fs::remove_file(lab.socket()).ok();
    let mut other = start(lab, Side::Sd, &["other-monitor", &lab.socket().to_string_lossy()])?;
    other.wait_for_text("ready", Duration::from_secs(10))?;
    let late = clients(lab, &port, "60")?;
    for client in early.into_iter().chain(late) {
        client.wait(LIMIT)?.ok()?;
    }
    await_idle(&server).map_err(|error| format!("with a monitor of another version: {error}"))?;
    let asked = other.stdout_so_far().lines().count().saturating_sub(1);
    if asked == 0 {
        fail!("nobody has asked the other monitor");
    }
    other.kill();
    std::fs::remove_file(lab.socket()).ok();
    lab.start_monitor()?;
    comes_back(lab, &port)?;
    await_idle(&server)?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("the other monitor was asked {asked} times"))
}

/// Which programs find each other over shared memory, as (server's, client's version): ours are `false`.
const PAIRS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// Upgrade and downgrade, with both versions' programs before, meanwhile and after.
pub(super) fn both_ways(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor".to_owned());
    }
    let next = product::build_next_version()?;
    let (ours, mut old) = (product::sd(), Vec::new());
    // What listens while no monitor of its version is there stays the kernel's, so the second one comes later.
    let mut servers = vec![serve(lab, &ours)?];
    for round in 0..3 {
        let is_next = round == 1;
        if is_next {
            servers.push(serve(lab, &next)?);
        }
        // Four that talk while the monitors change, and on.
        let port = &servers[usize::from(is_next)].1;
        old.extend(
            (0..4).map(|_| start(lab, Side::Sd, &["chat", port, "3000"])).collect::<Result<Vec<_>>>()?,
        );
        for (of_server, of_client) in PAIRS {
            let Some((_, port)) = servers.get(usize::from(of_server)) else { continue };
            let client = if of_client { &next } else { &ours };
            let wants_shm = of_server == is_next && of_client == is_next;
            check_pair(lab, port, client, wants_shm).map_err(|error| {
                format!("round {round}, server of next {of_server}, client {of_client}: {error}")
            })?;
        }
        lab.kill_monitor();
        std::fs::remove_file(lab.socket()).ok();
        lab.start_monitor_of(if is_next || round == 2 { &ours } else { &next })?;
    }
    for client in old {
        client.wait(LIMIT)?.ok().map_err(|error| format!("a client that saw the change: {error}"))?;
    }
    for (server, _) in servers {
        await_idle(&server)?;
        server.terminate(Duration::from_secs(5))?;
    }
    Ok("upgraded and downgraded, 12 clients talked on".to_owned())
}

fn serve(lab: &Lab, sd: &Path) -> Result<(Proc, String)> {
    served(Proc::start(&mut lab.command_of(sd, &program(), &["echo"]), "echo", lab.path())?)
}

/// A client's echoes come, and over shared memory where both are of the monitor's version, soon: whom a monitor of another version has
/// refused looks two seconds later again, or a second after that when it is busy.
fn check_pair(lab: &Lab, port: &str, client: &Path, wants_shm: bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        // Pauses keep it long enough to be seen by `sd ss` where processors are few and busy.
        let args = ["chat", port, "200", "5"];
        let mut chat = Proc::start(&mut lab.command_of(client, &program(), &args), "chat", lab.path())?;
        let mut is_shm = false;
        while chat.is_running() {
            let is_its = |c: &ss::Connection| c.pid == u64::from(chat.pid()) && c.path == "shm";
            is_shm |= lab.snapshot()?.connections.iter().any(is_its);
        }
        chat.wait(LIMIT)?.ok()?;
        if is_shm && !wants_shm {
            fail!("a connection was accelerated");
        }
        if is_shm == wants_shm {
            return Ok(());
        }
        if Instant::now() > end {
            fail!("no connection was accelerated");
        }
    }
}

fn clients(lab: &Lab, port: &str, count: &str) -> Result<Vec<Proc>> {
    (0..4).map(|_| start(lab, Side::Sd, &["chat", port, count])).collect()
}

/// The server registers with the new monitor, and clients find it there.
fn comes_back(lab: &Lab, port: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while lab.snapshot()?.listeners.is_empty() {
        if Instant::now() > end {
            fail!("the server does not come back to a monitor of its version");
        }
        // It notices when it waits.
        start(lab, Side::Sd, &["chat", port, "1"])?.wait(LIMIT)?.ok()?;
    }
    let watch = lab.watch_every(port.parse()?, Duration::from_millis(5));
    // With pauses: two that are always busy leave little of two processors to `sd ss`.
    start(lab, Side::Sd, &["chat", port, "400", "5"])?.wait(LIMIT)?.ok()?;
    match watch {
        Some(watch) => ss::require_shm(&watch.finish()?),
        None => Ok(()),
    }
}
