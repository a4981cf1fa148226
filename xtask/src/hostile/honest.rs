//! What an attack costs honest users: alice's first contacts, and a connection that she has, in peace and under attack.
//!
//! Times are compared with those of the same machine in peace, seconds before. A look that is too slow is taken again, [`LOOKS`] times,
//! while the attack goes on: who is held up stays so, as long as it lasts. A machine may stand still for a second without any
//! attack, and of a virtual one nothing shows that.

use super::world::{TIMEOUT, User, With, World};
use harness::process::Proc;
use harness::{Result, fail, procfs, report};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// First contacts that are made in a row.
const CONTACTS: usize = 5;
/// Looks, before it is the attack that has held somebody up.
const LOOKS: usize = 4;
/// An attack may make first contacts so many times as long.
const TIMES_MAX: f64 = 10.0;
/// What takes less has not been held up, but has met a busy machine.
const SHORT_US: f64 = 3000.0;
/// An existing connection is looked at for so long, in milliseconds.
const PACE_MS: &str = "1500";
/// An answer on an existing connection that takes so long is one that the attack has held up.
const STALL_US: f64 = 1_000_000.0;

/// And so is a first contact that takes so long.
const CONTACT_US: f64 = 1_000_000.0;

/// Something took long, which may have been anybody's doing.
#[derive(Debug)]
struct Slow(String);

/// An answer that nobody may get, however seldom.
#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Slow {}
impl Error for Wrong {}

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
    let said = world.run(user, with, &args, TIMEOUT)?.text();
    let mut words = said.trim().splitn(3, ' ');
    let (Some(time), Some(path), Some(answer)) = (words.next(), words.next(), words.next()) else {
        fail!("a contact said {said:?}")
    };
    if answer != format!("bob {line}") {
        return Err(Wrong(format!("{user:?} asked bob on port {port} and got {answer:?}")).into());
    }
    let time: f64 = time.parse()?;
    if time > CONTACT_US {
        return Err(Slow(format!("a first contact took {time:.0} us")).into());
    }
    Ok((time, path.to_owned()))
}

fn pace(world: &World, port: u16) -> Result<Proc> {
    let mut pace = world.start(User::Alice, With::Sd, &["pace", &port.to_string(), PACE_MS])?;
    pace.wait_for_text("connected", TIMEOUT)?;
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
    patiently(|| contact(world, User::Alice, With::Sd, port, "first"))?;
    let peace = patiently(|| look(world, port))?;
    // The connection was there before the attack.
    let pace = pace(world, port)?;
    let attack = attack()?;
    let mut kept = Some(pace);
    let war = patiently(|| {
        let war = match kept.take() {
            Some(pace) => look_beside(world, port, pace)?,
            None => look(world, port)?,
        };
        war.compare(&peace).map(|()| war)
    });
    drop(attack);
    let war = war.map_err(|error| format!("under attack: {error}"))?;
    Ok(format!(
        "first contact {:.0} us in peace, {:.0} under attack ({:.1}x); longest answer {:.0}, {:.0} us",
        peace.contact,
        war.contact,
        war.contact / peace.contact.max(1.0),
        peace.longest,
        war.longest
    ))
}

/// See the module.
pub(super) fn patiently<T>(mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let mut looks = 1;
    loop {
        match look() {
            Err(error)
                if looks < LOOKS && (error.is::<Slow>() || procfs::is_busy() && !error.is::<Wrong>()) =>
            {
                looks += 1;
                let busy = if procfs::is_busy() { ", on a busy machine" } else { "" };
                println!("     once more{busy}: {error}");
            }
            done => return done,
        }
    }
}

/// In microseconds: the median time of first contacts, and the longest of an answer meanwhile.
struct Look {
    contact: f64,
    longest: f64,
}

fn look(world: &World, port: u16) -> Result<Look> {
    look_beside(world, port, pace(world, port)?)
}

fn look_beside(world: &World, port: u16, pace: Proc) -> Result<Look> {
    let contact = report::median(&contacts(world, port)?);
    let longest = longest(pace).map_err(|error| format!("a connection: {error}"))?;
    Ok(Look { contact, longest })
}

impl Look {
    fn compare(&self, peace: &Look) -> Result<()> {
        if self.longest > STALL_US {
            let (longest, before) = (self.longest, peace.longest);
            return Err(
                Slow(format!("an answer took {longest:.0} us, in peace {before:.0} us at most")).into()
            );
        }
        if self.contact > (TIMES_MAX * peace.contact).max(SHORT_US) {
            let (contact, before) = (self.contact, peace.contact);
            return Err(Slow(format!(
                "a first contact took {before:.0} us in peace, and {contact:.0} us now"
            ))
            .into());
        }
        Ok(())
    }
}
