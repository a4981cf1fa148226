//! Connections that arrive: from the event of a slot into the backlog of a listener, or refused.

use crate::backlog::defer::{Since, stays};
use crate::backlog::listener::{Listener, Pending, REGISTRY, UNREGISTERED, publish_pending};
use crate::link::channel::Channel;
use crate::link::outstanding::asked_for;
use crate::process::PROCESS;
use crate::socket::bell::ALL_BITS;
use crate::socket::endpoint::EndpointExt;
use crate::socket::handle::Socket;
use crate::socket::life;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::doorbell;
use sd_shm::channel::{Side, SlotState};
use sd_shm::promotion::PROMOTION;
use sd_shm::slab::State;

/// Slot and generation of every connection that waits on a channel.
pub(crate) fn each_waiting(channel: &Channel, mut each: impl FnMut(usize, u32)) {
    let used = channel.map.header().used.load(Ordering::Acquire) as usize;
    for slot in 0..used.min(sd_shm::channel::SLOTS) {
        if let Some(generation) = channel.map.waiting(slot) {
            each(slot, generation);
        }
    }
}

/// Tells A that nobody listens (any more), unless somebody has accepted meanwhile.
pub(crate) fn refuse(channel: &'static Channel, slot: usize, generation: u32) {
    let words = channel.map.slot(slot);
    let old = words.side[1].state.load(Ordering::Acquire);
    let refused = generation << 8 | SlotState::Refused as u32;
    let state = &words.side[1].state;
    // The connection may be over by now, and the slot have another, which was answered before this look at the state or changes it.
    let is_asked = old >> 8 != generation && words.side[0].state().0 == generation;
    if !is_asked || !sd_ring::sync::slot_state::answer(state, old, refused) {
        return;
    }
    wake_asking(channel, slot);
}

/// Whoever waits for a connection at side A looks at it.
pub(crate) fn wake_asking(channel: &Channel, slot: usize) {
    let words = channel.map.slot(slot);
    let fired = doorbell::ring(&words.side[0].wait, ALL_BITS);
    channel.kick(slot, fired);
    channel.tell(slot);
}

/// A thread waits in accept, as clients see it.
pub(crate) struct WaitsInAccept(Option<&'static AtomicU32>);

impl WaitsInAccept {
    pub(crate) fn enter(listener: &Listener) -> WaitsInAccept {
        let index = listener.index.load(Ordering::Relaxed) as usize;
        let page = PROCESS.public().and_then(|p| p.listeners.get(index));
        let waiting = page.map(|page| &page.waiting);
        waiting.inspect(|waiting| _ = waiting.fetch_add(1, Ordering::Relaxed));
        WaitsInAccept(waiting)
    }
}

impl Drop for WaitsInAccept {
    fn drop(&mut self) {
        self.0.inspect(|waiting| _ = waiting.fetch_sub(1, Ordering::Relaxed));
    }
}

/// A slot without an endpoint was announced: a new connection, or an old story. The listener that has one more connection in its
/// backlog: whoever watches it is to be told.
pub(crate) fn arrived(channel: &'static Channel, slot: usize) -> Option<Socket> {
    let words = channel.map.slot(slot);
    let (generation, state) = words.side[0].state();
    if channel.side != Side::B || !matches!(state, SlotState::Syn | SlotState::Closed) {
        return None;
    }
    if words.side[1].state().0 == generation {
        if channel.queued.has(slot, generation) {
            taken_elsewhere(channel, slot);
        }
        return None;
    }
    // Requests are announced to the process that the channel was made for.
    if channel.adopter != 0 {
        return None;
    }
    match registered(asked_for(channel, slot)) {
        Some(listener) => enqueue(listener, channel, slot, generation),
        None => {
            for_no_listener(channel, slot, generation);
            None
        }
    }
}

/// A slot without an endpoint, for no listener of this process.
#[cold]
#[inline(never)]
fn for_no_listener(channel: &'static Channel, slot: usize, generation: u32) {
    let [a, _] = &channel.map.slot(slot).side;
    if a.listener.load(Ordering::Relaxed) == PROMOTION {
        life::ABOVE.get().inspect(|above| (above.shown)(channel, slot, generation));
    } else if !crate::monitor::client::is_there() {
        // Else its end has been told; the monitor or the client itself sees to the connection.
        refuse(channel, slot, generation);
    }
}

/// The listener of that index and generation.
fn registered((index, generation): (u32, u32)) -> Option<&'static Listener> {
    REGISTRY.lock().iter().copied().find(|l| {
        l.index.load(Ordering::Relaxed) == index
            && l.generation.load(Ordering::Relaxed) == generation
            && index != UNREGISTERED
    })
}

/// A process asks for as many connections as the backlog takes, over all its channels, and for no more before some are accepted
/// (`outstanding.rs`). Who does has not looked at the backlog. Linux would not answer.
#[cold]
fn is_beyond_measure(listener: &Listener, queue: &VecDeque<Pending>, channel: &Channel) -> bool {
    let name = (listener.index.load(Ordering::Relaxed), listener.generation.load(Ordering::Relaxed));
    let is_of = |pending: &&Pending| {
        pending.channel.peer.pid == channel.peer.pid
            && pending.waits()
            && asked_for(pending.channel, pending.slot) == name
    };
    queue.iter().filter(is_of).count() > listener.backlog_most.load(Ordering::Relaxed) as usize
}

/// Another process has accepted what is in a backlog of this one, which is fuller than it looked.
#[cold]
fn taken_elsewhere(channel: &'static Channel, slot: usize) {
    if let Some(listener) = registered(asked_for(channel, slot)) {
        listener.drop_taken();
    }
}

/// Whose backlogs a connection may be in besides that of this process, which has just accepted it: they look again. So
/// does the other side, if it has to be told.
#[cold]
pub(crate) fn tell_owners(channel: &Channel, slot: usize) {
    if channel.adopter != 0 || channel.inherited.load(Ordering::Relaxed) {
        for owner in [0, channel.adopter] {
            channel.map.events_for(Side::B, owner).post(slot);
        }
    }
    channel.tell(slot);
}

/// Puts a connection into a backlog: the listener, which is to be told.
fn enqueue(
    listener: &'static Listener,
    channel: &'static Channel,
    slot: usize,
    generation: u32,
) -> Option<Socket> {
    let mut queue = listener.queue.lock();
    let most = listener.backlog_most.load(Ordering::Relaxed) as usize;
    if queue.len() > most && channel.adopter == 0 && is_beyond_measure(listener, &queue, channel) {
        drop(queue);
        refuse(channel, slot, generation);
        return None;
    }
    // One that somebody else has accepted may be followed by another at its slot.
    if channel.queued.add(slot, generation) {
        channel.used();
        let is_deferred = listener.defer.load(Ordering::Relaxed) != 0;
        let since = if is_deferred { Since::now() } else { Since::NOT_ASKED };
        queue.push_back(Pending { channel, slot, generation, since });
    }
    publish_pending(listener, queue.len());
    drop(queue);
    *listener.socket.lock()
}

/// The monitor says that connections on a channel wait that this listener may accept. `tell` is told of the listener for each.
pub(crate) fn offered(channel: &'static Channel, index: u32, tell: impl Fn(Socket)) {
    let found = REGISTRY.lock().iter().copied().find(|l| l.index.load(Ordering::Relaxed) == index);
    let Some(listener) = found.filter(|_| index != UNREGISTERED) else { return };
    let Some(socket) = *listener.socket.lock() else { return };
    let port = (socket.ports.load(Ordering::Relaxed) >> 16) as u16;
    let listens = socket.state_now() == State::Listen;
    each_waiting(channel, |slot, generation| {
        let wanted = channel.map.names(slot).ports.load(Ordering::Relaxed) as u16;
        // On our own channel other listeners of ours have theirs already.
        if wanted != port || channel.adopter == 0 && registered(asked_for(channel, slot)).is_some() {
            return;
        }
        let pending = Pending { channel, slot, generation, since: requested_at(channel, slot) };
        match listens {
            true if channel.adopter != 0 && stays(listener, &pending) => {}
            true => enqueue(listener, channel, slot, generation).into_iter().for_each(&tell),
            false => refuse(channel, slot, generation),
        }
    });
}

/// When a connection was requested.
fn requested_at(channel: &Channel, slot: usize) -> Since {
    let announced = channel.map.slot(slot).side[0].announced.load(Ordering::Relaxed);
    Since::ago(sd_sys::time::ns_of_ticks(sd_sys::time::ticks().saturating_sub(announced)))
}
