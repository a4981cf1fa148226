//! What is somebody else's: processes, ports, connections, rules.

use super::Test;
use super::honest::contact;
use super::world::{TIMEOUT, User, With, World};
use harness::process::free_port;
use harness::{Result, fail};
use std::process::Stdio;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("finding-01-signals", signals),
    ("finding-02-squat", |world| squat(world, "close")),
    ("finding-02-squat-any", |world| squat(world, "any")),
    ("finding-02-squat-shutdown", |world| squat(world, "shutdown")),
    ("finding-03-siblings", |world| siblings(world, "close")),
    ("finding-03-siblings-shutdown", |world| siblings(world, "shutdown")),
    ("finding-07-policy-a-names", names),
    ("finding-07-policy-b-became", became),
    ("finding-07-policy-b-nobody", nobody),
    ("finding-07-policy-c-source-port", source_port),
    ("finding-07-policy-d-other-listener", other_listener),
    ("finding-10-bindblock", bind_block),
    ("matrix", matrix),
];

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
            let state = harness::procfs::process(pid).map_or('-', |process| process.state);
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

fn heard(attack: &harness::process::Proc, error: Box<dyn std::error::Error + Send + Sync>) -> String {
    format!("{error}; mallory: {:?}", harness::process::tail(&attack.stdout_so_far(), 300))
}

pub(super) fn unheard(said: &str) -> Result<String> {
    let seen: Vec<&str> = said.lines().filter(|line| line.starts_with("seen")).take(4).collect();
    match seen.as_slice() {
        [_, ..] => fail!("mallory has {}", seen.join("; ")),
        [] => Ok(format!("mallory: {}", said.lines().next().unwrap_or_default())),
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

/// A rule is about what is reached, by whatever name.
fn names(world: &mut World) -> Result<String> {
    let port = free_port()?;
    world.set_policy(&format!("deny uid={} to=127.0.0.0/8 port={port}\n", User::Mallory as u32))?;
    let _server = world.serve(With::Sd, port, "any")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    let said = world.run(User::Mallory, With::Kernel, &["names", &port.to_string()], TIMEOUT)?.text();
    unheard(&said)?;
    Ok(format!("{} names, no way", said.lines().count() - 1))
}

/// A rule about a user is about who the process is now.
fn became(world: &mut World) -> Result<String> {
    let port = free_port()?;
    world.set_policy(&format!("deny uid={} port={port}\n", User::Mallory as u32))?;
    let _server = world.serve(With::Sd, port, "threads")?;
    let run = |user: u32| -> Result<String> {
        let args = ["became", &port.to_string(), &user.to_string()];
        Ok(world.run(User::Root, With::Sd, &args, TIMEOUT)?.text())
    };
    let root = run(0)?;
    if root.matches("bob hello").count() != 2 {
        fail!("root is not denied, and got {root:?}");
    }
    let mallory = run(User::Mallory as u32)?;
    if mallory.contains("bob hello") {
        fail!("mallory is denied, and got {mallory:?}");
    }
    Ok(mallory.trim().replace('\n', ", "))
}

/// Who has not been named is not somebody whom no rule is about.
fn nobody(world: &mut World) -> Result<String> {
    let port = free_port()?;
    world.set_policy(&format!("deny uid={} port={port}\n", User::Mallory as u32))?;
    let _server = world.serve(With::Sd, port, "threads")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    unheard(&world.run(User::Mallory, With::Kernel, &["nobody", &port.to_string()], TIMEOUT)?.text())
}

/// Nobody comes from a port that the kernel would not have given him.
fn source_port(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let server = world.serve(With::Sd, port, "threads")?;
    for from in ["22", "1023", "1"] {
        let _attack = world.attack(&["syn", &port.to_string(), from, &port.to_string()])?;
        contact(world, User::Alice, With::Sd, port, "hello")?;
    }
    let said = server.stdout_so_far();
    let is_low = |line: &&str| {
        let port = line.split(' ').nth(1).and_then(|name| name.rsplit(':').next()?.parse::<u16>().ok());
        port.is_some_and(|port| port < 1024)
    };
    match said.lines().find(is_low) {
        Some(line) => fail!("bob's server saw {line}"),
        None => Ok("3 ports".to_owned()),
    }
}

/// Whoever may reach one listener of a process cannot reach all.
fn other_listener(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let other = port + 1;
    world.set_policy(&format!("deny uid={} port={other}\n", User::Mallory as u32))?;
    let server = world.serve(With::Sd, port, "two")?;
    let _attack = world.attack(&["syn", &port.to_string(), "40000", &other.to_string()])?;
    contact(world, User::Alice, With::Sd, other, "hello")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    let said = server.stdout_so_far();
    match said.lines().find(|line| line.contains(":40000 ") && line.ends_with(&format!("at {other}"))) {
        Some(line) => fail!("bob's server saw {line}"),
        None => Ok("64 tries".to_owned()),
    }
}

/// A server starts again, whatever somebody says of its port.
fn bind_block(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let server = world.serve(With::Sd, port, "threads")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    server.terminate(Duration::from_secs(5))?;
    let _attack = world.attack(&["bind-block", &port.to_string()])?;
    let _server = world.serve(With::Sd, port, "threads")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    Ok("it binds".to_owned())
}

/// Every request with every descriptor about everybody: strangers live, connections go on, ports stay, and no descriptor
/// comes back that is not mallory's to have.
fn matrix(world: &mut World) -> Result<String> {
    // Offers are denied where nothing is promoted.
    world.start_monitor(&["--promote=earned"])?;
    let port = free_port()?;
    let server = world.serve(With::Sd, port, "threads")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    let mut pace = world.start(User::Alice, With::Sd, &["pace", &port.to_string(), "4000"])?;
    pace.wait_for_text("connected", TIMEOUT)?;
    let mut victims = Vec::new();
    for user in [User::Root, User::Alice] {
        victims.push(world.start(user, With::Kernel, &["sleep"])?);
    }
    let pids: Vec<String> = victims.iter().chain([&server]).map(|victim| victim.pid().to_string()).collect();
    let port_text = port.to_string();
    let user = (User::Mallory as u32).to_string();
    let args = ["matrix", &user, &port_text].into_iter().chain(pids.iter().map(String::as_str));
    let args: Vec<&str> = args.collect();
    let said = world.run(User::Root, With::Kernel, &args, Duration::from_secs(90))?.text();
    unheard(&said)?;
    for victim in &pids {
        let state =
            victim.parse().ok().and_then(harness::procfs::process).map_or('-', |process| process.state);
        if !matches!(state, 'S' | 'R') {
            fail!("process {victim} is in state {state}");
        }
    }
    let longest = super::honest::longest(pace)?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    contact(world, User::Alice, With::Kernel, port, "hello")?;
    Ok(format!(
        "{}; longest answer of a connection beside it {longest:.0} us",
        said.replace("\nready", "").trim().replace('\n', ", ")
    ))
}
