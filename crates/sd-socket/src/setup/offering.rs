//! A connection that the kernel has made is offered to the monitor, which looks for its other end (ADR 82).

use super::watched::MESSAGES;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::setup::{began, inherited, promote, unregistered};
use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, ACTIVE, OFFERED, WATCHED, now_ms, promotes};
use crate::socket::{cold, history};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab::{Awaits, Endpoint, Promotes, State};
use sd_sys::section::Section;

/// Offers it, unless somebody else is in a call on it.
#[cold]
pub(super) fn offer(endpoint: &'static Endpoint, word: &'static AtomicU32, fd: c_int) {
    let Some((endpoint, word)) = inherited::own(endpoint, word, fd) else {
        history::awaits(endpoint, Awaits::Shared);
        return;
    };
    let is_own = PROCESS.locate(endpoint).is_some_and(|(rec, _)| {
        PROCESS.owns(rec) && endpoint.holders.load(Ordering::Acquire) == rec.bit.load(Ordering::Relaxed)
    });
    // Else a handler of a signal could wait for this thread.
    let _section = Section::enter();
    if !unregistered::may_look() || client::connected().is_none() {
        history::awaits(endpoint, Awaits::Monitor);
        road::await_monitor(cold::of(endpoint));
        return;
    }
    let now = word.load(Ordering::Acquire);
    let is_offered = is_own && endpoint.state_now() == State::Kernel && promote::is_named(endpoint, fd);
    if !is_offered {
        history::awaits(endpoint, if is_own { Awaits::Replaced } else { Awaits::Shared });
        return;
    }
    if !promote::close(endpoint, now, OFFERED) {
        return;
    }
    let serial = promote::expect(endpoint);
    let connected = now & ACTIVE != 0;
    let restored = began::restored(endpoint);
    let (sent, received) = restored.unwrap_or_default();
    let (messages, bytes) = load(endpoint, fd);
    let restored = restored.is_some();
    let asked_ms = sd_sys::time::real_ms();
    let offer = Request::Offer { serial, connected, restored, sent, received, messages, bytes, asked_ms };
    // Before the monitor can say more.
    history::awaits(endpoint, Awaits::Peer);
    let answer = client::question(&offer, &[fd]);
    let cold = cold::of(endpoint);
    cold.looked_at_ms.store(now_ms(), Ordering::Relaxed);
    match answer {
        Some((Reply::Ok, _)) => {
            word.fetch_or(OFFERED, Ordering::AcqRel);
        }
        // Something waits to be sent after all.
        Some((Reply::Error { code: ErrorCode::InUse }, _)) => {
            history::awaits(endpoint, Awaits::Unsent);
            promote::give_up(serial);
        }
        refused => {
            history::awaits(endpoint, why(refused.map(|(reply, _)| reply)));
            promote::give_up(serial);
            road::put_off(cold);
        }
    }
    promote::open(endpoint, 0);
    if promotes() == Promotes::Nothing {
        // Nobody to offer it to, as is known now.
        word.fetch_and(!WATCHED, Ordering::AcqRel);
    }
}

/// What the connection has carried since it is the kernel's: calls, and bytes in both directions. Nothing where too few calls were counted: bytes may have gone
/// before that.
fn load(endpoint: &Endpoint, fd: c_int) -> (u32, u64) {
    let cold = cold::of(endpoint);
    let messages = cold.messages.load(Ordering::Relaxed);
    if messages < MESSAGES {
        return (0, 0);
    }
    let before = u64::from(cold.stream_read.load(Ordering::Relaxed)) << 10;
    (messages, road::carried(fd).saturating_sub(before))
}

/// Why the monitor does not want it.
fn why(answer: Option<Reply>) -> Awaits {
    match answer {
        None => Awaits::Monitor,
        Some(Reply::Error { code: ErrorCode::Denied }) => Awaits::Policy,
        Some(Reply::Error { code: ErrorCode::Descriptor }) => Awaits::Ending,
        Some(_) => Awaits::Refused,
    }
}
