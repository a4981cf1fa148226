//! What the two sides of a [channel](crate::channel) say of one connection, beside its rings.

use crate::channel::COLD_DISTANCE;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::numbered;
use sd_ring::sync::slot_state;

numbered! {
/// State of a slot as one side declares it; see `sd-socket`'s state table (§4.5.2, Fig. 6).
pub enum SlotState {
    /// Not in use by this side.
    Free = 0,
    /// A: connection requested, and usable by A at once.
    Syn = 1,
    /// B: accepted into a backlog or by accept.
    Open = 2,
    /// B: refused; A finds ECONNREFUSED or ECONNRESET. This says it alone: A may use the slot again from here on, so
    /// a flag that came after it could be one of the next connection.
    Refused = 3,
    /// This side is done with the slot.
    Closed = 4,
}
else Free
}

impl SlotState {
    /// The state in a word of a slot.
    #[inline]
    pub fn of_word(word: u32) -> SlotState {
        SlotState::from_u32(word & 0xff)
    }
}

/// The side has discarded data: the peer gets ECONNRESET.
pub const FLAG_RESET: u32 = 1;
/// The side's last process is gone without closing: the peer reads on, then finds the end.
pub const FLAG_DEAD: u32 = 2;

/// The side has finished sending; the end is in the ring too, behind the data.
pub const FLAG_FIN: u32 = 4;
/// The side reads no more (shutdown); with [`FLAG_FIN`] that is as good as closed for the peer.
pub const FLAG_READS_NO_MORE: u32 = 8;
/// The side must not call futex(2), so who sleeps for what it does looks again soon.
pub const FLAG_CANNOT_WAKE: u32 = 16;
/// The side has sent urgent data; see [`ColdWords::urgent`].
pub const FLAG_URGENT: u32 = 32;
/// The side looks at several connections at a time, and wants to know when messages were sent; see `sd_ring::stamp`.
pub const FLAG_WANTS_STAMPS: u32 = 64;

/// The side has something in its [`ColdWords`]; without it they are not looked at, so that their memory need not exist.
pub const FLAG_COLD: u32 = 128;
/// A, behind whose channel is a pump: it wants its request back. B, a pump: A has it back, as nobody has accepted it.
/// Behind the bits of [`crate::promotion`].
pub const FLAG_TAKES_BACK: u32 = 1 << 24;
/// A: its socket is an MPTCP one. Said before the request.
pub const FLAG_MPTCP: u32 = 1 << 25;
/// An engine: a device has the memory of the large ring into which the other side sends. The other side: it is giving that back.
pub const FLAG_LENT: u32 = 1 << 26;
pub const FLAG_GIVES_BACK: u32 = 1 << 27;
/// The same, as both say it to each other.
pub const LENT: sd_ring::sync::lent::Flags =
    sd_ring::sync::lent::Flags { lent: FLAG_LENT, gives: FLAG_GIVES_BACK };

/// One side's words of a slot, in a mapped channel. Only that side writes them, except `wait`, where the other clears bits.
/// Both sides' are one cache line: who looks at one looks at the other, and neither writes while data just flows.
#[repr(C, align(32))]
#[non_exhaustive]
pub struct SlotSide {
    /// Generation << 8 | [`SlotState`].
    pub state: AtomicU32,
    /// Doorbell word: this side waits; see `sd_ring::doorbell`.
    pub wait: AtomicU32,
    /// [`FLAG_RESET`], [`FLAG_DEAD`] (the monitor sets these too), [`FLAG_FIN`].
    pub flags: AtomicU32,
    /// A: index of the listener at B. B: the adopter that accepted, 0 = whom the channel was made for.
    pub listener: AtomicU32,
    /// Ring bytes this side has consumed of what the other sent.
    pub consumed: AtomicU64,
    /// Time-stamp of this side's last announcement in the other's [`EventSet`](crate::events::EventSet), which has no order.
    pub announced: AtomicU64,
}

/// Words that few connections need, written as those of [`SlotSide`] are; see [`SlotSide::cold`].
#[repr(C, align(32))]
pub struct ColdWords {
    /// The last byte that the side sent as urgent: ring bytes before it << 9 | 0x100 | the byte.
    pub urgent: AtomicU64,
    /// The side wants signals about the connection, which the monitor sends when the other side asks: number of its
    /// endpoint plus one. To whom, and which, stands there, where the other side cannot write. Zero: none.
    pub wants_signals: AtomicU64,
    /// Registration, with the monitor, of the process that alone has this side and is to be woken for it; it looks at
    /// the connection without an [`EventSet`](crate::events::EventSet). Zero: whom the channel was made for, or the adopter.
    ///
    /// Or a [`ThreadWaker`] of the other kind of process: one for whom the channel was made.
    pub wake_target: AtomicU64,
    /// Thread wakers of the other side's process that every process which has this side can ring, a bit each; [`RINGS_NOT`].
    pub rings: AtomicU64,
}

/// Whom a connection was requested from, and by whom. Side A writes it before it sets its state; it is looked at once.
#[repr(C)]
pub struct Names {
    /// Generation of the listener that [`SlotSide::listener`] names.
    pub listener_gen: AtomicU32,
    /// Ports, local << 16 | remote.
    pub ports: AtomicU32,
    /// A's own address, an IPv6 or IPv4-mapped address in memory order.
    pub local: [AtomicU64; 2],
    /// The address it connected to.
    pub remote: [AtomicU64; 2],
}

/// Eventfds that a process may have for single threads.
pub const THREAD_WAKERS: usize = 62;
/// Bit of [`ColdWords::rings`]: none is rung any more.
pub const RINGS_NOT: u64 = 1 << 63;

/// A number of an eventfd for a single thread, in [`ColdWords::wake_target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadWaker {
    /// The thread that alone waits for the connection sleeps there: who has news writes that eventfd and nothing else.
    Sleeps(u32),
    /// It would, if the other side could ring it; now it is woken like others.
    Wishes(u32),
}

impl ColdWords {
    /// Empty again, for the slot's next connection.
    pub fn clear(&self) {
        let all = [&self.urgent, &self.wants_signals, &self.wake_target, &self.rings];
        all.into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

impl ThreadWaker {
    const SLEEPS: u64 = 1 << 63;
    const WISHES: u64 = 1 << 62;

    /// As it stands in the words.
    pub fn word(self) -> u64 {
        match self {
            ThreadWaker::Sleeps(number) => ThreadWaker::SLEEPS | u64::from(number),
            ThreadWaker::Wishes(number) => ThreadWaker::WISHES | u64::from(number),
        }
    }

    /// What stands there; `None`: something else, perhaps of a peer that lies.
    pub fn of(word: u64) -> Option<ThreadWaker> {
        let number = word & !(ThreadWaker::SLEEPS | ThreadWaker::WISHES);
        match word & (ThreadWaker::SLEEPS | ThreadWaker::WISHES) {
            _ if number >= THREAD_WAKERS as u64 => None,
            ThreadWaker::SLEEPS => Some(ThreadWaker::Sleeps(number as u32)),
            ThreadWaker::WISHES => Some(ThreadWaker::Wishes(number as u32)),
            _ => None,
        }
    }
}

impl SlotSide {
    /// Generation and state (SYNC POINT: slot state, with `set_state` in crates/sd-shm/src/slot.rs).
    #[inline]
    pub fn state(&self) -> (u32, SlotState) {
        let word = slot_state::read(&self.state);
        (word >> 8, SlotState::of_word(word))
    }

    /// Declares a state (SYNC POINT: slot state, with `state` in crates/sd-shm/src/slot.rs and `close_slot` in
    /// crates/sd-monitor/src/shell/reaper.rs).
    pub fn set_state(&self, generation: u32, state: SlotState) {
        slot_state::declare(&self.state, generation << 8 | state as u32);
    }

    /// The other side's words of the slot.
    #[inline(always)]
    pub fn other(&self) -> &SlotSide {
        let place = core::ptr::from_ref(self).map_addr(|address| address ^ core::mem::size_of::<SlotSide>());
        // SAFETY: words lie in a slot, which is aligned to its size, that of two sides.
        unsafe { &*place }
    }

    /// As those of a slot are before a connection, but for the state.
    #[inline(always)]
    pub fn clear(&self) {
        self.cold().into_iter().for_each(ColdWords::clear);
        self.flags.store(0, Ordering::Relaxed);
        self.wait.store(0, Ordering::Relaxed);
        self.consumed.store(0, Ordering::Relaxed);
        self.listener.store(0, Ordering::Relaxed);
    }

    /// The side's cold words, if it has any.
    pub fn cold(&self) -> Option<&ColdWords> {
        (self.flags.load(Ordering::Acquire) & FLAG_COLD != 0).then(|| self.cold_place())
    }

    /// The side's own cold words, to be written: from now on the peer looks at them.
    pub fn make_cold(&self) -> &ColdWords {
        if self.flags.load(Ordering::Relaxed) & FLAG_COLD == 0 {
            self.flags.fetch_or(FLAG_COLD, Ordering::SeqCst);
        }
        self.cold_place()
    }

    fn cold_place(&self) -> &ColdWords {
        let place = core::ptr::from_ref(self).cast::<u8>().wrapping_add(COLD_DISTANCE);
        // SAFETY: words lie in a mapped channel, where the rare ones have the same order and size (proved below).
        unsafe { &*place.cast::<ColdWords>() }
    }
}

/// What a connection always needs of a channel.
#[repr(C, align(64))]
pub struct Slot {
    /// Words of A and of B.
    pub side: [SlotSide; 2],
}
