//! Which networks are behind other hosts' engines, and whose they are, as this host's engine says ([`Request::Network`]): for people.

use sd_proto::{Ip, Name, Request};
use std::net::SocketAddr;

/// Of a file with more networks some are not shown.
const NETWORKS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    first: u128,
    /// Of IPv6.
    bits: u32,
    engine: SocketAddr,
    tenant: Name,
    /// In the tenant's own network namespaces alone.
    is_apart: bool,
}

/// All of them; those with more bits first.
#[derive(Default)]
pub(super) struct Networks(Vec<Network>);

impl Networks {
    /// Of what is no network nothing is kept.
    pub(super) fn note(&mut self, said: &Request) {
        let Request::Network { ip, prefix, engine, port, tenant, apart } = *said else { return };
        let bits = if ip.to_v4().is_some() { prefix.saturating_add(96) } else { prefix };
        if bits > 128 || self.0.len() >= NETWORKS_MAX {
            return;
        }
        let engine = SocketAddr::new(engine.to_addr(), port);
        let at = self.0.partition_point(|other| other.bits >= bits);
        let first = u128::from_be_bytes(ip.0);
        self.0.insert(at, Network { first, bits, engine, tenant, is_apart: apart });
    }

    /// The engine behind which this address is, and its tenant. Of tenants with namespaces of their own nothing is said: several may have the address.
    pub(super) fn of(&self, address: Ip) -> Option<(SocketAddr, Option<&str>)> {
        let address = u128::from_be_bytes(address.0);
        let has = |it: &&Network| {
            let mask = u128::MAX.checked_shl(128 - it.bits).unwrap_or(0);
            address & mask == it.first & mask
        };
        self.0.iter().filter(|it| !it.is_apart).find(has).map(|it| (it.engine, it.tenant()))
    }

    /// The tenants that have networks behind an engine.
    pub(super) fn tenants(&self, engine: SocketAddr) -> Vec<&str> {
        let its = self.0.iter().filter(|it| it.engine == engine);
        let mut names: Vec<&str> = its.filter_map(Network::tenant).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Network {
    fn tenant(&self) -> Option<&str> {
        Some(self.tenant.text()).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts_and_what_is_kept_is_bounded() {
        let mut all = Networks::default();
        let mut note = |ip, prefix, port, tenant| {
            let engine = Ip::v4([10, 0, 0, 9]);
            all.note(&Request::Network {
                ip,
                prefix,
                engine,
                port,
                tenant: Name::of(tenant),
                apart: tenant == "green",
            });
        };
        note(Ip::v4([10, 1, 0, 0]), 16, 1, "");
        note(Ip::v4([10, 1, 2, 0]), 24, 2, "blue");
        note(Ip::v4([10, 1, 2, 0]), 33, 3, "no");
        note(Ip([0; 16]), 129, 3, "no");
        note(Ip([0; 16]), u32::MAX, 3, "no");
        note(Ip::v4([10, 1, 2, 9]), 32, 2, "red");
        note(Ip::v4([10, 1, 2, 3]), 32, 2, "green");
        let port = |all: &Networks, ip| {
            all.of(Ip::v4(ip)).map(|(engine, name)| (engine.port(), name.map(str::to_owned)))
        };
        assert_eq!(port(&all, [10, 1, 9, 9]), Some((1, None)));
        assert_eq!(port(&all, [10, 1, 2, 3]), Some((2, Some("blue".into()))));
        assert_eq!(port(&all, [10, 2, 2, 3]), None);
        assert_eq!(all.tenants("10.0.0.9:2".parse().unwrap()), ["blue", "green", "red"]);
        for port in 0..2 * NETWORKS_MAX as u16 {
            let (ip, engine) = (Ip::v4([1, 1, 1, 1]), Ip([1; 16]));
            all.note(&Request::Network { ip, prefix: 8, engine, port, tenant: Name::of(""), apart: false });
        }
        assert_eq!(all.0.len(), NETWORKS_MAX);
    }
}
