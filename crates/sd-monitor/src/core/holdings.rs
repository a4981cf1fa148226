//! Which processes have which slabs and channels open, and what follows from that after a restart.
//!
//! A process is taken for the owner of a slab, and so for a client that is silent, when it has that
//! slab alone and nobody else has it: a second holder is another monitor, or a child in the middle
//! of its fork. A channel is taken for what its header says when only the two processes that the
//! header names have it: another holder may be a monitor, or a child on either side, and then
//! nothing is known.

use std::collections::{BTreeMap, BTreeSet};

/// Device and inode number.
type File = (u64, u64);

/// See the module.
#[derive(Default)]
pub(crate) struct Holdings {
    slabs: BTreeMap<File, BTreeSet<u32>>,
    slabs_of: BTreeMap<u32, BTreeSet<File>>,
    channels: BTreeMap<File, BTreeSet<u32>>,
}

impl Holdings {
    /// A process has a slab open.
    pub(crate) fn add_slab(&mut self, pid: u32, slab: File) {
        self.slabs.entry(slab).or_default().insert(pid);
        self.slabs_of.entry(pid).or_default().insert(slab);
    }

    /// A process has a channel open.
    pub(crate) fn add_channel(&mut self, pid: u32, channel: File) {
        self.channels.entry(channel).or_default().insert(pid);
    }

    /// The slab that a process owns.
    pub(crate) fn slab_of(&self, pid: u32) -> Option<File> {
        let slabs = self.slabs_of.get(&pid).filter(|slabs| slabs.len() == 1)?;
        let slab = slabs.first()?;
        (self.slabs.get(slab)?.len() == 1).then_some(*slab)
    }

    /// Every channel, and who has it.
    pub(crate) fn channels(&self) -> impl Iterator<Item = (File, &BTreeSet<u32>)> {
        self.channels.iter().map(|(file, holders)| (*file, holders))
    }
}

/// For each side of a channel, whether the process that the header names there has it open; `None`
/// when others have it too.
pub(crate) fn parties(holders: &BTreeSet<u32>, named: [u32; 2]) -> Option<[bool; 2]> {
    let is_known = holders.iter().all(|pid| *pid != 0 && named.contains(pid));
    is_known.then(|| named.map(|pid| holders.contains(&pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLAB: File = (1, 10);
    const OTHER: File = (1, 11);

    #[test]
    fn a_slab_has_one_owner() {
        let mut all = Holdings::default();
        all.add_slab(5, SLAB);
        all.add_slab(5, SLAB);
        assert_eq!((all.slab_of(5), all.slab_of(6)), (Some(SLAB), None));
        all.add_slab(6, SLAB);
        assert_eq!((all.slab_of(5), all.slab_of(6)), (None, None));
    }

    #[test]
    fn an_owner_has_one_slab() {
        let mut all = Holdings::default();
        all.add_slab(5, SLAB);
        all.add_slab(5, OTHER);
        assert_eq!(all.slab_of(5), None);
    }

    #[test]
    fn strangers_make_a_channel_unknown() {
        let holders = |pids: &[u32]| pids.iter().copied().collect::<BTreeSet<u32>>();
        assert_eq!(parties(&holders(&[5]), [5, 6]), Some([true, false]));
        assert_eq!(parties(&holders(&[5, 6]), [5, 6]), Some([true, true]));
        assert_eq!(parties(&holders(&[5]), [5, 5]), Some([true, true]));
        assert_eq!(parties(&holders(&[5, 7]), [5, 6]), None);
        assert_eq!(parties(&holders(&[7]), [5, 6]), None);
        assert_eq!(parties(&holders(&[0]), [0, 6]), None);
    }
}
