//! Does the policy let the other side of a channel reach this listener? Its own library has asked the monitor before; one
//! that is not ours may not have. Where there are rules accept asks once for each channel, listener and policy; what the
//! monitor has decided when it made the channel it tells with it.
//!
//! Without an answer (no monitor at present; one that has just started and does not know the other side yet) a connection is
//! neither let in nor refused: it is *put off*, and asked about again every [`AGAIN_NS`]. Whoever is about to sleep does that, and
//! sleeps no longer. After [`TIMEOUT_NS`] it is refused. Tested by `cargo xtask sharing --only policy`.

use crate::backlog::arrivals;
use crate::backlog::defer;
use crate::backlog::listener::{Listener, Pending, UNREGISTERED, publish_pending};
use crate::link::admitted::Place;
use crate::link::channel::Channel;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::socket::addr::Name;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sd_proto::{ErrorCode, Reply, Request};
use sd_sys::lock::Lock;

/// The monitor says with a new channel what its other side may reach.
pub(super) fn learn(channel: &Channel, admits: sd_proto::Admission) {
    let sd_proto::Admission { policy, has_all, ip, port } = admits;
    if policy != 0 {
        channel.admitted.note(Place { policy, has_all, to: (ip, port) });
    }
}

/// See [`admits`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    In,
    Out,
    /// It is not known yet.
    Later,
}

/// Whether a connection to this name of the listener's is let in.
#[inline]
pub(super) fn admits(channel: &Channel, listener: &Listener, to: Name) -> Verdict {
    // The monitor has raised it before it answers anybody by the new rules.
    let policy = PROCESS.policy();
    if policy == 0 { Verdict::In } else { ask(channel, listener, to, policy) }
}

#[cold]
fn ask(channel: &Channel, listener: &Listener, to: Name, policy: u32) -> Verdict {
    let place = Place { policy, has_all: listener.ip().is_unspecified(), to: (to.ip, to.port) };
    if channel.admitted.knows(place) {
        return Verdict::In;
    }
    let index = listener.index.load(Ordering::Relaxed);
    let asked = Request::Admits { channel: channel.id, listener: index, ip: to.ip };
    match client::question(&asked, &[]) {
        Some((Reply::Ok, _)) => {
            channel.admitted.note(place);
            Verdict::In
        }
        Some((Reply::Error { code: ErrorCode::Denied }, _)) => Verdict::Out,
        _ => Verdict::Later,
    }
}

const AGAIN_NS: u64 = 20_000_000;
const TIMEOUT_NS: u64 = 10_000_000_000;
/// Connections that are put off at a time.
const MOST: usize = 4096;

/// A connection that is in no backlog meanwhile.
struct PutOff {
    listener: &'static Listener,
    /// The listener's number and generation at that time; its record is recycled.
    name: (u32, u32),
    pending: Pending,
    to: Name,
    since: u64,
}

/// In the child of a fork it may stay taken; then nothing can be put off there.
static PUT_OFF: Lock<Vec<PutOff>> = Lock::new(Vec::new());
/// See [`PUT_OFF`]: there may be some.
static ANY: AtomicBool = AtomicBool::new(false);
/// When to ask again.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn name_of(listener: &Listener) -> (u32, u32) {
    (listener.index.load(Ordering::Relaxed), listener.generation.load(Ordering::Relaxed))
}

/// One that is not let in, or not yet: it is refused, or put off. It is in no backlog any more.
#[cold]
pub(super) fn not_in(verdict: Verdict, listener: &'static Listener, pending: Pending, to: Name) {
    if verdict != Verdict::Later || !put_off(listener, pending, to) {
        arrivals::refuse(pending.channel, pending.slot, pending.generation);
    }
}

/// False when it cannot be kept.
fn put_off(listener: &'static Listener, pending: Pending, to: Name) -> bool {
    let now = sd_sys::time::now_ns();
    let Some(mut all) = PUT_OFF.try_lock().filter(|all| all.len() < MOST) else { return false };
    pending.channel.used();
    all.push(PutOff { listener, name: name_of(listener), pending, to, since: now });
    ANY.store(true, Ordering::Release);
    drop(all);
    ask_at(now.saturating_add(AGAIN_NS));
    true
}

/// Before a sleep: how long it may last, for those that wait for an answer and those that TCP_DEFER_ACCEPT holds back.
#[inline]
pub(crate) fn pause() -> Option<u64> {
    if !is_any() {
        return None;
    }
    ask_again();
    defer::pause()
}

/// Some are held back, in one way or the other.
#[inline]
pub(crate) fn is_any() -> bool {
    defer::is_any()
}

/// Asks again, if it is time, and gives those that are let in back to their backlogs; whether there were any.
#[inline]
pub(super) fn ask_again() -> bool {
    let any = ANY.load(Ordering::Relaxed);
    if any {
        ask_again_now();
    }
    any
}

#[cold]
fn ask_again_now() {
    let now = sd_sys::time::now_ns();
    let next = NEXT.load(Ordering::Relaxed);
    if now < next {
        return defer::look_at(next);
    }
    let Some(all) = PUT_OFF.try_lock().map(|mut all| core::mem::take(&mut *all)) else { return };
    ANY.store(false, Ordering::Relaxed);
    let _user = crate::link::reclaim::User::enter();
    let mut left = Vec::new();
    for put_off in all {
        let PutOff { listener, name, pending, to, since } = put_off;
        let is_wanted = name.0 != UNREGISTERED && name_of(listener) == name && pending.waits();
        match if is_wanted { admits(pending.channel, listener, to) } else { Verdict::Out } {
            Verdict::In => put_back(listener, pending),
            Verdict::Later if now.saturating_sub(since) < TIMEOUT_NS => {
                // Its process may sleep where it does not notice that the monitor is another, and look when it is woken.
                arrivals::wake_asking(pending.channel, pending.slot);
                left.push(put_off);
                continue;
            }
            Verdict::Later | Verdict::Out if is_wanted => {
                arrivals::refuse(pending.channel, pending.slot, pending.generation);
            }
            Verdict::Later | Verdict::Out => {}
        }
        pending.channel.unused();
    }
    if left.is_empty() {
        return;
    }
    match PUT_OFF.try_lock() {
        Some(mut all) => all.append(&mut left),
        None => left.iter().for_each(|put_off| {
            let Pending { channel, slot, generation, .. } = put_off.pending;
            arrivals::refuse(channel, slot, generation);
            channel.unused();
        }),
    }
    ANY.store(true, Ordering::Release);
    ask_at(now.saturating_add(AGAIN_NS));
}

fn ask_at(time_ns: u64) {
    NEXT.store(time_ns, Ordering::Relaxed);
    defer::look_at(time_ns);
}

/// One that was taken out of a backlog is in it again, unless it has come back by itself.
#[cold]
fn put_back(listener: &'static Listener, pending: Pending) {
    let mut queue = listener.queue.lock();
    if pending.channel.queued.add(pending.slot, pending.generation) {
        pending.channel.used();
        queue.push_back(pending);
    }
    publish_pending(listener, queue.len());
    drop(queue);
    let socket = *listener.socket.lock();
    if let Some(socket) = socket {
        crate::epoll::state_event(socket, 0);
    }
    // Whoever waits in accept looks.
    defer::look_at(0);
}
