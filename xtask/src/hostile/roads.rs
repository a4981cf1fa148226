//! Promoted connections, one end of which is mallory's: what she says of the roads, or leaves undone, costs others nothing.

use super::Test;
use super::honest::contact;
use super::world::{User, With, World};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::process::Command;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("promoted-words-left", |world| words(world, "left", false)),
    ("promoted-words-nothing", |world| words(world, "nothing", true)),
    ("promoted-never-reads", never_reads),
];

/// A server of one thread, and an end of mallory's that has the library.
fn begin(world: &mut World, attack: &[&str]) -> Result<(u16, Proc, Proc)> {
    world.start_monitor(&["--promote=all"])?;
    let port = free_port()?;
    let server = world.serve(With::Sd, port, "poll")?;
    let text = port.to_string();
    let [name, rest @ ..] = attack else { fail!("which attack?") };
    let mut attack = world.start(User::Mallory, With::Sd, &[&[*name, text.as_str()], rest].concat())?;
    attack.wait_for_text("ready", Duration::from_secs(30))?;
    Ok((port, server, attack))
}

/// Whether the process has such a connection just now.
fn demote(world: &World, pid: u32) -> Result<bool> {
    let mut command = Command::new(world.path().join("sd"));
    command.args(["demote", "--at-once", "--timeout", "0", &pid.to_string(), "--socket"]).arg(world.socket());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        fail!("sd demote: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(said.trim() != "0 told")
}

/// She writes into the words of both ends. The server's only thread goes on with others.
fn words(world: &mut World, way: &str, is_demoted: bool) -> Result<String> {
    let (port, server, attack) = begin(world, &["words", way])?;
    // Each time she may be faster, or not.
    let mut told = 0;
    for _ in 0..if is_demoted { 40 } else { 0 } {
        told += usize::from(demote(world, server.pid())?);
        std::thread::sleep(Duration::from_millis(5));
    }
    if is_demoted && told == 0 {
        fail!("the server never had a promoted connection");
    }
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(contact(world, User::Alice, With::Kernel, port, "hello")?);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(attack);
    contact(world, User::Alice, With::Sd, port, "after")?;
    Ok(format!("answers {times:.0?} us"))
}

/// She has the server send again through the kernel what lies in its ring, and never reads it. The server sleeps meanwhile.
fn never_reads(world: &mut World) -> Result<String> {
    /// More would be looking again and again.
    const WAKES_MAX: u64 = 60;
    let (port, server, attack) = begin(world, &["lazy", "40"])?;
    if !demote(world, attack.pid())? {
        fail!("the connection was not promoted");
    }
    std::thread::sleep(Duration::from_secs(1));
    let before = switches(server.pid());
    std::thread::sleep(Duration::from_secs(2));
    let wakes = switches(server.pid()) - before;
    contact(world, User::Alice, With::Kernel, port, "hello")?;
    if wakes > WAKES_MAX {
        fail!("with nothing to do the server woke {wakes} times in two seconds");
    }
    Ok(format!("{wakes} wakes in two seconds"))
}

/// How often the process has gone to sleep.
fn switches(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
