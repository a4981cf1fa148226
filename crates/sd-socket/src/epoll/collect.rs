//! The ready list: what is reported, what stays, what is armed. After the kernel's ep_send_events.

use super::*;
use crate::process::waker::OWN_EVENT;
use alloc::vec::Vec;
use libc::{EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLRDHUP, EPOLLRDNORM, epoll_event};
use sd_sys::lock::Guard;

/// Level-triggered sockets that are looked at, without being ready, while a thread waits.
const HOT_MAX: usize = 16;

/// Has to be held by whoever looks at an instance with nested ones.
pub(super) fn nesting(epoll: &Epoll) -> Option<Guard<'static, ()>> {
    (epoll.nested.load(Ordering::Acquire) != 0).then(|| NESTING.lock())
}

/// Whether a wait would return something of ours at once (for poll, and for sets around this one).
pub(crate) fn is_ready(epoll: &'static Epoll) -> bool {
    let _nesting = nesting(epoll);
    any_ready(epoll)
}

/// As the kernel's poll of an instance: what is not ready leaves the ready list.
fn any_ready(epoll: &Epoll) -> bool {
    let mut ready_list = epoll.ready_list.lock();
    look_around(epoll, &mut ready_list, false);
    settle(epoll, &mut ready_list);
    let mut found = false;
    while !found && let Some(&first) = ready_list.queue.front() {
        // SAFETY: items on the ready list are live under its lock; null is the kernel's part.
        let Some(item) = (unsafe { first.item.as_ref() }) else {
            ready_list.queue.pop_front();
            ready_list.kernel_queued = false;
            continue;
        };
        found = !item.is_disabled() && (mask(item) != 0 || mask_armed(item) != 0);
        if !found {
            ready_list.queue.pop_front();
            item.put(IDLE);
        }
    }
    epoll.load.store(ready_list.len(), Ordering::Release);
    found
}

/// The events of an item that hold now; under its ready list's lock, and `NESTING` if it is an instance.
pub(super) fn mask(item: &Item) -> u32 {
    let wanted = item.events() & !PRIVATE;
    match item.source() {
        Source::Socket(endpoint) => ready::mask(endpoint, wanted),
        Source::Nested(inner) if any_ready(inner) => (EPOLLIN | EPOLLRDNORM) as u32 & wanted,
        Source::Nested(_) => 0,
    }
}

fn arm(item: &Item) {
    if let Source::Socket(endpoint) = item.source() {
        ready::arm(endpoint, item.events());
    }
}

/// Arms an item that was not ready, and looks at it once more.
fn mask_armed(item: &Item) -> u32 {
    arm(item);
    mask(item)
}

/// Whether a scanned item goes on the ready list; armed when a sleep may follow.
fn is_scanned_ready(item: &Item, arrived: &mut u64, stay: bool) -> bool {
    if !stay {
        arm(item);
    }
    mask(item) != 0 && (!item.is_edge() || has_edge(item, arrived))
}

/// Of what a scanned item was told: that there is room. Beside `watch::ends`.
pub(super) const ROOM: u8 = 1 << 7;

/// For a scanned, edge-triggered item, which no event announces: whether something came since the last
/// look, bytes, an end, room, or an urgent byte. `arrived` is what had come by then.
pub(super) fn has_edge(item: &Item, arrived: &mut u64) -> bool {
    const URGENT: u8 = 1 << 6;
    let Source::Socket(endpoint) = item.source() else { return true };
    if endpoint.state_now() != State::Connected {
        return false;
    }
    let waiting = crate::socket::ring_view::data_bytes(endpoint) as u64;
    let now = endpoint.rx().bytes.load(Ordering::Relaxed) + waiting;
    let came = core::mem::replace(arrived, now) < now;
    let room = if ready::is_writable(endpoint) { ROOM } else { 0 };
    let urgent = if crate::socket::ring_view::is_pending(endpoint) { URGENT } else { 0 };
    let ends = watch::ends(endpoint) | room | urgent;
    let new_ends = ends & !item.told.swap(ends, Ordering::Relaxed);
    came || new_ends != 0
}

/// Whether it is known when what the item has now was sent, and when.
fn sent(item: &Item) -> u64 {
    match item.source() {
        Source::Socket(endpoint) => ready::sent(endpoint).unwrap_or(0),
        Source::Nested(_) => 0,
    }
}

/// Items that nobody announces: those of other processes' channels, and hot ones.
#[inline(always)]
fn look_around(epoll: &Epoll, ready_list: &mut ReadyList, stay: bool) {
    if !ready_list.scanned.is_empty() || !ready_list.hot.is_empty() {
        look_at_unannounced(epoll, ready_list, stay);
    }
}

#[inline(never)]
fn look_at_unannounced(epoll: &Epoll, ready_list: &mut ReadyList, stay: bool) {
    for at in 0..ready_list.scanned.len() {
        // SAFETY: items on the ready list are live under its lock.
        let scanned = ready_list.scanned.get(at).and_then(|scanned| unsafe { scanned.item.as_ref() });
        scanned.into_iter().for_each(|item| _ = roads::follow(ready_list, item));
        if let Some(scanned) = ready_list.scanned.get_mut(at)
            // SAFETY: items on the ready list are live under its lock.
            && let Some(item) = unsafe { scanned.item.as_ref() }
            && item.place() == IDLE
            && !item.is_disabled()
            && is_scanned_ready(item, &mut scanned.arrived, stay)
        {
            epoll.push(ready_list, item, sent(item));
        }
    }
    for at in 0..ready_list.hot.len() {
        // SAFETY: as above.
        if let Some(item) = ready_list.hot.get(at).and_then(|&i| unsafe { i.as_ref() })
            && item.place() == HOT
            && mask(item) != 0
        {
            epoll.push(ready_list, item, sent(item));
        }
    }
    // SAFETY: as above.
    ready_list.hot.retain(|&item| unsafe { (*item).place() } == HOT);
}

/// Arms what is hot; what became ready meanwhile goes on the ready list.
#[inline(always)]
fn settle(epoll: &Epoll, ready_list: &mut ReadyList) {
    if !ready_list.hot.is_empty() {
        arm_hot(epoll, ready_list);
    }
}

#[inline(never)]
fn arm_hot(epoll: &Epoll, ready_list: &mut ReadyList) {
    for item in core::mem::take(&mut ready_list.hot) {
        // SAFETY: items on the ready list are live under its lock.
        let item = unsafe { &*item };
        if item.place() == HOT {
            item.put(IDLE);
            if mask_armed(item) != 0 {
                epoll.push(ready_list, item, sent(item));
            }
        }
    }
}

/// What a look may do.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// Ask the kernel as well.
    pub(super) kernel: bool,
    /// Another look follows soon, so sockets may stay hot.
    pub(super) stay: bool,
}

/// A ready list on which what happened up to `ReadyList::ordered` stands in order.
///
/// A look takes its time: of two arrivals, the earlier one may have come to a place that was passed already. So who finds
/// news takes in and looks once more. What happened before that second look is complete then.
fn in_order(epoll: &Epoll, look: Look) -> (Option<Guard<'static, ()>>, Guard<'_, ReadyList>) {
    {
        let nesting = nesting(epoll);
        let mut ready_list = epoll.ready_list.lock();
        if look.kernel && !ready_list.kernel_queued {
            ready_list.kernel_queued = true;
            ready_list.append(core::ptr::null());
        }
        look_around(epoll, &mut ready_list, look.stay);
        if !epoll.has_several() || ready_list.newest <= ready_list.ordered {
            return (nesting, ready_list);
        }
    }
    let now = sd_sys::time::ticks();
    super::dispatch::drain();
    let nesting = nesting(epoll);
    let mut ready_list = epoll.ready_list.lock();
    look_around(epoll, &mut ready_list, look.stay);
    ready_list.ordered = ready_list.ordered.max(now);
    (nesting, ready_list)
}

/// Moves ready events into `out`, in the order of the ready list. Level-triggered ones go to its end.
pub(super) fn collect(epoll: &Epoll, out: &mut [epoll_event], look: Look) -> usize {
    let (_nesting, mut ready_list) = in_order(epoll, look);
    let until = if epoll.has_several() { ready_list.ordered } else { u64::MAX };
    let mut count = 0;
    let mut twice = Twice { ours: Vec::new(), kernel: Vec::new() };
    loop {
        for _ in 0..ready_list.queue.len() {
            if count == out.len() || count > 0 && ready_list.first_stamp() > until {
                break;
            }
            let Some(first) = ready_list.queue.pop_front() else { break };
            // SAFETY: items on the ready list are live under its lock; null is the kernel's part.
            count = match unsafe { first.item.as_ref() } {
                Some(item) => report(epoll, &mut ready_list, item, out, count, look.stay, &mut twice),
                None => report_kernel(epoll, &mut ready_list, out, count, &mut twice),
            };
        }
        if look.stay && count == 0 {
            break;
        }
        settle(epoll, &mut ready_list);
        if count > 0 || ready_list.queue.is_empty() {
            break;
        }
    }
    if count > 0 {
        crate::memory::rounds::used();
    }
    epoll.load.store(ready_list.len(), Ordering::Release);
    let more = !ready_list.queue.is_empty();
    drop(ready_list);
    if count > 0 && more {
        sleep_fd::wake_one(epoll);
    }
    count
}

/// Listeners, nested instances and connections that are promoted are registered here and in the kernel: what either side has told in this
/// wait, so that one registration is told once, of all that both have.
struct Twice {
    ours: Vec<Told>,
    kernel: Vec<Told>,
}

#[derive(Clone, Copy)]
struct Told {
    data: u64,
    events: u32,
    /// Where it stands in what the program gets.
    at: usize,
    /// Of ours: the number, and what the program wants to know of it.
    fd: i32,
    wanted: u32,
}

impl Twice {
    /// Data may be the same for several registrations, so the kernel is asked for the number.
    fn in_kernel(fd: i32, bits: u32) -> bool {
        sd_sys::fd::poll_one(fd, bits as i16, 0).is_ok_and(|events| events != 0)
    }

    /// Whether the kernel has told something of this registration, which then tells this event of ours as well; if not, it is noted.
    fn is_told_by_kernel(&mut self, ours: Told, out: &mut [epoll_event]) -> bool {
        let is_same = |told: &Told| told.data == ours.data && Twice::in_kernel(ours.fd, told.events);
        let found = self.kernel.iter().position(is_same);
        match found.map(|at| self.kernel.swap_remove(at)) {
            Some(told) => join(out, told.at, ours.events),
            None => self.ours.push(ours),
        }
        found.is_some()
    }

    /// Whether we have told something of the registration that the kernel tells an event of, which is joined to it; if not, it is noted.
    fn is_told_by_us(&mut self, kernel: Told, out: &mut [epoll_event]) -> bool {
        let is_same = |told: &Told| {
            told.data == kernel.data
                && kernel.events & !(told.wanted | ALWAYS) == 0
                && Twice::in_kernel(told.fd, kernel.events)
        };
        let found = self.ours.iter().position(is_same);
        match found.map(|at| self.ours.swap_remove(at)) {
            Some(told) => join(out, told.at, kernel.events),
            None => self.kernel.push(kernel),
        }
        found.is_some()
    }
}

fn join(out: &mut [epoll_event], at: usize, bits: u32) {
    if let Some(slot) = out.get_mut(at) {
        slot.events |= bits;
    }
}

/// One item from the front of the ready list; returns how many events there are now.
fn report(
    epoll: &Epoll,
    ready_list: &mut ReadyList,
    item: &Item,
    out: &mut [epoll_event],
    count: usize,
    stay: bool,
    twice: &mut Twice,
) -> usize {
    item.put(IDLE);
    if item.is_disabled() {
        return count;
    }
    // A new arrival after the look shall be announced. What stays on the ready list need not be armed.
    if item.is_edge() {
        arm(item);
    }
    let mut mask = mask(item);
    if mask == 0 && !item.is_edge() {
        let may_stay = stay && count == 0 && ready_list.hot.len() < HOT_MAX;
        if may_stay && matches!(item.source(), Source::Socket(e) if e.state_now() == State::Connected) {
            item.put(HOT);
            ready_list.hot.push(item);
            if let Source::Socket(endpoint) = item.source()
                && epoll.has_several()
            {
                ready::want_stamps(endpoint);
            }
            return count;
        }
        mask = mask_armed(item);
    }
    if mask == 0 {
        return count;
    }
    if mask & (EPOLLRDHUP | EPOLLHUP) as u32 != 0
        && let Source::Socket(endpoint) = item.source()
    {
        item.told.fetch_or(watch::ends(endpoint), Ordering::Relaxed);
    }
    let data = item.data.load(Ordering::Relaxed);
    let edge = item.is_edge();
    if item.events() & EPOLLONESHOT as u32 != 0 {
        if !ledger::fire(item) {
            return count;
        }
        roads::fired(ready_list, item);
    } else if !edge {
        epoll.push(ready_list, item, 0);
    }
    if epoll.has_both.load(Ordering::Relaxed) && item.source().is_in_both() {
        // One event says all that holds, whichever of the two instances had the news.
        let all = mask | roads::kernel_mask(item);
        let told = Told { data, events: all, at: count, fd: item.fd(), wanted: item.events() };
        if twice.is_told_by_kernel(told, out) {
            return count;
        }
        mask = all;
    }
    if let Some(slot) = out.get_mut(count) {
        *slot = epoll_event { events: mask, u64: data };
    }
    count + 1
}

/// The kernel's part has come to the front: it gets the room that is left, and, when it had
/// something, goes to the end like anybody else. Not inline: what is told of ours alone is told by a short loop.
#[inline(never)]
fn report_kernel(
    epoll: &Epoll,
    ready_list: &mut ReadyList,
    out: &mut [epoll_event],
    count: usize,
    twice: &mut Twice,
) -> usize {
    ready_list.kernel_queued = false;
    // What has told nothing of ours yet, and has nothing behind it in this wait, has nothing to be joined with: it is not noted.
    let may_join = !ready_list.queue.is_empty() || !twice.ours.is_empty();
    let both = may_join && epoll.has_both.load(Ordering::Relaxed);
    let Some(room) = out.get_mut(count..) else { return count };
    let got = crate::wait::sleep_on(epoll.fd(), room, Some(0), core::ptr::null()).unwrap_or(0);
    epoll.kernel_asked.store(sd_sys::time::ticks(), Ordering::Relaxed);
    let (mut kept, mut rung) = (count, false);
    for at in count..count + got {
        let Some(&event) = out.get(at) else { break };
        let (data, events) = (event.u64, event.events);
        if data == OWN_EVENT {
            rung = true;
            continue;
        }
        let told = Told { data, events, at: kept, fd: -1, wanted: 0 };
        if !roads::may_fire(ready_list, data) || both && twice.is_told_by_us(told, out) {
            continue;
        }
        if let Some(slot) = out.get_mut(kept) {
            *slot = event;
            kept += 1;
        }
    }
    if kept > count {
        epoll.place.kernel_has_told();
    }
    // A signal handler that looks here while its thread sleeps leaves the event to that sleep, which ends by it.
    if rung && epoll.place.is_inside() && epoll.sleepers.load(Ordering::Relaxed) == 0 {
        sleep_fd::answer(epoll);
    }
    if got > 0 {
        ready_list.kernel_queued = true;
        ready_list.append(core::ptr::null());
    }
    kept
}
