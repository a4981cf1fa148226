//! The life of a socket in this process: an endpoint is allocated, tied to a slot, counted by numbers, and ended.
//!
//! | state | event | next |
//! |---|---|---|
//! | Free | [`allocate`] | Fresh, one number |
//! | Fresh, Connecting | [`attach`]: a connection | Connected |
//! | any | [`retain`], [`release`]: numbers come and go | the same, until the last one goes |
//! | Connected | the last number of the last process goes: [`hang_up`] | Free |
//!
//! Folders above have something of some sockets too: registrations, a connect that is tried, a listener. They say in a table
//! ([`Ends`]) what is to be done with that when the socket ends.

use crate::fd::table;
use crate::link::channel::Channel;
use crate::process::above::Above;
use crate::process::{Alloc, LISTENER, PROCESS, Priv, SlabRec};
use crate::socket::bell::{self, ALL_BITS, notify};
use crate::socket::endpoint::{EndpointExt, PeerEnd, RESET, peer_end};
use crate::socket::handle::Socket;
use crate::socket::token::{Rx, cursor};
use crate::socket::{apart, cold, confine, resend, road, time_wait, way_back};
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::road::RoadWord;
use sd_ring::{Next, RxCursor, TxCursor};
use sd_shm::channel::{FLAG_FIN, FLAG_RESET, GEOMETRY, Side, SlotState};
use sd_shm::slab::{Endpoint, HAS_COLD, Slab, State};

/// What folders above have of a socket.
pub(crate) struct Ends {
    /// Instances of epoll that watch it: they do no more.
    pub(crate) unwatch: fn(Socket),
    /// Its connect waits for room in a backlog, or is the kernel's: it is given up.
    pub(crate) stop_connecting: fn(&'static Endpoint),
    /// It listens: no client takes it for open from now on. `tell` follows, when the endpoint is free.
    pub(crate) stop_listening: fn(&'static Priv) -> Option<Ended>,
    pub(crate) tell: fn(Ended),
    /// Its source port is free again.
    pub(crate) free_port: fn(&Endpoint),
    /// It went over to the kernel from a connection on this channel.
    pub(crate) let_go: fn(&'static Endpoint, &'static Channel),
    /// Not an end: side A shows, at a slot of this generation, that a connection is to get it which the kernel has made.
    pub(crate) shown: fn(&'static Channel, usize, u32),
}

/// A listener that this process has no more.
pub(crate) struct Ended {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Filled by `calls`.
pub(crate) static ABOVE: Above<Ends> = Above::empty();

/// Connections that this process has given up while others had them; [`take_handed_on`].
static HANDED_ON: AtomicU32 = AtomicU32::new(0);

/// How many since it was asked last.
pub(crate) fn take_handed_on() -> u32 {
    HANDED_ON.swap(0, Ordering::Relaxed)
}

/// A fresh endpoint of the own slab, held by this process, one descriptor counted.
pub(crate) fn allocate(domain: i32) -> Option<Socket> {
    let rec = PROCESS.own()?;
    let slab = rec.slab()?;
    let mut alloc = PROCESS.alloc.lock();
    let (index, private) = take_free(&mut alloc, rec, slab)?;
    let endpoint = slab.endpoint(index)?;
    private.fds.store(1, Ordering::Relaxed);
    if endpoint.flags.load(Ordering::Relaxed) & HAS_COLD != 0 {
        let (tokens, cold) = (slab.tokens(index)?, slab.cold(index)?);
        tokens.tx.reset();
        tokens.rx.reset();
        cold.reset();
    }
    let half = endpoint.rx();
    endpoint.flags.store(0, Ordering::Relaxed);
    endpoint.error.store(0, Ordering::Relaxed);
    endpoint.begin(domain);
    endpoint.reason.store(0, Ordering::Relaxed);
    endpoint.ports.store(0, Ordering::Relaxed);
    half.short_addresses.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    half.lowat.store(1, Ordering::Relaxed);
    private.clear_role();
    private.next.store(0, Ordering::Relaxed);
    endpoint.sender.store(0, Ordering::Relaxed);
    half.spin.store(0, Ordering::Relaxed);
    endpoint.holders.store(rec.bit.load(Ordering::Relaxed), Ordering::Relaxed);
    endpoint.set_state(State::Fresh);
    Some(Socket { endpoint, private })
}

/// The number of a free endpoint, and what this process knows of it.
fn take_free(alloc: &mut Alloc, rec: &SlabRec, slab: Slab) -> Option<(usize, &'static Priv)> {
    if let Some(index) = alloc.free.checked_sub(1) {
        let private = rec.private(index as usize)?;
        alloc.free = private.next.load(Ordering::Relaxed);
        return Some((index as usize, private));
    }
    let index = take_other(alloc, slab)?;
    Some((index, rec.private(index)?))
}

/// One that was given up while others held it, or that was never used.
fn take_other(alloc: &mut Alloc, slab: Slab) -> Option<usize> {
    let given_up =
        |index: &u32| slab.endpoint(*index as usize).is_some_and(|e| e.holders.load(Ordering::Acquire) == 0);
    if let Some(at) = alloc.orphans.iter().position(given_up) {
        return Some(alloc.orphans.swap_remove(at) as usize);
    }
    let high = slab.header().high.load(Ordering::Relaxed);
    if high as usize >= slab.header().endpoints_allowed() {
        return None;
    }
    slab.header().high.store(high + 1, Ordering::Release);
    Some(high as usize)
}

/// One more descriptor of this process leads to the endpoint.
pub(crate) fn retain(endpoint: &Endpoint) {
    if let Some(private) = PROCESS.private(endpoint) {
        private.fds.fetch_add(1, Ordering::AcqRel);
    }
}

/// One more descriptor leads to the endpoint, if any does; false when it has none left.
pub(crate) fn retain_open(endpoint: &Endpoint) -> bool {
    let one_more = |fds: u32| (fds > 0).then_some(fds.wrapping_add(1));
    PROCESS.private(endpoint).is_some_and(|private| {
        private.fds.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    })
}

/// The numbers of a connection lead to it as a socket of ours from now on, or as one of the kernel's; those, too, that another thread has duplicated since
/// they were looked for. For who counts as one himself.
pub(crate) fn turn_numbers(endpoint: &'static Endpoint, numbers: &[i32], is_ours: bool) {
    let count =
        || PROCESS.private(endpoint).map_or(0, |private| private.fds.load(Ordering::Acquire) as usize);
    table::turn(numbers, endpoint, is_ours, || count() != numbers.len() + 1);
}

/// One descriptor fewer; the last one of the last process ends the connection.
pub(crate) fn release(endpoint: &'static Endpoint) {
    let Some((rec, index)) = PROCESS.locate(endpoint) else { return };
    let Some(private) = rec.private(index) else { return };
    if private.fds.fetch_sub(1, Ordering::AcqRel) == 1 {
        end_at(Socket { endpoint, private }, rec, index);
    }
}

/// The last descriptor of this process is closed.
pub(super) fn end(socket: Socket) {
    PROCESS.locate(socket.endpoint).into_iter().for_each(|(rec, index)| end_at(socket, rec, index));
}

fn end_at(socket: Socket, rec: &SlabRec, index: usize) {
    let Socket { endpoint, private } = socket;
    let is_watched = !private.watchers.load(Ordering::Acquire).is_null();
    let is_listener = private.role.load(Ordering::Acquire).addr() & LISTENER != 0;
    let above = ABOVE.get();
    if is_watched {
        above.inspect(|above| (above.unwatch)(socket));
    }
    if endpoint.state_now() == State::Connecting {
        above.inspect(|above| (above.stop_connecting)(endpoint));
    }
    let state = endpoint.state_now();
    let listener = above.filter(|_| is_listener).and_then(|above| (above.stop_listening)(private));
    let bit = rec.bit.load(Ordering::Relaxed);
    let channel = socket.channel().filter(|_| state == State::Connected);
    if let Some(channel) = channel.filter(|_| endpoint.holders.load(Ordering::Acquire) & !bit != 0) {
        // Another process goes on with it, and will free the slot for other connections.
        HANDED_ON.fetch_add(1, Ordering::Relaxed);
        unbind(endpoint, channel, usize::from(endpoint.slot.load(Ordering::Relaxed)));
    }
    if state == State::Kernel {
        if endpoint.holders.load(Ordering::Acquire) & !bit != 0 {
            HANDED_ON.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(above), Some(channel)) = (above, socket.channel()) {
            (above.let_go)(endpoint, channel);
        }
    }
    let last = !leave(endpoint, bit);
    match channel {
        Some(channel) if last => hang_up(endpoint, channel, rec),
        Some(channel) => channel.unused(),
        None => {}
    }
    if last {
        // The bit goes last: without it the slab's owner may use the endpoint again.
        endpoint.set_state(State::Free);
        endpoint.holders.fetch_and(!bit, Ordering::AcqRel);
    }
    if PROCESS.owns(rec) {
        let mut alloc = PROCESS.alloc.lock();
        if last {
            private.next.store(alloc.free, Ordering::Relaxed);
            alloc.free = index as u32 + 1;
        } else {
            alloc.orphans.push(index as u32);
        }
    }
    if let (Some(above), Some(listener)) = (above, listener) {
        (above.tell)(listener);
    }
}

fn unbind(endpoint: &Endpoint, channel: &Channel, slot: usize) {
    if channel.unbind(slot, endpoint) {
        ABOVE.get().inspect(|above| (above.free_port)(endpoint));
    }
}

/// Takes this process's bit away while others hold the endpoint. False, and the bit is left, when it is the last:
/// of processes that close at the same time one ends the connection.
fn leave(endpoint: &Endpoint, bit: u64) -> bool {
    let clear = |holders: u64| Some(holders & !bit).filter(|left| *left != 0);
    endpoint.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, clear).is_ok()
}

/// A connection that others have is held by this process too, which has its bit already; one descriptor is counted.
pub(crate) fn hold(endpoint: &'static Endpoint, channel: &'static Channel) {
    let Some(private) = PROCESS.private(endpoint) else { return };
    if !private.change_channel(channel) || private.fds.load(Ordering::Acquire) == 0 {
        private.next.store(0, Ordering::Relaxed);
        channel.bind(usize::from(endpoint.slot.load(Ordering::Relaxed)), endpoint);
    }
    private.fds.fetch_add(1, Ordering::AcqRel);
}

/// Ties an endpoint to a slot of a channel.
pub(crate) fn attach(socket: Socket, channel: &'static Channel, slot: usize, generation: u32) {
    let endpoint = socket.endpoint;
    let (side, map) = (channel.side, channel.map);
    let [a, b] = &map.slot(slot).side;
    let (own, peer) = if side == Side::A { (a, b) } else { (b, a) };
    crate::link::placed::note(endpoint, channel, slot, peer);
    endpoint.slot.store(slot as u16, Ordering::Relaxed);
    endpoint.side.store(side as u8, Ordering::Relaxed);
    endpoint.generation.store(generation, Ordering::Relaxed);
    endpoint.channel_id.store(channel.id, Ordering::Relaxed);
    endpoint.tx().bytes.store(0, Ordering::Relaxed);
    endpoint.rx().bytes.store(0, Ordering::Relaxed);
    if endpoint.flag(HAS_COLD) {
        cold::of(endpoint).urgent_read.store(0, Ordering::Relaxed);
    }
    // SAFETY: nobody else knows the endpoint yet.
    unsafe {
        endpoint.tx().cursor.get().write(TxCursor::new(&GEOMETRY));
        endpoint.rx().cursor.get().write(RxCursor::new());
    }
    if crate::link::kept_rings::are_kept(channel) {
        // SAFETY: as above.
        apart::attached(endpoint, channel, slot, unsafe { cursor::<Rx>(endpoint) });
    }
    socket.private.set_channel(channel);
    if channel.thread_wakers.mask() != 0 {
        own.make_cold().rings.store(channel.thread_wakers.mask(), Ordering::SeqCst);
    }
    channel.bind(slot, endpoint);
    confine::attached(endpoint);
    endpoint.set_state(State::Connected);
}

/// How a connection ends that has something which few have: whether by a reset, and what is said if not.
#[cold]
fn unusual_end(endpoint: &'static Endpoint, tx: &mut TxCursor, unread: bool) -> (bool, u32) {
    let cold = cold::of(endpoint);
    if road::is_promoted(endpoint) && way_back::has_left(endpoint) {
        // The kernel's connection tells the end, when whoever else may have that closes it too.
        return (false, 0);
    }
    let mut aborts = unread || cold.aborts();
    let mut end = FLAG_FIN;
    if road::is_promoted(endpoint) {
        aborts |= resend::before_end(endpoint, tx, unread);
        // Where this side has gone back to the kernel, that tells the end, which others may put off.
        end &= if endpoint.own_words().road().has(RoadWord::LEFT) { 0 } else { FLAG_FIN };
    }
    (aborts, end)
}

/// The end of a connection, when the last descriptor is closed (§4.5.4): announces the end of our
/// stream, or resets when received data was never read or SO_LINGER says so.
pub(crate) fn hang_up(endpoint: &'static Endpoint, channel: &'static Channel, rec: &SlabRec) {
    let own = endpoint.own_words();
    let generation = endpoint.generation.load(Ordering::Relaxed);
    {
        let (mut rx_half, mut tx_half) = (endpoint.rx_token(), endpoint.tx_token());
        let (rx, tx) = (rx_half.cursor(), tx_half.cursor());
        let next = rx.next(&GEOMETRY, &endpoint.rx_mem());
        let unread = next.is_ok_and(Next::may_be_data) && apart::has_data(endpoint, rx);
        let (aborts, end) =
            if endpoint.flag(HAS_COLD) { unusual_end(endpoint, tx, unread) } else { (unread, FLAG_FIN) };
        if aborts || endpoint.flag(RESET) {
            own.flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
        } else {
            let resets = time_wait::note_close(endpoint, rec);
            tx.finish(&endpoint.tx_mem(), bell::stamp(endpoint));
            own.flags.fetch_or(if resets { end | FLAG_RESET } else { end }, Ordering::AcqRel);
        }
        own.wait.store(0, Ordering::Relaxed);
        let used_large = tx.is_large() || rx.is_large();
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        if used_large {
            sd_sys::budget::give_back(tx.large_used());
            crate::link::kept_rings::trim(channel, slot, peer_end(endpoint) == PeerEnd::Gone);
        }
        unbind(endpoint, channel, slot);
        // From here on the slot may carry another connection, so everything else comes before; a
        // wake-up too many does no harm to that one.
        own.set_state(generation, SlotState::Closed);
        notify(endpoint, ALL_BITS);
        channel.unused();
    }
}
