//! The first connection of a process is the kernel's where connections that last are moved (ADR 79): who is done soon is never heard of, and
//! who lives has lost nothing.

use super::{Part, promote, served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::user::User;
use harness::{Result, fail};
use std::fs;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// What is seen of a client that has said all.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Seen {
    /// The monitor does not know it, and it has no memory of ours.
    Nothing,
    /// It has registered, and its latest connection was on shared memory from the beginning.
    Registered,
    /// Its connection was moved.
    Promoted,
    /// Its connection is the kernel's.
    Kernel,
}

/// What the client does; see `tests/sharing/src/brief.rs`.
const WAYS: [(&str, Seen); 11] = [
    ("one", Seen::Nothing),
    ("two", Seen::Nothing),
    ("several", Seen::Registered),
    ("beside", Seen::Nothing),
    ("many", Seen::Registered),
    ("long", Seen::Promoted),
    ("waits", Seen::Promoted),
    ("duplicate", Seen::Promoted),
    ("forks", Seen::Promoted),
    ("starts", Seen::Kernel),
    ("again", Seen::Promoted),
];

/// Beside servers with one process, and with one for each connection.
pub(super) fn parts<'a>() -> impl Iterator<Item = Part<'a>> {
    let strangers: Part = ("short-lived-strangers".to_owned(), Box::new(strangers));
    let servers = ["echo", "echo-in-children"].into_iter().map(|server| {
        let check = move |lab: &mut Lab| run(lab, server);
        (format!("short-lived-{server}"), Box::new(check) as _)
    });
    servers.chain([strangers])
}

/// Who talks little with another user's server has no context for asynchronous I/O, whose end would last (ADR 52). For root.
fn strangers(lab: &mut Lab) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root can be another user".to_owned());
    }
    let program = super::program();
    let place = lab.path().join("sd-sharing");
    fs::copy(program, &place)?;
    let server = place.display().to_string();
    let mut server = User::named("nobody")?.command(lab, Side::Sd, &server, &["echo"])?;
    let (serving, port) = served(Proc::start(&mut server, "echo", lab.path())?)?;
    let mut client = start(lab, Side::Sd, &["brief", &port, "one"])?;
    client.wait_for_text("said", PATIENCE)?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", client.pid()))?;
    if maps.contains("[aio]") || !lab.is_oracle() && !maps.contains("memfd:sd-") {
        fail!("it has a context, or no memory of ours: {maps}");
    }
    client.kill();
    serving.kill();
    Ok("one connection".to_owned())
}

fn run(lab: &mut Lab, server: &str) -> Result<String> {
    promote::let_earn(lab)?;
    let (serving, port) = served(start(lab, Side::Sd, &[server])?)?;
    // Who is one process goes on accepting over channels.
    let last = if server == "echo" { Seen::Registered } else { Seen::Kernel };
    for (way, wanted) in WAYS.into_iter().chain([("registered", last)]) {
        // A server that was held up before it closed what a child has says nothing of the eight around that. So it is known at the end only.
        let is_known = wanted != Seen::Registered || server == "echo";
        let mut client = start(lab, Side::Sd, &["brief", &port, way])?;
        client.wait_for_text("said", PATIENCE).map_err(|error| format!("{way}: {error}"))?;
        if !lab.is_oracle() && is_known {
            check(lab, client.pid(), wanted).map_err(|error| format!("{way}: {error}"))?;
        }
        client.kill();
    }
    serving.kill();
    Ok(format!("{} clients", WAYS.len() + 1))
}

pub(super) fn check(lab: &Lab, pid: u32, wanted: Seen) -> Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let has_memory = maps.contains("memfd:sd-");
    let seen = lab.snapshot()?;
    let known: Vec<_> = seen.connections.iter().filter(|one| one.pid == u64::from(pid)).collect();
    let is = |path: &str, promoted: bool| {
        let reason = |reason: Option<&str>| promoted == (reason == Some("promoted"));
        !known.is_empty() && known.iter().any(|one| one.path == path && reason(one.reason.as_deref()))
    };
    let is_right = match wanted {
        Seen::Nothing => !has_memory && known.is_empty(),
        Seen::Registered => has_memory && is("shm", false),
        Seen::Promoted => has_memory && is("shm", true),
        Seen::Kernel => !is("shm", true) && !is("shm", false),
    };
    if !is_right {
        fail!("has memory of ours: {has_memory}; its connections: {known:?}");
    }
    Ok(())
}
