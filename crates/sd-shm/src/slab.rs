//! A process's sockets, shared with its children (§4.1.2, Fig. 3) and with the monitor, which
//! lists them for `sd ss` and closes what a dead process held. Peers never see it.

mod numbers;

use crate::PAGE;
use crate::channel::GEOMETRY;
use crate::time_wait::TimeWaits;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub use numbers::{Awaits, Counter, Moved, Promotes, Reason, State};
use sd_ring::token::Thread;
use sd_ring::{RxCursor, TxCursor};
use sd_sys::fd::Owned;

pub use crate::leaving::StandIn;

pub use crate::endpoint::{
    Cold, End, Endpoint, FIXED_BUF, HAS_COLD, LINGER_ON, ParkedHalves, ROAD_MOVED, ROAD_RX_KERNEL,
    ROAD_RX_LEFT, ROAD_TX_KERNEL, ROAD_TX_LEFT, ROAD_WATCHED, RX_PARKED, RxHalf, SWITCHES_MASK, Switch,
    TX_PARKED, Tokens, TxHalf, short_address,
};

/// Endpoints, tokens and halves: so they lie at the same distance from each other for each number.
const LINE: usize = 64;
/// Sockets that one slab holds: ten million connections between two processes, and what they have besides.
pub const ENDPOINTS: usize = 10 << 20;
/// Threads of a family that can hold tokens; see [`Slab::thread`].
pub const THREADS: usize = 4096;
/// Offset of the first thread's record.
const THREADS_OFFSET: usize = PAGE;
/// Offset of the ports in TIME-WAIT.
const TIME_WAITS_OFFSET: usize = THREADS_OFFSET + THREADS * core::mem::size_of::<Thread>();
/// Offset of the first endpoint.
const ENDPOINTS_OFFSET: usize =
    (TIME_WAITS_OFFSET + core::mem::size_of::<TimeWaits>()).next_multiple_of(PAGE) + 21 * LINE;
/// Offset of the first endpoint's tokens.
const TOKENS_OFFSET: usize = ENDPOINTS_OFFSET + ENDPOINTS * core::mem::size_of::<Endpoint>();
/// Lines of the arrays of halves in a page of memory, so the halves that share one.
pub const HALVES_PER_PAGE: usize = PAGE / LINE;
/// So many senders' halves are in the first page: a processor takes a load for one of what it has just stored when the
/// lowest twelve bits of the addresses are the same, so those of a socket are not.
pub const TX_FIRST: usize = HALVES_PER_PAGE / 2;
/// Offset of the first endpoint's sending half.
const TX_OFFSET: usize =
    (TOKENS_OFFSET + ENDPOINTS * LINE).next_multiple_of(PAGE) + (HALVES_PER_PAGE - TX_FIRST) * LINE;
/// Offset of the first endpoint's receiving half.
const RX_OFFSET: usize = (TX_OFFSET + ENDPOINTS * LINE).next_multiple_of(PAGE);
/// Offset of what is kept of halves.
const KEPT_OFFSET: usize = RX_OFFSET + ENDPOINTS * LINE;
/// From an endpoint to its tokens, and to its halves.
pub const TOKENS_DISTANCE: usize = TOKENS_OFFSET - ENDPOINTS_OFFSET;
/// See [`TOKENS_DISTANCE`].
pub const TX_DISTANCE: usize = TX_OFFSET - ENDPOINTS_OFFSET;
/// See [`TOKENS_DISTANCE`].
pub const RX_DISTANCE: usize = RX_OFFSET - ENDPOINTS_OFFSET;
/// Offset of what the first endpoint has seldom.
const COLD_OFFSET: usize = KEPT_OFFSET + ENDPOINTS * core::mem::size_of::<ParkedHalves>();
/// Size of the segment; pages appear when touched.
pub const LEN: usize = COLD_OFFSET + ENDPOINTS * core::mem::size_of::<Cold>();
/// Processes that can share one slab: the owner and its descendants.
pub const MEMBERS: usize = 64;
/// The member number that several processes may have, when no other is free.
pub const SHARED_MEMBER: u32 = MEMBERS as u32 - 1;

/// Places for counters in the header.
const COUNTERS: usize = 32;
const _: () = assert!(Counter::ALL.len() <= COUNTERS);

/// First page of a slab.
#[repr(C)]
pub struct Header {
    /// Layout version.
    pub version: AtomicU32,
    /// Owner's process id as it sees itself.
    pub pid: AtomicU32,
    /// Endpoints 0..high have been used; a scan stops there.
    pub high: AtomicU32,
    /// Bit per member number in use; bit 0 is the owner.
    pub members: AtomicU64,
    /// Raised by the monitor after it sent a message to the owner: look at the control socket.
    pub mail: AtomicU32,
    /// Changed by the monitor when listeners or policy change: routes learned earlier are invalid.
    pub route_epoch: AtomicU32,
    /// Records of threads 1..=threads have been used.
    pub threads: AtomicU32,
    /// Set by the monitor while connections wait at busy siblings of a listener of the owner's, which clears it when it
    /// asks for them.
    pub starving: AtomicU32,
    /// Place of the monitor that the owner has registered with, noted by that: its successor looks after the owner, no
    /// other monitor.
    pub place: AtomicU64,
    /// Number of the policy in force, set by the monitor: accept asks whether it admits a connection. Zero: it admits all.
    pub policy: AtomicU32,
    /// Set by the monitor: connections that the kernel has made may be moved to shared memory; see [`Promotes`].
    pub promotes: AtomicU32,
    /// Set by the monitor, which looks no further: the owner takes no endpoint from this number on. Zero: [`ENDPOINTS`].
    pub endpoints_max: AtomicU32,
    /// Events counted by the library; see `sd_socket::stats`.
    /// By [`Counter`].
    pub counters: [AtomicU64; COUNTERS],
    /// Ports at which threads of the family are connecting in the kernel, as nobody accelerated listened there; zero: free.
    /// Noted before the look at the route epoch, and read by the monitor after it was raised.
    pub kernel_connects: [AtomicU32; KERNEL_CONNECTS],
}

impl Header {
    /// One in which nothing is said.
    pub const fn empty() -> Header {
        Header {
            version: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            high: AtomicU32::new(0),
            members: AtomicU64::new(0),
            mail: AtomicU32::new(0),
            route_epoch: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            starving: AtomicU32::new(0),
            place: AtomicU64::new(0),
            policy: AtomicU32::new(0),
            promotes: AtomicU32::new(0),
            endpoints_max: AtomicU32::new(0),
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            kernel_connects: [const { AtomicU32::new(0) }; KERNEL_CONNECTS],
        }
    }

    /// So many endpoints the owner may use.
    pub fn endpoints_allowed(&self) -> usize {
        match self.endpoints_max.load(Ordering::Relaxed) as usize {
            0 => ENDPOINTS,
            max => max.min(ENDPOINTS),
        }
    }
}

/// Threads of a family that can note their connects at the same time.
pub const KERNEL_CONNECTS: usize = 16;

const _: () = {
    assert!(core::mem::size_of::<Header>() <= THREADS_OFFSET);
    assert!(ENDPOINTS_OFFSET.is_multiple_of(64) && TOKENS_OFFSET.is_multiple_of(64));
    // Endpoints stand a third of a page away from halves, see `TX_FIRST`.
    assert!(!(RX_OFFSET - ENDPOINTS_OFFSET).is_multiple_of(PAGE) && !TX_DISTANCE.is_multiple_of(PAGE));
    assert!(core::mem::size_of::<Endpoint>() == LINE && core::mem::size_of::<Tokens>() == LINE);
    assert!(core::mem::size_of::<TxHalf>() == LINE && core::mem::size_of::<RxHalf>() == LINE);
    assert!(COLD_OFFSET.is_multiple_of(64) && KEPT_OFFSET.is_multiple_of(64));
};

/// A mapped slab.
#[derive(Clone, Copy)]
pub struct Slab {
    base: *mut u8,
}

// SAFETY: an address of shared atomics; may be used from any thread.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Creates a slab; returns its memfd and mapping.
    pub fn create(pid: u32) -> sd_sys::Result<(Owned, Slab)> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-slab", LEN)?;
        let slab = Slab::create_in(fd.raw(), pid)?;
        Ok((fd, slab))
    }

    /// As [`Slab::create`], in a memfd that somebody else has made for that.
    pub fn create_in(fd: i32, pid: u32) -> sd_sys::Result<Slab> {
        let slab = Slab::map(fd)?;
        slab.header().version.store(crate::VERSION, Ordering::Relaxed);
        slab.header().pid.store(pid, Ordering::Relaxed);
        slab.header().members.store(1, Ordering::Release);
        Ok(slab)
    }

    /// Maps a slab after checking its length, and that it cannot shrink.
    pub fn map(fd: i32) -> sd_sys::Result<Slab> {
        crate::check_segment(fd, LEN)?;
        sd_sys::mem::map_apart(fd, LEN).map(|base| Slab { base })
    }

    /// Maps a slab where another image of the process had it.
    pub fn map_at(fd: i32, base: usize) -> sd_sys::Result<Slab> {
        crate::check_segment(fd, LEN)?;
        sd_sys::mem::map_at(fd, LEN, base).map(|base| Slab { base })
    }

    /// The slab at an address from [`Slab::base`]; `None` for null.
    pub fn from_base(base: *mut u8) -> Option<Slab> {
        (!base.is_null()).then_some(Slab { base })
    }

    /// Where it is mapped.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// Nothing may use the slab or its endpoints afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: passed on to the caller.
        unsafe { sd_sys::mem::unmap(self.base, LEN) };
    }

    /// First page.
    pub fn header(&self) -> &'static Header {
        // SAFETY: mapped while in use (see `unmap`), page-aligned, atomics only.
        unsafe { &*(self.base as *const Header) }
    }

    /// The record of thread `number` (from 1), `None` when out of range. Records are in use in the oldest
    /// slab that a process has mapped: whoever shares a socket shares that one.
    #[inline]
    pub fn thread(&self, number: u32) -> Option<&'static Thread> {
        let index = (number as usize).checked_sub(1).filter(|index| *index < THREADS)?;
        // SAFETY: as for `header`, and the index is in range.
        Some(unsafe { &*(self.base.add(THREADS_OFFSET) as *const Thread).add(index) })
    }

    /// Ports in TIME-WAIT.
    pub fn time_waits(&self) -> &'static TimeWaits {
        // SAFETY: as for `header`; they lie between the threads and the endpoints.
        unsafe { &*(self.base.add(TIME_WAITS_OFFSET) as *const TimeWaits) }
    }

    /// Endpoint number `index`, `None` when out of range.
    pub fn endpoint(&self, index: usize) -> Option<&'static Endpoint> {
        // SAFETY: as for `header`, and the index is in range.
        (index < ENDPOINTS)
            .then(|| unsafe { &*(self.base.add(ENDPOINTS_OFFSET) as *const Endpoint).add(index) })
    }

    /// Tokens of endpoint number `index`, `None` when out of range.
    pub fn tokens(&self, index: usize) -> Option<&'static Tokens> {
        // SAFETY: as for `endpoint`.
        (index < ENDPOINTS).then(|| unsafe { &*(self.base.add(TOKENS_OFFSET) as *const Tokens).add(index) })
    }

    /// Sending half of endpoint number `index`, `None` when out of range.
    pub fn tx(&self, index: usize) -> Option<&'static TxHalf> {
        // SAFETY: as for `endpoint`.
        (index < ENDPOINTS).then(|| unsafe { &*(self.base.add(TX_OFFSET) as *const TxHalf).add(index) })
    }

    /// Receiving half of endpoint number `index`, `None` when out of range.
    pub fn rx(&self, index: usize) -> Option<&'static RxHalf> {
        // SAFETY: as for `endpoint`.
        (index < ENDPOINTS).then(|| unsafe { &*(self.base.add(RX_OFFSET) as *const RxHalf).add(index) })
    }

    /// What is kept of them.
    pub fn kept(&self, index: usize) -> Option<&'static ParkedHalves> {
        // SAFETY: as for `endpoint`.
        (index < ENDPOINTS)
            .then(|| unsafe { &*(self.base.add(KEPT_OFFSET) as *const ParkedHalves).add(index) })
    }

    /// What endpoint number `index` has seldom, `None` when out of range.
    pub fn cold(&self, index: usize) -> Option<&'static Cold> {
        // SAFETY: as for `endpoint`.
        (index < ENDPOINTS).then(|| unsafe { &*(self.base.add(COLD_OFFSET) as *const Cold).add(index) })
    }

    /// What an endpoint of this slab has seldom, if it has something.
    pub fn cold_of(&self, endpoint: &Endpoint) -> Option<&'static Cold> {
        let has_some = endpoint.flags.load(Ordering::Acquire) & HAS_COLD != 0;
        if has_some { self.cold(self.index_of(endpoint)?) } else { None }
    }

    /// An address of an endpoint of this slab, an IPv6 or IPv4-mapped one. Those of IPv4 stand in [`RxHalf`], others in
    /// [`Cold`].
    pub fn address(&self, endpoint: &Endpoint, end: End) -> [u8; 16] {
        let Some(index) = self.index_of(endpoint) else { return [0; 16] };
        let words = if endpoint.flags.load(Ordering::Acquire) & RX_PARKED != 0 {
            self.kept(index).map(|kept| &kept.short_addresses)
        } else {
            self.rx(index).map(|half| &half.short_addresses)
        };
        let word = words.map_or(0, |words| words[end as usize].load(Ordering::Relaxed));
        self.whole_address(index, end, word)
    }

    /// An address of the endpoint at `index`, by the 32 bits of it that the caller has read.
    pub fn whole_address(&self, index: usize, end: End, word: u32) -> [u8; 16] {
        let long = || Some(self.cold(index)?.address(end));
        short_address(word).or_else(long).unwrap_or_default()
    }

    /// Notes one. The half is not parked.
    pub fn set_address(&self, endpoint: &Endpoint, end: End, address: [u8; 16]) {
        if let Some(index) = self.index_of(endpoint)
            && let (Some(half), Some(cold)) = (self.rx(index), self.cold(index))
            && !half.set_short_address(end, address)
        {
            cold.set_address(end, address);
            half.set_long_address(end);
        }
    }

    /// Where an endpoint of this slab sends, and how many bytes it has sent. As far as that can be known without its
    /// token.
    pub fn sender(&self, endpoint: &Endpoint) -> Option<(TxCursor, u64)> {
        let index = self.index_of(endpoint)?;
        if endpoint.flags.load(Ordering::Acquire) & TX_PARKED != 0 {
            let (kept, mut cursor) = (self.kept(index)?, TxCursor::new(&GEOMETRY));
            cursor.unpark(&GEOMETRY, kept.tx.load(Ordering::Relaxed));
            return Some((cursor, kept.tx_bytes.load(Ordering::Relaxed)));
        }
        let half = self.tx(index)?;
        // SAFETY: mapped memory, read once, as plain integers.
        Some((unsafe { half.cursor.get().read_volatile() }, half.bytes.load(Ordering::Relaxed)))
    }

    /// Where it receives, how many bytes it has received, and SO_RCVLOWAT.
    pub fn receiver(&self, endpoint: &Endpoint) -> Option<(RxCursor, u64, u32)> {
        let index = self.index_of(endpoint)?;
        if endpoint.flags.load(Ordering::Acquire) & RX_PARKED != 0 {
            let kept = self.kept(index)?;
            let cursor = RxCursor::unparked(kept.rx.load(Ordering::Relaxed));
            return Some((cursor, kept.rx_bytes.load(Ordering::Relaxed), 1));
        }
        let half = self.rx(index)?;
        // SAFETY: as above.
        let cursor = unsafe { half.cursor.get().read_volatile() };
        Some((cursor, half.bytes.load(Ordering::Relaxed), half.lowat.load(Ordering::Relaxed)))
    }

    /// Number of an endpoint of this slab; `None` when it lies elsewhere.
    pub fn index_of(&self, endpoint: &Endpoint) -> Option<usize> {
        let offset =
            (endpoint as *const Endpoint as usize).checked_sub(self.base as usize + ENDPOINTS_OFFSET)?;
        let index = offset / core::mem::size_of::<Endpoint>();
        (index < ENDPOINTS).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(ip: [u8; 4]) -> [u8; 16] {
        let [a, b, c, d] = ip;
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn addresses_are_kept() {
        let (_fd, slab) = Slab::create(1).unwrap();
        let endpoint = slab.endpoint(7).unwrap();
        assert_eq!(slab.address(endpoint, End::Local), [0; 16]);
        let v6 = core::array::from_fn(|at| 0x20 + at as u8);
        for address in
            [mapped([127, 0, 0, 1]), v6, mapped([0; 4]), mapped([255; 4]), [0; 16], v6, mapped([1; 4])]
        {
            slab.set_address(endpoint, End::Remote, address);
            assert_eq!(slab.address(endpoint, End::Remote), address);
            assert_eq!(slab.address(endpoint, End::Local), [0; 16]);
        }
        // SAFETY: nothing uses it any more.
        unsafe { slab.unmap() };
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn usual_endpoints_use_no_memory_beside() {
        let (fd, slab) = Slab::create(1).unwrap();
        let pages = || {
            // SAFETY: an all-zero stat is valid.
            let mut found: libc::stat = unsafe { core::mem::zeroed() };
            // SAFETY: the kernel writes one stat.
            sd_sys::check(unsafe {
                sd_sys::syscall!(libc::SYS_fstat, fd.raw(), &mut found as *mut libc::stat)
            })
            .unwrap();
            found.st_blocks * 512 / 4096
        };
        let before = pages();
        let endpoint = slab.endpoint(0).unwrap();
        endpoint.set_switch(Switch::NoDelay, true);
        endpoint.set_switch(Switch::Cork, false);
        slab.set_address(endpoint, End::Local, mapped([127, 0, 0, 1]));
        assert_eq!(endpoint.switch(Switch::NoDelay), Some(true));
        assert_eq!(endpoint.switch(Switch::Cork), Some(false));
        assert_eq!(endpoint.switch(Switch::KeepAlive), None);
        assert!(slab.cold_of(endpoint).is_none());
        assert_eq!(pages() - before, 2);
        // SAFETY: nothing uses it any more.
        unsafe { slab.unmap() };
    }
}

/// In memory of this process, as for channels: what stands in front, and the first endpoint.
#[cfg(all(test, miri))]
mod layout {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};

    #[test]
    fn what_stands_in_front_lies_apart() {
        let Ok(layout) = Layout::from_size_align(ENDPOINTS_OFFSET + 2 * LINE, PAGE) else { unreachable!() };
        // SAFETY: not of no size; never freed.
        let slab = Slab { base: unsafe { alloc_zeroed(layout) } };
        slab.header().members.store(3, Ordering::Relaxed);
        assert!(slab.thread(0).is_none() && slab.thread(THREADS as u32 + 1).is_none());
        assert!(slab.thread(1).is_some() && slab.thread(THREADS as u32).is_some());
        assert_eq!(slab.time_waits().all().count(), 0);
        for index in [0, 1] {
            let endpoint = slab.endpoint(index).expect("it lies in front");
            endpoint.set_switch(Switch::NoDelay, true);
            assert_eq!(slab.index_of(endpoint), Some(index));
            assert!(slab.cold_of(endpoint).is_none());
        }
        assert!(slab.endpoint(ENDPOINTS).is_none());
        assert_eq!(slab.header().members.load(Ordering::Relaxed), 3);
    }
}
