//! Memory of channels that joined users, after one of the two sides has ended.
//!
//! The pages of a segment are charged to who touched them first, as long as anybody has the segment: a client that ends, and
//! leaves a descriptor with somebody, would leave them charged to the server (ADR 68). So they are given back, when nobody who
//! lives can read them any more, and that is known here:
//!
//! ```text
//!  one side extinct --ChannelDead--> the others' processes, all of which are noted as holders
//!  holder frees its record of the channel --Finished--> no holder          forks: its child is one too
//!  holder ends -----------------------------------------> no holder
//!  no holder left: segments of the same two users --a socket--> `sd empty-segments` --a byte each--> Emptied
//! ```
//! To empty a file takes its lock, which whoever has it can have for as long as it likes, and a thread that waits for it cannot be
//! killed. So another process does it, which has nothing but those segments: one for each pair of users, which ends when it had nothing
//! to do for a second.
//!
//! # Guarantees
//! * Nothing is taken away that a process which the monitor knows as living could still read.
//! * The main thread never waits. What is kept here is charged to a user (`core::quotas`): to who is not finished, or else to whom
//!   the channel was charged.
//!
//! # Not guaranteed
//! That it is ever emptied: a holder can stay unfinished, and a user can hold up what is shared with it. The library counts what it
//! has paid for until it hears of the end (`kept_rings`). After a restart nobody knows all holders, so what an earlier monitor has
//! made is left alone.

use super::descriptors::std_fd;
use super::helpers::Start;
use super::poller::Token;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::members::ProcessId;
use crate::core::quotas::Holding;
use sd_proto::Reply;
use sd_shm::channel::Side;
use sd_sys::msg::{recv_with_fds, send_with_fds};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};

/// Segments that lie in the queue of a process.
const QUEUE: usize = 64;

/// So many a process can leave unfinished; of what is more the memory stays.
const HELD_MAX: usize = 1024;

/// The users on side A and on side B.
type Users = (u32, u32);

/// Who has to do with a channel that is over.
pub(super) struct Left {
    users: Users,
    holders: BTreeSet<ProcessId>,
    /// Whose processes the holders are.
    holding: Option<u32>,
}

struct Kept {
    file: OwnedFd,
    left: Left,
    /// Connections of those who wait to hear that nothing is left.
    waiting: BTreeSet<u64>,
}

/// A process that empties segments.
struct Emptier {
    users: Users,
    socket: OwnedFd,
    /// Not emptied yet, in the order in which it got them.
    queue: VecDeque<ChannelKey>,
    /// It has emptied some.
    works: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Remains {
    kept: BTreeMap<ChannelKey, Kept>,
    /// Without holders, and in no queue yet.
    ready: BTreeMap<Users, VecDeque<ChannelKey>>,
    emptiers: BTreeMap<u64, Emptier>,
    last_emptier: u64,
    /// What each holder holds: never empty.
    held: HashMap<ProcessId, BTreeSet<ChannelKey>>,
}

impl Remains {
    /// Whether each of them may hold one more.
    fn have_room(&self, holders: &BTreeSet<ProcessId>) -> bool {
        holders.iter().all(|process| self.held.get(process).is_none_or(|held| held.len() < HELD_MAX))
    }

    fn begin(&mut self, key: ChannelKey, file: OwnedFd, left: Left) {
        for process in &left.holders {
            self.held.entry(*process).or_default().insert(key);
        }
        self.kept.insert(key, Kept { file, left, waiting: BTreeSet::new() });
    }

    /// A holder has a child, which has what it has.
    pub(super) fn forked(&mut self, parent: ProcessId, child: ProcessId) {
        let Some(held) = self.held.get(&parent).cloned() else { return };
        for key in &held {
            self.kept.entry(*key).and_modify(|kept| _ = kept.left.holders.insert(child));
        }
        self.held.insert(child, held);
    }

    /// A process holds a channel no more: whether nobody does by that.
    fn is_freed_by(&mut self, process: ProcessId, key: ChannelKey) -> bool {
        if let Some(held) = self.held.get_mut(&process) {
            held.remove(&key);
            if held.is_empty() {
                self.held.remove(&process);
            }
        }
        let holders = self.kept.get_mut(&key).map(|kept| &mut kept.left.holders);
        holders.is_some_and(|holders| holders.remove(&process) && holders.is_empty())
    }

    /// It holds nothing any more: what nobody holds by that.
    fn freed_by(&mut self, process: ProcessId) -> Vec<ChannelKey> {
        let held = self.held.get(&process).cloned().unwrap_or_default();
        held.into_iter().filter(|key| self.is_freed_by(process, *key)).collect()
    }
}

impl Server {
    /// Whether something is to be done about the memory of a channel that ends now.
    pub(super) fn left_of(&self, key: ChannelKey) -> Option<Left> {
        let channels = &self.core.channels;
        if !channels.is_strange(key) || !channels.is_of_ours(key) || self.helpers.program().is_none() {
            return None;
        }
        let users = (self.core.quotas.user_of(Holding::Channel(key))?, channels.user(key)?);
        let families = || [Side::A, Side::B].into_iter().flat_map(|side| channels.side(key, side));
        let holders = families().flat_map(|(family, _)| self.core.members.processes_of(*family)).collect();
        let holding = families().find_map(|(family, _)| Some(self.families.get(family)?.uid));
        Some(Left { users, holders, holding })
    }

    /// A channel is over, and its segment is kept until nobody needs it.
    pub(super) fn keep_remains(&mut self, key: ChannelKey, left: Left, file: OwnedFd) {
        let holding = left.holding.filter(|_| !left.holders.is_empty());
        let is_charged = holding.is_none_or(|user| self.charge(Holding::Channel(key), user, 1).is_ok());
        if !is_charged || !self.remains.have_room(&left.holders) {
            return self.end_remains(key, Some(file));
        }
        self.remains.begin(key, file, left);
        if holding.is_none() {
            self.empty(key);
        }
    }

    /// Nothing is kept of a channel any more.
    pub(super) fn end_remains(&mut self, key: ChannelKey, file: Option<OwnedFd>) {
        self.core.quotas.give_back(Holding::Channel(key));
        file.into_iter().for_each(|file| self.closers.give_back(file));
    }

    /// Acts on [`sd_proto::Request::Finished`].
    pub(super) fn finished(&mut self, client: ClientId, id: u64) {
        let connection = self.families.get(&client).and_then(|family| family.connection);
        let process = |id| self.connections.get(&id).and_then(|connection| connection.process());
        let Some((connection, process)) = connection.and_then(|id| Some((id, process(id)?))) else { return };
        let key = ChannelKey(id);
        match self.remains.kept.get_mut(&key) {
            Some(kept) => drop(kept.waiting.insert(connection)),
            None => self.tell_emptied(connection, key),
        }
        if self.remains.is_freed_by(process, key) {
            self.empty(key);
        }
    }

    /// A process is gone, or holds nothing any more.
    pub(super) fn remains_without(&mut self, process: ProcessId) {
        self.remains.freed_by(process).into_iter().for_each(|key| self.empty(key));
    }

    /// Nobody holds it any more.
    fn empty(&mut self, key: ChannelKey) {
        let Some(kept) = self.remains.kept.get(&key) else { return };
        let users = kept.left.users;
        self.core.quotas.becomes(Holding::Channel(key), users.0);
        self.remains.ready.entry(users).or_default().push_back(key);
        self.hand_on(users);
    }

    /// Has what is ready between two users emptied, as far as there is room in the queue.
    fn hand_on(&mut self, users: Users) {
        let running = self.remains.emptiers.iter().find(|(_, emptier)| emptier.users == users);
        let Some(number) = running.map(|(number, _)| *number).or_else(|| self.start_emptier(users)) else {
            let ready = self.remains.ready.remove(&users).unwrap_or_default();
            return ready.into_iter().for_each(|key| self.forget_remains(key));
        };
        let Remains { kept, ready, emptiers, .. } = &mut self.remains;
        let (Some(emptier), Some(waiting)) = (emptiers.get_mut(&number), ready.get_mut(&users)) else {
            return;
        };
        while emptier.queue.len() < QUEUE
            && let Some(key) = waiting.pop_front()
        {
            let (to, kept) = (emptier.socket.as_raw_fd(), kept.get(&key));
            // What does not arrive is found when the process ends.
            let _ = kept.map(|it| send_with_fds(to, &[0], &[it.file.as_raw_fd()], libc::MSG_DONTWAIT));
            emptier.queue.push_back(key);
        }
        if waiting.is_empty() {
            ready.remove(&users);
        }
    }

    fn start_emptier(&mut self, users: Users) -> Option<u64> {
        let program = self.helpers.program()?.clone();
        let pair = sd_sys::msg::pair_with_credentials().ok()?;
        let [socket, theirs] = pair.map(std_fd);
        let number = self.remains.last_emptier + 1;
        self.poller.watch(&socket, Token::Emptied(number)).ok()?;
        self.remains.last_emptier = number;
        let emptier = Emptier { users, socket, queue: VecDeque::new(), works: false };
        self.remains.emptiers.insert(number, emptier);
        self.closers.start_own(Start::to_empty(program, theirs));
        Some(number)
    }

    /// A process that empties segments has said something, or has ended.
    pub(super) fn emptied(&mut self, number: u64) {
        let Some(emptier) = self.remains.emptiers.get_mut(&number) else { return };
        let users = emptier.users;
        let mut done = Vec::new();
        let said = loop {
            match recv_with_fds(emptier.socket.as_raw_fd(), &mut [0; 1], libc::MSG_DONTWAIT) {
                Ok(said) if said.len != 0 => done.extend(emptier.queue.pop_front()),
                said => break said,
            }
        };
        emptier.works |= !done.is_empty();
        if said.is_ok() {
            self.poller.forget(&emptier.socket);
            if let Some(ended) = self.remains.emptiers.remove(&number) {
                match ended.works {
                    // These came too late for it.
                    true => ended.queue.iter().rev().for_each(|key| {
                        self.remains.ready.entry(users).or_default().push_front(*key);
                    }),
                    false => done.extend(ended.queue),
                }
            }
        }
        done.into_iter().for_each(|key| self.forget_remains(key));
        if self.remains.ready.contains_key(&users) {
            self.hand_on(users);
        }
    }

    fn forget_remains(&mut self, key: ChannelKey) {
        let Some(kept) = self.remains.kept.remove(&key) else { return };
        kept.waiting.into_iter().for_each(|connection| self.tell_emptied(connection, key));
        self.end_remains(key, Some(kept.file));
    }

    fn tell_emptied(&mut self, id: u64, key: ChannelKey) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let _ = connection.tell(&Reply::Emptied { id: key.0 }, &[]);
        self.announce_mail(id);
    }
}
