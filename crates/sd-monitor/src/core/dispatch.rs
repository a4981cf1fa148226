//! Where a connection leads: policy first, then the listeners, dealt out in turn.

use super::listeners::{Listener, Listeners};
use super::policy::{Action, Policy};
use sd_proto::Ip;
use sd_shm::slab::Reason;

/// Who wants to connect, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) uid: u32,
    pub(crate) netns: u64,
    /// Differs between clients, so that they do not all begin with the same listener.
    pub(crate) offset: u64,
    /// Counted up by the client.
    pub(crate) nth: u32,
    pub(crate) ip: Ip,
    pub(crate) port: u16,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Denied,
    Kernel(Reason),
    Shm { listener: Listener, candidates: u32 },
}

/// Decides. Listeners that take connections at present are preferred; among those each gets its
/// turn as `nth` grows.
pub(crate) fn decide(policy: &Policy, listeners: &Listeners, q: &Question) -> Decision {
    match policy.action(q.uid, q.ip, q.port) {
        Action::Deny => return Decision::Denied,
        Action::Kernel => return Decision::Kernel(Reason::Policy),
        Action::Allow => {}
    }
    let mut candidates = listeners.candidates(q.netns, q.ip, q.port);
    if candidates.is_empty() {
        return Decision::Kernel(Reason::NoListener);
    }
    candidates.retain(|l| l.accepting);
    let count = candidates.len() as u64;
    let turn = q.offset.wrapping_add(u64::from(q.nth)).checked_rem(count).unwrap_or(0);
    match candidates.get(turn as usize) {
        Some(l) if !policy.allows_listener(q.uid, l.ip, l.v6only, q.port) => Decision::Kernel(Reason::Policy),
        Some(&&listener) => Decision::Shm { listener, candidates: count as u32 },
        None => Decision::Kernel(Reason::NotAccepting),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ClientId;
    use super::super::listeners::tests::{ANY4, LOCAL4, listener};
    use super::*;

    const QUESTION: Question = Question { uid: 1000, netns: 7, offset: 0, nth: 0, ip: LOCAL4, port: 80 };

    fn policy(text: &str) -> Policy {
        Policy::parse(text, &crate::core::policy::Find { uid: &|_| None, netns: &|_| None }).unwrap()
    }

    fn chosen(listeners: &Listeners, offset: u64, nth: u32) -> u64 {
        match decide(&Policy::default(), listeners, &Question { offset, nth, ..QUESTION }) {
            Decision::Shm { listener, .. } => listener.client.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rotation_is_even_and_starts_apart() {
        let mut all = Listeners::default();
        (1..=3).for_each(|client| assert!(all.insert(listener(client, 0, ANY4))));
        let round: Vec<u64> = (0..6).map(|nth| chosen(&all, 0, nth)).collect();
        assert_eq!(round, [1, 2, 3, 1, 2, 3]);
        assert_eq!(chosen(&all, 1, 0), 2);
        assert_eq!(chosen(&all, u64::MAX, u32::MAX), chosen(&all, u64::MAX, u32::MAX));
    }

    #[test]
    fn those_that_accept_are_preferred() {
        let mut all = Listeners::default();
        (1..=3).for_each(|client| assert!(all.insert(listener(client, 0, ANY4))));
        all.set_accepting(ClientId(1), 0, false);
        let round: Vec<u64> = (0..4).map(|nth| chosen(&all, 0, nth)).collect();
        assert_eq!(round, [2, 3, 2, 3]);
        (1..=3).for_each(|client| _ = all.set_accepting(ClientId(client), 0, false));
        let decision = decide(&Policy::default(), &all, &QUESTION);
        assert_eq!(decision, Decision::Kernel(Reason::NotAccepting));
    }

    #[test]
    fn policy_comes_first() {
        let mut all = Listeners::default();
        all.insert(listener(1, 0, ANY4));
        let decide = |text| decide(&policy(text), &all, &QUESTION);
        assert_eq!(decide("deny port=80"), Decision::Denied);
        assert_eq!(decide("kernel uid=1000"), Decision::Kernel(Reason::Policy));
        assert!(matches!(decide("kernel uid=1001"), Decision::Shm { candidates: 1, .. }));
        assert_eq!(decide("deny to=10.0.0.1 port=80"), Decision::Kernel(Reason::Policy), "it is there, too");
    }

    #[test]
    fn nobody_listens() {
        let decision = decide(&Policy::default(), &Listeners::default(), &QUESTION);
        assert_eq!(decision, Decision::Kernel(Reason::NoListener));
    }
}
