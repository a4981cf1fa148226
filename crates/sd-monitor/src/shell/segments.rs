//! Mapped memory of clients: slabs and channels, and how to look through them without touching
//! pages that were never used (which would make them exist).

use super::descriptors::{Identity, Unfit, check_segment, std_fd};
use sd_ring::{Next, RingMem, RxCursor, TxCursor};
use sd_shm::channel::{
    GEOMETRY, Header, Mapping, SEGMENT_LEN, SLOTS, SLOTS_OFFSET, Side, Slot, SlotSide, SlotState,
};
use sd_shm::rings::Rings;
use sd_shm::slab::{self, Cold, ENDPOINTS, End, Endpoint};
use sd_shm::time_wait::TimeWaits;
use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Looked at with one call.
const CHUNK: usize = 16 << 10;
const PAGE: u64 = sd_shm::PAGE as u64;
static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Numbers of those among `count` objects of `size` bytes, the first at `first` in the file, that
/// may have been used, until `each` says that it is enough. Some come twice.
///
/// Pages are read, not looked for: lseek(2) wants the file's lock, which another holder of the file may have for as long as it
/// likes (in write(2), from a page that does not come). read(2) does not, and makes no pages.
fn used(file: &File, first: u64, size: u64, count: u64, mut each: impl FnMut(usize) -> bool) {
    let end = first + size * count;
    let mut at = first / PAGE * PAGE;
    let mut chunk = [0u8; CHUNK];
    while at < end {
        let len = chunk.len().min((end - at).next_multiple_of(PAGE) as usize);
        let Some(chunk) = chunk.get_mut(..len) else { return };
        let Ok(got @ 1..) = file.read_at(chunk, at) else { return };
        for page in chunk.get(..got).unwrap_or(&[]).chunks(PAGE as usize) {
            let next = at + PAGE;
            if ZEROS.get(..page.len()) != Some(page) {
                let mut all = at.saturating_sub(first) / size..(next.min(end) - first).div_ceil(size);
                if !all.all(|n| each(n as usize)) {
                    return;
                }
            }
            at = next;
        }
    }
}

/// So many endpoints of one process are looked at for a user that others share the monitor with; its further sockets are
/// the kernel's.
const ENDPOINTS_SHARED: usize = 1 << 15;

/// A client's slab.
pub(crate) struct Slab {
    map: slab::Slab,
    file: File,
    identity: Identity,
    /// As many endpoints are looked at, whatever the client says.
    endpoints_max: usize,
}

impl Slab {
    /// Checks whether a client's descriptor can be a slab.
    pub(crate) fn check(fd: BorrowedFd<'_>) -> Result<Identity, Unfit> {
        check_segment(fd, slab::LEN, libc::F_SEAL_SHRINK)
    }

    /// Maps one that was checked. Its file says whose it is.
    pub(crate) fn new(file: File) -> Option<Slab> {
        let map = slab::Slab::map(file.as_raw_fd()).ok()?;
        let found = nix::sys::stat::fstat(&file).ok()?;
        let (user, identity) = (found.st_uid, (found.st_dev, found.st_ino));
        let is_free = user == 0 || user == nix::unistd::geteuid().as_raw();
        let endpoints_max = if is_free { ENDPOINTS } else { ENDPOINTS_SHARED };
        map.header().endpoints_max.store(endpoints_max as u32, Ordering::Relaxed);
        Some(Slab { map, file, identity, endpoints_max })
    }

    /// Device and inode: equal for every descriptor of the segment.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Ends it, but for its file: whoever closes the last descriptor of a file in memory gives all its pages back.
    pub(crate) fn into_file(self) -> Option<OwnedFd> {
        self.file.try_clone().ok().map(OwnedFd::from)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn header(&self) -> &slab::Header {
        self.map.header()
    }

    /// Ports in TIME-WAIT.
    pub(crate) fn time_waits(&self) -> &TimeWaits {
        self.map.time_waits()
    }

    /// The endpoint of that number, if it was ever used: to look at another would make its page.
    pub(crate) fn used_endpoint(&self, number: u64) -> Option<&Endpoint> {
        let high = u64::from(self.header().high.load(Ordering::Acquire));
        self.map.endpoint(number as usize).filter(|_| number < high)
    }

    /// An address of an endpoint of it.
    pub(crate) fn address(&self, endpoint: &Endpoint, end: End) -> [u8; 16] {
        self.map.address(endpoint, end)
    }

    /// What an endpoint of it has seldom.
    pub(crate) fn cold(&self, endpoint: &Endpoint) -> Option<&Cold> {
        self.map.cold_of(endpoint)
    }

    /// Whether bytes of a connection go through the kernel.
    pub(crate) fn is_by_kernel(&self, endpoint: &Endpoint) -> bool {
        let which = slab::ROAD_RX_KERNEL | slab::ROAD_TX_KERNEL;
        self.cold(endpoint).is_some_and(|cold| cold.road.load(Ordering::Relaxed) & which != 0)
    }

    /// See [`slab::Slab::sender`].
    pub(crate) fn sender(&self, endpoint: &Endpoint) -> (TxCursor, u64) {
        self.map.sender(endpoint).unwrap_or((TxCursor::new(&GEOMETRY), 0))
    }

    /// See [`slab::Slab::receiver`].
    pub(crate) fn receiver(&self, endpoint: &Endpoint) -> (RxCursor, u64, u32) {
        self.map.receiver(endpoint).unwrap_or_default()
    }

    /// Every endpoint that may have been used; some twice.
    pub(crate) fn endpoints(&self, mut each: impl FnMut(&Endpoint)) {
        self.endpoints_while(|endpoint| {
            each(endpoint);
            true
        });
    }

    /// Every endpoint that may have been used, until `each` says false; some twice.
    pub(crate) fn endpoints_while(&self, mut each: impl FnMut(&Endpoint) -> bool) {
        let Some(zero) = self.map.endpoint(0) else { return };
        let first = core::ptr::from_ref(zero) as usize - self.map.base() as usize;
        let high = (self.header().high.load(Ordering::Acquire) as usize).min(self.endpoints_max);
        used(&self.file, first as u64, size_of::<Endpoint>() as u64, high as u64, |index| {
            self.map.endpoint(index).is_none_or(&mut each)
        });
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the map is private, and every reference from it is borrowed from `self`.
        unsafe { self.map.unmap() };
    }
}

/// A channel's segment.
pub(crate) struct Segment {
    /// Made when it is first looked into: many never are before they end, and making it is the dearest part of an introduction.
    map: OnceCell<Mapping>,
    file: File,
    pub(crate) identity: Identity,
    /// As the monitor has called it: what its header says can be written by those who have it.
    id: u64,
}

impl Segment {
    /// A new one.
    pub(crate) fn create(id: u64, pid_a: u32, pid_b: u32) -> Option<Segment> {
        let fd = Mapping::create_file(id, pid_a, pid_b).ok()?;
        let file = File::from(std_fd(fd));
        let identity = sd_sys::fd::identity(file.as_raw_fd()).unwrap_or_default();
        Some(Segment { map: OnceCell::new(), file, identity, id })
    }

    /// Maps one that a client sent and that was checked.
    pub(crate) fn new(file: File, identity: Identity) -> Option<Segment> {
        let map = Mapping::map(file.as_raw_fd()).ok()?;
        let id = map.header().id.load(Ordering::Relaxed);
        Some(Segment { map: OnceCell::from(map), file, identity, id })
    }

    /// Checks whether a client's descriptor can be a segment.
    pub(crate) fn check(fd: BorrowedFd<'_>) -> Result<Identity, Unfit> {
        check_segment(fd, SEGMENT_LEN, libc::F_SEAL_SHRINK)
    }

    /// See [`Slab::into_file`].
    pub(crate) fn into_file(self) -> Option<OwnedFd> {
        self.file.try_clone().ok().map(OwnedFd::from)
    }

    /// A look into it. `None`: there are no addresses left, which [`Server::has_addresses`] sees to.
    ///
    /// [`Server::has_addresses`]: super::server::Server::has_addresses
    pub(crate) fn map(&self) -> Option<&Mapping> {
        if self.map.get().is_none() {
            let map = Mapping::of_created(self.file.as_raw_fd(), self.id);
            let map =
                map.inspect_err(|error| tracing::error!("a channel cannot be mapped: {error:?}")).ok()?;
            let _ = self.map.set(map);
        }
        self.map.get()
    }

    /// No slot from this number on was ever used, as side A says.
    pub(crate) fn used(&self) -> usize {
        let used = match self.map.get() {
            Some(map) => map.header().used.load(Ordering::Acquire),
            None => self.word(std::mem::offset_of!(Header, used)),
        };
        used as usize
    }

    /// State of a side of a slot.
    pub(crate) fn state(&self, slot: usize, side: Side) -> SlotState {
        let slot = slot % SLOTS;
        if let Some(map) = self.map.get() {
            return map.slot(slot).side[side as usize].state().1;
        }
        let sides = std::mem::offset_of!(Slot, side) + side as usize * size_of::<SlotSide>();
        let at = SLOTS_OFFSET + slot * size_of::<Slot>() + sides + std::mem::offset_of!(SlotSide, state);
        SlotState::of_word(self.word(at))
    }

    /// A word of its, read without a mapping. Takes no lock, as [`used`] does not.
    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        match self.file.read_exact_at(&mut word, at as u64) {
            Ok(()) => u32::from_ne_bytes(word),
            Err(_) => 0,
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Numbers of the slots that may have been used; some come twice.
    pub(crate) fn slots(&self, mut each: impl FnMut(usize)) {
        used(&self.file, SLOTS_OFFSET as u64, size_of::<Slot>() as u64, SLOTS as u64, |n| {
            if n < SLOTS {
                each(n);
            }
            true
        });
    }

    /// Whether bytes that a receiver's peer sent have not been read. What does not look like a
    /// correct ring has none.
    pub(crate) fn has_unread(&self, mut cursor: RxCursor, slot: usize, side: Side) -> bool {
        let Some(map) = self.map() else { return false };
        let ring = Incoming { map, file: &self.file, slot, from: side.other() };
        matches!(cursor.next_apart(&GEOMETRY, &ring), Ok(Next::Data { .. } | Next::Urgent))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            // SAFETY: the map is private, and no reference from it is kept by those who borrow it.
            unsafe { map.unmap() };
        }
    }
}

/// A ring as its receiver sees it; nothing is written. It is read through the file: a look at a page that its sender took away
/// would make it, at the monitor's expense.
struct Incoming<'a> {
    map: &'a Mapping,
    file: &'a File,
    slot: usize,
    from: Side,
}

impl RingMem for Incoming<'_> {
    fn load(&self, region: u32, off: u32) -> u64 {
        let size = if region == 0 { GEOMETRY.small } else { GEOMETRY.large };
        let place = Rings::of(self.map, self.slot, self.from).place(self.map, region, off);
        let mut word = [0; 8];
        let is_there = off <= size - 8 && self.file.read_exact_at(&mut word, place).is_ok();
        if is_there { u64::from_ne_bytes(word) } else { 0 }
    }

    fn publish(&self, _region: u32, _off: u32, _word: u64) {}

    fn store(&self, _region: u32, _off: u32, _word: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn slab() -> (Slab, usize) {
        let (fd, made) = slab::Slab::create(1).unwrap();
        let file = File::from(std_fd(fd));
        Slab::check(file.as_fd()).unwrap();
        (Slab::new(file).unwrap(), made.base() as usize)
    }

    #[test]
    fn only_what_was_used_is_visited() {
        let (slab, _) = slab();
        slab.header().high.store(u32::MAX, Ordering::Relaxed);
        let mut seen = 0;
        slab.endpoints(|_| seen += 1);
        assert_eq!(seen, 0, "nothing was touched");
        for index in [0, 9, 100_000] {
            slab.map.endpoint(index).unwrap().state.store(4, Ordering::Relaxed);
        }
        let mut connected = 0;
        slab.endpoints(|endpoint| connected += usize::from(endpoint.state.load(Ordering::Relaxed) == 4));
        assert_eq!(connected, 3);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&slab.file.metadata().unwrap());
        assert!(blocks * 512 <= 5 * 4096, "looking makes no pages: {blocks}");
    }

    #[test]
    fn slots_are_found() {
        let segment = Segment::create(1, 2, 3).unwrap();
        for slot in [0, 1023] {
            segment.map().unwrap().slot(slot).side[0].flags.store(1, Ordering::Relaxed);
        }
        let mut found = Vec::new();
        segment.slots(|slot| found.push(slot));
        // Slots stand 64 to a page.
        assert!(found.contains(&0) && found.contains(&1023) && found.len() <= 128, "{found:?}");
    }

    #[test]
    fn unread_bytes_are_seen() {
        let segment = Segment::create(1, 2, 3).unwrap();
        let ring = Rings::of(segment.map().unwrap(), 5, Side::A);
        let mut tx = TxCursor::new(&GEOMETRY);
        let mut rx = RxCursor::new();
        assert!(!segment.has_unread(rx, 5, Side::B));
        tx.reserve(&GEOMETRY, &ring, 10, sd_ring::Effort::Cached).unwrap();
        tx.commit(&ring, 10, 0);
        assert!(segment.has_unread(rx, 5, Side::B));
        assert!(!segment.has_unread(rx, 6, Side::B) && !segment.has_unread(rx, 5, Side::A));
        rx.next(&GEOMETRY, &ring).unwrap();
        rx.advance(4);
        assert!(segment.has_unread(rx, 5, Side::B), "a part of a message");
        rx.advance(6);
        assert!(!segment.has_unread(rx, 5, Side::B));
        tx.finish(&ring, 0);
        assert!(!segment.has_unread(rx, 5, Side::B), "the end is not data");
    }

    #[test]
    fn parked_halves_are_known() {
        let (slab, _) = slab();
        let endpoint = slab.map.endpoint(3).unwrap();
        let kept = slab.map.kept(3).unwrap();
        kept.tx.store(5 << 57 | 125, Ordering::Relaxed);
        kept.tx_bytes.store(900, Ordering::Relaxed);
        kept.rx.store(7 << 57 | 7, Ordering::Relaxed);
        endpoint.flags.store(slab::TX_PARKED | slab::RX_PARKED, Ordering::Relaxed);
        let (tx, sent) = slab.sender(endpoint);
        let (rx, received, lowat) = slab.receiver(endpoint);
        assert_eq!((tx.position(), sent, rx.position(), received, lowat), (1000, 900, 56, 0, 1));
        assert_eq!((tx.parked(&GEOMETRY), rx.parked()), (Some(5 << 57 | 125), Some(7 << 57 | 7)));
    }

    #[test]
    fn senseless_cursors_have_nothing_unread() {
        let segment = Segment::create(1, 2, 3).unwrap();
        let (slab, _) = slab();
        let endpoint = slab.map.endpoint(0).unwrap();
        let words = slab.map.rx(0).unwrap().cursor.get().cast::<[u32; 10]>();
        for word in 0..10 {
            for value in [1, 7, 1016, 1024, 1 << 21, u32::MAX] {
                let mut cursor = [0u32; 10];
                cursor[word] = value;
                // SAFETY: the cell is 40 bytes of plain integers, and nobody else uses it.
                unsafe { words.write_volatile(cursor) };
                let _ = segment.has_unread(slab.receiver(endpoint).0, 1023, Side::A);
            }
        }
    }
}
