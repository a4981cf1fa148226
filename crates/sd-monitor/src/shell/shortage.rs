//! Processes without room for another channel: connections to them go over the kernel.
//!
//! ```text
//! before a channel is made: the process's limits and what it uses --> route: kernel, exhausted
//! process --Decline--> monitor: what waits on the channel goes to siblings, or is reset
//! ```
//! The first look is exact but for what the process does meanwhile, and takes channels that it was told of lately for not
//! mapped yet, so the second case is rare; without it a client would wait for ever, as it counts as connected from the
//! moment that it has the channel.

use super::family::Family;
use super::server::Server;
use super::undertaker::{Unread, Woken};
use crate::core::ClientId;
use sd_proto::{ErrorCode, Ip};
use sd_shm::channel::{SEGMENT_LEN, Side};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So long a process that declined is left alone, and may take to map what it was told of.
const PAUSE: Duration = Duration::from_secs(5);
/// Address space beside the segment: the peer's page, lists, and what the program needs meanwhile.
const ADDRESSES: u64 = SEGMENT_LEN as u64 + (16 << 20);
/// Descriptors that stay open for a channel.
const DESCRIPTORS: u64 = 2;

/// What the monitor remembers of a process's room.
#[derive(Default)]
pub(crate) struct Room {
    declined_at: Option<Instant>,
    /// When it was told of channels, which it may not have mapped yet.
    told_at: VecDeque<Instant>,
}

impl Family {
    /// Whether its owner can take one more channel, as far as one can see from outside.
    pub(crate) fn has_room(&self) -> bool {
        let is_recent = |at: &&Instant| at.elapsed() < PAUSE;
        let unmapped = self.room.told_at.iter().filter(is_recent).count() as u64;
        let declines = self.room.declined_at.iter().any(|at| is_recent(&at));
        !declines && has_addresses(self.pid, unmapped + 1) && has_descriptors(self.pid)
    }

    /// Its owner has been told of a channel.
    pub(crate) fn was_told(&mut self) {
        self.room.told_at.retain(|at| at.elapsed() < PAUSE);
        self.room.told_at.push_back(Instant::now());
    }
}

/// The hard limit counts: the library passes a softer one on with its own needs on top.
fn has_addresses(pid: u32, channels: u64) -> bool {
    let Some(limit) = sd_sys::fd::limit_of(pid as i32, libc::RLIMIT_AS) else { return true };
    let used = || std::fs::read_to_string(format!("/proc/{pid}/statm")).ok();
    let pages = |text: String| text.split(' ').next()?.parse::<u64>().ok();
    let fits = |pages: u64| (pages * 4096).saturating_add(ADDRESSES * channels) <= limit.rlim_max;
    limit.rlim_max == libc::RLIM_INFINITY || used().and_then(pages).is_none_or(fits)
}

fn has_descriptors(pid: u32) -> bool {
    let Some(limit) = sd_sys::fd::limit_of(pid as i32, libc::RLIMIT_NOFILE) else { return true };
    // Linux 6.2 tells their number so; zero before.
    let open = std::fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |meta| meta.len());
    open.saturating_add(DESCRIPTORS) <= limit.rlim_cur
}

impl Server {
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
            && let Some(segment) = self.segments.get(&key)
        {
            // Clients that know a way over this channel see this.
            segment.map().header().dead[Side::B as usize].store(1, Ordering::SeqCst);
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
            given += self.offer_to_siblings(key, netns, place, count, true);
        }
        if given == 0 && self.core.channels.side(key, Side::B).is_empty() {
            self.close_side(key, Side::B, Unread::Looked, &mut woken);
            self.wake_sides(&woken);
            self.end_channel(key);
        }
        Ok(())
    }
}
