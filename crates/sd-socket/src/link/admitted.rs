//! What the other side of a channel was found to be admitted to by the policy (`setup::admission` asks).

use sd_proto::Ip;
use sd_sys::lock::Lock;

/// What the answer depends on, for one channel. Of the listener only whether it has all addresses, of which the other side may
/// have named any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) policy: u32,
    pub(crate) has_all: bool,
    pub(crate) to: (Ip, u16),
}

/// What a channel's other side was found to be admitted to, the last few of it.
pub(crate) struct Admitted([Lock<Option<Place>>; 4]);

impl Admitted {
    pub(crate) const fn new() -> Admitted {
        Admitted([const { Lock::new(None) }; 4])
    }

    fn place(&self, port: u16) -> Option<&Lock<Option<Place>>> {
        self.0.get(usize::from(port) % self.0.len())
    }

    /// Where somebody else looks, nothing is known or noted, and the question is asked once more.
    pub(crate) fn knows(&self, place: Place) -> bool {
        self.place(place.to.1).and_then(Lock::try_lock).is_some_and(|known| *known == Some(place))
    }

    pub(crate) fn note(&self, place: Place) {
        if let Some(mut known) = self.place(place.to.1).and_then(Lock::try_lock) {
            *known = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let to = |last, port| (Ip::v4([10, 0, 0, last]), port);
        let place = |policy, has_all, to| Place { policy, has_all, to };
        let known = Admitted::new();
        let places = [
            place(1, false, to(1, 80)),
            place(2, false, to(1, 80)),
            place(1, true, to(1, 80)),
            place(1, true, to(2, 80)),
            place(1, true, (Ip([1; 16]), 80)),
            place(1, true, (Ip([2; 16]), 80)),
        ];
        for (at, one) in places.into_iter().enumerate() {
            assert!(!known.knows(one), "{at}");
            known.note(one);
            assert_eq!(places.map(|place| known.knows(place)).iter().position(|known| *known), Some(at));
        }
        known.note(place(1, false, to(1, 81)));
        assert!(known.knows(place(1, false, to(1, 81))) && known.knows(places[5]), "another port");
    }
}
