//! Connections that the kernel has made and whose processes offer them: which two are the ends of one.
//!
//! What is compared the monitor has read from the sockets themselves. [`evidence`] is the only judge. It is pure, so that more kinds of
//! evidence find their place there: sequence numbers, time-stamps of the SYN.

use super::ClientId;
use sd_proto::Ip;

/// An address and a port.
pub(crate) type Name = (Ip, u16);

/// What the kernel says of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Its network namespace; zero: the kernel does not tell.
    pub(crate) netns: u64,
    /// By which the kernel knows it, as long as it exists.
    pub(crate) cookie: u64,
    pub(crate) local: Name,
    pub(crate) remote: Name,
}

/// One end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) client: ClientId,
    /// Its name for the offer.
    pub(crate) serial: u64,
    pub(crate) uid: u32,
    /// It connected; otherwise it accepted.
    pub(crate) connected: bool,
    pub(crate) facts: Facts,
}

/// Whether two offers are the ends of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Match,
    No,
}

/// In one network namespace there is one established connection with four numbers, so the one whose numbers mirror them is its
/// other end.
pub(crate) fn evidence(a: &Offer, b: &Offer) -> Evidence {
    let (x, y) = (&a.facts, &b.facts);
    let is_same_place = x.netns == y.netns && x.netns != 0;
    let is_mirrored = x.local == y.remote && x.remote == y.local;
    match a.connected != b.connected && x.cookie != y.cookie && is_same_place && is_mirrored {
        true => Evidence::Match,
        false => Evidence::No,
    }
}

/// For so long an offer waits.
const WAITS_MS: u64 = 60_000;
/// Offers of one user that wait.
const OF_USER_MAX: usize = 4096;

/// What an offer has come to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits for the other end.
    Waits,
    /// Both ends: who connected, and who accepted.
    Pair(Offer, Offer),
    /// There are too many, or more than one fits.
    Refused,
}

/// Those that wait for the other end.
#[derive(Default)]
pub(crate) struct Offers {
    /// With the time until which they wait, oldest first.
    waiting: Vec<(u64, Offer)>,
}

impl Offers {
    /// One more.
    pub(crate) fn add(&mut self, offer: Offer, now_ms: u64) -> Outcome {
        self.waiting.retain(|(until, other)| *until > now_ms && other.facts.cookie != offer.facts.cookie);
        let fits = |(_, other): &&(u64, Offer)| evidence(&offer, other) == Evidence::Match;
        let found: Vec<u64> = self.waiting.iter().filter(fits).map(|(_, other)| other.facts.cookie).collect();
        match found.as_slice() {
            [] if self.waiting.iter().filter(|(_, other)| other.uid == offer.uid).count() >= OF_USER_MAX => {
                Outcome::Refused
            }
            [] => {
                self.waiting.push((now_ms + WAITS_MS, offer));
                Outcome::Waits
            }
            [cookie] => match self.waiting.iter().position(|(_, other)| other.facts.cookie == *cookie) {
                Some(at) => {
                    let (_, other) = self.waiting.remove(at);
                    if offer.connected { Outcome::Pair(offer, other) } else { Outcome::Pair(other, offer) }
                }
                None => Outcome::Refused,
            },
            _ => Outcome::Refused,
        }
    }

    /// A client is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|(_, offer)| offer.client != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Name = (Ip([1; 16]), 1000);
    const B: Name = (Ip([2; 16]), 80);

    fn offer(client: u64, connected: bool, (local, remote): (Name, Name)) -> Offer {
        let facts = Facts { netns: 7, cookie: client + 100, local, remote };
        Offer { client: ClientId(client), serial: 1, uid: 0, connected, facts }
    }

    #[test]
    fn mirrored_names_in_one_namespace_are_a_pair() {
        for connected_first in [true, false] {
            let mut all = Offers::default();
            let (one, other) = (offer(1, true, (A, B)), offer(2, false, (B, A)));
            let (first, second) = if connected_first { (one, other) } else { (other, one) };
            assert!(matches!(all.add(first, 0), Outcome::Waits));
            let Outcome::Pair(a, b) = all.add(second, 1) else { panic!("a pair") };
            assert_eq!((a.client, b.client), (ClientId(1), ClientId(2)), "who connected comes first");
            assert!(matches!(all.add(second, 2), Outcome::Waits), "each offer is used once");
        }
    }

    #[test]
    fn nothing_less_is() {
        let one = offer(1, true, (A, B));
        let other = offer(2, false, (B, A));
        let wrong = [
            Offer { connected: true, ..other },
            Offer { facts: Facts { netns: 8, ..other.facts }, ..other },
            Offer { facts: Facts { remote: (A.0, 1001), ..other.facts }, ..other },
            Offer { facts: Facts { local: (A.0, 80), ..other.facts }, ..other },
            Offer { facts: Facts { cookie: one.facts.cookie, ..other.facts }, ..other },
        ];
        for wrong in wrong {
            assert_eq!(evidence(&one, &wrong), Evidence::No, "{wrong:?}");
        }
        assert_eq!((evidence(&one, &other), evidence(&other, &one)), (Evidence::Match, Evidence::Match));
    }

    #[test]
    fn an_offer_ends_with_its_client_and_with_time() {
        let mut all = Offers::default();
        assert!(matches!(all.add(offer(1, true, (A, B)), 0), Outcome::Waits));
        all.forget(ClientId(1));
        assert!(matches!(all.add(offer(2, false, (B, A)), 0), Outcome::Waits));
        assert!(matches!(all.add(offer(1, true, (A, B)), WAITS_MS + 1), Outcome::Waits), "too late");
    }

    #[test]
    fn two_that_fit_are_none() {
        let mut all = Offers::default();
        for client in [2, 3] {
            assert!(matches!(all.add(offer(client, false, (B, A)), 0), Outcome::Waits));
        }
        assert!(matches!(all.add(offer(1, true, (A, B)), 0), Outcome::Refused));
    }
}
