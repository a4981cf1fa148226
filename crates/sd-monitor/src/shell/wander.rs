//! For tests: connections that were promoted are demoted soon, each at a moment that chance chooses, and are promoted again.

use super::server::Server;
use crate::core::ClientId;
use crate::core::offers::Offer;
use sd_proto::Ip;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// From the promotion on, microseconds: an end may not be over shared memory yet the first time; on a busy machine a few times, and nothing would
/// move the connection any more if there were no later one.
const WINDOWS: [(u64, u64); 5] =
    [(50, 400), (400, 1_500), (1_500, 5_000), (5_000, 50_000), (100_000, 1_000_000)];

/// With an even seed no end says that it reads no more (RESUME): what it has not read then comes when the other end looks around, which
/// a program that waits in a call of the kernel's does not.
fn is_all_in_order(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// What is to be done, and when.
pub(crate) struct Wander {
    /// `None`: nothing is.
    seed: Option<u64>,
    count: u64,
    due: BTreeMap<(Instant, u64), Demotion>,
}

/// Of whose connection, by which name; and whether at once.
struct Demotion {
    client: ClientId,
    name: (Ip, u16),
    at_once: bool,
}

impl Wander {
    pub(crate) fn new(seed: Option<u64>) -> Wander {
        Wander { seed, count: 0, due: BTreeMap::new() }
    }

    /// Until the next is due.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        self.due.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now))
    }

    /// A connection was promoted.
    pub(crate) fn note(&mut self, a: &Offer, b: &Offer) {
        let Some(seed) = self.seed else { return };
        for (least, most) in WINDOWS {
            self.count += 1;
            let chance = scatter(seed ^ self.count << 20);
            let at = Instant::now() + Duration::from_micros(least + chance % (most - least));
            let client = if chance >> 63 == 0 { a.client } else { b.client };
            let at_once = !is_all_in_order(seed) && chance >> 62 & 1 == 0;
            let demotion = Demotion { client, name: a.facts.local, at_once };
            self.due.insert((at, self.count), demotion);
        }
    }
}

/// As splitmix64 does it.
fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Server {
    /// Demotes what is due.
    pub(super) fn wander(&mut self) {
        while let Some(first) = self.wander.due.first_entry()
            && first.key().0 <= Instant::now()
        {
            let Demotion { client, name, at_once } = first.remove();
            self.tell_of_demotion(client, name, (at_once, false));
        }
    }
}
