//! Processes without room for another channel: connections to them go over the kernel.
//!
//! ```text
//! before a channel is made: the process's limits and what it uses --> route: kernel, exhausted
//! process --Decline--> monitor: what waits on the channel goes to siblings, or is reset
//! ```
//! The first look is exact but for what the process does meanwhile, and takes channels that it was told of lately for not
//! mapped yet, so the second case is rare; without it a client would wait for ever, as it counts as connected from the
//! moment that it has the channel.

use super::connection::UNKNOWN;
use super::descriptors::std_fd;
use super::family::Family;
use super::reaper::{Unread, Woken};
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_shm::channel::{SEGMENT_LEN, Side};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So long a process that declined is left alone, and may take to map what it was told of.
const PAUSE: Duration = Duration::from_secs(5);
/// Address space beside the segment: the peer's page, lists, and what the program needs meanwhile.
const ADDRESSES: u64 = SEGMENT_LEN as u64 + (16 << 20);
/// Descriptors that stay open for a channel.
const DESCRIPTORS: u64 = 2;

/// The descriptors of a process that had plenty of them are not counted again for so long, and so many channels, unless
/// its limit changes.
const TRUST: Duration = Duration::from_millis(100);
const CHANNELS_TRUSTED: u32 = 64;
/// A client in whose socket more lies unread, some sixteen messages, gets no file of memory.
const UNREAD_MAX: usize = 16 << 10;
/// Descriptors that are plenty.
const PLENTY: u64 = 512;

/// What the monitor remembers of a process's room.
#[derive(Default)]
pub(crate) struct Room {
    declined_at: Option<Instant>,
    /// When it was told of channels, which it may not have mapped yet; noted where its addresses are limited.
    told_at: VecDeque<Instant>,
    has_limit: bool,
    plenty: Option<Plenty>,
}

/// A process had plenty of descriptors below a limit.
struct Plenty {
    at: Instant,
    limit: u64,
    /// Channels that it was told of since.
    channels: u32,
}

impl Family {
    /// How many descriptors its owner may have, if it is there.
    pub(crate) fn descriptors_max(&self) -> Option<u64> {
        sd_sys::fd::limit_of(self.pid as i32, libc::RLIMIT_NOFILE).map(|limit| limit.rlim_cur)
    }

    /// Whether its owner can take one more channel, as far as one can see from outside.
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_below(self.descriptors_max())
    }

    /// The same, where it is known how many descriptors it may have.
    pub(crate) fn has_room_below(&mut self, limit: Option<u64>) -> bool {
        let declines = self.room.declined_at.is_some_and(|at| at.elapsed() < PAUSE);
        // To count addresses is to keep the process's memory for a moment, which a stranger could make the last one of its life,
        // whereupon the monitor would have to give all of it back. A stranger declines.
        let is_known = self.uid == 0 || self.uid == sd_sys::fd::geteuid();
        !declines
            && (!is_known || self.room.has_addresses(self.pid))
            && limit.is_none_or(|limit| self.room.has_descriptors(self.pid, limit))
    }

    /// Its owner has been told of a channel.
    pub(crate) fn was_told(&mut self) {
        if self.room.has_limit {
            self.room.told_at.push_back(Instant::now());
        }
    }
}

impl Room {
    /// The hard limit counts: the library passes a softer one on with its own needs on top.
    fn has_addresses(&mut self, pid: u32) -> bool {
        let limit = sd_sys::fd::limit_of(pid as i32, libc::RLIMIT_AS).map(|limit| limit.rlim_max);
        let limit = limit.filter(|limit| *limit != libc::RLIM_INFINITY);
        self.has_limit = limit.is_some();
        let Some(limit) = limit else { return true };
        while self.told_at.front().is_some_and(|at| at.elapsed() >= PAUSE) {
            self.told_at.pop_front();
        }
        let channels = self.told_at.len() as u64 + 1;
        let used = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok();
        let pages = |text: String| text.split(' ').next()?.parse::<u64>().ok();
        let fits = |pages: u64| {
            (pages * sd_sys::mem::page_size() as u64).saturating_add(ADDRESSES * channels) <= limit
        };
        used.and_then(pages).is_none_or(fits)
    }

    fn has_descriptors(&mut self, pid: u32, limit: u64) -> bool {
        if let Some(plenty) = &mut self.plenty
            && (plenty.limit, plenty.channels < CHANNELS_TRUSTED) == (limit, true)
            && plenty.at.elapsed() < TRUST
        {
            plenty.channels += 1;
            return true;
        }
        // Linux 6.2 tells their number so; zero before.
        let open = std::fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |meta| meta.len());
        let has_plenty = open.saturating_add(PLENTY) <= limit;
        self.plenty = has_plenty.then(|| Plenty { at: Instant::now(), limit, channels: 0 });
        open.saturating_add(DESCRIPTORS) <= limit
    }
}

impl Server {
    /// Makes a file of memory for a process that may not make one so large. It is charged for what it touches. The file
    /// is the user's: a program believes what its own user has made, and root's monitor makes files for anybody.
    pub(crate) fn memory(&mut self, id: u64, user: u32, len: u64) -> Result<(), ErrorCode> {
        // What lies unread in its socket is nobody's descriptor, and counts for nobody.
        if self.connections.get(&id).is_some_and(|connection| connection.unread() > UNREAD_MAX) {
            return Err(ErrorCode::Exhausted);
        }
        let len = usize::try_from(len).ok().filter(|len| (1..=sd_shm::slab::LEN).contains(len));
        let made = sd_sys::mem::memfd_sealed(c"sd-memory", len.ok_or(ErrorCode::Protocol)?);
        let file = std_fd(made.map_err(|_| ErrorCode::Exhausted)?);
        if user != sd_sys::fd::geteuid() {
            // To fchown(2) this number means that nothing changes.
            let user = Some(user).filter(|user| *user != UNKNOWN).ok_or(ErrorCode::Protocol)?;
            std::os::unix::fs::fchown(&file, Some(user), None).map_err(|_| ErrorCode::Exhausted)?;
        }
        self.reply(id, &Reply::Memory, &[file.as_fd()]);
        Ok(())
    }

    /// A process could not take a channel.
    pub(crate) fn decline(&mut self, client: ClientId, id: u64) -> Result<(), ErrorCode> {
        let key = self.core.channels.named(client, id).ok_or(ErrorCode::Protocol)?;
        let founder = self.core.channels.founder(key);
        if let Some(family) = self.families.get_mut(&client) {
            family.room.declined_at = Some(Instant::now());
            tracing::info!(pid = family.pid, channel = id, "a process has no room for a channel");
        }
        let netns = self.netns_of(key).ok_or(ErrorCode::Protocol)?;
        let asks = self.core.channels.side(key, Side::A).iter().any(|(a, _)| *a == client);
        if founder == Some(client)
            && let Some(map) = self.segments.get(&key).and_then(Segment::map)
        {
            // Clients that know a way over this channel see this.
            map.header().dead[Side::B as usize].store(1, Ordering::SeqCst);
            sd_ring::fence_full();
        }
        let left = self.core.channels.leave(key, client);
        let mut woken = Woken::new();
        if asks && left.contains(&Side::A) {
            self.close_side(key, Side::A, Unread::Unknown, &mut woken);
            self.wake_sides(&woken);
            self.end_channel(key);
            return Ok(());
        }
        let mut places = BTreeMap::<(Ip, u16), usize>::new();
        for request in self.waiting_on(key) {
            *places.entry((request.ip, request.port)).or_default() += 1;
        }
        let mut given = 0;
        for (place, count) in places {
            given += self.offer_to_siblings(key, netns, place, count, None);
        }
        if given == 0 && self.core.channels.side(key, Side::B).is_empty() {
            self.close_side(key, Side::B, Unread::Looked, &mut woken);
            self.wake_sides(&woken);
            self.end_channel(key);
        }
        Ok(())
    }
}
