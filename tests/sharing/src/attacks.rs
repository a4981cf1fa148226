//! Attacks on the words of a segment, each aimed at one thing that a reader could trust. What is written where follows
//! from the layout in `sd_shm::channel`.

use crate::pattern::Random;
use sd_ring::doorbell::{RX_SIGNAL, TX_SIGNAL};
use sd_shm::channel::{
    ADOPTERS, FLAG_DEAD, FLAG_FIN, FLAG_READS_NO_MORE, FLAG_RESET, GEOMETRY, Mapping, RINGS_NOT, SLOTS, Side,
    SlotSide, THREAD_WAKERS, ThreadWaker,
};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// What an attack is made on.
pub(crate) struct Prey<'a> {
    pub(crate) map: &'a Mapping,
    pub(crate) segment: &'a File,
    pub(crate) slot: usize,
    pub(crate) strangers: &'a [u32],
    pub(crate) eventfds: &'a [RawFd],
    pub(crate) random: &'a mut Random,
}

/// An attack makes some writes, and says how many.
type Attack = fn(&mut Prey<'_>) -> u64;

pub(crate) const ATTACKS: [(&str, Attack); 16] = [
    ("lengths", lengths),
    ("jumps", jumps),
    ("ends", ends),
    ("credits", credits),
    ("states", states),
    ("generations", generations),
    ("flags", flags),
    ("doorbells", doorbells),
    ("urgent", urgent),
    ("signals", signals),
    ("wake_targets", wake_targets),
    ("thread_wakers", thread_wakers),
    ("names", names),
    ("events", events),
    ("whole-page", whole_page),
    ("segment", segment),
];

/// Kinds of headers (`sd_ring`, header.rs).
const DATA: u64 = 1;
const TO_SMALL: u64 = 2;
const TO_LARGE: u64 = 3;
const FIN: u64 = 4;
const URGENT: u64 = 5;
const KIND_SHIFT: u32 = 32;

impl Prey<'_> {
    fn side(&mut self) -> Side {
        if self.random.below(4) == 0 { Side::B } else { Side::A }
    }

    fn words(&mut self) -> &'static SlotSide {
        let side = self.side();
        &self.map.slot(self.slot).side[side as usize]
    }

    /// A header at every word of a ring, so that the reader finds it wherever it is; of a large ring a part.
    fn spray(&mut self, header: impl Fn(u64, &mut Random) -> u64) -> u64 {
        let side = self.side();
        let (start, words) = match self.random.below(4) {
            0 => (self.map.large_ring(self.slot, side), u64::from(GEOMETRY.large_first) / 8),
            _ => (self.map.small_ring(self.slot, side), u64::from(GEOMETRY.small) / 8),
        };
        for at in 0..words {
            let word = header(at * 8, self.random);
            // SAFETY: a word of a ring of a mapping that lasts until the end of this process; others change it too.
            unsafe { &*start.cast::<AtomicU64>().add(at as usize) }.store(word, Ordering::Release);
        }
        words
    }
}

/// Messages longer than what is left of the ring, than the ring, than anything; empty ones, and lengths that overflow
/// when they are rounded up.
fn lengths(prey: &mut Prey<'_>) -> u64 {
    let lengths = [0, 1, 7, 1015, 1016, 1017, 1 << 20, (1 << 21) - 8, 1 << 21, u32::MAX - 7, u32::MAX];
    let length = u64::from(lengths[prey.random.below(lengths.len() as u64) as usize]);
    prey.spray(|_, random| random.below(1 << 28) << 36 | DATA << KIND_SHIFT | length)
}

/// Jumps to and fro without end, jumps that use up nothing, more than there is, or no whole words.
fn jumps(prey: &mut Prey<'_>) -> u64 {
    let used = [0, 8, 9, 1016, 1024, 1 << 21, u64::from(u32::MAX)][prey.random.below(7) as usize];
    prey.spray(|at, _| if at % 16 == 0 { TO_LARGE } else { TO_SMALL } << KIND_SHIFT | used)
}

/// The end, urgent bytes that are none, and kinds that do not exist, in the middle of everything.
fn ends(prey: &mut Prey<'_>) -> u64 {
    let kind = [FIN, URGENT, 0, 6, 15][prey.random.below(5) as usize];
    prey.spray(|_, random| kind << KIND_SHIFT | random.below(3))
}

/// Credits beyond what was written, backwards, and around the end of the numbers.
fn credits(prey: &mut Prey<'_>) -> u64 {
    let word = &prey.words().consumed;
    let now = word.load(Ordering::Relaxed);
    let values = [0, 1, u64::MAX, 1 << 63, now.wrapping_sub(8), now + 8, now.wrapping_add(1 << 32), now ^ 1];
    word.store(values[prey.random.below(8) as usize], Ordering::Release);
    1
}

/// Every state, in this generation: for the other side's words too.
fn states(prey: &mut Prey<'_>) -> u64 {
    let word = &prey.words().state;
    let state = prey.random.below(7) as u32;
    word.store(word.load(Ordering::Relaxed) & !0xff | state, Ordering::Release);
    1
}

/// Another generation, and the same one on both sides.
fn generations(prey: &mut Prey<'_>) -> u64 {
    let word = &prey.words().state;
    let now = word.load(Ordering::Relaxed);
    let generation = [0, now + 256, now.wrapping_sub(256), u32::MAX, prey.random.next() as u32];
    let new = generation[prey.random.below(5) as usize] & !0xff | now & 0xff;
    let both = prey.random.below(3) == 0;
    let sides = &prey.map.slot(prey.slot).side;
    word.store(new, Ordering::Release);
    if both {
        sides.iter().for_each(|side| side.state.store(new, Ordering::Release));
    }
    1 + 2 * u64::from(both)
}

/// Ends that are shown and taken back, and bits that mean nothing.
fn flags(prey: &mut Prey<'_>) -> u64 {
    let word = &prey.words().flags;
    let values = [
        FLAG_FIN,
        FLAG_FIN | FLAG_READS_NO_MORE,
        FLAG_RESET,
        FLAG_DEAD,
        0,
        u32::MAX,
        prey.random.next() as u32,
    ];
    word.store(values[prey.random.below(7) as usize], Ordering::Release);
    if prey.random.below(2) == 0 {
        word.store(0, Ordering::Release);
        return 2;
    }
    1
}

/// Announcements that were never made, or are taken away.
fn doorbells(prey: &mut Prey<'_>) -> u64 {
    let value = [0, u32::MAX, prey.random.next() as u32][prey.random.below(3) as usize];
    prey.words().wait.store(value, Ordering::Release);
    1
}

/// Urgent bytes in the past and the future.
fn urgent(prey: &mut Prey<'_>) -> u64 {
    let words = prey.words();
    words
        .make_cold()
        .urgent
        .store(prey.random.nasty() << 9 | 0x100 | prey.random.below(256), Ordering::Release);
    words.flags.fetch_or(sd_shm::channel::FLAG_URGENT, Ordering::AcqRel);
    2
}

/// SIGKILL for the monitor, for the server and for a client that has nothing to do with it.
fn signals(prey: &mut Prey<'_>) -> u64 {
    let pid = prey.strangers[prey.random.below(prey.strangers.len() as u64) as usize];
    for side in &prey.map.slot(prey.slot).side {
        // As it was understood once; and any endpoint's number.
        let wish = u64::from(pid) << 32 | 0x100 | libc::SIGKILL as u64;
        let wish = if prey.random.below(2) == 0 { wish } else { prey.random.below(20) };
        side.make_cold().wants_signals.store(wish, Ordering::Release);
        side.wait.fetch_or(RX_SIGNAL | TX_SIGNAL, Ordering::AcqRel);
    }
    4
}

/// Registrations of others, small numbers as they are given.
fn wake_targets(prey: &mut Prey<'_>) -> u64 {
    let wake_target = [prey.random.below(64), prey.random.nasty(), 0][prey.random.below(3) as usize];
    prey.words().make_cold().wake_target.store(wake_target, Ordering::Release);
    1
}

/// Thread wakers that do not exist, or belong to threads that wait for others.
fn thread_wakers(prey: &mut Prey<'_>) -> u64 {
    let number = prey.random.below(THREAD_WAKERS as u64 + 4) as u32;
    let thread_waker =
        if prey.random.below(2) == 0 { ThreadWaker::Sleeps(number) } else { ThreadWaker::Wishes(number) };
    let words = prey.words();
    words.make_cold().wake_target.store(thread_waker.word(), Ordering::Release);
    let rings = [0, u64::MAX, RINGS_NOT, 1 << (number % 64)][prey.random.below(4) as usize];
    words.make_cold().rings.store(rings, Ordering::Release);
    2
}

/// A request to another listener, from another address, of another adopter.
fn names(prey: &mut Prey<'_>) -> u64 {
    let names = prey.map.names(prey.slot);
    names.listener_gen.store(prey.random.below(6) as u32, Ordering::Relaxed);
    names.ports.store(prey.random.next() as u32, Ordering::Relaxed);
    names.local[1].store(prey.random.nasty(), Ordering::Relaxed);
    names.remote[1].store(prey.random.nasty(), Ordering::Relaxed);
    let listener = [0, 1, ADOPTERS as u32, ADOPTERS as u32 + 1, u32::MAX][prey.random.below(5) as usize];
    prey.words().listener.store(listener, Ordering::Release);
    prey.map.header().used.store(prey.random.next() as u32 % (SLOTS as u32 * 2), Ordering::Release);
    6
}

/// Everything is announced, or nothing, from the end of time; a side is called dead.
fn events(prey: &mut Prey<'_>) -> u64 {
    let side = prey.side();
    let events = prey.map.events_for(side, prey.random.below(ADOPTERS as u64 + 2) as u32);
    let bits = if prey.random.below(3) == 0 { 0 } else { u64::MAX };
    events.leaf.iter().for_each(|leaf| leaf.store(bits, Ordering::SeqCst));
    events.summary.store(bits, Ordering::SeqCst);
    prey.words().announced.store(prey.random.nasty(), Ordering::Relaxed);
    let header = prey.map.header();
    let dead = [0, 0, 0, 1, u32::MAX][prey.random.below(5) as usize];
    header.dead[prey.random.below(2) as usize].store(dead, Ordering::SeqCst);
    events.leaf.len() as u64 + 3
}

/// All slots' words the same.
fn whole_page(prey: &mut Prey<'_>) -> u64 {
    let value = [0, u64::MAX, prey.random.next()][prey.random.below(3) as usize];
    let start = core::ptr::from_ref(prey.map.slot(prey.slot / 64 * 64)).cast::<AtomicU64>();
    for word in 0..512 {
        // SAFETY: 64 slots of 64 bytes, in a mapping that lasts until the end of this process; others change it too.
        unsafe { &*start.add(word) }.store(value, Ordering::Relaxed);
    }
    512
}

/// What can be done to the segment itself, and to the eventfds that came with it.
fn segment(prey: &mut Prey<'_>) -> u64 {
    let fd = prey.segment.as_raw_fd();
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let at = prey.random.below(12 << 20) as i64 / 4096 * 4096;
    // SAFETY: no pointers.
    unsafe {
        match prey.random.below(4) {
            0 => libc::ftruncate(fd, 0),
            1 => libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE),
            _ => libc::fallocate(fd, hole, at, 4096),
        };
    }
    for &eventfd in prey.eventfds {
        // Full, and blocking if that can be changed: who rings must not wait.
        let most = u64::MAX - 1;
        // SAFETY: the kernel reads eight bytes.
        unsafe {
            libc::fcntl(eventfd, libc::F_SETFL, libc::O_NONBLOCK);
            libc::write(eventfd, (&raw const most).cast(), 8);
            libc::fcntl(eventfd, libc::F_SETFL, 0);
        }
    }
    1
}
