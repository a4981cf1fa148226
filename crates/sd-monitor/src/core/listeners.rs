//! Who listens where: accelerated listeners by network namespace, port and address.

use super::ClientId;
use sd_proto::Ip;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One process's accelerated listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) client: ClientId,
    /// The process's user.
    pub(crate) user: u32,
    /// Of the kernel's socket: its cookie, by which it is known as long as it exists, and its user.
    pub(crate) cookie: u64,
    /// See `cookie`.
    pub(crate) owner: u32,
    /// Index and generation in the client's public page.
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// Cookie of the network namespace.
    pub(crate) netns: u64,
    pub(crate) ip: Ip,
    pub(crate) port: u16,
    /// IPV6_V6ONLY, of importance for `::` only.
    pub(crate) v6only: bool,
    pub(crate) backlog: u32,
    /// Connections may be given to it now.
    pub(crate) accepting: bool,
}

impl Listener {
    fn rank(&self, ip: Ip) -> Option<u8> {
        self.ip.rank_for(ip, self.v6only)
    }
}

/// The registry. Listeners of one port stay in the order of their registration.
#[derive(Default)]
pub(crate) struct Listeners {
    by_port: HashMap<(u64, u16), Vec<Listener>>,
    place: BTreeMap<(ClientId, u32), (u64, u16)>,
}

/// So many listeners a user has, of those that share the monitor; others of its are the kernel's.
const OF_USER: usize = 4096;

impl Listeners {
    /// Whether a user's process may have a listener of that index.
    pub(crate) fn has_room(&self, user: u32, (client, index): (ClientId, u32)) -> bool {
        let of_user = || self.by_port.values().flatten().filter(|listener| listener.user == user).count();
        self.place.len() < OF_USER || self.place.contains_key(&(client, index)) || of_user() < OF_USER
    }

    /// Registers a listener in place of the one with the same client and index. False when nothing
    /// changed.
    pub(crate) fn insert(&mut self, new: Listener) -> bool {
        let place = (new.netns, new.port);
        if self.place.get(&(new.client, new.index)).is_some_and(|old| *old != place) {
            self.remove(new.client, new.index);
        }
        self.place.insert((new.client, new.index), place);
        let listeners = self.by_port.entry(place).or_default();
        match listeners.iter_mut().find(|l| l.client == new.client && l.index == new.index) {
            Some(old) => std::mem::replace(old, new) != new,
            None => {
                listeners.push(new);
                true
            }
        }
    }

    /// Notes whether a listener takes connections. False when nothing changed.
    pub(crate) fn set_accepting(&mut self, client: ClientId, index: u32, accepting: bool) -> bool {
        let Some(place) = self.place.get(&(client, index)) else { return false };
        let listeners = self.by_port.get_mut(place).into_iter().flatten();
        listeners
            .filter(|l| l.client == client && l.index == index)
            .any(|l| std::mem::replace(&mut l.accepting, accepting) != accepting)
    }

    /// Removes a listener; false when there is none.
    pub(crate) fn remove(&mut self, client: ClientId, index: u32) -> bool {
        let Some(place) = self.place.remove(&(client, index)) else { return false };
        if let Some(listeners) = self.by_port.get_mut(&place) {
            listeners.retain(|l| l.client != client || l.index != index);
            if listeners.is_empty() {
                self.by_port.remove(&place);
            }
        }
        true
    }

    /// Removes every listener of a client; false when there are none.
    pub(crate) fn remove_client(&mut self, client: ClientId) -> bool {
        let of_client = self.place.range(all_of(client));
        let indices: Vec<u32> = of_client.map(|((_, index), _)| *index).collect();
        indices.iter().for_each(|&index| _ = self.remove(client, index));
        !indices.is_empty()
    }

    /// Whether somebody listens on a port, at any address.
    pub(crate) fn has_port(&self, netns: u64, port: u16) -> bool {
        self.by_port.contains_key(&(netns, port))
    }

    /// The listeners that a connection to this address may be given to, all of the best rank. As in Linux, sockets that
    /// share an address are of one user.
    pub(crate) fn candidates(&self, netns: u64, ip: Ip, port: u16) -> Vec<&Listener> {
        let listeners = self.of_port(netns, port);
        let best = listeners.iter().filter_map(|l| l.rank(ip)).min();
        let of_best = listeners.iter().filter(|l| best.is_some() && l.rank(ip) == best);
        let owner = of_best.clone().map(|l| l.owner).next();
        of_best.filter(|l| Some(l.owner) == owner).collect()
    }

    /// All of a port.
    pub(crate) fn of_port(&self, netns: u64, port: u16) -> &[Listener] {
        self.by_port.get(&(netns, port)).map_or(&[][..], Vec::as_slice)
    }

    /// A process has become another user's. False when nothing changed.
    pub(crate) fn user_changed(&mut self, client: ClientId, user: u32) -> bool {
        let own = self.by_port.values_mut().flatten().filter(|l| l.client == client);
        own.fold(false, |changed, l| changed | (std::mem::replace(&mut l.user, user) != user))
    }

    /// A client's listener.
    pub(crate) fn get(&self, client: ClientId, index: u32) -> Option<&Listener> {
        let of_port = self.by_port.get(self.place.get(&(client, index))?)?;
        of_port.iter().find(|listener| (listener.client, listener.index) == (client, index))
    }

    /// All of a client's, in the order of their ports, and of their registration.
    pub(crate) fn of_client(&self, client: ClientId) -> impl Iterator<Item = &Listener> {
        let places: BTreeSet<&(u64, u16)> =
            self.place.range(all_of(client)).map(|(_, place)| place).collect();
        let of_ports = places.into_iter().filter_map(|place| self.by_port.get(place)).flatten();
        of_ports.filter(move |listener| listener.client == client)
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Listener> {
        self.by_port.values().flatten()
    }
}

fn all_of(client: ClientId) -> std::ops::RangeInclusive<(ClientId, u32)> {
    (client, 0)..=(client, u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const ANY4: Ip = Ip::v4([0; 4]);
    pub(crate) const ANY6: Ip = Ip([0; 16]);
    pub(crate) const LOCAL4: Ip = Ip::v4([127, 0, 0, 1]);
    const LOCAL6: Ip = Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    pub(crate) fn listener(client: u64, index: u32, ip: Ip) -> Listener {
        Listener {
            client: ClientId(client),
            user: 1000,
            cookie: client,
            owner: 1000,
            index,
            generation: 1,
            netns: 7,
            ip,
            port: 80,
            v6only: false,
            backlog: 128,
            accepting: true,
        }
    }

    fn found(all: &Listeners, ip: Ip) -> Vec<u64> {
        all.candidates(7, ip, 80).iter().map(|l| l.client.0).collect()
    }

    #[test]
    fn a_user_has_so_many() {
        let mut all = Listeners::default();
        for index in 0..OF_USER as u32 {
            assert!(all.has_room(1000, (ClientId(1), index)));
            all.insert(Listener { port: 1 + index as u16, ..listener(1, index, LOCAL4) });
        }
        assert!(!all.has_room(1000, (ClientId(2), 0)) && all.has_room(1001, (ClientId(2), 0)));
        assert!(all.has_room(1000, (ClientId(1), 7)), "one that is there changes");
        all.remove(ClientId(1), 9);
        assert!(all.has_room(1000, (ClientId(2), 0)));
    }

    #[test]
    fn specific_beats_wildcard() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY4));
        all.insert(listener(2, 0, LOCAL4));
        assert_eq!(found(&all, LOCAL4), [2]);
        assert_eq!(found(&all, Ip::v4([10, 0, 0, 1])), [1]);
        assert!(found(&all, LOCAL6).is_empty());
    }

    #[test]
    fn dual_stack() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY6));
        assert_eq!(found(&all, LOCAL4), [1]);
        assert_eq!(found(&all, LOCAL6), [1]);
        all.insert(listener(2, 0, ANY4));
        assert_eq!(found(&all, LOCAL4), [2], "the wildcard of the same family wins");
        all.insert(Listener { v6only: true, ..listener(1, 0, ANY6) });
        all.remove(ClientId(2), 0);
        assert!(found(&all, LOCAL4).is_empty());
        assert_eq!(found(&all, LOCAL6), [1]);
    }

    #[test]
    fn mapped_wildcard_is_not_for_ipv6() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY4));
        assert!(found(&all, LOCAL6).is_empty());
    }

    #[test]
    fn of_one_client() {
        let mut all = Listeners::default();
        all.insert(Listener { port: 81, ..listener(1, 0, ANY4) });
        all.insert(listener(2, 0, ANY4));
        all.insert(listener(1, 2, ANY4));
        all.insert(listener(1, 1, LOCAL4));
        let own = all.of_client(ClientId(1)).map(|l| (l.port, l.index)).collect::<Vec<_>>();
        assert_eq!(own, [(80, 2), (80, 1), (81, 0)]);
        assert_eq!(all.get(ClientId(1), 1).map(|l| l.ip), Some(LOCAL4));
        assert!(all.get(ClientId(2), 1).is_none());
    }

    #[test]
    fn namespaces_and_ports_are_apart() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY4));
        assert!(all.candidates(8, LOCAL4, 80).is_empty());
        assert!(all.candidates(7, LOCAL4, 81).is_empty());
        assert!(all.has_port(7, 80) && !all.has_port(8, 80));
    }

    #[test]
    fn sockets_at_one_address_are_one_users() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY4));
        all.insert(Listener { owner: 1001, ..listener(2, 0, ANY4) });
        all.insert(Listener { user: 1001, ..listener(3, 0, ANY4) });
        assert_eq!(found(&all, LOCAL4), [1, 3]);
        assert!(all.user_changed(ClientId(3), 1002) && !all.user_changed(ClientId(3), 1002));
        assert_eq!(all.of_port(7, 80).iter().map(|l| l.user).collect::<Vec<_>>(), [1000, 1000, 1002]);
    }

    #[test]
    fn the_same_index_replaces() {
        let mut all = Listeners::default();
        assert!(all.insert(listener(1, 0, ANY4)));
        assert!(!all.insert(listener(1, 0, ANY4)));
        assert!(all.insert(Listener { generation: 3, ..listener(1, 0, ANY4) }));
        assert!(all.insert(Listener { port: 81, ..listener(1, 0, ANY4) }));
        assert!(found(&all, LOCAL4).is_empty());
        assert!(all.set_accepting(ClientId(1), 0, false));
        assert!(!all.set_accepting(ClientId(1), 0, false));
        assert!(!all.set_accepting(ClientId(1), 5, true));
        assert_eq!(all.iter().count(), 1);
        assert!(all.remove_client(ClientId(1)));
        assert!(!all.remove_client(ClientId(1)));
        assert_eq!(all.iter().count(), 0);
    }
}
