//! The ready list: what is reported, what stays, what is armed.

use super::{Epoll, Item, Source};
use crate::endpoint::EndpointExt;
use crate::process::PROCESS;
use crate::ready;
use core::sync::atomic::Ordering;
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, epoll_event};
use sd_shm::slab::State;

/// Level-triggered sockets that may stay on the list without being ready.
const HOT_MAX: usize = 16;
/// Looks without result after which a socket is no longer hot.
const COLD: u32 = 4000;

/// Whether a wait would return something of ours at once (for nested instances and poll).
pub(crate) fn is_ready(epoll: *mut Epoll, depth: u32) -> bool {
    let _lock = (depth == 0).then(|| PROCESS.readiness.lock());
    // SAFETY: under the lock (taken by the outermost call).
    let this = unsafe { &mut *epoll };
    this.ready.iter().chain(&this.scanned).any(|&item| {
        // SAFETY: as above.
        let it = unsafe { &*item };
        !it.disabled && item_mask(it, depth) != 0
    })
}

/// Arms everything that is not ready, before a sleep on behalf of an outer instance.
pub(crate) fn arm_all(epoll: *mut Epoll, depth: u32) {
    let _lock = (depth == 0).then(|| PROCESS.readiness.lock());
    // SAFETY: as in `is_ready`.
    let this = unsafe { &mut *epoll };
    for &item in this.ready.iter().chain(&this.scanned) {
        // SAFETY: as above.
        let it = unsafe { &*item };
        match it.source {
            Source::Socket(endpoint) => ready::arm(endpoint, it.events),
            Source::Nested(nested) if depth < 5 => arm_all(nested, depth + 1),
            Source::Nested(_) => {}
        }
    }
}

fn item_mask(it: &Item, depth: u32) -> u32 {
    let wanted = it.events | (EPOLLERR | EPOLLHUP) as u32;
    match it.source {
        Source::Socket(endpoint) => ready::mask(endpoint) & wanted,
        Source::Nested(nested) if depth < 5 && is_ready(nested, depth + 1) => libc::EPOLLIN as u32 & wanted,
        Source::Nested(_) => 0,
    }
}

/// Moves ready events into `out`; under the lock. Level-triggered ones stay on the list.
pub(super) fn collect(this: &mut Epoll, out: &mut [epoll_event]) -> usize {
    for at in 0..this.scanned.len() {
        if let Some(&item) = this.scanned.get(at) {
            // SAFETY: under the lock.
            if unsafe { !(*item).queued && (*item).events & EPOLLET as u32 == 0 } {
                this.enqueue(item);
            }
        }
    }
    let mut count = 0;
    for _ in 0..this.ready.len() {
        if count == out.len() {
            break;
        }
        let Some(item) = this.ready.pop_front() else { break };
        // SAFETY: under the lock.
        let it = unsafe { &mut *item };
        it.queued = false;
        if it.disabled {
            continue;
        }
        let edge = it.events & EPOLLET as u32 != 0;
        if edge && let Source::Socket(endpoint) = it.source {
            ready::arm(endpoint, it.events);
        }
        let mask = item_mask(it, 1);
        if mask == 0 {
            keep_hot(this, item, edge);
            continue;
        }
        it.cold = 0;
        if let Some(slot) = out.get_mut(count) {
            *slot = epoll_event { events: mask, u64: it.data };
            count += 1;
        }
        this.dirty.store(true, Ordering::Relaxed);
        if it.events & EPOLLONESHOT as u32 != 0 {
            it.disabled = true;
        } else if !edge {
            it.queued = true;
            this.ready.push_back(item);
        }
    }
    count
}

/// A socket that is not ready: kept on the list for a while, or armed and taken off.
fn keep_hot(this: &mut Epoll, item: *mut Item, edge: bool) {
    // SAFETY: under the lock.
    let it = unsafe { &mut *item };
    let Source::Socket(endpoint) = it.source else { return };
    it.cold += 1;
    let hot = !edge && endpoint.state_now() == State::Connected && it.cold < COLD;
    if !hot || this.ready.len() >= HOT_MAX {
        ready::arm(endpoint, it.events);
        if item_mask(it, 1) == 0 {
            return;
        }
    }
    it.queued = true;
    this.ready.push_back(item);
}

/// Before a sleep: nothing stays hot. True when something is ready after all.
pub(super) fn cool_down(this: &mut Epoll) -> bool {
    for _ in 0..this.ready.len() {
        let Some(item) = this.ready.pop_front() else { break };
        // SAFETY: under the lock.
        let it = unsafe { &mut *item };
        it.queued = false;
        if it.disabled {
            continue;
        }
        match it.source {
            Source::Socket(endpoint) => ready::arm(endpoint, it.events),
            Source::Nested(nested) => arm_all(nested, 1),
        }
        if item_mask(it, 1) != 0 {
            it.queued = true;
            this.ready.push_back(item);
        }
    }
    for &item in &this.scanned {
        // SAFETY: under the lock.
        let it = unsafe { &*item };
        match it.source {
            Source::Socket(endpoint) => ready::arm(endpoint, it.events),
            Source::Nested(nested) => arm_all(nested, 1),
        }
        if !it.disabled && it.events & EPOLLET as u32 == 0 && item_mask(it, 1) != 0 {
            return true;
        }
    }
    !this.ready.is_empty()
}
