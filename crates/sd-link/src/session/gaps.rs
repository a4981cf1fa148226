//! Bytes that came before those that should come first.

/// More ranges of one connection are not kept; the packet then counts as lost, and comes again.
const RANGES: usize = 16;

/// Ranges of positions that do not touch, from the lowest on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps {
    ranges: [(u64, u64); RANGES],
    len: usize,
}

impl Gaps {
    /// Adds a range; says whether there was room.
    pub(crate) fn add(&mut self, mut begin: u64, mut end: u64) -> bool {
        let all = &mut self.ranges;
        let from = all[..self.len].iter().take_while(|range| range.1 < begin).count();
        let to = all[..self.len].iter().take_while(|range| range.0 <= end).count();
        if from < to {
            begin = begin.min(all[from].0);
            end = end.max(all[to - 1].1);
            all.copy_within(to..self.len, from + 1);
            self.len -= to - from - 1;
        } else {
            if self.len == RANGES {
                return false;
            }
            all.copy_within(from..self.len, from + 1);
            self.len += 1;
        }
        all[from] = (begin, end);
        true
    }

    /// All has come up to `whole`: how far it really has.
    pub(crate) fn absorb(&mut self, mut whole: u64) -> u64 {
        let under = self.ranges[..self.len].iter().take_while(|range| range.0 <= whole).count();
        for range in &self.ranges[..under] {
            whole = whole.max(range.1);
        }
        self.ranges.copy_within(under..self.len, 0);
        self.len -= under;
        whole
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join() {
        let mut gaps = Gaps::default();
        assert!(gaps.add(10, 20) && gaps.add(40, 50) && gaps.add(30, 35) && gaps.add(20, 30));
        assert_eq!(gaps.len, 2);
        assert_eq!(gaps.absorb(5), 5);
        assert_eq!(gaps.absorb(12), 35);
        assert_eq!(gaps.absorb(60), 60);
        assert!(gaps.is_empty());
        assert!((0..16).all(|at| gaps.add(at * 10 + 100, at * 10 + 101)));
        assert!(!gaps.add(0, 1) && gaps.add(101, 110));
    }
}
