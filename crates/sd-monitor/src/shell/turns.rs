//! Who has kept the main thread busy for long waits for his next turn.
//!
//! Some messages cost more than others: a document of all connections, a search in a large slab, a listener whose routes
//! a thousand processes know. Of those a client can send as many as it likes, one after the other, and each first contact of
//! another user would wait for one of them at each of its own messages. So a user is not heard for a while after a
//! message that took long: [`SHARE`] times as long as that took. All users of that kind together can keep the thread
//! busy, as each has a share; one cannot.
//!
//! # Guarantees
//! * A user whose messages are all short never waits, however many there are.
//! * The wait ends by itself, after [`WAIT_MAX`] at most. Nothing that was sent is lost.
//!
//! Root and the monitor's own user are never kept waiting. Time is the thread's own on a processor, so that nobody pays for a busy
//! machine. Tested by `finding-14-fat` of `cargo xtask hostile`.

use super::server::Server;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What takes longer is long.
const LONG: Duration = Duration::from_micros(250);
/// See the module.
const SHARE: u32 = 8;
/// See the module.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Default)]
pub(crate) struct Turns {
    /// Until when users are not heard.
    until: BTreeMap<u32, Instant>,
    /// Connections of theirs that have something to say.
    waiting: Vec<(u32, u64)>,
}

impl Turns {
    /// A message of a user's has taken so long.
    fn note(&mut self, user: u32, took: Duration, now: Instant) {
        if took > LONG {
            self.until.insert(user, now + (took * SHARE).min(WAIT_MAX));
        }
    }

    /// Notes that a user's connection has something to say, if it is not its turn.
    fn keep(&mut self, user: u32, connection: u64, now: Instant) -> bool {
        let waits = self.has_to_wait(user, now);
        if waits {
            self.waiting.push((user, connection));
        }
        waits
    }

    /// Whether it is not a user's turn.
    pub(super) fn has_to_wait(&self, user: u32, now: Instant) -> bool {
        self.until.get(&user).is_some_and(|until| *until > now)
    }

    /// How long until it is.
    pub(super) fn wait_of(&self, user: u32, now: Instant) -> Duration {
        self.until.get(&user).map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// How long to sleep at most before [`Turns::due`].
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let users = self.waiting.iter().map(|(user, _)| self.until.get(user).copied().unwrap_or(now));
        users.min().map(|until| until.saturating_duration_since(now))
    }

    /// Connections whose users' turn it is again.
    fn due(&mut self, now: Instant) -> Vec<u64> {
        self.until.retain(|_, until| *until > now);
        let is_due = |(user, _): &mut (u32, u64)| !self.until.contains_key(user);
        self.waiting.extract_if(.., is_due).map(|(_, connection)| connection).collect()
    }
}

impl Server {
    /// Whether a connection that has something to say has to wait for its user's turn.
    pub(super) fn waits_for_turn(&mut self, id: u64) -> bool {
        let Some(user) = self.pays(id) else { return false };
        let waits = self.turns.keep(user, id, Instant::now());
        if waits {
            self.await_found(id);
        }
        waits
    }

    /// Does something at the expense of the user of a connection.
    pub(super) fn in_turn(&mut self, id: u64, what: impl FnOnce(&mut Server)) {
        let Some(user) = self.pays(id) else { return what(self) };
        let before = busy();
        what(self);
        self.turns.note(user, busy().saturating_sub(before), Instant::now());
    }

    /// Hears those whose turn it is again.
    pub(super) fn take_turns(&mut self) {
        for id in self.turns.due(Instant::now()) {
            if self.watch_again(id) && self.connections.get(&id).is_some_and(|it| it.has_ended) {
                self.hear_elsewhere(id);
            }
        }
    }

    /// The user of a connection, if it is one that others have to be kept safe from.
    pub(super) fn pays(&self, id: u64) -> Option<u32> {
        let connection = self.connections.get(&id)?;
        let user = connection.maker.unwrap_or(connection.uid);
        (!self.core.quotas.is_exempt(user)).then_some(user)
    }
}

/// What the calling thread has used of processors.
pub(super) fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_long_waits() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        let us = Duration::from_micros;
        turns.note(1, LONG, now);
        assert!(!turns.keep(1, 10, now), "that was short");
        turns.note(1, us(1000), now);
        assert!(turns.keep(1, 10, now) && turns.keep(1, 11, now) && !turns.keep(2, 20, now));
        assert_eq!(turns.pause(now), Some(us(8000)));
        assert!(turns.due(now + us(7999)).is_empty());
        assert_eq!(turns.due(now + us(8000)), [10, 11]);
        assert_eq!(turns.pause(now), None);
        turns.note(2, Duration::from_secs(9), now);
        assert!(turns.keep(2, 20, now) && turns.pause(now) == Some(WAIT_MAX), "not for longer");
        assert!(busy() > Duration::ZERO);
    }
}
