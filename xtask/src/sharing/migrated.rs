//! A server is moved to another network namespace with its connections, under clients that check every byte: from shared memory to the kernel's
//! connections, and to shared memory again (ADR 86).
//!
//! ```text
//!  clients 10.9.0.1 ── bridge ── 10.9.0.2 server, in one namespace          promoted
//!                        │       detached: the kernel's; the bridge's port goes down, its sockets are saved
//!                        └────── 10.9.0.2 the same device, in another one    restored: the kernel's, attached: promoted
//! ```
//! A stand-in for CRIU, which does not run everywhere: see `tests/sharing/src/migrant.rs`.

use super::across::{Joint, Networks, SERVER, started};
use super::promote;
use harness::lab::{Lab, Side};
use harness::network::{Network, configure};
use harness::process::Proc;
use harness::{Result, fail, product, until};
use nix::sys::resource::{Resource, setrlimit};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

pub(super) const PATIENCE: Duration = Duration::from_secs(40);
pub(super) const CLIENTS: u64 = 3;
/// Under load, on either road.
pub(super) const A_WHILE: Duration = Duration::from_millis(300);

/// For root.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    promote::let_promote(lab)?;
    let (networks, there) = (Networks::new(Joint::Bridge)?, Network::new()?);
    let server = started(lab, Side::Sd, &networks.server, &["migrant", SERVER], Stdio::piped())?;
    let (mut server, port) = super::served(server)?;
    let mut input = server.stdin()?;
    let mut clients = Vec::new();
    for seed in 0..CLIENTS {
        clients.push(client(lab, &networks, &port, seed)?);
    }
    until("they are promoted", PATIENCE, || lab.is_oracle() || promoted(lab, &port) == CLIENTS as usize * 2)?;
    std::thread::sleep(A_WHILE);
    let pid = server.pid().to_string();
    sd(lab, &["detach", &pid])?;
    has_nothing(lab, server.pid())?;
    std::thread::sleep(A_WHILE);

    let moved =
        carry_over((&mut server, &mut input), &networks, [&networks.server, &there], CLIENTS as usize);
    moved.map_err(|error| {
        let end =
            |(client, _): &mut (Proc, ChildStdin)| format!("{:?} {}", client.status(), client.last_words());
        format!("{error}; {:?}", clients.iter_mut().map(end).collect::<Vec<_>>())
    })?;
    std::thread::sleep(A_WHILE);
    if promoted(lab, &port) != 0 {
        fail!("a process that is detached has been moved to shared memory");
    }

    sd(lab, &["attach", &pid])?;
    until("they are promoted again", PATIENCE, || {
        lab.is_oracle() || promoted(lab, &port) == CLIENTS as usize * 2
    })?;
    // The listener is taken up as well.
    clients.push(client(lab, &networks, &port, CLIENTS)?);
    until("so is a new one", PATIENCE, || {
        lab.is_oracle() || promoted(lab, &port) == CLIENTS as usize * 2 + 2
    })?;
    std::thread::sleep(A_WHILE);
    let said = all_right(clients)?;
    server.kill();
    Ok(format!("{CLIENTS} connections and one more; the last one {said}"))
}

/// A server that is detached saves so many connections, its device goes to another namespace with its address, and it makes them anew there. Until
/// then nothing reaches the address: it would be answered with a reset.
pub(super) fn carry_over(
    (server, input): (&mut Proc, &mut ChildStdin),
    networks: &Networks,
    [from, to]: [&Network; 2],
    connections: usize,
) -> Result<()> {
    networks.in_between("link set s0 down\n")?;
    say(input, "save")?;
    server.wait_for_text(&format!("saved {connections}"), PATIENCE)?;
    let place = to.path();
    from.inside(|| configure(&format!("link set eth0 netns {}\n", place.display())))?;
    to.inside(|| configure(&format!("address add {SERVER}/24 dev eth0\nlink set eth0 up\n")))?;
    say(input, &format!("restore {}", place.display()))?;
    server.wait_for_text(&format!("restored {connections}"), PATIENCE)?;
    networks.in_between("link set s0 up\n")
}

/// They are told to end, and each echo was right; what the last one says.
pub(super) fn all_right(clients: Vec<(Proc, ChildStdin)>) -> Result<String> {
    let mut said = String::new();
    for (mut client, input) in clients {
        drop(input);
        client.wait_for_text("right: ", PATIENCE)?;
        let text = client.stdout_so_far();
        said = text.lines().last().unwrap_or_default().to_owned();
        client.kill();
    }
    Ok(said)
}

/// A server that cannot be detached, as its connection has none of the kernel's to go back to, serves on while it is asked to, on a small stack, and
/// after that. Its waits come to an edge hundreds of times a second meanwhile.
pub(super) fn refused(lab: &mut Lab) -> Result<String> {
    const STACK: u64 = 256 << 10;
    let mut command = lab.command(Side::Sd, &super::program().to_string_lossy(), &["echo"])?;
    // SAFETY: between fork and exec only setrlimit(2) is called.
    unsafe { command.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_STACK, STACK, STACK)?)) };
    let (mut server, port) = super::served(Proc::start(&mut command, "echo", lab.path())?)?;
    let client = super::start(lab, Side::Sd, &["chat", &port, "90", "100"])?;
    until("it is connected", PATIENCE, || {
        lab.is_oracle()
            || lab.snapshot().is_ok_and(|seen| !seen.of_port(port.parse().unwrap_or(0)).is_empty())
    })?;
    let pid = server.pid().to_string();
    match sd(lab, &["detach", "--timeout", "4", &pid]) {
        Ok(()) if !lab.is_oracle() => fail!("it was detached"),
        Err(error) if !error.to_string().contains("born in shared memory") => return Err(error),
        _ => {}
    }
    let said = client.wait(PATIENCE)?.ok()?.text();
    if !server.is_running() {
        fail!("the server is gone: {}", server.last_words());
    }
    server.kill();
    Ok(said.trim().to_owned())
}

pub(super) fn client(lab: &Lab, networks: &Networks, port: &str, seed: u64) -> Result<(Proc, ChildStdin)> {
    let (to, seed) = (format!("{SERVER}:{port}"), seed.to_string());
    let mut client = started(lab, Side::Sd, &networks.client, &["migrant", &to, &seed], Stdio::piped())?;
    client.wait_for_text("connected", PATIENCE)?;
    let input = client.stdin()?;
    Ok((client, input))
}

pub(super) fn say(input: &mut ChildStdin, line: &str) -> Result<()> {
    Ok(writeln!(input, "{line}")?)
}

pub(super) fn sd(lab: &Lab, args: &[&str]) -> Result<()> {
    if lab.is_oracle() {
        return Ok(());
    }
    let output = Command::new(product::sd()).args(args).env("SD_MONITOR", lab.socket()).output()?;
    if !output.status.success() {
        fail!("sd {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Ends at this port that were moved.
pub(super) fn promoted(lab: &Lab, port: &str) -> usize {
    let (Ok(seen), Ok(port)) = (lab.snapshot(), port.parse()) else { return 0 };
    seen.of_port(port)
        .iter()
        .filter(|end| end.path == "shm" && end.reason.as_deref() == Some("promoted"))
        .count()
}

/// The library's own descriptors have numbers from here on.
const HIDDEN_FROM: u32 = 1024;

/// Of the library's segments and descriptors, nothing is left in the process that a checkpoint could not have.
pub(super) fn has_nothing(lab: &Lab, pid: u32) -> Result<()> {
    if lab.is_oracle() {
        return Ok(());
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut left: Vec<String> =
        maps.lines().filter(|line| line.contains("memfd:")).map(str::to_owned).collect();
    let mut eventfds = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let to = fs::read_link(&path).unwrap_or_default().to_string_lossy().into_owned();
        let number: u32 = path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0);
        eventfds += usize::from(to == "anon_inode:[eventfd]");
        let is_segment = to.starts_with("/memfd:") && !to.starts_with("/memfd:sd-detached");
        let is_socket = number >= HIDDEN_FROM && to.starts_with("socket:");
        left.extend((is_segment || is_socket).then(|| format!("{number}: {to}")));
    }
    // One of the library's own, which nobody else has, wakes the threads of the process.
    if !left.is_empty() || eventfds > 1 {
        fail!("a detached process has these still, and {eventfds} eventfds: {left:?}");
    }
    Ok(())
}
