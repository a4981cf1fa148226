//! What an attack costs honest users: alice's first contacts, and a connection that she has, in peace and under attack.

use super::world::{PATIENCE, User, With, World};
use harness::process::Proc;
use harness::{Result, fail, report};
use std::time::Duration;

/// First contacts that are made in a row.
const CONTACTS: usize = 5;
/// An attack may make first contacts so many times as long.
const TIMES_MAX: f64 = 10.0;
/// What takes less has not been held up, but has met a busy machine.
const SHORT_US: f64 = 3000.0;
/// An existing connection is looked at for so long, in milliseconds.
const PACE_MS: &str = "1500";
/// An answer on an existing connection that takes so long is one that the attack has held up, however busy the machine is.
const STALL_US: f64 = 1_000_000.0;

/// And so is a first contact that takes so long.
const CONTACT_US: f64 = 1_000_000.0;

/// The times of first contacts in microseconds, each by a process of its own; the answers must be bob's.
fn contacts(world: &World, port: u16) -> Result<Vec<f64>> {
    (0..CONTACTS).map(|_| contact(world, User::Alice, With::Sd, port, "hello")).collect()
}

/// One first contact, whose answer must be bob's.
pub(super) fn contact(world: &World, user: User, with: With, port: u16, line: &str) -> Result<f64> {
    contact_by(world, user, with, port, line).map(|(time, _)| time)
}

/// The same, and the path that it took.
pub(super) fn contact_by(
    world: &World,
    user: User,
    with: With,
    port: u16,
    line: &str,
) -> Result<(f64, String)> {
    let args = ["contact", &port.to_string(), line, "4000"];
    let said = world.run(user, with, &args, PATIENCE)?.text();
    let mut words = said.trim().splitn(3, ' ');
    let (Some(time), Some(path), Some(answer)) = (words.next(), words.next(), words.next()) else {
        fail!("a contact said {said:?}")
    };
    if answer != format!("bob {line}") {
        fail!("{user:?} asked bob on port {port} and got {answer:?}");
    }
    let time: f64 = time.parse()?;
    if time > CONTACT_US {
        fail!("a first contact took {time:.0} us");
    }
    Ok((time, path.to_owned()))
}

fn pace(world: &World, port: u16) -> Result<Proc> {
    let mut pace = world.start(User::Alice, With::Sd, &["pace", &port.to_string(), PACE_MS])?;
    pace.wait_for_text("connected", PATIENCE)?;
    Ok(pace)
}

/// The longest time of an answer.
pub(super) fn longest(pace: Proc) -> Result<f64> {
    let said = pace.wait(Duration::from_secs(20))?.ok()?.text();
    Ok(said.trim().rsplit(' ').next().unwrap_or_default().parse()?)
}

/// Runs an attack while alice has a connection to bob's server and makes new ones, and says what it cost her. Contacts
/// that take seconds are a failure, as is a connection that stands still. The attack lasts as long as what it returns.
pub(super) fn watched<T>(world: &World, port: u16, attack: impl FnOnce() -> Result<T>) -> Result<String> {
    contact(world, User::Alice, With::Sd, port, "first")?;
    let peace_pace = pace(world, port)?;
    let peace = contacts(world, port)?;
    let peace_longest = longest(peace_pace)?;
    let war_pace = pace(world, port)?;
    let attack = attack()?;
    let war = contacts(world, port).map_err(|error| format!("under attack: {error}"))?;
    let war_longest = longest(war_pace).map_err(|error| format!("a connection under attack: {error}"))?;
    drop(attack);
    if war_longest > STALL_US {
        fail!("under attack an answer took {war_longest:.0} us, in peace {peace_longest:.0} us at most");
    }
    let (peace, war) = (report::median(&peace), report::median(&war));
    if war > (TIMES_MAX * peace).max(SHORT_US) {
        fail!("a first contact took {peace:.0} us in peace, and {war:.0} us under attack");
    }
    Ok(format!(
        "first contact {peace:.0} us in peace, {war:.0} under attack ({:.1}x); longest answer {peace_longest:.0}, {war_longest:.0} us",
        war / peace.max(1.0)
    ))
}
