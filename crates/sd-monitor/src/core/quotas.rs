//! What each user has of the monitor's descriptors, and who has had enough.
//!
//! | who | may have |
//! |---|---|
//! | root, and the user that the monitor runs as | whatever there is |
//! | any other user | a quarter of the monitor's descriptors |
//! | all users together, when one of those others wants more | all but a reserve |
//!
//! The reserve is an eighth of the descriptors, and enough for what one message can bring. So those that the kernel puts into
//! the table with a message always find room there, and another user can always be refused in words.
//!
//! What is charged is named by what it is for: so it is given back once, whoever ends it, and whatever was charged for it.

use super::ClientId;
use super::channels::ChannelKey;
use super::members::ProcessId;
use std::collections::HashMap;

/// What descriptors are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holding {
    /// A control connection, and the pidfd of the process at its other end.
    Connection(u64),
    /// The pidfd of a child whose connection was refused.
    Child(ProcessId),
    /// Slab, public page, eventfd and witness; what is held for its network namespace.
    Family(ClientId),
    /// A single thread's eventfd.
    ThreadWaker(ClientId, u32),
    /// A segment, and perhaps the pidfd of who should have announced it.
    Channel(ChannelKey),
}

/// Descriptors that are on their way out: a close takes as long as who sent them likes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Closing {
    pub(crate) of_user: u64,
    pub(crate) of_all: u64,
}

/// The user has enough, or there is nothing left but the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded;

/// As many as come with one message, and a few for the monitor itself.
const MESSAGE: u64 = 256;
const OWN: u64 = 32;

/// See the module.
pub(crate) struct Quotas {
    own_user: u32,
    limit: u64,
    charged: HashMap<Holding, (u32, u64)>,
    of: HashMap<u32, u64>,
    total: u64,
}

impl Quotas {
    /// For a monitor that runs as this user.
    pub(crate) fn new(own_user: u32) -> Quotas {
        Quotas { own_user, limit: u64::MAX, charged: HashMap::new(), of: HashMap::new(), total: 0 }
    }

    /// So many descriptors the monitor can have.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether this user may have what there is.
    pub(crate) fn is_exempt(&self, user: u32) -> bool {
        user == 0 || user == self.own_user
    }

    /// How many any other user may have.
    pub(crate) fn share(&self) -> u64 {
        self.limit / 4
    }

    fn reserve(&self) -> u64 {
        (self.limit / 8).max(MESSAGE + OWN).min(self.limit / 2)
    }

    /// Charges a user for so many descriptors.
    pub(crate) fn take(
        &mut self,
        what: Holding,
        (user, count): (u32, u64),
        closing: Closing,
    ) -> Result<(), Exceeded> {
        // Who forks shall hear of the end of each child as long as possible.
        let share = match what {
            Holding::Child(_) => self.share() + self.share() / 4,
            _ => self.share(),
        };
        let wanted = self.of(user).saturating_add(count).saturating_add(closing.of_user);
        let total = self.total.saturating_add(count).saturating_add(closing.of_all);
        if !self.is_exempt(user) && (wanted > share || total > self.limit - self.reserve()) {
            return Err(Exceeded);
        }
        self.give_back(what);
        self.charge(what, user, count);
        Ok(())
    }

    fn charge(&mut self, what: Holding, user: u32, count: u64) {
        self.charged.insert(what, (user, count));
        *self.of.entry(user).or_default() += count;
        self.total += count;
    }

    /// It is held no longer, if it was.
    pub(crate) fn give_back(&mut self, what: Holding) {
        let Some((user, count)) = self.charged.remove(&what) else { return };
        self.total -= count;
        if let Some(of_user) = self.of.get_mut(&user) {
            *of_user -= count;
            if *of_user == 0 {
                self.of.remove(&user);
            }
        }
    }

    /// It is another user's now.
    pub(crate) fn becomes(&mut self, what: Holding, user: u32) {
        let Some((_, count)) = self.charged.get(&what).copied() else { return };
        self.give_back(what);
        self.charge(what, user, count);
    }

    /// Who is charged for it.
    pub(crate) fn user_of(&self, what: Holding) -> Option<u32> {
        self.charged.get(&what).map(|(user, _)| *user)
    }

    /// What a user is charged for.
    pub(crate) fn of(&self, user: u32) -> u64 {
        self.of.get(&user).copied().unwrap_or_default()
    }

    /// What each user is charged for.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, u64)> {
        self.of.iter().map(|(user, count)| (*user, *count))
    }

    /// Whether there is room for all descriptors that one message can bring.
    pub(crate) fn has_room(&self, closing: Closing) -> bool {
        self.total.saturating_add(closing.of_all).saturating_add(MESSAGE) <= self.limit || self.is_tiny()
    }

    /// A table in which there never is: the kernel closes what has no room.
    fn is_tiny(&self) -> bool {
        self.limit < 2 * (MESSAGE + OWN)
    }

    /// Who has most, among those with a bound.
    pub(crate) fn heaviest(&self) -> Option<u32> {
        let bounded = self.of.iter().filter(|(user, _)| !self.is_exempt(**user));
        bounded.max_by_key(|(_, count)| **count).map(|(user, _)| *user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Closing = Closing { of_user: 0, of_all: 0 };

    fn quotas() -> Quotas {
        let mut quotas = Quotas::new(7);
        quotas.set_limit(4096);
        quotas
    }

    fn connections(quotas: &mut Quotas, from: u64, user: u32) -> u64 {
        (from..).take_while(|id| quotas.take(Holding::Connection(*id), (user, 2), NONE).is_ok()).count()
            as u64
    }

    #[test]
    fn a_user_has_a_quarter_at_most() {
        let mut all = quotas();
        assert_eq!(connections(&mut all, 0, 5), 512);
        assert_eq!((all.of(5), all.heaviest()), (1024, Some(5)));
        assert_eq!(connections(&mut all, 10_000, 6), 512);
        all.give_back(Holding::Connection(3));
        all.give_back(Holding::Connection(3));
        assert_eq!(connections(&mut all, 20_000, 5), 1);
        assert_eq!(all.take(Holding::Child(ProcessId(1)), (5, 1), NONE), Ok(()), "children have some more");
        let closing = Closing { of_user: 256, of_all: 256 };
        assert_eq!(all.take(Holding::Child(ProcessId(2)), (5, 1), closing), Err(Exceeded));
    }

    #[test]
    fn root_and_the_own_user_have_the_rest() {
        let mut all = quotas();
        let others: u64 = (100..110).map(|user| connections(&mut all, u64::from(user) << 32, user)).sum();
        assert_eq!(others, (4096 - 512) / 2, "a reserve is left");
        assert!(all.has_room(NONE));
        for user in [0, 7] {
            let of_user = (0..200).map(|id| Holding::Connection(u64::from(user) << 40 | 1 << 39 | id));
            assert!(of_user.into_iter().all(|what| all.take(what, (user, 1), NONE).is_ok()));
        }
        assert!(!all.has_room(NONE));
    }

    #[test]
    fn what_becomes_anothers_is_charged_to_him() {
        let mut all = quotas();
        all.take(Holding::Family(ClientId(1)), (5, 3), NONE).unwrap();
        all.becomes(Holding::Family(ClientId(1)), 6);
        all.becomes(Holding::Family(ClientId(2)), 6);
        assert_eq!((all.of(5), all.of(6)), (0, 3));
        all.take(Holding::Family(ClientId(1)), (5, 6), NONE).unwrap();
        all.give_back(Holding::Family(ClientId(1)));
        assert_eq!((all.total, all.of.len(), all.charged.len()), (0, 0, 0));
    }

    #[test]
    fn small_tables() {
        let mut all = quotas();
        for limit in [0, 1, 40, 300, 577] {
            all.set_limit(limit);
            assert!(all.reserve() <= limit / 2 && all.has_room(NONE));
            assert_eq!(all.take(Holding::Connection(limit), (5, limit / 4 + 1), NONE), Err(Exceeded));
        }
    }
}
