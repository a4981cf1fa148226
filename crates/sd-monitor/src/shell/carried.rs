//! Which other host's engine carries a connection, and for which tenant, as this host's engine says when it is promised: for people. An address alone
//! does not tell: it may be translated on its way, or be several tenants'.

use crate::core::ClientId;
use sd_proto::{Ip, Name};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Of a client with more some are told by their addresses.
const OF_CLIENT_MAX: usize = 4096;

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

/// All of them, by client and its name for the offer; the oldest first.
#[derive(Default)]
pub(super) struct Carried(HashMap<ClientId, VecDeque<(u64, By)>>);

impl Carried {
    pub(super) fn note(&mut self, (client, offer): (ClientId, u64), by: By) {
        let its = self.0.entry(client).or_default();
        if its.len() >= OF_CLIENT_MAX {
            its.pop_front();
        }
        its.push_back((offer, by));
    }

    /// What was said last of this offer.
    pub(super) fn of(&self, client: ClientId, offer: u64) -> Option<(SocketAddr, Option<&str>)> {
        let (_, by) = self.0.get(&client)?.iter().rev().find(|(other, _)| *other == offer)?;
        Some((by.engine, Some(by.tenant.text()).filter(|name| !name.is_empty())))
    }

    /// A client has ended.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
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
        all.note((a, 7), by(1, "blue"));
        all.note((a, 7), by(2, ""));
        all.note((b, 7), by(3, "red"));
        let found = |all: &Carried, client, offer| {
            all.of(client, offer).map(|(engine, tenant)| (engine.port(), tenant.map(str::to_owned)))
        };
        assert_eq!(found(&all, a, 7), Some((2, None)));
        assert_eq!(found(&all, b, 7), Some((3, Some("red".into()))));
        assert_eq!(found(&all, a, 8), None);
        (0..OF_CLIENT_MAX as u64).for_each(|offer| all.note((a, 100 + offer), by(4, "")));
        assert_eq!((found(&all, a, 7), found(&all, a, 100).is_some()), (None, true));
        all.forget(a);
        assert_eq!((found(&all, a, 100), all.0.len()), (None, 1));
    }
}
