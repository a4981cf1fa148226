//! Clients of an earlier monitor that have not registered with this one.
//!
//! A process whose threads all sleep in a futex, inside recv or send, does not notice that the
//! monitor has gone, and so does not come back by itself. Its peers may die meanwhile or later, and
//! somebody must tell it. So at the start the monitor looks for such processes by their open
//! segments, and treats each that was a client of the monitor at this place as one without a control connection:
//!
//! ```text
//! /proc/PID/fd --slab, segments--> silent client --its pidfd----------> reaper
//!                                        |       --other side is dead--> reaper
//!                                        +--Hello--> an ordinary client; its channels are expected again
//! ```
//! What is not clear is left alone: see `core::holdings`. A silent process that sleeps in epoll has
//! seen the end of its control connection and registers by itself; its eventfd is not needed.

use super::descriptors::{Identity, has_ended, std_fd};
use super::family::Family;
use super::processes::{Found, Kind, Processes};
use super::segments::{Segment, Slab};
use super::server::Server;
use super::shortage::Room;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::holdings::{Holdings, parties};
use crate::core::members::ProcessId;
use crate::core::quotas::Holding;
use sd_shm::channel::{MAGIC, Side};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

/// A silent process and its record as a client.
#[derive(Clone, Copy)]
struct Adopted {
    slab: Identity,
    client: ClientId,
    process: ProcessId,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Silent {
    by_pid: HashMap<u32, Adopted>,
}

impl Silent {
    /// The process is gone.
    pub(crate) fn forget(&mut self, process: ProcessId) {
        self.by_pid.retain(|_, adopted| adopted.process != process);
    }
}

/// What the look around has found.
struct Scene {
    /// Our place's number.
    place: u64,
    processes: Processes,
    found: HashMap<(u32, Identity), Found>,
    holdings: Holdings,
}

impl Scene {
    fn take(place: u64) -> Option<Scene> {
        let processes = Processes::new()?;
        let mut scene = Scene { place, processes, found: HashMap::new(), holdings: Holdings::default() };
        for found in scene.processes.segments(|slab| scene.slab_at(slab).is_some()) {
            match found.kind {
                Kind::Slab => scene.holdings.add_slab(found.pid, found.identity),
                Kind::Channel => scene.holdings.add_channel(found.pid, found.identity),
            }
            scene.found.insert((found.pid, found.identity), found);
        }
        Some(scene)
    }

    fn open_segment(&self, pid: u32, identity: Identity) -> Option<Segment> {
        let file = self.processes.open(self.found.get(&(pid, identity))?)?;
        Segment::check(file.as_fd()).ok().filter(|checked| *checked == identity)?;
        let segment = Segment::new(file, identity)?;
        let is_ours = segment.map()?.header().magic.load(Ordering::Acquire) == MAGIC;
        is_ours.then_some(segment)
    }

    fn open_slab(&self, pid: u32, identity: Identity) -> Option<Slab> {
        self.slab_at(self.found.get(&(pid, identity))?)
    }

    /// That of a client of this place's.
    fn slab_at(&self, found: &Found) -> Option<Slab> {
        self.any_slab_at(found).filter(|slab| slab.header().place.load(Ordering::Relaxed) == self.place)
    }

    fn any_slab_at(&self, found: &Found) -> Option<Slab> {
        let file = self.processes.open(found)?;
        Slab::check(file.as_fd()).ok().filter(|checked| *checked == found.identity)?;
        let slab = Slab::new(file)?;
        (slab.header().version.load(Ordering::Relaxed) == sd_shm::VERSION).then_some(slab)
    }

    /// Each slab of this place's, or of processes that have had no monitor yet.
    fn slabs(&self) -> impl Iterator<Item = Slab> {
        let mut seen = BTreeSet::new();
        let slabs = self.found.values().filter(|found| found.kind == Kind::Slab);
        let each_once = slabs.filter(move |found| seen.insert(found.identity));
        let is_ours = |slab: &Slab| [0, self.place].contains(&slab.header().place.load(Ordering::Relaxed));
        each_once.filter_map(|found| self.any_slab_at(found)).filter(is_ours)
    }
}

impl Server {
    /// Looks for silent clients; to be called before anybody is served.
    pub(crate) fn recover_silent(&mut self) {
        let Some(scene) = Scene::take(self.place.number) else { return };
        scene.slabs().for_each(|slab| self.expect_listeners_of(&slab));
        // Dead sides are closed when all is known, so that everybody concerned is told.
        let mut alone = Vec::new();
        for (identity, holders) in scene.holdings.channels() {
            alone.extend(self.recover_found(&scene, identity, holders));
        }
        for (key, side, pid) in alone {
            self.look_after(key, side, pid);
        }
        if !self.silent.by_pid.is_empty() {
            tracing::info!("clients of an earlier monitor found: {}", self.silent.by_pid.len());
        }
    }

    /// Takes in a channel that somebody has open. A side that belongs to somebody who does not have it.
    fn recover_found(
        &mut self,
        scene: &Scene,
        identity: Identity,
        holders: &BTreeSet<u32>,
    ) -> Option<(ChannelKey, Side, u32)> {
        let segment = scene.open_segment(*holders.first()?, identity)?;
        let header = segment.map()?.header();
        let named = [&header.pid[0], &header.pid[1]].map(|pid| pid.load(Ordering::Relaxed));
        let id = header.id.load(Ordering::Relaxed);
        let held = parties(holders, named)?;
        let key = self.core.channels.recover();
        let mut absent = None;
        for side in [Side::A, Side::B] {
            let pid = named[side as usize];
            let client = if held[side as usize] { self.adopt(scene, pid) } else { None };
            match client {
                Some(client) => self.take_for(key, side, client, id),
                None => absent = Some((key, side, pid)),
            }
        }
        if [Side::A, Side::B].iter().all(|side| self.core.channels.side(key, *side).is_empty()) {
            self.core.channels.remove(key);
            return None;
        }
        // One who is a party to it.
        let client = [Side::A, Side::B].iter().find_map(|side| self.core.channels.maker(key, *side));
        let uid = client.and_then(|client| self.families.get(&client)).map_or(0, |family| family.uid);
        if self.charge(Holding::Channel(key), uid, 2).is_err() {
            self.core.channels.remove(key);
            return None;
        }
        self.by_identity.insert(identity, key);
        self.segments.insert(key, segment);
        absent
    }

    /// A channel's id stands where its processes can write: when it cannot be right, a name of our
    /// own does, and only what a dead process left unread is not seen then.
    fn take_for(&mut self, key: ChannelKey, side: Side, client: ClientId, id: u64) {
        let channels = &mut self.core.channels;
        let _ = channels
            .announce(key, (side, 0), client, id)
            .or_else(|_| channels.announce(key, (side, 0), client, key.0));
        if side == Side::B
            && let Some(family) = self.families.get(&client)
        {
            channels.is_for(key, family.uid);
        }
    }

    /// The client record of a silent process, made if need be.
    fn adopt(&mut self, scene: &Scene, pid: u32) -> Option<ClientId> {
        if let Some(adopted) = self.silent.by_pid.get(&pid) {
            return Some(adopted.client);
        }
        let slab_identity = scene.holdings.slab_of(pid)?;
        let fd = sd_sys::fd::pidfd_open(i32::try_from(pid).ok()?).ok()?;
        let pidfd = std_fd(fd);
        // The number is still that process's, as it still has its slab.
        let slab = scene.open_slab(pid, slab_identity)?;
        let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        if has_ended(pidfd.as_fd()) {
            return None;
        }
        let client = self.next_client();
        self.charge(Holding::Family(client), uid, 2).ok()?;
        let process = self.core.members.register(None, pid, client);
        self.watch_process(process, pidfd);
        let family = Family {
            slab,
            public: None,
            eventfd: None,
            witness: None,
            thread_wakers: BTreeMap::new(),
            netns: 0,
            uid,
            pid,
            connection: None,
            room: Room::default(),
        };
        self.families.insert(client, family);
        self.silent.by_pid.insert(pid, Adopted { slab: slab_identity, client, process });
        tracing::debug!(pid, client = client.0, "silent client");
        Some(client)
    }

    /// A process registers. If it was silent until now it announces its channels next; if it has
    /// another slab, what was known under its number is gone, by exec or by exit.
    pub(crate) fn has_spoken(&mut self, pid: u32, slab: Identity) {
        let Some(adopted) = self.silent.by_pid.get(&pid).copied() else { return };
        if adopted.slab != slab {
            return self.reap(adopted.process);
        }
        let Adopted { client, process, .. } = adopted;
        self.silent.forget(process);
        if let Some(pidfd) = self.pidfds.remove(&process) {
            self.poller.forget(pidfd);
        }
        self.core.members.gone(process);
        self.core.members.forget(client);
        for key in self.core.channels.of_family(client) {
            for side in self.core.channels.leave(key, client) {
                self.recovery.expect(key, side, pid);
            }
        }
        self.give_back_family(client);
        self.families.remove(&client);
    }
}
