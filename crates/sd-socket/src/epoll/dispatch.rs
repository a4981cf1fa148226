//! What other processes have announced goes to whom it concerns: instances that watch the socket, threads that sleep, backlogs.

use super::watch::{peer_event, state_event};
use crate::backlog::arrivals;
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
struct Arrivals {
    /// The first `len` are there.
    list: [MaybeUninit<Arrival>; ARRIVALS],
    len: usize,
}

/// Time-stamp, channel and slot.
type Arrival = (u64, &'static Channel, usize);

/// Announcements that are put in order at a time.
const ARRIVALS: usize = 64;

impl Arrivals {
    fn new() -> Arrivals {
        Arrivals { list: [const { MaybeUninit::uninit() }; ARRIVALS], len: 0 }
    }

    fn take(&mut self, channel: &'static Channel) {
        channel.take_events(|slot| {
            if self.len == ARRIVALS {
                self.deliver();
            }
            let [a, b] = &channel.map.slot(slot).side;
            let peer = if channel.side == Side::A { b } else { a };
            let stamp = peer.announced.load(Ordering::Relaxed);
            if let Some(cell) = self.list.get_mut(self.len) {
                cell.write((stamp, channel, slot));
                self.len += 1;
            }
        });
    }

    fn deliver(&mut self) {
        let Some(list) = self.list.get_mut(..self.len) else { return };
        // SAFETY: `take` has written so many.
        let list = unsafe { &mut *(core::ptr::from_mut(list) as *mut [Arrival]) };
        list.sort_unstable_by_key(|(stamp, ..)| *stamp);
        let now = sd_sys::time::ticks();
        for &mut (stamp, channel, slot) in list {
            // Nothing comes after what will happen.
            let stamp = stamp.min(now);
            match channel.endpoint(slot) {
                Some(endpoint) => peer_event(endpoint, stamp),
                None => {
                    if let Some(listening) = arrivals::arrived(channel, slot) {
                        state_event(listening, stamp);
                    }
                }
            }
        }
        self.len = 0;
    }
}

/// Takes in what one channel has.
pub(crate) fn take_in(channel: &'static Channel) {
    take_in_all(core::iter::once(channel));
}

fn take_in_all(channels: impl Iterator<Item = &'static Channel>) {
    let mut arrivals = Arrivals::new();
    channels.for_each(|channel| arrivals.take(channel));
    arrivals.deliver();
}
