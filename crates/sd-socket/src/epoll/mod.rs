//! epoll over our sockets and the kernel's descriptors in one instance.
//!
//! The program's descriptor is a kernel epoll instance; kernel descriptors are registered there and
//! cost what they always did. Sockets of ours are in the interest list here, and on the *ready list* (the
//! kernel's ready list) when something happened, so a wait costs the number of ready sockets.
//!
//! ```text
//!  peer --event bit, eventfd--> drain() --> offer() --> ready list --> collect() --> program
//!                                             ^------------------ level-triggered: back to the end
//! ```
//! Whatever is not on a ready list is armed: its peer tells us of the next arrival. A level-triggered
//! socket that was just read empty is not armed as long as a thread is inside the wait and looks at
//! it directly ("hot"): asking its peer for an event costs both sides more.
//!
//! | lock | guards | order |
//! |---|---|---|
//! | `Epoll::interest` | the registrations of one instance; taken by epoll_ctl and close | first |
//! | `watch::stripe` | who watches a socket; one of 64, by the socket's address | second |
//! | `NESTING` | who watches an instance; held by waits on instances with nested ones | third |
//! | `Epoll::ready_list` | the ready list of one instance; an outer one before an inner one | last |
//!
//! *Owns*: interest lists and ready lists. *Uses*: `wait`, `backlog`, `memory`, `socket`, `link`, `monitor`, `process`, `fd`.
//!
//! Locks of a socket's halves are taken inside all of these, so nobody who holds a half may report
//! an event; see ADR 15.
//!
//! | task | place |
//! |---|---|
//! | interest lists | `control`, their memory in `items` |
//! | events | `watch`; what other processes have announced: `dispatch` |
//! | the ready list | `collect` |
//! | waiting | `waiting`; what is slept on: `sleep_fd`, `inside` |
//! | a connection goes back to the kernel's | `way_back` |
//! | what the kernel's instances have registered | `told`; where that is not known: `listed` |
//! | close and fork | `life`; what processes share: `ledger` |

use crate::fd::hidden::HiddenCell;
use crate::fd::table::{self, Entry, Instance};
use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use crate::wait::ready;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use sd_shm::slab::{Endpoint, State};
use sd_sys::lock::Lock;

mod collect;
mod control;
mod dispatch;
mod inside;
mod items;
mod ledger;
mod life;
mod listed;
mod roads;
mod sleep_fd;
mod told;
mod waiting;
mod watch;
mod way_back;

pub(crate) use collect::is_ready;
pub(crate) use control::{control, kernel_asked, kernel_registered};
pub(crate) use dispatch::{drain, looks_of_drain, take_in};
pub(crate) use inside::others_look;
pub(crate) use items::Item;
use items::{Items, Source};
pub(crate) use life::{
    User, add_fd, are_known, before_fork, cancelled, created, drop_fd, forked, forked_late, found,
    is_instance, keep_locks, put_back, separated, separated_with_threads, unlock,
};
pub(crate) use listed::{changed, forked as forget_lists};
pub(crate) use roads::{moved, registrations};
pub(crate) use told::{accepted, forget as forget_told};
pub(crate) use waiting::{AT_EDGE, CLOSED, wait};
pub(crate) use watch::{
    Removed as Registered, became_listener, endpoint_event, forget_endpoint, leave_to_kernel, look_again,
    no_space, peer_event, readable_event, room_event, state_event, to_kernel,
};
pub(crate) use way_back::{
    begin as go_back, begin_at_once as go_back_at_once, give_back, hand_over, hand_over_all,
    look as look_at_way_back, look_at_ends, resend_more,
};

/// Neither on the ready list nor hot: armed.
const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const HOT: u8 = 2;

/// Flags of a registration that are no events; only they remain when EPOLLONESHOT has fired.
const PRIVATE: u32 = (libc::EPOLLWAKEUP | libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;
/// Reported whether asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The interest list of an instance.
struct Interest {
    items: Items,
    /// Eventfds that `sleep_fd` watches.
    wakers: crate::process::waker::View,
    /// Registration with the monitor whose control socket is watched.
    registration: u32,
    /// What the library had lost (`monitor::client::losses`) when what is slept on was made.
    losses: u32,
}

/// A place in the ready list.
#[derive(Clone, Copy)]
struct Queued {
    /// Null stands for the kernel's part.
    item: *const Item,
    /// Time at which what put it there had happened; zero where that has no order.
    stamp: u64,
}

/// A socket whose events another process gets: looked at in every wait.
#[derive(Clone, Copy)]
struct Scanned {
    item: *const Item,
    /// If edge-triggered, bytes that had arrived at the last look.
    arrived: u64,
}

/// The ready list of an instance.
struct ReadyList {
    queue: VecDeque<Queued>,
    hot: Vec<*const Item>,
    scanned: Vec<Scanned>,
    /// With EPOLLONESHOT, and in the kernel's instance too: see `roads`.
    once: Vec<*const Item>,
    kernel_queued: bool,
    /// Of the queue so many have times and stand in their order, up to its end: at most, as what was taken is not counted.
    timed: usize,
    /// Time of the latest news that were put here, and the time up to which they stand in order.
    newest: u64,
    ordered: u64,
}

// SAFETY: an item is given back only after it was taken off the ready list, under its lock.
unsafe impl Send for ReadyList {}

/// One instance. Records are used again but never freed, so a late look at one does no harm.
pub(crate) struct Epoll {
    /// A number that leads to the instance.
    fd: AtomicI32,
    /// Numbers of this process that lead here.
    numbers: AtomicU32,
    /// `numbers`, and threads inside a wait; the last one tears down.
    references: AtomicU32,
    interest: Lock<Interest>,
    ready_list: Lock<ReadyList>,
    /// What `ready_list` holds, for a look without the lock.
    load: AtomicUsize,
    /// Instances that watch this one; under `NESTING`.
    outers: AtomicPtr<Item>,
    /// Registrations of sockets and instances of ours.
    members: AtomicU32,
    /// Nested instances registered here.
    nested: AtomicU32,
    /// Kernel descriptors registered (a closed one is still counted).
    kernel_count: AtomicU32,
    /// What a wait sleeps on, once a socket of ours is registered, see `sleep_fd`.
    sleep_fd: HiddenCell,
    /// `sleep_fd` does not watch the program's instance: it would be one level too many.
    flat: AtomicBool,
    /// Whether waits sleep on `sleep_fd`, or on the program's instance.
    place: inside::Place,
    /// Something is, or was, registered here and in the kernel's instance.
    has_both: AtomicBool,
    /// Threads that sleep, and those that look or sleep.
    sleepers: AtomicU32,
    waiters: AtomicU32,
    /// Threads that sleep on the program's instance itself, because it held nothing of ours.
    strangers: AtomicU32,
    /// They were told to come back: the last of them undoes what told them.
    kicked: AtomicBool,
    spin: AtomicU32,
    /// Time-stamp when the kernel part was last asked.
    kernel_asked: AtomicU64,
    /// What processes share after a fork, an eventfd that announces changes, and the last one known.
    ledger: AtomicPtr<ledger::Ledger>,
    ledger_fd: HiddenCell,
    ledger_seen: AtomicU32,
    /// Came by fork, and was not used since.
    inherited: AtomicBool,
    /// A relative has, or had, it too.
    was_forked: AtomicBool,
}

/// Guards who is nested in whom.
static NESTING: Lock<()> = Lock::new(());

impl Instance {
    /// What a number leads to that is an instance's.
    #[inline(always)]
    pub(crate) fn epoll(self) -> &'static Epoll {
        // SAFETY: made by `Epoll::instance` alone; records of instances are never freed.
        unsafe { &*self.0.cast::<Epoll>() }
    }
}

impl Epoll {
    /// For the table of numbers.
    fn instance(&'static self) -> Instance {
        Instance(core::ptr::from_ref(self).cast())
    }

    fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Puts an item at the end of the ready list, unless it stands in it; under the ready list's lock. Before it go those to which
    /// something happened later than `stamp`.
    fn push(&self, ready_list: &mut ReadyList, item: &Item, stamp: u64) {
        if item.place() == QUEUED {
            return;
        }
        item.put(QUEUED);
        match stamp {
            0 => ready_list.append(item),
            _ => ready_list.insert(item, stamp),
        }
        self.load.store(ready_list.len(), Ordering::Release);
    }

    /// Holds more than one socket or instance of ours, so that there is an order.
    fn has_several(&self) -> bool {
        self.members.load(Ordering::Relaxed) > 1
    }

    /// Has ever been nested, so that its events concern others.
    fn has_outers(&self) -> bool {
        !self.outers.load(Ordering::Acquire).is_null()
    }
}

impl ReadyList {
    /// Puts what has no time, the kernel's part if it is null, at the end; what comes later stays behind it.
    fn append(&mut self, item: *const Item) {
        self.queue.push_back(Queued { item, stamp: 0 });
        self.timed = 0;
    }

    /// Puts an item before those to which something happened later than `stamp`.
    #[inline(never)]
    fn insert(&mut self, item: &Item, stamp: u64) {
        let len = self.queue.len();
        self.timed = self.timed.min(len);
        // Announcements are put in order some at a time, so of hundreds many go far before the end.
        let (mut later, mut at_most) = (0, self.timed);
        while later < at_most {
            let middle = (later + at_most).div_ceil(2);
            match self.queue.get(len - middle) {
                Some(other) if other.stamp > stamp => later = middle,
                _ => at_most = middle - 1,
            }
        }
        self.queue.insert(len - later, Queued { item, stamp });
        self.timed += 1;
        self.newest = self.newest.max(stamp);
    }

    /// What stood between two parts with times may be gone: they are one where they stand in order.
    fn join_timed(&mut self) {
        let stamp = |at: usize| self.queue.get(at).map(|queued| queued.stamp);
        let joins =
            |at: usize| stamp(at).is_some_and(|it| it != 0 && stamp(at + 1).is_none_or(|next| it <= next));
        while self.queue.len().checked_sub(self.timed + 1).is_some_and(joins) {
            self.timed += 1;
        }
    }

    /// Time of what happened to the item at the front; zero: it has no order.
    fn first_stamp(&self) -> u64 {
        self.queue.front().map_or(0, |first| first.stamp)
    }

    fn len(&self) -> usize {
        self.queue.len() + self.hot.len() + self.scanned.len()
    }

    /// Where an item stands. Who closes what was just told finds it near the end, who closes in the order of arrival near
    /// the front: a ready list of all connections of a server is not gone through for each of them.
    fn position(&self, item: &Item) -> Option<usize> {
        let is_at = |at: &usize| self.queue.get(*at).is_some_and(|queued| core::ptr::eq(queued.item, item));
        let len = self.queue.len();
        (0..len.div_ceil(2)).find_map(|step| [step, len - 1 - step].into_iter().find(is_at))
    }

    /// Forgets an item.
    fn remove(&mut self, item: &Item) {
        if item.place() == QUEUED
            && let Some(at) = self.position(item)
        {
            self.timed = self.timed.min(self.queue.len());
            let behind = self.queue.len() - at;
            self.timed -= usize::from(behind <= self.timed);
            self.queue.remove(at);
            self.join_timed();
        }
        self.hot.retain(|at| !core::ptr::eq(*at, item));
        self.scanned.retain(|at| !core::ptr::eq(at.item, item));
        self.once.retain(|at| !core::ptr::eq(*at, item));
    }
}

/// Whether any socket of ours is, or was, registered.
#[inline]
pub(crate) fn has_ours(epoll: &Epoll) -> bool {
    epoll.sleep_fd.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> ReadyList {
        ReadyList {
            queue: VecDeque::new(),
            hot: Vec::new(),
            scanned: Vec::new(),
            once: Vec::new(),
            kernel_queued: false,
            timed: 0,
            newest: 0,
            ordered: 0,
        }
    }

    fn order(list: &ReadyList, items: &[Item]) -> Vec<usize> {
        let index = |queued: &Queued| items.iter().position(|item| core::ptr::eq(item, queued.item));
        list.queue.iter().filter_map(index).collect()
    }

    #[test]
    fn news_stand_in_the_order_in_which_they_happened() {
        let (items, mut list) = ([const { Item::unused() }; 5], empty());
        for (item, stamp) in [(&items[0], 30), (&items[1], 10), (&items[2], 20), (&items[3], 20)] {
            list.insert(item, stamp);
        }
        assert_eq!(order(&list, &items), [1, 2, 3, 0], "of two at a time, the one that was found first");
        assert_eq!((list.first_stamp(), list.newest), (10, 30));
        // What is level-triggered and was told has no time, and goes to the end; what comes then stays behind it.
        list.append(&items[4]);
        list.insert(&items[1], 5);
        assert_eq!(order(&list, &items), [1, 2, 3, 0, 4, 1]);
    }

    #[test]
    fn once_what_was_told_is_gone_the_order_goes_on() {
        let (items, mut list) = ([const { Item::unused() }; 5], empty());
        items.iter().for_each(|item| item.put(QUEUED));
        list.insert(&items[0], 10);
        list.append(&items[1]);
        list.insert(&items[2], 20);
        list.remove(&items[1]);
        list.insert(&items[3], 5);
        list.insert(&items[4], 15);
        assert_eq!(order(&list, &items), [3, 0, 4, 2]);
    }

    /// As the list was gone through from its end.
    #[test]
    fn the_place_is_the_one_before_all_that_happened_later() {
        let (items, mut list, mut seed) = ([const { Item::unused() }; 40], empty(), 7u64);
        items.iter().for_each(|item| item.put(QUEUED));
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, stamp) = (seed >> 60, 1 + (seed >> 40) % 50);
            let Some(item) = items.get((seed >> 33) as usize % items.len()) else { continue };
            let has_time =
                list.position(item).is_some_and(|at| list.queue.get(at).is_some_and(|it| it.stamp != 0));
            match what {
                0..3 => drop(list.queue.pop_front()),
                3 => list.append(item),
                // Two parts that it kept apart may not stand in order.
                4..6 if has_time => list.remove(item),
                4..6 => {}
                _ if list.queue.len() < items.len() => {
                    let stamps =
                        |list: &ReadyList| list.queue.iter().map(|other| other.stamp).collect::<Vec<_>>();
                    let mut expected = stamps(&list);
                    let later = expected.iter().rev().take_while(|other| **other > stamp).count();
                    expected.insert(expected.len() - later, stamp);
                    list.insert(item, stamp);
                    assert_eq!(stamps(&list), expected);
                }
                _ => list.queue.clear(),
            }
        }
    }

    #[test]
    fn an_item_is_found_from_either_end_and_forgotten() {
        let (items, mut list) = ([const { Item::unused() }; 5], empty());
        for (at, item) in items.iter().enumerate() {
            list.insert(item, at as u64 + 1);
            item.put(QUEUED);
        }
        assert_eq!(items.each_ref().map(|item| list.position(item)), [0, 1, 2, 3, 4].map(Some));
        list.remove(&items[2]);
        assert_eq!(list.position(&items[2]), None);
        list.hot.push(&items[0]);
        list.remove(&items[0]);
        assert_eq!((order(&list, &items), list.len()), (vec![1, 3, 4], 3));
    }
}
