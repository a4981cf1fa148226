//! Whose bytes are next: tenants by deficit round robin, and within a tenant small messages before bulk.

use super::table::{List, Table};
use crate::Nanos;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What a tenant may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its part, beside those of the others.
    pub weight: u32,
    /// Bytes a second, and how many it may save up; `None`: as many as there are.
    pub rate: Option<(u64, u64)>,
}

/// A connection with no more than this to send is served before those with more.
pub(super) const SMALL: u64 = 1024;
/// What a connection with more may send in its turn.
pub(super) const TURN: u32 = 8192;
/// After so many bytes of small messages one turn of bulk.
const SMALL_RUN: u32 = 32 << 10;
/// What a tenant of weight 1 may send in its turn.
const QUANTUM: i64 = 4096;

/// Of [`Table`]'s data lists.
const SMALL_LIST: u8 = 1;
const BULK_LIST: u8 = 2;

/// A bucket of tokens, one for each byte.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u64,
    burst: u64,
    tokens: i64,
    at: Nanos,
}

impl Bucket {
    /// Tokens at this time.
    fn fill(&mut self, now: Nanos) -> i64 {
        let passed = now.saturating_sub(self.at);
        let new = u128::from(passed) * u128::from(self.rate) / 1_000_000_000;
        if new > 0 {
            self.tokens = (i128::from(self.tokens) + new as i128).min(i128::from(self.burst)) as i64;
            self.at = now;
        }
        self.tokens
    }

    /// When there is one again.
    fn ready_at(&self) -> Nanos {
        let lacking = u128::from((1 - self.tokens).max(0) as u64) * 1_000_000_000;
        let wait = lacking.div_ceil(u128::from(self.rate.max(1)));
        self.at.saturating_add(u64::try_from(wait).unwrap_or(Nanos::MAX))
    }
}

#[derive(Debug)]
struct Tenant {
    id: u32,
    weight: u32,
    bucket: Option<Bucket>,
    small: List<0>,
    bulk: List<0>,
    deficit: i64,
    run: u32,
    is_queued: bool,
}

/// All tenants, and the order in which they are served.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tenants: Vec<Tenant>,
    queue: VecDeque<u16>,
}

impl Turns {
    /// A new tenant, or other limits for one; says whether there was room.
    pub(super) fn set(&mut self, id: u32, limits: Limits, now: Nanos) -> bool {
        let bucket = limits.rate.map(|(rate, burst)| {
            let burst = burst.clamp(1, 1 << 40);
            Bucket { rate, burst, tokens: burst as i64, at: now }
        });
        let weight = limits.weight.clamp(1, 1 << 16);
        if let Some(known) = self.find(id) {
            let tenant = &mut self.tenants[usize::from(known)];
            (tenant.weight, tenant.bucket) = (weight, bucket);
            return true;
        }
        if self.tenants.len() >= usize::from(u16::MAX) {
            return false;
        }
        let (small, bulk) = Default::default();
        self.tenants.push(Tenant { id, weight, bucket, small, bulk, deficit: 0, run: 0, is_queued: false });
        true
    }

    pub(super) fn find(&self, id: u32) -> Option<u16> {
        self.tenants.iter().position(|tenant| tenant.id == id).map(|at| at as u16)
    }

    pub(super) fn id(&self, tenant: u16) -> u32 {
        self.tenants.get(usize::from(tenant)).map_or(0, |tenant| tenant.id)
    }

    /// A connection has something to send, or has no longer, or more than before.
    pub(super) fn update(&mut self, table: &mut Table, key: u32) {
        let conn = table.at(key);
        let (sendable, on, number) = (conn.sendable(), conn.links[0].on, conn.tenant);
        let wanted = match sendable {
            0 => 0,
            1..=SMALL => SMALL_LIST,
            _ => BULK_LIST,
        };
        if wanted == on {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(usize::from(number)) else { return };
        match on {
            SMALL_LIST => tenant.small.remove(table, key),
            BULK_LIST => tenant.bulk.remove(table, key),
            _ => {}
        }
        match wanted {
            SMALL_LIST => tenant.small.push(table, key, SMALL_LIST),
            BULK_LIST => {
                table.at(key).turn = TURN;
                tenant.bulk.push(table, key, BULK_LIST);
            }
            _ => return,
        }
        if !tenant.is_queued {
            tenant.is_queued = true;
            self.queue.push_back(number);
        }
    }

    /// Whose turn it is.
    pub(super) fn next(&mut self, now: Nanos) -> Option<u32> {
        let mut poor = 0;
        while poor < self.queue.len() {
            let number = *self.queue.front()?;
            let tenant = &mut self.tenants[usize::from(number)];
            let (small, bulk) = (tenant.small.first(), tenant.bulk.first());
            let Some(key) = (if tenant.run < SMALL_RUN { small.or(bulk) } else { bulk.or(small) }) else {
                self.queue.pop_front();
                (tenant.is_queued, tenant.deficit, tenant.run) = (false, 0, 0);
                continue;
            };
            if tenant.bucket.as_mut().is_some_and(|bucket| bucket.fill(now) <= 0) {
                self.queue.rotate_left(1);
                poor += 1;
                continue;
            }
            if tenant.deficit <= 0 {
                tenant.deficit += QUANTUM * i64::from(tenant.weight);
                self.queue.rotate_left(1);
                poor = 0;
                continue;
            }
            return Some(key);
        }
        None
    }

    /// A connection has sent so many bytes of its turn.
    pub(super) fn charge(&mut self, table: &mut Table, key: u32, bytes: u32) {
        let conn = table.at(key);
        let (on, number) = (conn.links[0].on, conn.tenant);
        conn.turn = conn.turn.saturating_sub(bytes);
        let is_over = on == SMALL_LIST || conn.turn == 0;
        let Some(tenant) = self.tenants.get_mut(usize::from(number)) else { return };
        tenant.deficit -= i64::from(bytes);
        if let Some(bucket) = &mut tenant.bucket {
            bucket.tokens -= i64::from(bytes);
        }
        tenant.run = if on == SMALL_LIST { tenant.run.saturating_add(bytes) } else { 0 };
        if is_over {
            match on {
                SMALL_LIST => tenant.small.remove(table, key),
                BULK_LIST => tenant.bulk.remove(table, key),
                _ => {}
            }
        }
        self.update(table, key);
    }

    /// When a tenant that has used up its tokens may go on.
    pub(super) fn next_time(&self) -> Option<Nanos> {
        let waiting = self.queue.iter().filter_map(|number| self.tenants[usize::from(*number)].bucket);
        waiting.filter(|bucket| bucket.tokens <= 0).map(|bucket| bucket.ready_at()).min()
    }

    /// Fills the buckets of those who wait.
    pub(super) fn tick(&mut self, now: Nanos) {
        for number in &self.queue {
            if let Some(bucket) = &mut self.tenants[usize::from(*number)].bucket {
                bucket.fill(now);
            }
        }
    }

    /// All connections are gone.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        for tenant in &mut self.tenants {
            (tenant.small, tenant.bulk, tenant.is_queued) = (List::default(), List::default(), false);
            (tenant.deficit, tenant.run) = (0, 0);
        }
    }
}
