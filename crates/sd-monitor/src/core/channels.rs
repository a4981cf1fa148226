//! Which channels exist, and which families are on their sides.
//!
//! A family names a channel by an id. For a channel made here both sides use the same id. After a
//! restart the families tell their ids, and nobody need believe that they are unique.

use super::ClientId;
use sd_shm::channel::{ADOPTERS, Side};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The registry's own name for a channel, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelKey(pub(crate) u64);

/// Announced ids above it are not believed, so that ids never run out.
const ID_ANNOUNCED_MAX: u64 = 1 << 62;

/// A family that was announced cannot have that channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Implausible;

#[derive(Clone, Debug, Default)]
struct Channel {
    /// Families on side A and on side B, with their id for it. Several when a channel was inherited.
    sides: [Vec<(ClientId, u64)>; 2],
    /// The processes that it was made for; none when an earlier monitor made it.
    pair: Option<(ClientId, ClientId)>,
    /// Who has adopted connections: number 1 is the first. They are on side B too, while they live.
    adopters: Vec<Option<ClientId>>,
    /// Who was given connections by others on the same side.
    joined: BTreeSet<ClientId>,
    /// The user whose listening process it was made for: nobody else's is offered it.
    user: Option<u32>,
    /// Those who have it were told that some of them are of different users.
    strange: bool,
    /// It joins processes of two network namespaces.
    foreign: bool,
}

/// All channels.
pub(crate) struct Channels {
    channels: BTreeMap<ChannelKey, Channel>,
    by_name: HashMap<(ClientId, u64), ChannelKey>,
    by_family: HashMap<ClientId, BTreeSet<ChannelKey>>,
    newest: HashMap<(ClientId, ClientId), ChannelKey>,
    next_id: u64,
}

impl Channels {
    /// No channels; ids begin at `first_id`, which should differ from run to run.
    pub(crate) fn new(first_id: u64) -> Channels {
        Channels {
            channels: BTreeMap::new(),
            by_name: HashMap::new(),
            by_family: HashMap::new(),
            newest: HashMap::new(),
            next_id: first_id.clamp(1, ID_ANNOUNCED_MAX),
        }
    }

    /// The id that the next channel will get.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Adds a channel between two registered processes, which may be one and the same. Its id and key.
    pub(crate) fn create(&mut self, a: ClientId, b: ClientId) -> (u64, ChannelKey) {
        let key = self.new_key();
        let sides = [vec![(a, key.0)], vec![(b, key.0)]];
        self.channels.insert(key, Channel { sides, pair: Some((a, b)), ..Channel::default() });
        for client in [a, b] {
            self.by_name.insert((client, key.0), key);
            self.by_family.entry(client).or_default().insert(key);
        }
        self.newest.insert((a, b), key);
        (key.0, key)
    }

    /// The user of the process on side B that a channel is for, unless that is known.
    pub(crate) fn is_for(&mut self, key: ChannelKey, user: u32) {
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.user.get_or_insert(user);
        }
    }

    /// See [`Channels::is_for`].
    pub(crate) fn user(&self, key: ChannelKey) -> Option<u32> {
        self.channels.get(&key)?.user
    }

    /// Whether it joins processes of different users, as it came to be said; see `shell/strangers.rs`.
    pub(crate) fn is_strange(&self, key: ChannelKey) -> bool {
        self.channels.get(&key).is_some_and(|channel| channel.strange)
    }

    /// Whether it joins two network namespaces; see `shell/foreign.rs`.
    pub(crate) fn is_foreign(&self, key: ChannelKey) -> bool {
        self.channels.get(&key).is_some_and(|channel| channel.foreign)
    }

    /// From now on it does, also when one of its sides is gone.
    pub(crate) fn becomes_foreign(&mut self, key: ChannelKey) {
        self.channels.get_mut(&key).into_iter().for_each(|channel| channel.foreign = true);
    }

    /// Whether it was made here: all who may use it are known then.
    pub(crate) fn is_of_ours(&self, key: ChannelKey) -> bool {
        self.channels.get(&key).is_some_and(|channel| channel.pair.is_some())
    }

    /// From now on it does, whoever they become: whether that is new.
    pub(crate) fn becomes_strange(&mut self, key: ChannelKey) -> bool {
        self.channels.get_mut(&key).is_some_and(|channel| !std::mem::replace(&mut channel.strange, true))
    }

    /// A process has become another user's; what is its own becomes that user's too.
    pub(crate) fn user_changed(&mut self, client: ClientId, user: u32) {
        for key in self.of_family(client) {
            if self.founder(key) == Some(client)
                && let Some(channel) = self.channels.get_mut(&key)
            {
                channel.user = Some(user);
            }
        }
    }

    /// Adds a channel that an earlier monitor made, without sides as yet.
    pub(crate) fn recover(&mut self) -> ChannelKey {
        let key = self.new_key();
        self.channels.insert(key, Channel::default());
        key
    }

    /// A family says that it is on a side of a recovered channel, and calls it `id`; on side B perhaps as
    /// an adopter.
    pub(crate) fn announce(
        &mut self,
        key: ChannelKey,
        (side, adopter): (Side, u32),
        client: ClientId,
        id: u64,
    ) -> Result<(), Implausible> {
        let known = self.by_name.get(&(client, id));
        let channel = self.channels.get_mut(&key).filter(|c| c.pair.is_none()).ok_or(Implausible)?;
        if known.is_some_and(|known| *known != key) || id > ID_ANNOUNCED_MAX {
            return Err(Implausible);
        }
        let holders = &mut channel.sides[side as usize];
        if holders.iter().any(|(holder, _)| *holder == client) {
            return Err(Implausible);
        }
        if adopter != 0 {
            let index = adopter as usize - 1;
            let taken = channel.adopters.get(index).is_some_and(Option::is_some);
            if side == Side::A || index >= ADOPTERS || taken {
                return Err(Implausible);
            }
            channel.adopters.resize(channel.adopters.len().max(index + 1), None);
            channel.adopters[index] = Some(client);
        }
        holders.push((client, id));
        self.by_name.insert((client, id), key);
        self.by_family.entry(client).or_default().insert(key);
        self.next_id = self.next_id.max(id + 1);
        Ok(())
    }

    /// A family holds a side of a channel of which it has the segment, as another on that side gave it a connection.
    pub(crate) fn join(
        &mut self,
        key: ChannelKey,
        side: Side,
        client: ClientId,
        id: u64,
    ) -> Result<(), Implausible> {
        let known = self.by_name.get(&(client, id));
        let channel = self.channels.get_mut(&key).ok_or(Implausible)?;
        if known.is_some_and(|known| *known != key) || id > ID_ANNOUNCED_MAX {
            return Err(Implausible);
        }
        let holders = &mut channel.sides[side as usize];
        if !holders.iter().any(|(holder, _)| *holder == client) {
            holders.push((client, id));
            channel.joined.insert(client);
        }
        self.by_name.insert((client, id), key);
        self.by_family.entry(client).or_default().insert(key);
        Ok(())
    }

    fn new_key(&mut self) -> ChannelKey {
        let key = ChannelKey(self.next_id);
        self.next_id += 1;
        key
    }

    /// The newest channel made for a connecting and a listening process.
    pub(crate) fn newest(&self, a: ClientId, b: ClientId) -> Option<ChannelKey> {
        self.newest.get(&(a, b)).copied()
    }

    /// The channel that a family calls `id`.
    pub(crate) fn named(&self, client: ClientId, id: u64) -> Option<ChannelKey> {
        self.by_name.get(&(client, id)).copied()
    }

    /// Puts a family on side B as an adopter: its number. `None` when there are too many, or when it has
    /// another channel of that name.
    pub(crate) fn adopt(&mut self, key: ChannelKey, client: ClientId) -> Option<u32> {
        let named = self.by_name.get(&(client, key.0)).copied();
        let channel = self.channels.get_mut(&key)?;
        if named.is_some_and(|named| named != key) {
            return None;
        }
        let known = channel.adopters.iter().position(|a| *a == Some(client));
        let index = match known {
            Some(index) => index,
            None if channel.adopters.len() < ADOPTERS => {
                channel.adopters.push(Some(client));
                channel.adopters.len() - 1
            }
            None => return None,
        };
        let holders = &mut channel.sides[Side::B as usize];
        if !holders.iter().any(|(holder, _)| *holder == client) {
            holders.push((client, key.0));
        }
        self.by_name.insert((client, key.0), key);
        self.by_family.entry(client).or_default().insert(key);
        Some(index as u32 + 1)
    }

    /// The adopter of that number, while it is on side B.
    pub(crate) fn adopter(&self, key: ChannelKey, number: u32) -> Option<ClientId> {
        let channel = self.channels.get(&key)?;
        let client = (*channel.adopters.get((number as usize).checked_sub(1)?)?)?;
        channel.sides[Side::B as usize].iter().any(|(holder, _)| *holder == client).then_some(client)
    }

    /// The family on side B that neither adopted nor joined: the one that new connections and their events go to.
    pub(crate) fn founder(&self, key: ChannelKey) -> Option<ClientId> {
        self.maker(key, Side::B)
    }

    /// The family on a side for which the channel was made.
    pub(crate) fn maker(&self, key: ChannelKey, side: Side) -> Option<ClientId> {
        let channel = self.channels.get(&key)?;
        let mut holders = channel.sides[side as usize].iter().map(|(holder, _)| *holder);
        holders.find(|holder| !channel.adopters.contains(&Some(*holder)) && !channel.joined.contains(holder))
    }

    /// The families on a side.
    pub(crate) fn side(&self, key: ChannelKey, side: Side) -> &[(ClientId, u64)] {
        self.channels.get(&key).map_or(&[], |c| &c.sides[side as usize])
    }

    /// Channels of a family.
    pub(crate) fn of_family(&self, client: ClientId) -> Vec<ChannelKey> {
        self.by_family.get(&client).map(|keys| keys.iter().copied().collect()).unwrap_or_default()
    }

    /// How many a family has, on either side.
    pub(crate) fn count_of(&self, client: ClientId) -> usize {
        self.by_family.get(&client).map_or(0, BTreeSet::len)
    }

    /// Takes a family off a channel; the sides that have nobody left by that.
    pub(crate) fn leave(&mut self, key: ChannelKey, client: ClientId) -> Vec<Side> {
        let Some(channel) = self.channels.get_mut(&key) else { return Vec::new() };
        let mut left = Vec::new();
        for side in [Side::A, Side::B] {
            let holders = &mut channel.sides[side as usize];
            let before = holders.len();
            for (_, id) in holders.extract_if(.., |(holder, _)| *holder == client) {
                self.by_name.remove(&(client, id));
            }
            if holders.is_empty() && before > 0 {
                left.push(side);
            }
        }
        self.forget_family_key(client, key);
        left
    }

    /// Forgets a channel.
    pub(crate) fn remove(&mut self, key: ChannelKey) {
        let Some(channel) = self.channels.remove(&key) else { return };
        for (client, id) in channel.sides.iter().flatten() {
            self.by_name.remove(&(*client, *id));
            self.forget_family_key(*client, key);
        }
        if let Some(pair) = channel.pair
            && self.newest.get(&pair) == Some(&key)
        {
            self.newest.remove(&pair);
        }
    }

    fn forget_family_key(&mut self, client: ClientId, key: ChannelKey) {
        if let Some(keys) = self.by_family.get_mut(&client) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_family.remove(&client);
            }
        }
    }

    /// Number of channels.
    pub(crate) fn len(&self) -> usize {
        self.channels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    #[test]
    fn the_newest_channel_is_found() {
        let mut all = Channels::new(100);
        assert_eq!(all.newest(A, B), None);
        let (id, first) = all.create(A, B);
        assert_eq!(id, 100);
        let (_, second) = all.create(A, B);
        assert_eq!(all.newest(A, B), Some(second));
        assert_eq!(all.newest(B, A), None);
        assert_eq!(all.named(B, id), Some(first));
        assert_eq!(all.named(C, id), None);
        assert_eq!(all.of_family(A), [first, second]);
        all.remove(second);
        assert_eq!(all.newest(A, B), None);
        assert_eq!(all.of_family(A), [first]);
    }

    #[test]
    fn a_family_leaves() {
        let mut all = Channels::new(1);
        let (_, key) = all.create(A, B);
        assert_eq!(all.leave(key, C), []);
        assert_eq!(all.leave(key, B), [Side::B]);
        assert_eq!(all.side(key, Side::A), [(A, 1)]);
        assert_eq!(all.side(key, Side::B), []);
        assert_eq!(all.leave(key, A), [Side::A]);
        all.remove(key);
        assert_eq!((all.len(), all.named(A, 1)), (0, None));
    }

    #[test]
    fn a_process_may_connect_to_itself() {
        let mut all = Channels::new(1);
        let (_, key) = all.create(A, A);
        assert_eq!(all.leave(key, A), [Side::A, Side::B]);
        all.remove(key);
        assert_eq!(all.of_family(A), []);
    }

    #[test]
    fn recovered_channels_are_joined_by_several_families() {
        let mut all = Channels::new(1);
        let key = all.recover();
        all.announce(key, (Side::A, 0), A, 55).unwrap();
        all.announce(key, (Side::B, 0), B, 55).unwrap();
        all.announce(key, (Side::B, 0), C, 55).unwrap();
        assert_eq!(all.newest(A, B), None, "not used for new connections");
        assert_eq!(all.next_id(), 56);
        assert_eq!(all.leave(key, B), []);
        assert_eq!(all.leave(key, C), [Side::B]);
        assert_eq!(all.named(A, 55), Some(key));
    }

    #[test]
    fn lies_are_refused() {
        let mut all = Channels::new(1);
        let (_, made) = all.create(A, B);
        assert_eq!(all.announce(made, (Side::A, 0), C, 9), Err(Implausible));
        let (one, two) = (all.recover(), all.recover());
        all.announce(one, (Side::A, 0), C, 9).unwrap();
        assert_eq!(all.announce(one, (Side::A, 0), C, 9), Err(Implausible));
        assert_eq!(all.announce(two, (Side::A, 0), C, 9), Err(Implausible));
        assert_eq!(all.announce(two, (Side::A, 0), C, u64::MAX), Err(Implausible));
        assert_eq!(all.announce(ChannelKey(77), (Side::A, 0), C, 10), Err(Implausible));
        all.announce(one, (Side::B, 0), C, 9).unwrap();
    }

    #[test]
    fn adopters_are_numbered_and_outlive_the_founder() {
        let mut all = Channels::new(1);
        let (id, key) = all.create(A, B);
        assert_eq!((all.adopt(key, C), all.adopt(key, C)), (Some(1), Some(1)));
        assert_eq!((all.founder(key), all.adopter(key, 1), all.adopter(key, 2)), (Some(B), Some(C), None));
        assert_eq!(all.named(C, id), Some(key));
        assert_eq!(all.leave(key, B), [], "the adopter is on its side");
        assert_eq!((all.founder(key), all.adopter(key, 0)), (None, None));
        assert_eq!(all.leave(key, C), [Side::B]);
        assert_eq!(all.adopter(key, 1), None);
        // No number is given twice: A may remember who had it.
        let rest: Vec<_> = (4..40).map(|n| all.adopt(key, ClientId(n))).collect();
        assert_eq!(rest[0], Some(2));
        assert_eq!(rest.iter().flatten().count(), ADOPTERS - 1);
    }

    #[test]
    fn a_channel_is_for_one_user() {
        let mut all = Channels::new(1);
        let (_, key) = all.create(A, B);
        assert_eq!(all.user(key), None);
        all.is_for(key, 5);
        all.is_for(key, 6);
        assert_eq!(all.user(key), Some(5), "the first word counts");
        all.user_changed(A, 7);
        assert_eq!(all.user(key), Some(5));
        all.user_changed(B, 7);
        assert_eq!(all.user(key), Some(7));
    }

    #[test]
    fn adopters_are_recovered() {
        let mut all = Channels::new(1);
        let key = all.recover();
        all.announce(key, (Side::B, 3), C, 9).unwrap();
        assert_eq!(all.announce(key, (Side::B, 3), B, 9), Err(Implausible));
        assert_eq!(all.announce(key, (Side::A, 1), A, 9), Err(Implausible));
        assert_eq!(all.announce(key, (Side::B, u32::MAX), A, 9), Err(Implausible));
        all.announce(key, (Side::B, 0), B, 9).unwrap();
        assert_eq!((all.founder(key), all.adopter(key, 3)), (Some(B), Some(C)));
    }
}
