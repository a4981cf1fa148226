//! A connection that has not lasted yet has no entry in any slab: between two network namespaces, of processes that have registered (ADR 97).

use super::across::{Joint, Networks, SERVER, started};
use super::{Part, promote};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::ss::Connection;
use harness::{Result, fail, retry};
use std::process::Stdio;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// What is seen of a client's latest connection, when it has said all.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    /// It is listed, by what is found below /proc.
    Young,
    /// It has an entry, and waits for a better rate.
    Slow,
    Promoted,
    /// It was on shared memory from the beginning.
    Shm,
    /// It listens, and the monitor knows it.
    Listens,
}

/// What the client does; see `tests/sharing/src/young.rs`.
const WAYS: [(&str, Seen); 7] = [
    ("few", Seen::Young),
    ("slow", Seen::Slow),
    ("many", Seen::Promoted),
    ("duplicate", Seen::Promoted),
    ("forks", Seen::Promoted),
    ("here", Seen::Shm),
    ("listens", Seen::Listens),
];

pub(super) fn parts<'a>() -> impl Iterator<Item = Part<'a>> {
    WAYS.into_iter().map(|(way, wanted)| {
        let check = move |lab: &mut Lab| run(lab, way, wanted);
        (format!("young-{way}"), Box::new(check) as _)
    })
}

/// For root.
fn run(lab: &mut Lab, way: &str, wanted: Seen) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    promote::let_earn(lab)?;
    let networks = Networks::new(Joint::Cable)?;
    let port = free_port()?.to_string();
    let start = |network, args: &[&str]| started(lab, Side::Sd, network, args, Stdio::null());
    let (server, port) = super::served(start(&networks.server, &["echo", &port, SERVER])?)?;
    let (beside, here) = super::served(start(&networks.client, &["echo"])?)?;
    let here = if wanted == Seen::Listens { free_port()?.to_string() } else { here };
    let mut client = start(&networks.client, &["young", &format!("{SERVER}:{port}"), &here, way])?;
    client.wait_for_text("said", PATIENCE)?;
    if !lab.is_oracle() {
        retry(PATIENCE, || check(lab, &client, &here, wanted))?;
    }
    for process in [client, server, beside] {
        process.kill();
    }
    Ok(format!("{wanted:?}"))
}

fn check(lab: &Lab, client: &Proc, here: &str, wanted: Seen) -> Result<()> {
    let seen = lab.snapshot()?;
    if wanted == Seen::Listens {
        let is_known = seen.accepting.iter().any(|name| name.ends_with(&format!(":{here}")));
        return if is_known { Ok(()) } else { fail!("the monitor does not know its listener") };
    }
    let all: Vec<&Connection> =
        seen.connections.iter().filter(|one| one.pid == u64::from(client.pid())).collect();
    let [one] = all[..] else { fail!("not one connection: {all:?}") };
    let (reason, is_kernel) = (one.reason.as_deref().unwrap_or_default(), one.path == "kernel");
    let is_right = match wanted {
        Seen::Young => is_kernel && reason.starts_with("it has not lasted yet"),
        Seen::Slow => is_kernel && one.awaits.as_deref() == Some("too slow"),
        Seen::Promoted => one.path == "shm" && reason == "promoted",
        Seen::Shm => one.path == "shm" && reason != "promoted",
        Seen::Listens => false,
    };
    if is_right { Ok(()) } else { fail!("{one:?}") }
}
