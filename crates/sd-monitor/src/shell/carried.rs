//! Which other host's engine carries a connection, and for which tenant, as this host's engine says when it asks for the connection, or finds it: for
//! people. An address alone does not tell: it may be translated on its way, or be several tenants'.

use crate::core::ClientId;
use sd_proto::{Ip, Name};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Of a client with more some are told by their addresses.
const OF_CLIENT_MAX: usize = 4096;
/// Of what the engine has asked for; most of it is promised in a moment, or never.
const ASKED_MAX: usize = 1 << 14;

/// An engine, and a tenant or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct By {
    engine: SocketAddr,
    tenant: Name,
}

impl By {
    pub(super) fn new(engine: Ip, port: u16, tenant: Name) -> By {
        By { engine: SocketAddr::new(engine.to_addr().to_canonical(), port), tenant }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Carried {
    /// By the engine's name for the connection.
    asked: HashMap<u64, By>,
    /// By client and its name for the offer; the oldest first.
    promised: HashMap<ClientId, VecDeque<(u64, By)>>,
}

impl Carried {
    /// The engine offers an end. The other one may not be offered yet.
    pub(super) fn asked(&mut self, serial: u64, by: By) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.clear();
        }
        self.asked.insert(serial, by);
    }

    /// That end is a client's offer's other one.
    pub(super) fn promised(&mut self, serial: u64, (client, offer): (ClientId, u64)) {
        let Some(by) = self.asked.remove(&serial) else { return };
        let its = self.promised.entry(client).or_default();
        if its.len() >= OF_CLIENT_MAX {
            its.pop_front();
        }
        its.push_back((offer, by));
    }

    /// What was said last of this offer.
    pub(super) fn of(&self, client: ClientId, offer: u64) -> Option<(SocketAddr, Option<&str>)> {
        let (_, by) = self.promised.get(&client)?.iter().rev().find(|(other, _)| *other == offer)?;
        Some((by.engine, Some(by.tenant.text()).filter(|name| !name.is_empty())))
    }

    /// A client has ended; the engine perhaps.
    pub(super) fn forget(&mut self, client: ClientId, is_engine: bool) {
        self.promised.remove(&client);
        if is_engine {
            self.asked.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_what_is_kept_is_bounded() {
        let mut all = Carried::default();
        let [a, b] = [ClientId(1), ClientId(2)];
        let by = |port, tenant| By::new(Ip::v4([10, 0, 0, 2]), port, Name::of(tenant));
        for (serial, client, by) in [(1, a, by(1, "blue")), (2, a, by(2, "")), (3, b, by(3, "red"))] {
            all.asked(serial, by);
            all.promised(serial, (client, 7));
        }
        all.promised(1, (b, 7));
        let found = |all: &Carried, client, offer| {
            all.of(client, offer).map(|(engine, tenant)| (engine.port(), tenant.map(str::to_owned)))
        };
        assert_eq!(found(&all, a, 7), Some((2, None)));
        assert_eq!(found(&all, b, 7), Some((3, Some("red".into()))));
        assert_eq!(found(&all, a, 8), None);
        for offer in 0..OF_CLIENT_MAX as u64 {
            all.asked(offer, by(4, ""));
            all.promised(offer, (a, 100 + offer));
        }
        assert_eq!((found(&all, a, 7), found(&all, a, 100).is_some()), (None, true));
        all.forget(a, false);
        assert_eq!((found(&all, a, 100), all.promised.len()), (None, 1));
        (0..2 * ASKED_MAX as u64 - 1).for_each(|serial| all.asked(serial, by(5, "")));
        assert_eq!(all.asked.len(), ASKED_MAX - 1);
        all.forget(a, true);
        assert_eq!((all.asked.len(), all.promised.len()), (0, 1));
    }
}
