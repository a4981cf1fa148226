//! Who may use one half of a connection (§4.1): the token of a direction's senders or receivers.
//!
//! ```text
//!            holder: H                                    lock, line
//!  H: inside = token; light fence;                 others: wait for their turn, take the lock,
//!     holder == H? work; inside = 0                        holder = H|REVOKED; heavy fence;
//!                                                          wait until H.inside != token; holder = 0; work
//! ```
//! The *holder* enters by plain stores and loads. Everybody else takes the lock, in the order of
//! arrival, and takes the token away from its holder first. Who has used the lock some times in a
//! row, with nobody in line, becomes the holder.
//!
//! **Exclusion.** The heavy fence (membarrier) makes every thread execute a full fence between two of
//! its instructions. If H's stands before its store of `inside`, its later load finds REVOKED and H
//! turns back; else the revoker's load after the fence finds `inside`, and waits.
//! Where H is or what it does makes no difference: it may compute, sleep, or be stopped.
//!
//! **Order.** Tickets. A turn that nobody uses while the lock is free (its thread is dead or
//! stopped) is passed over after a while; who finds itself passed over takes a new ticket.
//!
//! **Death.** `inside` and `lock` name a thread; when it is dead, the next in line goes on, and is told
//! so ([`Before::Died`]), because the half may have been left in the middle of a change.
//!
//! Not for threads that leave their critical section by longjmp; they are taken over by
//! themselves only. Tested by `tests/loom.rs` (orderings, this code) and `tests/token_model.rs`
//! (all states of the protocol with a crash or a stop at each step).

use crate::facade::{AtomicU32, AtomicU64, Ordering, Own, fence_after_change, fence_light};

/// Senders or receivers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Way {
    /// Senders.
    Send = 0,
    /// Receivers.
    Receive = 1,
}

/// How the half was left by who used it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// In order.
    Left,
    /// Its user died; what it changed may be half done.
    Died,
}

const NOBODY: u32 = 0;
const REVOKED: u32 = 1 << 31;
/// Uses of the lock in a row that make a holder, at first; each revocation quadruples it.
const STREAK_NEEDED: u32 = 16;
const STREAK_MAX: u32 = 1 << 16;
/// Looks before a waiter sleeps (see [`World::relax`]).
const LOOKS: u32 = if cfg!(loom) { 1 } else { 128 };
const SLEEP_NS: u64 = 5_000_000;
const LONG_SLEEP_NS: u64 = 50_000_000;
/// Sleeps without a wake-up, the turn unused and the lock free, after which a turn is passed over.
const UNUSED_MAX: u32 = 4;

/// A token, in memory shared by all who may want it. All zero is a fresh one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Token {
    /// Number of the thread that may enter without the lock, or [`NOBODY`]. Changed under `lock` only.
    holder: AtomicU32,
    /// Id of the thread that has the lock; zero when it is free.
    lock: AtomicU32,
    /// The next ticket.
    next: AtomicU32,
    /// The ticket whose turn it is.
    serving: AtomicU32,
    /// Waiters that sleep.
    sleepers: AtomicU32,
    /// Id of who had the lock last, and how often in a row. Changed under `lock` only.
    last: AtomicU32,
    /// See `last`.
    streak: AtomicU32,
    /// Streak that makes a holder; zero = [`STREAK_NEEDED`].
    streak_needed: AtomicU32,
}

/// What others must know of a thread; in memory shared by the processes of a family.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Thread {
    /// Its id, as `World::is_dead` understands it; zero when the record was never used.
    pub id: AtomicU32,
    /// Its number, from 1; see `Token::holder`.
    pub number: AtomicU32,
    /// Address of the token that it uses as its holder, per [`Way`]. Written by the thread only.
    inside: [AtomicU64; 2],
    /// Address of the token that it waits for.
    waiting: AtomicU64,
    /// Its ticket there.
    ticket: AtomicU32,
    /// 1 = it sleeps on this word.
    asleep: AtomicU32,
}

impl Thread {
    /// A record that is no thread's: it enters no token.
    #[cfg(not(loom))]
    pub const fn nobody() -> Thread {
        let inside = [const { AtomicU64::new(u64::MAX) }; 2];
        let [id, number, ticket, asleep] = [const { AtomicU32::new(0) }; 4];
        Thread { id, number, inside, waiting: AtomicU64::new(0), ticket, asleep }
    }

    /// The holder's way out of a token.
    #[inline(always)]
    pub fn leave(&self, way: Way) {
        self.inside[way as usize].store(0, Ordering::Release);
    }

    /// The thread will not use tokens of this memory any more: somebody else may have the record.
    pub fn abandon(&self) {
        self.waiting.store(0, Ordering::SeqCst);
        self.inside.iter().for_each(|token| token.store(0, Ordering::Release));
        self.id.store(0, Ordering::Release);
    }

    /// Whether it is not inside any token as its holder.
    pub fn is_outside(&self) -> bool {
        self.inside.iter().all(|token| token.load(Ordering::Acquire) == 0)
    }
}

/// The thread that acts.
#[derive(Clone, Copy)]
pub struct Me<'a> {
    /// Its id, not zero.
    pub id: u32,
    /// Its record, if it has one.
    pub thread: Option<&'a Thread>,
}

impl Me<'_> {
    fn number(&self) -> u32 {
        self.thread.map_or(NOBODY, |thread| thread.number.load(Ordering::Relaxed))
    }
}

/// The system around tokens.
pub trait World {
    /// Makes every thread that may be a holder execute a full fence, or wait long enough.
    fn fence_heavy(&self);
    /// Whether this process's threads may be holders (others can make them fence).
    fn may_hold(&self) -> bool;
    /// Whether a thread is gone for good. When in doubt it is not.
    fn is_dead(&self, id: u32) -> bool;
    /// The highest number of a thread.
    fn threads(&self) -> u32;
    /// The record with this number.
    fn thread(&self, number: u32) -> Option<&Thread>;
    /// Waits a little, longer the more rounds there were.
    fn relax(&self, round: u32);
    /// futex(FUTEX_WAIT) with a time-out.
    fn sleep(&self, word: &AtomicU32, value: u32, timeout_ns: u64);
    /// futex(FUTEX_WAKE).
    fn wake(&self, word: &AtomicU32);
}

impl Token {
    #[inline(always)]
    fn address(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }

    /// As good as new. Nobody else may know the token.
    pub fn reset(&self) {
        for word in [
            &self.holder,
            &self.lock,
            &self.next,
            &self.serving,
            &self.sleepers,
            &self.last,
            &self.streak,
            &self.streak_needed,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The holder's way in: true when `mine` is the holder, which has to [`Thread::leave`] (SYNC POINT: token, with `revoke` in
    /// crates/sd-ring/src/token.rs).
    #[inline(always)]
    pub fn enter(&self, way: Way, mine: &Thread) -> bool {
        let inside = &mine.inside[way as usize];
        // A use that longjmp left.
        if inside.own() != 0 {
            return false;
        }
        inside.store(self.address(), Ordering::Relaxed);
        fence_light();
        if self.holder.load(Ordering::Acquire) == mine.number.own() {
            return true;
        }
        inside.store(0, Ordering::Release);
        false
    }

    /// The way in for everybody else: returns when nobody but the caller uses the half.
    pub fn lock<W: World>(&self, way: Way, me: Me<'_>, world: &W) -> Before {
        // A use that longjmp left.
        if self.lock.load(Ordering::Relaxed) == me.id {
            return Before::Left;
        }
        if let Some(mine) = me.thread
            && mine.inside[way as usize].load(Ordering::Relaxed) == self.address()
        {
            mine.inside[way as usize].store(0, Ordering::Release);
        }
        let nobody_waits = self.next.load(Ordering::SeqCst) == self.serving.load(Ordering::SeqCst);
        let before = if nobody_waits && self.pass_lock(0, me.id) {
            Before::Left
        } else {
            self.wait_in_line(me, world)
        };
        self.note_use(me.id);
        if self.holder.load(Ordering::Acquire) != NOBODY && self.revoke(way, me, world) == Before::Died {
            return Before::Died;
        }
        before
    }

    /// The way out after [`Token::lock`] (SYNC POINT: token sleepers, with `sleep` in crates/sd-ring/src/token.rs).
    pub fn unlock<W: World>(&self, me: Me<'_>, world: &W) {
        let needed = self.streak_needed.load(Ordering::Relaxed).max(STREAK_NEEDED);
        if self.streak.load(Ordering::Relaxed) >= needed
            && self.next.load(Ordering::Relaxed) == self.serving.load(Ordering::Relaxed)
            && world.may_hold()
        {
            self.holder.store(me.number(), Ordering::Release);
        }
        self.pass_lock(me.id, 0);
        fence_after_change();
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake_next(world);
        }
    }

    /// From now on there is no holder: the half is used by threads that know nothing of each other but their ids.
    pub fn keep_unheld<W: World>(&self, way: Way, me: Me<'_>, world: &W) -> Before {
        let before = self.lock(way, me, world);
        self.streak_needed.store(u32::MAX, Ordering::Relaxed);
        self.unlock(me, world);
        before
    }

    /// As the token that others have will be when nobody uses it, with the same line. Nobody else may know this one.
    pub fn stand_in_for(&self, other: &Token) {
        self.reset();
        self.next.store(other.next.load(Ordering::SeqCst), Ordering::Relaxed);
        self.serving.store(other.serving.load(Ordering::SeqCst), Ordering::Relaxed);
    }

    /// Frees the lock if one of these threads has it: they will not use this memory any more.
    pub fn abandon(&self, is_one: impl Fn(u32) -> bool) {
        let lock = self.lock.load(Ordering::SeqCst);
        if lock != 0 && is_one(lock) {
            self.pass_lock(lock, 0);
        }
    }

    fn pass_lock(&self, from: u32, to: u32) -> bool {
        self.lock.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Under the lock: who uses it how often in a row.
    fn note_use(&self, id: u32) {
        let again = self.last.load(Ordering::Relaxed) == id;
        let streak =
            if again { self.streak.load(Ordering::Relaxed).saturating_add(1).min(STREAK_MAX) } else { 0 };
        self.last.store(id, Ordering::Relaxed);
        self.streak.store(streak, Ordering::Relaxed);
    }

    /// Under the lock: takes the token away from its holder. May be repeated by who finds the lock
    /// with a dead revoker (SYNC POINT: token, with `enter` in crates/sd-ring/src/token.rs).
    #[cold]
    fn revoke<W: World>(&self, way: Way, me: Me<'_>, world: &W) -> Before {
        let number = self.holder.load(Ordering::Relaxed) & !REVOKED;
        let mut before = Before::Left;
        if number != me.number() {
            self.holder.store(number | REVOKED, Ordering::SeqCst);
            world.fence_heavy();
            if let Some(holder) = world.thread(number) {
                before = self.wait_outside(way, holder, world);
            }
            let needed = self.streak_needed.load(Ordering::Relaxed).max(STREAK_NEEDED);
            self.streak_needed.store((needed * 4).min(STREAK_MAX), Ordering::Relaxed);
        }
        self.holder.store(NOBODY, Ordering::Release);
        before
    }

    /// After the heavy fence: until the former holder is not inside, or dead.
    fn wait_outside<W: World>(&self, way: Way, holder: &Thread, world: &W) -> Before {
        let mut round = 0;
        while holder.inside[way as usize].load(Ordering::Acquire) == self.address() {
            if round > LOOKS && world.is_dead(holder.id.load(Ordering::Acquire)) {
                return Before::Died;
            }
            world.relax(round);
            round += 1;
        }
        Before::Left
    }

    #[cold]
    fn wait_in_line<W: World>(&self, me: Me<'_>, world: &W) -> Before {
        loop {
            let ticket = self.next.fetch_add(1, Ordering::SeqCst);
            if let Some(mine) = me.thread {
                mine.ticket.store(ticket, Ordering::Relaxed);
                mine.waiting.store(self.address(), Ordering::SeqCst);
            }
            let taken = self.wait_turn(ticket, me, world);
            if let Some(mine) = me.thread {
                mine.waiting.store(0, Ordering::Relaxed);
            }
            if let Some(before) = taken {
                return before;
            }
        }
    }

    /// Until the ticket's turn has come and the lock is taken; `None` when it was passed over.
    fn wait_turn<W: World>(&self, ticket: u32, me: Me<'_>, world: &W) -> Option<Before> {
        let (mut unused, mut sleeps) = ((ticket, 0), 0);
        for round in 0u32.. {
            let serving = self.serving.load(Ordering::SeqCst);
            let lock = self.lock.load(Ordering::SeqCst);
            if serving == ticket {
                let dead =
                    lock != 0 && (lock == me.id || (round > LOOKS || sleeps > 0) && world.is_dead(lock));
                if (lock == 0 || dead) && self.pass_lock(lock, me.id) {
                    self.pass_turn(ticket);
                    return Some(if dead { Before::Died } else { Before::Left });
                }
            } else if (serving.wrapping_sub(ticket) as i32) > 0 {
                return None;
            }
            // Only who is next looks without a pause: many of them would keep the processors from who has the lock.
            let is_next = ticket.wrapping_sub(serving) <= 1;
            if is_next && round <= LOOKS {
                world.relax(round);
                continue;
            }
            sleeps += 1;
            let is_long = sleeps > 2 * UNUSED_MAX;
            self.sleep(ticket, round, if is_long { LONG_SLEEP_NS } else { SLEEP_NS }, me, world);
            let is_free = lock == 0 || world.is_dead(lock);
            let is_unused = is_free && serving != ticket && unused.0 == serving;
            unused = (serving, if is_unused { unused.1 + 1 } else { 0 });
            if unused.1 >= UNUSED_MAX {
                self.pass_turn(serving);
                self.wake_next(world);
            }
        }
        None
    }

    /// The turn of `ticket` is over.
    fn pass_turn(&self, ticket: u32) {
        let next = ticket.wrapping_add(1);
        let _ = self.serving.compare_exchange(ticket, next, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Sleeps until it may be the turn of `ticket`. The sleeper is counted, then looks; `unlock` frees
    /// the lock, then asks for sleepers: one of the two sees the other (SYNC POINT: token sleepers, with `unlock` in
    /// crates/sd-ring/src/token.rs).
    fn sleep<W: World>(&self, ticket: u32, round: u32, timeout_ns: u64, me: Me<'_>, world: &W) {
        let Some(mine) = me.thread else { return world.relax(round) };
        mine.asleep.store(1, Ordering::SeqCst);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence_after_change();
        if self.serving.load(Ordering::SeqCst) != ticket || self.lock.load(Ordering::SeqCst) != 0 {
            world.sleep(&mine.asleep, 1, timeout_ns);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        mine.asleep.store(0, Ordering::Relaxed);
    }

    /// Wakes the thread whose turn it is. Threads that wait for another token at the same address,
    /// in a process that has something else mapped there, may be woken for nothing.
    #[cold]
    fn wake_next<W: World>(&self, world: &W) {
        let serving = self.serving.load(Ordering::SeqCst);
        for thread in (1..=world.threads()).filter_map(|number| world.thread(number)) {
            if thread.waiting.load(Ordering::SeqCst) == self.address()
                && thread.ticket.load(Ordering::Relaxed) == serving
                && thread.asleep.swap(0, Ordering::SeqCst) != 0
            {
                world.wake(&thread.asleep);
            }
        }
    }
}
