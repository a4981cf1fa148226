//! A table by destination that does not grow without end: what nothing uses makes room for what is new.

use crate::socket::addr::Name;
use alloc::vec::Vec;

/// Destinations that are known at a time; no honest program has more of them in use.
const PLACES_MAX: usize = 1 << 16;
/// Places that are looked at for one that is not in use, before the newcomer is turned away.
const LOOKS: usize = 256;
const BUCKETS_MIN: usize = 16;

/// What is known of a destination.
pub(super) trait Place {
    /// It must not be forgotten now.
    fn is_used(&self) -> bool;
}

struct Slot<T> {
    name: Name,
    value: T,
    /// The next one of its bucket: number + 1, zero at the end.
    next: u32,
}

/// See the module.
pub(super) struct Places<T> {
    slots: Vec<Slot<T>>,
    /// By hash, the first of those that have it: number + 1. As many as slots at least, and a power of two.
    buckets: Vec<u32>,
    /// Where the next look for a place that is not in use begins.
    begin: usize,
}

impl<T: Place> Places<T> {
    pub(crate) const fn new() -> Places<T> {
        Places { slots: Vec::new(), buckets: Vec::new(), begin: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.buckets.fill(0);
    }

    /// What is known of a destination.
    #[inline]
    pub(crate) fn get(&mut self, name: Name) -> Option<&mut T> {
        let at = self.find(name)?;
        self.slots.get_mut(at).map(|slot| &mut slot.value)
    }

    /// What is known of a destination; `fresh` makes it for a new one. `None` when there is no room.
    pub(super) fn get_or_insert(&mut self, name: Name, fresh: impl FnOnce() -> T) -> Option<&mut T> {
        let at = match self.find(name) {
            Some(at) => at,
            None => self.insert(name, fresh())?,
        };
        self.slots.get_mut(at).map(|slot| &mut slot.value)
    }

    fn bucket(&self, name: Name) -> usize {
        let [high, low] = name.ip.halves();
        let mixed = (high.rotate_left(17) ^ low ^ u64::from(name.port)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & self.buckets.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, name: Name) -> Option<usize> {
        let mut link = *self.buckets.get(self.bucket(name))?;
        while let Some(slot) = self.slots.get((link as usize).wrapping_sub(1)) {
            if slot.name == name {
                return Some(link as usize - 1);
            }
            link = slot.next;
        }
        None
    }

    fn insert(&mut self, name: Name, value: T) -> Option<usize> {
        let slot = Slot { name, value, next: 0 };
        let at = if self.slots.len() < PLACES_MAX {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.unused()?;
            self.unlink(at);
            *self.slots.get_mut(at)? = slot;
            at
        };
        if self.slots.len() > self.buckets.len() {
            self.grow();
        } else {
            self.link(at);
        }
        Some(at)
    }

    /// The next one that may be forgotten.
    fn unused(&mut self) -> Option<usize> {
        for _ in 0..LOOKS {
            let at = self.begin;
            self.begin = (at + 1) % self.slots.len().max(1);
            if self.slots.get(at).is_some_and(|slot| !slot.value.is_used()) {
                return Some(at);
            }
        }
        None
    }

    fn link(&mut self, at: usize) {
        let Some(name) = self.slots.get(at).map(|slot| slot.name) else { return };
        let bucket = self.bucket(name);
        if let (Some(first), Some(slot)) = (self.buckets.get_mut(bucket), self.slots.get_mut(at)) {
            slot.next = core::mem::replace(first, at as u32 + 1);
        }
    }

    fn unlink(&mut self, at: usize) {
        let Some((name, after)) = self.slots.get(at).map(|slot| (slot.name, slot.next)) else { return };
        let bucket = self.bucket(name);
        let Some(first) = self.buckets.get_mut(bucket) else { return };
        if *first as usize == at + 1 {
            *first = after;
            return;
        }
        let mut link = *first as usize;
        while let Some(slot) = self.slots.get_mut(link.wrapping_sub(1)) {
            if slot.next as usize == at + 1 {
                slot.next = after;
                return;
            }
            link = slot.next as usize;
        }
    }

    fn grow(&mut self) {
        let count = self.slots.len().next_power_of_two().max(BUCKETS_MIN);
        self.buckets.clear();
        self.buckets.resize(count, 0);
        (0..self.slots.len()).for_each(|at| self.link(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sd_proto::Ip;

    struct Number(u32, bool);

    impl Place for Number {
        fn is_used(&self) -> bool {
            self.1
        }
    }

    fn name(n: u32) -> Name {
        let [_, a, b, c] = n.to_be_bytes();
        Name { ip: Ip::v4([127, a, b, c]), port: (n % 3) as u16 + 1 }
    }

    #[test]
    fn what_is_not_used_makes_room() {
        let mut places = Places::new();
        let max = PLACES_MAX as u32;
        for n in 0..max {
            // The first two are in use.
            assert!(places.get_or_insert(name(n), || Number(n, n < 2)).is_some());
        }
        assert!((0..max).all(|n| places.get(name(n)).is_some_and(|number| number.0 == n)));
        for n in max..2 * max - 2 {
            assert!(places.get_or_insert(name(n), || Number(n, true)).is_some());
        }
        assert_eq!(places.slots.len(), PLACES_MAX);
        assert!((2..max).all(|n| places.get(name(n)).is_none()));
        let known = |n: &u32| *n < 2 || *n >= max;
        assert!((0..2 * max - 2).filter(known).all(|n| places.get(name(n)).is_some_and(|m| m.0 == n)));
        assert!(places.get_or_insert(name(2 * max), || Number(0, false)).is_none(), "all are in use");
        places.clear();
        assert!(places.get(name(0)).is_none());
        assert!(places.get_or_insert(name(0), || Number(7, false)).is_some_and(|number| number.0 == 7));
    }
}
