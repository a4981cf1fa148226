//! Which processes share which slab: the owner, which is member 0, and its descendants.

use super::ClientId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A process, known through its registration or through its parent's announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProcessId(pub(crate) u64);

/// Members that a slab can have; numbers are below it.
const MEMBERS: u32 = sd_shm::slab::MEMBERS as u32;
/// The number of all who found no other free: what they hold is let go when the last of them is gone.
const SHARED: u32 = sd_shm::slab::SHARED_MEMBER;

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its registration, when it has one.
    pub(crate) client: Option<ClientId>,
    /// Slabs it shares, and its number there; its own slab among them, with number 0.
    pub(crate) shares: Vec<(ClientId, u32)>,
    /// Who forked it, and the how manieth of its forks that was.
    birth: Option<(ProcessId, u32)>,
    /// The families of the process that it was started for, to bridge a connection of its.
    helped: Vec<ClientId>,
}

#[derive(Default)]
struct Family {
    members: BTreeMap<u32, ProcessId>,
    /// Who has the number [`SHARED`].
    sharing: BTreeSet<ProcessId>,
    /// Families of which the owner is or was a member: its endpoints may use their channels.
    ancestors: Vec<ClientId>,
}

impl Process {
    /// Who forked it.
    pub(crate) fn parent(&self) -> Option<ProcessId> {
        self.birth.map(|(parent, _)| parent)
    }
}

/// The child of a fork could not be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberTaken;

/// All processes and families.
#[derive(Default)]
pub(crate) struct Members {
    processes: BTreeMap<ProcessId, Process>,
    families: HashMap<ClientId, Family>,
    next: u64,
}

impl Members {
    /// A process has registered. `process` is set when it is a child whose parent has announced it.
    pub(crate) fn register(&mut self, process: Option<ProcessId>, pid: u32, client: ClientId) -> ProcessId {
        let id =
            process.filter(|id| self.processes.contains_key(id)).unwrap_or_else(|| self.new_process(pid));
        let process = self.processes.entry(id).or_default();
        (process.client, process.pid) = (Some(client), pid);
        let ancestors = process.shares.iter().map(|(family, _)| *family).collect();
        process.shares.push((client, 0));
        self.families
            .insert(client, Family { members: BTreeMap::from([(0, id)]), ancestors, ..Family::default() });
        id
    }

    /// `parent` is about to fork a child, which gets `member` in every slab that `parent` shares.
    pub(crate) fn forked(
        &mut self,
        parent: ProcessId,
        member: u32,
        serial: u32,
    ) -> Result<ProcessId, MemberTaken> {
        let shares = self.processes.get(&parent).map(|p| p.shares.clone()).unwrap_or_default();
        let is_free = |family: &ClientId| {
            self.families.get(family).is_some_and(|f| member == SHARED || !f.members.contains_key(&member))
        };
        let is_valid = (1..MEMBERS).contains(&member);
        if !is_valid || shares.is_empty() || !shares.iter().all(|(family, _)| is_free(family)) {
            return Err(MemberTaken);
        }
        let id = self.new_process(0);
        let child = self.processes.entry(id).or_default();
        child.birth = Some((parent, serial));
        for (family, _) in &shares {
            if let Some(record) = self.families.get_mut(family) {
                match member {
                    SHARED => drop(record.sharing.insert(id)),
                    _ => drop(record.members.insert(member, id)),
                }
            }
            child.shares.push((*family, member));
        }
        Ok(id)
    }

    /// A process shares the slab of a family that it does not descend from: its number there, for which `takes` has
    /// taken the bit. `None` when it shares it already, or none is free.
    pub(crate) fn share(
        &mut self,
        process: ProcessId,
        family: ClientId,
        takes: impl Fn(u64) -> bool,
    ) -> Option<u32> {
        let record = self.families.get_mut(&family)?;
        let process_record = self.processes.get_mut(&process)?;
        if process_record.shares.iter().any(|(shared, _)| *shared == family) {
            return None;
        }
        let member = (1..SHARED).find(|member| !record.members.contains_key(member) && takes(1 << member))?;
        record.members.insert(member, process);
        process_record.shares.push((family, member));
        Some(member)
    }

    /// A process is to be started that takes over a connection of `process`, which cannot start one itself.
    pub(crate) fn helper_of(&mut self, process: ProcessId) -> ProcessId {
        let helped = self.families_of(process);
        let id = self.new_process(0);
        self.processes.entry(id).or_default().helped = helped;
        id
    }

    /// Whether it was started for a member of this family.
    pub(crate) fn helps(&self, process: ProcessId, family: ClientId) -> bool {
        self.processes.get(&process).is_some_and(|process| process.helped.contains(&family))
    }

    /// The child of this fork, which has this process id; `None` when it is gone.
    pub(crate) fn born(&mut self, parent: ProcessId, serial: u32, pid: u32) -> Option<ProcessId> {
        let is_it = |(_, process): &(&ProcessId, &mut Process)| process.birth == Some((parent, serial));
        let (id, process) = self.processes.iter_mut().find(is_it)?;
        if process.pid == 0 {
            process.pid = pid;
        }
        Some(*id)
    }

    /// How many slabs a process shares.
    pub(crate) fn share_count(&self, process: ProcessId) -> usize {
        self.processes.get(&process).map_or(0, |process| process.shares.len())
    }

    fn new_process(&mut self, pid: u32) -> ProcessId {
        self.next += 1;
        self.processes.insert(ProcessId(self.next), Process { pid, ..Process::default() });
        ProcessId(self.next)
    }

    /// A process is gone: it is a member of nothing any more. What it was, without numbers that others still have.
    pub(crate) fn gone(&mut self, id: ProcessId) -> Option<Process> {
        let mut process = self.processes.remove(&id)?;
        process.shares.retain(|(family, member)| {
            let Some(record) = self.families.get_mut(family) else { return true };
            match *member {
                SHARED => record.sharing.remove(&id) && record.sharing.is_empty(),
                member => record.members.remove(&member).is_some(),
            }
        });
        Some(process)
    }

    /// Whether nobody shares the slab any more.
    pub(crate) fn is_extinct(&self, family: ClientId) -> bool {
        self.families.get(&family).is_none_or(|f| f.members.is_empty() && f.sharing.is_empty())
    }

    /// Forgets a family.
    pub(crate) fn forget(&mut self, family: ClientId) {
        self.families.remove(&family);
    }

    /// The families whose channels endpoints in this family's slab may use: its own, and those of
    /// which its owner is or was a member.
    pub(crate) fn lineage(&self, family: ClientId) -> impl Iterator<Item = ClientId> {
        let ancestors = self.families.get(&family).into_iter().flat_map(|f| &f.ancestors);
        std::iter::once(family).chain(ancestors.copied())
    }

    /// The families that a process is a member of.
    pub(crate) fn families_of(&self, process: ProcessId) -> Vec<ClientId> {
        let shares = self.processes.get(&process).into_iter().flat_map(|process| &process.shares);
        shares.map(|(family, _)| *family).collect()
    }

    /// Process id of a member; zero when there is none.
    pub(crate) fn pid_of(&self, family: ClientId, member: u32) -> u32 {
        let process = self.families.get(&family).and_then(|f| f.members.get(&member));
        process.and_then(|id| self.processes.get(id)).map_or(0, |process| process.pid)
    }

    /// The member of the family with this process id.
    pub(crate) fn member_with(&self, family: ClientId, pid: u32) -> Option<ProcessId> {
        let members = self.families.get(&family)?.members.values();
        members.copied().find(|id| self.processes.get(id).is_some_and(|process| process.pid == pid))
    }

    /// The family's members.
    pub(crate) fn processes_of(&self, family: ClientId) -> impl Iterator<Item = ProcessId> {
        let family = self.families.get(&family).into_iter();
        family.flat_map(|family| family.members.values().chain(&family.sharing)).copied()
    }

    /// Registrations of the family's members.
    pub(crate) fn clients_of(&self, family: ClientId) -> impl Iterator<Item = ClientId> {
        self.processes_of(family).filter_map(|id| self.processes.get(&id)?.client)
    }

    /// Number of processes known.
    pub(crate) fn len(&self) -> usize {
        self.processes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    #[test]
    fn a_family_lives_as_long_as_a_member() {
        let mut all = Members::default();
        let parent = all.register(None, 10, A);
        let child = all.forked(parent, 1, 0).unwrap();
        assert_eq!(all.gone(parent).unwrap().shares, [(A, 0)]);
        assert!(!all.is_extinct(A));
        assert_eq!(all.gone(child).unwrap().shares, [(A, 1)]);
        assert!(all.is_extinct(A));
        assert_eq!(all.gone(child), None);
    }

    #[test]
    fn grandchildren_share_every_inherited_slab() {
        let mut all = Members::default();
        let parent = all.register(None, 10, A);
        let child = all.forked(parent, 1, 0).unwrap();
        assert_eq!(all.register(Some(child), 11, B), child);
        let grandchild = all.forked(child, 2, 0).unwrap();
        all.register(Some(grandchild), 12, C);
        assert_eq!((all.pid_of(A, 1), all.pid_of(A, 2), all.pid_of(B, 2)), (11, 12, 12));
        assert_eq!(all.gone(grandchild).unwrap().shares, [(A, 2), (B, 2), (C, 0)]);
        assert_eq!(all.lineage(C).collect::<Vec<_>>(), [C, A, B]);
        assert_eq!(all.lineage(B).collect::<Vec<_>>(), [B, A]);
        assert_eq!(all.lineage(A).collect::<Vec<_>>(), [A]);
        assert_eq!(all.clients_of(A).collect::<Vec<_>>(), [A, B]);
    }

    #[test]
    fn a_birth_is_told_once_the_child_is_there() {
        let mut all = Members::default();
        let parent = all.register(None, 10, A);
        let first = all.forked(parent, 1, 7).unwrap();
        let second = all.forked(parent, 2, 8).unwrap();
        assert_eq!(all.born(parent, 8, 12), Some(second));
        assert_eq!(all.born(parent, 8, 13), Some(second));
        assert_eq!((all.pid_of(A, 1), all.pid_of(A, 2)), (0, 12));
        all.gone(first);
        assert_eq!(all.born(parent, 7, 11), None);
        assert_eq!(all.born(second, 8, 11), None);
    }

    #[test]
    fn who_is_given_a_connection_shares_the_slab() {
        let mut all = Members::default();
        let giver = all.register(None, 10, A);
        let _child = all.forked(giver, 1, 0).unwrap();
        let receiver = all.register(None, 20, B);
        // A relative of the giver has just taken 2.
        assert_eq!(all.share(receiver, A, |bit| bit != 1 << 2), Some(3));
        assert_eq!(all.share(receiver, A, |_| true), None, "once");
        assert_eq!(all.share(receiver, C, |_| true), None, "no such family");
        assert_eq!(all.pid_of(A, 3), 20);
        let child = all.forked(receiver, 4, 0).unwrap();
        assert_eq!(all.gone(child).unwrap().shares, [(B, 4), (A, 4)]);
        assert_eq!(all.gone(receiver).unwrap().shares, [(B, 0), (A, 3)]);
        assert!(all.is_extinct(B) && !all.is_extinct(A));
    }

    #[test]
    fn the_last_number_is_for_many() {
        let mut all = Members::default();
        let parent = all.register(None, 10, A);
        let [first, second] = [1, 2].map(|serial| all.forked(parent, SHARED, serial).unwrap());
        all.gone(parent);
        assert_eq!(all.gone(first).unwrap().shares, []);
        assert!(!all.is_extinct(A));
        assert_eq!(all.gone(second).unwrap().shares, [(A, SHARED)]);
        assert!(all.is_extinct(A));
    }

    #[test]
    fn senseless_forks_are_refused() {
        let mut all = Members::default();
        let parent = all.register(None, 10, A);
        all.forked(parent, 1, 0).unwrap();
        for member in [0, 1, MEMBERS, u32::MAX] {
            assert_eq!(all.forked(parent, member, 1), Err(MemberTaken));
        }
        assert_eq!(all.forked(ProcessId(99), 2, 1), Err(MemberTaken));
        assert_eq!(all.len(), 2);
    }
}
