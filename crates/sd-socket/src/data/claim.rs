//! The bytes of one blocking send stay together, also when the ring takes them in parts.
//!
//! A sender that has sent a part and has to wait for room leaves its claim; others wait for its end,
//! or get EAGAIN. (Linux lets them send in between.) A claim ends with the call, with its thread, or when
//! its thread is stopped: then the others go on, as on Linux. One that longjmp left ends with the next
//! send of its thread. Tested by the subjects `tokens/` of tests/posix.

use crate::socket::endpoint::EndpointExt;
use crate::socket::token;
use crate::wait::duties::{On, Waiting};
use crate::wait::{Deadline, earlier, interrupted, sleep_on_connection, spin};
use core::sync::atomic::Ordering;
use sd_ring::doorbell;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;
use sd_sys::futex::{self, Scope};
use sd_sys::section::Watch;
use sd_sys::time::ticks;

/// How often a waiter asks whether the thread with the claim is alive and running.
const LOOK_NS: u64 = 20_000_000;

/// This call's claim, if it has one.
pub(super) struct Claim(Option<&'static Endpoint>);

impl Claim {
    pub(super) const NONE: Claim = Claim(None);

    /// With the tx token: whether another call's message is under way.
    #[inline(always)]
    pub(super) fn is_barred(&self, endpoint: &Endpoint) -> bool {
        endpoint.sender.load(Ordering::Relaxed) != 0 && self.is_barred_slow(endpoint)
    }

    #[cold]
    fn is_barred_slow(&self, endpoint: &Endpoint) -> bool {
        let mine = endpoint.sender.load(Ordering::Relaxed) == token::id();
        if mine && self.0.is_none() {
            endpoint.sender.store(0, Ordering::Relaxed);
        }
        !mine
    }

    /// With the tx token, not barred: a part was sent, and the rest has to wait.
    pub(super) fn stake(&mut self, endpoint: &'static Endpoint) {
        if !token::is_alone() {
            endpoint.sender.store(token::id(), Ordering::Relaxed);
            self.0 = Some(endpoint);
        }
    }
}

impl Drop for Claim {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(endpoint) = self.0 {
            end(endpoint, token::id());
        }
    }
}

/// Ends a claim, and wakes those who wait for that.
#[cold]
fn end(endpoint: &'static Endpoint, claimant: u32) {
    let sender = &endpoint.sender;
    if sender.compare_exchange(claimant, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let fired = doorbell::ring(&endpoint.own_words().wait, doorbell::TX_SLEEP | doorbell::TX_EVENT);
    if fired & doorbell::TX_SLEEP != 0 {
        futex::wake(&endpoint.own_words().wait, i32::MAX, Scope::Shared);
    }
    if fired & doorbell::TX_EVENT != 0 {
        crate::epoll::endpoint_event(endpoint);
    }
}

/// Waits until no other call's message is under way.
#[cold]
pub(super) fn wait(endpoint: &'static Endpoint, deadline: Deadline) -> Result<(), Errno> {
    let sender = &endpoint.sender;
    let is_over = || sender.load(Ordering::Acquire) == 0;
    let watch = Watch::start();
    if spin(&endpoint.rx().spin, is_over) {
        return Ok(());
    }
    let mut waiting = Waiting::begin(None, ticks());
    loop {
        let pause = earlier(waiting.before_sleep(On::Word), Some(LOOK_NS));
        let value = doorbell::arm(&endpoint.own_words().wait, doorbell::TX_SLEEP);
        if is_over() {
            return Ok(());
        }
        interrupted(&watch, deadline)?;
        let slept = sleep_on_connection(endpoint, value, deadline, pause);
        waiting.after_sleep();
        slept?;
        let claimant = sender.load(Ordering::Acquire);
        if claimant != 0 && token::cannot_go_on(claimant) {
            end(endpoint, claimant);
        }
    }
}
