//! What other processes have announced goes to whom it concerns: instances that watch the socket, threads that sleep, backlogs.

use super::watch::{peer_event, state_event};
use crate::backlog::{arrivals, beside};
use crate::link::channel::Channel;
use crate::link::reclaim::User;
use crate::monitor::client;
use crate::process::PROCESS;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use sd_shm::channel::Side;

/// Takes in whatever other processes have announced: events of all channels, mail of the monitor.
/// To be called before any decision to wait.
#[inline]
pub(crate) fn drain() {
    if PROCESS.channel_count.load(Ordering::Acquire) != 0 || PROCESS.own_slab.load(Ordering::Relaxed) != 0 {
        drain_all();
    }
}

/// What `drain` costs, in looks at one ring (see `wait::spin_at`): each channel half a one.
pub(crate) fn looks_of_drain() -> u32 {
    1 + PROCESS.channel_count.load(Ordering::Relaxed) as u32 / 2
}

fn drain_all() {
    let user = User::enter();
    drain_inside(Some(&user));
}

/// Drains all channels, in a thread that is a `reclaim::User` already, or the only one.
#[inline]
pub(super) fn drain_inside(_user: Option<&User>) {
    client::check_mail();
    let mut announcing = PROCESS.announcing();
    if let Some(first) = announcing.next() {
        take_in_all(core::iter::once(first).chain(announcing));
    }
}

/// Announcements are bits; their time-stamps bring them into the order in which they were made.
struct Arrivals<T> {
    /// The first `len` are there.
    list: [MaybeUninit<(u64, T)>; ARRIVALS],
    len: usize,
}

/// Announcements that are put in order at a time.
const ARRIVALS: usize = 64;

impl<T: Copy> Arrivals<T> {
    fn new() -> Arrivals<T> {
        Arrivals { list: [const { MaybeUninit::uninit() }; ARRIVALS], len: 0 }
    }

    /// One more; what there is goes to `deliver` first where there is no room.
    #[inline(always)]
    fn add(&mut self, arrival: (u64, T), deliver: impl FnMut(T, u64)) {
        if self.len == ARRIVALS {
            self.deliver(deliver);
        }
        if let Some(cell) = self.list.get_mut(self.len) {
            cell.write(arrival);
            self.len += 1;
        }
    }

    /// Gives all to `to`, in their order, with their time-stamps.
    #[inline(always)]
    fn deliver(&mut self, mut to: impl FnMut(T, u64)) {
        let Some(list) = self.list.get_mut(..self.len) else { return };
        // SAFETY: `add` has written so many.
        let list = unsafe { &mut *(core::ptr::from_mut(list) as *mut [(u64, T)]) };
        list.sort_unstable_by_key(|(stamp, _)| *stamp);
        let now = sd_sys::time::ticks();
        for &mut (stamp, arrival) in list {
            // Nothing comes after what will happen.
            to(arrival, stamp.min(now));
        }
        self.len = 0;
    }
}

/// A channel, and a slot of it.
type Arrival = (&'static Channel, usize);

fn take(arrivals: &mut Arrivals<Arrival>, channel: &'static Channel) {
    let is_left_beside = channel.take_events(|slot| {
        let [a, b] = &channel.map.slot(slot).side;
        let peer = if channel.side == Side::A { b } else { a };
        arrivals.add((peer.announced.load(Ordering::Relaxed), (channel, slot)), tell);
    });
    if is_left_beside {
        beside::told(channel);
    }
}

fn tell((channel, slot): Arrival, stamp: u64) {
    match channel.endpoint(slot) {
        Some(endpoint) => peer_event(endpoint, stamp),
        None => {
            if let Some(listening) = arrivals::arrived(channel, slot) {
                state_event(listening, stamp);
            }
        }
    }
}

/// Takes in what one channel has.
pub(crate) fn take_in(channel: &'static Channel) {
    take_in_all(core::iter::once(channel));
}

fn take_in_all(channels: impl Iterator<Item = &'static Channel>) {
    let mut arrivals = Arrivals::new();
    channels.for_each(|channel| take(&mut arrivals, channel));
    arrivals.deliver(tell);
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_told_in_the_order_in_which_it_was_announced() {
        let (mut arrivals, mut told) = (Arrivals::new(), Vec::new());
        for (stamp, name) in [(30, 'c'), (10, 'a'), (20, 'b')] {
            arrivals.add((stamp, name), |_, _| panic!("there is room"));
        }
        arrivals.deliver(|name, stamp| told.push((name, stamp)));
        assert_eq!(told, [('a', 10), ('b', 20), ('c', 30)]);
        arrivals.deliver(|_, _| panic!("once"));
    }

    #[test]
    fn nobody_is_told_of_the_future() {
        let mut arrivals = Arrivals::new();
        arrivals.add((u64::MAX, ()), |(), _| panic!("there is room"));
        let mut told = 0;
        arrivals.deliver(|(), stamp| told = stamp);
        assert!(told != 0 && told <= sd_sys::time::ticks(), "a peer that lies");
    }

    #[test]
    fn more_than_there_is_room_for_come_in_turn() {
        let (mut arrivals, mut told) = (Arrivals::new(), Vec::new());
        for stamp in (0..ARRIVALS as u64 * 2 + 1).rev() {
            arrivals.add((stamp, ()), |(), stamp| told.push(stamp));
        }
        let (first, second) = told.split_at(ARRIVALS);
        assert!(first.is_sorted() && second.is_sorted() && second.len() == ARRIVALS);
        arrivals.deliver(|(), stamp| told.push(stamp));
        assert_eq!(told.len(), 2 * ARRIVALS + 1, "none is lost");
        assert_eq!(told.last(), Some(&0));
    }
}
