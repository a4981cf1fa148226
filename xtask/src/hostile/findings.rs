//! The attacks of the review, one test each.

use super::Test;
use super::honest::{contact, watched};
use super::world::{User, With, World};
use crate::process::free_port;
use crate::{Result, fail};
use std::process::Stdio;
use std::time::Duration;

pub(super) fn all() -> Vec<Test> {
    vec![
        ("finding-01-signals", signals),
        ("finding-02-squat", |world| squat(world, "close")),
        ("finding-02-squat-any", |world| squat(world, "any")),
        ("finding-02-squat-shutdown", |world| squat(world, "shutdown")),
        ("finding-03-siblings", |world| siblings(world, "close")),
        ("finding-03-siblings-shutdown", |world| siblings(world, "shutdown")),
        ("finding-04-hang-zero", |world| hang(world, "zero")),
        ("finding-04-hang-one", |world| hang(world, "1")),
        ("finding-04-hang-nine", |world| hang(world, "9")),
        ("finding-04-hang-many", |world| hang(world, "60")),
        ("finding-04-hang-garbage", |world| hang(world, "garbage")),
        ("finding-04-hang-long", |world| hang(world, "long")),
    ]
}

/// No process of another user's gets a signal.
fn signals(world: &mut World) -> Result<String> {
    // A signal to oneself does come: the attack is one.
    let own =
        world.start(User::Mallory, With::Kernel, &["signal", "0", "9"])?.wait(Duration::from_secs(10))?;
    let is_killed = std::os::unix::process::ExitStatusExt::signal(&own.status) == Some(9);
    for user in [User::Root, User::Alice] {
        for signal in [9, 15, 19] {
            let mut sleep = world.command(user, With::Kernel, &["sleep"])?;
            let mut victim = sleep.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let pid = victim.id();
            world
                .start(User::Mallory, With::Kernel, &["signal", &pid.to_string(), &signal.to_string()])?
                .wait(Duration::from_secs(10))?;
            std::thread::sleep(Duration::from_millis(50));
            let state = crate::procfs::process(pid).map_or('-', |process| process.state);
            victim.kill()?;
            victim.wait()?;
            if state != 'S' {
                fail!("a process of {user:?}'s got signal {signal}: its state is {state}");
            }
        }
    }
    Ok(format!("6 victims are well; mallory may signal herself: {is_killed}"))
}

/// A port is its owner's: alice's question comes to bob, who has the kernel's listener, and nobody else hears of it.
fn squat(world: &mut World, way: &str) -> Result<String> {
    let port = free_port()?;
    let attack = world.attack(&["squat", &port.to_string(), way])?;
    let server = world.serve(With::Kernel, port, "threads")?;
    for with in [With::Kernel, With::Sd, With::Sd] {
        contact(world, User::Alice, with, port, "password").map_err(|error| heard(&attack, error))?;
    }
    drop(server);
    unheard(&attack.stdout_so_far())
}

fn heard(attack: &crate::process::Proc, error: Box<dyn std::error::Error + Send + Sync>) -> String {
    format!("{error}; mallory: {:?}", crate::process::tail(&attack.stdout_so_far(), 300))
}

fn unheard(said: &str) -> Result<String> {
    match said.lines().find(|line| line.starts_with("seen")) {
        Some(line) => fail!("mallory has {line}"),
        None => Ok(format!("mallory: {}", said.lines().next().unwrap_or_default())),
    }
}

/// The same while bob's server is accelerated too: no connection is dealt, or offered, to a stranger.
fn siblings(world: &mut World, way: &str) -> Result<String> {
    let port = free_port()?;
    let attack = world.attack(&["squat", &port.to_string(), way])?;
    let server = world.serve(With::Sd, port, "threads")?;
    for _ in 0..8 {
        contact(world, User::Alice, With::Sd, port, "password").map_err(|error| heard(&attack, error))?;
    }
    drop(server);
    unheard(&attack.stdout_so_far())
}

/// One message does not stop the monitor.
fn hang(world: &mut World, way: &str) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "threads")?;
    watched(world, port, || world.attack(&["hang", way]))
}
