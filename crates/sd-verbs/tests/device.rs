//! What wants a device: `cargo xtask rdma` runs it in a guest whose kernel has one, with `--ignored`. Elsewhere it is left out.
//!
//! Both ends are of one device and of this process, each with a context of its own. Where the first device has two names of an
//! IPv4 address (`::ffff:ADDRESS`) they are the ends' names, as if they were of two hosts.

use sd_verbs::{
    Completion, Context, Device, Domain, Done, Error, Failure, Landing, Lending, Lent, Outcome, Pair,
    PairConfig, Queue, Source, Window,
};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const PORT: u8 = 1;
const SLOT: usize = 4096;
const SLOTS: usize = 16;

struct End {
    domain: Domain,
    source: Source,
    landing: Landing,
    pair: Pair,
    context: Context,
}

fn end(which: usize, inline_bytes: u32) -> End {
    let context = Device::all().unwrap()[0].open().unwrap();
    let mut names = context.addresses(PORT).unwrap();
    names.retain(|(_, address)| address.is_ipv4());
    let (gid_index, _) = *names.get(which).unwrap_or(&names[0]);
    let domain = context.domain().unwrap();
    let queue = Queue::new(&context, 4 * SLOTS as u32).unwrap();
    let (writes, places) = (SLOTS as u32, SLOTS as u32);
    let config = PairConfig { port: PORT, gid_index, writes, places, inline_bytes };
    let pair = Pair::new(&domain, &queue, config, 0x1234_5678 + which as u32).unwrap();
    let source = Source::new(&domain, SLOT * SLOTS).unwrap();
    let landing = Landing::new(&domain, SLOT * SLOTS).unwrap();
    End { domain, source, landing, pair, context }
}

fn ends(inline_bytes: u32) -> [End; 2] {
    let mut ends = [end(0, inline_bytes), end(1, inline_bytes)];
    let addresses = [ends[0].pair.address(), ends[1].pair.address()];
    ends[0].pair.connect(&addresses[1]).unwrap();
    ends[1].pair.connect(&addresses[0]).unwrap();
    ends
}

/// Waits at the queue's descriptor, as an engine does; never by spinning, which would keep rxe from its work.
fn next(end: &End) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(30);
    let queue = end.pair.queue();
    loop {
        let mut found = None;
        // One at a time is asked for here; nothing else may be there.
        let count = queue.poll(|completion| found = Some(completion)).unwrap();
        assert!(count <= 1, "{count} completions");
        if let Some(found) = found {
            return found;
        }
        queue.arm().unwrap();
        // What came between the look and the arming.
        let count = queue.poll(|completion| found = Some(completion)).unwrap();
        assert!(count <= 1, "{count} completions");
        if let Some(found) = found {
            return found;
        }
        let mut poll = libc::pollfd { fd: queue.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry of ours.
        unsafe { libc::poll(&raw mut poll, 1, 1000) };
        queue.take_event();
        assert!(Instant::now() < deadline, "no completion comes");
    }
}

fn all(end: &End, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut found = Vec::new();
    while found.len() < count {
        if end.pair.queue().poll(|completion| found.push(completion)).unwrap() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Instant::now() < deadline, "{} of {count} completions", found.len());
    }
    found
}

#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn a_port_that_is_active() {
    let End { context, .. } = end(0, 0);
    let port = context.port(PORT).unwrap();
    assert!(port.is_active && port.is_ethernet && port.message_max >= 1 << 20, "{port:?}");
    assert!(context.port(99).is_err());
    assert_eq!(context.gid(PORT, 9999), Err(Error::NoGid(9999)));
}

/// Batches of all lengths, both ways, several at a time; each byte compared, each write told.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn batches_land() {
    for inline_bytes in [0, 64] {
        let mut ends = ends(inline_bytes);
        for round in 0..8_usize {
            let (from, to) = (round % 2, 1 - round % 2);
            let lens: Vec<usize> =
                (0..SLOTS).map(|slot| [1, 8, 63, 64, 65, 1024, 1025, SLOT][(slot + round) % 8]).collect();
            for slot in 0..SLOTS {
                ends[to].pair.expect(slot as u64).unwrap();
            }
            let window = ends[to].landing.window();
            for (slot, len) in lens.iter().enumerate() {
                let at = slot * SLOT;
                let End { source, pair, .. } = &mut ends[from];
                source.bytes_mut()[at..at + len].fill((round * SLOTS + slot) as u8);
                let immediate = (round << 16 | slot) as u32;
                let is_told = slot + 1 == SLOTS;
                pair.write_with_immediate(
                    slot as u64,
                    (source, at, *len),
                    (&window, at as u64),
                    immediate,
                    is_told,
                )
                .unwrap();
            }
            for (slot, completion) in all(&ends[to], SLOTS).into_iter().enumerate() {
                let immediate = (round << 16 | slot) as u32;
                assert_eq!(completion.id, slot as u64);
                assert_eq!(
                    completion.outcome,
                    Outcome::Done(Done::Landed { immediate, len: lens[slot] as u32 })
                );
                let mut bytes = vec![0; lens[slot]];
                ends[to].landing.copy_to(slot * SLOT, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == (round * SLOTS + slot) as u8), "slot {slot}");
            }
            let told = next(&ends[from]);
            assert_eq!((told.id, told.outcome), (SLOTS as u64 - 1, Outcome::Done(Done::Written)));
        }
    }
}

/// A write before the other end has posted a place waits for it.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn a_write_that_is_early() {
    let [mut here, mut there] = ends(0);
    let window = there.landing.window();
    here.source.bytes_mut()[..3].copy_from_slice(b"abc");
    here.pair.write_with_immediate(1, (&here.source, 0, 3), (&window, 5), 9, true).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(there.pair.queue().poll(|_| {}), Ok(0));
    there.pair.expect(77).unwrap();
    let landed = next(&there);
    assert_eq!((landed.id, landed.pair), (77, there.pair.address().number));
    assert_eq!(landed.outcome, Outcome::Done(Done::Landed { immediate: 9, len: 3 }));
    let mut bytes = [0; 3];
    there.landing.copy_to(5, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    assert_eq!(next(&here).outcome, Outcome::Done(Done::Written));
}

/// A peer that is gone without a word is not waited for for ever.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn a_peer_that_is_gone() {
    let [mut here, there] = ends(0);
    let window = there.landing.window();
    drop(there);
    here.pair.write_with_immediate(1, (&here.source, 0, 8), (&window, 0), 0, true).unwrap();
    assert_eq!(next(&here).outcome, Outcome::Failed(Failure::NoAnswer));
    assert_eq!(here.pair.is_ended(), Ok(true));
}

/// Bytes go from one mapping to another without a word; a batch behind them finds them there. When the memory is taken back nothing is written any more.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn what_is_lent_is_written() {
    let [mut here, mut there] = ends(0);
    let (from, to) = (Shared::new(), Shared::new());
    // SAFETY: mapped until the end of this test.
    let (source, window) = unsafe {
        (
            Lent::new(&here.domain, from.start, Shared::LEN, Lending::ToSend).unwrap(),
            Lent::new(&there.domain, to.start, Shared::LEN, Lending::ToBeWritten).unwrap(),
        )
    };
    from.set(5_000, 9);
    let own = there.landing.window();
    for (round, place) in [8_192, 100_000].into_iter().enumerate() {
        there.pair.expect(0).unwrap();
        here.pair.write_silently(1, (&source, 4_096, 2_000), (&window.window(), place as u64)).unwrap();
        here.pair.write_with_immediate(2, (&here.source, 0, 8), (&own, 0), round as u32, true).unwrap();
        assert!(matches!(next(&there).outcome, Outcome::Done(Done::Landed { .. })));
        assert_eq!([to.get(place + 5_000 - 4_096), to.get(place + 1)], [9, 0]);
        assert_eq!((next(&here).id, here.pair.is_ended()), (2, Ok(false)));
    }
    let beyond = here.pair.write_silently(1, (&source, 0, 8), (&window.window(), Shared::LEN as u64 - 7));
    assert!(matches!(beyond, Err(Error::OutOfBounds { .. })), "{beyond:?}");
    let granted = window.window();
    drop(window);
    here.pair.write_silently(1, (&source, 4_096, 2_000), (&granted, 0)).unwrap();
    assert_eq!(next(&here).outcome, Outcome::Failed(Failure::RemoteAccess));
    assert_eq!(to.get(5_000 - 4_096), 0);
}

/// Memory that others could have mapped, too.
struct Shared {
    start: NonNull<u8>,
}

impl Shared {
    const LEN: usize = 1 << 20;

    fn new() -> Shared {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which stays.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), Shared::LEN, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Shared { start: NonNull::new(start.cast()).unwrap() }
    }

    fn set(&self, at: usize, byte: u8) {
        // SAFETY: within the mapping, and the device only reads it.
        unsafe { self.start.as_ptr().add(at).write_volatile(byte) }
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: within the mapping; the device has written it, or not.
        unsafe { self.start.as_ptr().add(at).read_volatile() }
    }
}

/// A key that the peer has not given: nothing is written, the writer's pair has failed, and what follows is flushed.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn a_wrong_key() {
    let [mut here, mut there] = ends(0);
    let window = there.landing.window();
    let wrong = Window { key: window.key ^ 0x5a5a, ..window };
    there.pair.expect(0).unwrap();
    here.source.bytes_mut()[..8].fill(0xee);
    here.pair.write_with_immediate(1, (&here.source, 0, 8), (&wrong, 0), 0, true).unwrap();
    assert_eq!(next(&here).outcome, Outcome::Failed(Failure::RemoteAccess));
    assert_eq!(here.pair.is_ended(), Ok(true));
    here.pair.write_with_immediate(2, (&here.source, 0, 8), (&window, 0), 0, true).unwrap();
    assert_eq!(next(&here).outcome, Outcome::Failed(Failure::Flushed));
    let mut bytes = [1; 8];
    there.landing.copy_to(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

/// What is out of bounds is refused here, whatever the peer's keys allow.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn places_that_are_not_there() {
    let [mut here, there] = ends(0);
    let window = there.landing.window();
    let mut write = |offset, len, at| {
        here.pair.write_with_immediate(0, (&here.source, offset, len), (&window, at), 0, true)
    };
    let end = (SLOT * SLOTS) as u64;
    for (offset, len, at) in
        [(SLOT * SLOTS, 1, 0), (usize::MAX, 2, 0), (0, 1, end), (0, 2, end - 1), (0, 1, u64::MAX)]
    {
        assert!(matches!(write(offset, len, at), Err(Error::OutOfBounds { .. })), "{offset} {len} {at}");
    }
    assert!(there.landing.copy_to(SLOT * SLOTS, &mut [0]).is_err());
}

/// A full queue says so, and goes on when it was emptied; what an ended pair held is flushed.
#[test]
#[ignore = "wants an RDMA device: cargo xtask rdma"]
fn full_and_ended() {
    let [mut here, there] = ends(0);
    let window = there.landing.window();
    let mut posted = 0;
    let full = loop {
        match here.pair.write_with_immediate(posted, (&here.source, 0, 1), (&window, 0), 0, true) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 10_000, "no end");
    };
    assert_eq!(full, Error::Full);
    assert!(posted >= SLOTS as u64);
    here.pair.end().unwrap();
    let flushed = all(&here, posted as usize);
    assert!(flushed.iter().all(|completion| matches!(completion.outcome, Outcome::Failed(_))));
    assert_eq!(here.pair.is_ended(), Ok(true));
}
