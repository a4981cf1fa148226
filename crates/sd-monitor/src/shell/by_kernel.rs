//! Places at which some process accepts that can take no channel: who connects to one of them goes to the kernel, unless
//! somebody else accepts there.

use sd_proto::Ip;
use std::collections::BTreeMap;

/// Addresses that are told apart, of one port of a namespace's.
const OF_PORT_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct ByKernel(BTreeMap<(u64, u16), Places>);

enum Places {
    /// Addresses, and whether an unspecified one is for IPv6 alone.
    At(Vec<(Ip, bool)>),
    /// There were too many of them.
    Anywhere,
}

impl ByKernel {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A listener's address.
    pub(crate) fn insert(&mut self, (netns, ip, port): (u64, Ip, u16), v6only: bool) {
        let places = self.0.entry((netns, port)).or_insert(Places::At(Vec::new()));
        let Places::At(known) = places else { return };
        if known.contains(&(ip, v6only)) {
            return;
        }
        known.push((ip, v6only));
        if known.len() > OF_PORT_MAX {
            *places = Places::Anywhere;
        }
    }

    /// Whether a connection to there could be for one of them.
    pub(crate) fn includes(&self, netns: u64, ip: Ip, port: u16) -> bool {
        match self.0.get(&(netns, port)) {
            Some(Places::At(known)) => known.iter().any(|(at, v6only)| at.rank_for(ip, *v6only).is_some()),
            Some(Places::Anywhere) => true,
            None => false,
        }
    }

    /// Forgets namespaces that are not needed.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(u64) -> bool) {
        self.0.retain(|(netns, _), _| is_needed(*netns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart_while_they_are_few() {
        let ip = |last| Ip::v4([127, 0, 0, last]);
        let mut all = ByKernel::default();
        all.insert((7, ip(1), 80), false);
        assert!(all.includes(7, ip(1), 80) && !all.includes(7, ip(2), 80));
        assert!(!all.includes(8, ip(1), 80) && !all.includes(7, ip(1), 81));
        all.insert((7, Ip::v4([0; 4]), 81), false);
        assert!(all.includes(7, ip(2), 81), "a wildcard");
        (1..=16).for_each(|last| all.insert((7, ip(last), 80), false));
        assert!(!all.includes(7, ip(99), 80));
        all.insert((7, ip(17), 80), false);
        assert!(all.includes(7, ip(99), 80), "too many of them");
        all.retain(|netns| netns == 8);
        assert!(all.is_empty());
    }
}
