//! The raw limit: the same ring in the same segment that a connection uses, without any calls around
//! it. Waiting is spinning. With the doorbell, each publication also asks whether the peer sleeps.

use super::link::Link;
use super::pair::Wait;
use sd_ring::copy::copy_shared;
use sd_ring::{Effort, Next, RxCursor, TxCursor, doorbell};
use sd_shm::channel::{GEOMETRY, Mapping, Side, SlotSide};
use sd_shm::rings::Rings;
use std::io;
use std::sync::atomic::Ordering;

/// One end of a connection's two rings.
pub(crate) struct Ring<const DOORBELL: bool> {
    mine: &'static SlotSide,
    theirs: &'static SlotSide,
    out: Rings,
    input: Rings,
    tx: TxCursor,
    rx: RxCursor,
}

impl<const DOORBELL: bool> Ring<DOORBELL> {
    /// This side's end of slot 0.
    pub(crate) fn new(segment: Mapping, side: Side) -> Self {
        Self::at(segment, 0, side)
    }

    /// This side's end of a slot.
    pub(crate) fn at(segment: Mapping, number: usize, side: Side) -> Self {
        let slot = segment.slot(number);
        Ring {
            mine: &slot.side[side as usize],
            theirs: &slot.side[side.other() as usize],
            out: Rings::of(&segment, number, side),
            input: Rings::of(&segment, number, side.other()),
            tx: TxCursor::new(&GEOMETRY),
            rx: RxCursor::new(),
        }
    }

    #[inline(always)]
    fn ring(&self, bits: u32) {
        if DOORBELL {
            // Nobody ever sleeps here; what is measured is the question.
            std::hint::black_box(doorbell::ring(&self.theirs.wait, bits));
        }
    }

    /// Room for a message: takes note of credits first, grows the ring when it is really full.
    #[cold]
    fn reserve_slow(&mut self, want: u32) -> io::Result<sd_ring::Grant> {
        let mut wait = Wait::default();
        loop {
            let consumed = self.theirs.consumed.load(Ordering::Acquire);
            self.tx.credit(consumed).map_err(|_| corrupt())?;
            for effort in [Effort::Fresh, Effort::Grow] {
                if let Some(grant) = self.tx.reserve(&GEOMETRY, &self.out, want, effort) {
                    return Ok(grant);
                }
            }
            wait.relax();
        }
    }
}

impl<const DOORBELL: bool> Link for Ring<DOORBELL> {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let want = bytes.len() as u32;
        let grant = match self.tx.reserve(&GEOMETRY, &self.out, want, Effort::Cached) {
            Some(grant) => grant,
            None => self.reserve_slow(want)?,
        };
        // SAFETY: the grant is room for `len` bytes in a region of the ring; the slice is as long.
        unsafe { copy_shared(self.out.at(grant.region, grant.off), bytes.as_ptr(), grant.len as usize) };
        self.tx.commit(&self.out, grant.len, 0);
        self.ring(doorbell::RX_SLEEP | doorbell::RX_EVENT);
        Ok(grant.len as usize)
    }

    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wait = Wait::default();
        loop {
            match self.rx.next(&GEOMETRY, &self.input).map_err(|_| corrupt())? {
                Next::Empty => wait.relax(),
                Next::Urgent => self.rx.admit_urgent(),
                Next::Apart => self.rx.join(),
                Next::Fin | Next::Marker => return Ok(0),
                Next::Data { region, off, len } => {
                    let n = (len as usize).min(bytes.len());
                    // SAFETY: `next` checked that the message lies in its region; `n` fits the slice.
                    unsafe { copy_shared(bytes.as_mut_ptr(), self.input.at(region, off), n) };
                    self.rx.advance(n as u32);
                    if let Some(consumed) = self.rx.credit_due(&GEOMETRY) {
                        self.mine.consumed.store(consumed, Ordering::Release);
                        self.ring(doorbell::TX_SLEEP | doorbell::TX_EVENT);
                    }
                    return Ok(n);
                }
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.tx.finish(&self.out, 0);
        Ok(())
    }
}

fn corrupt() -> io::Error {
    io::Error::other("the ring is corrupt")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads, sizes that wrap and grow: every byte arrives in order.
    #[test]
    fn bytes_arrive_through_the_bare_ring() {
        let (_, segment) = Mapping::create(1, 1, 1).unwrap();
        let sender = std::thread::spawn(move || {
            let mut ring = Ring::<true>::new(segment, Side::A);
            for size in [8usize, 100, 1000, 5000, 100_000, 3_000_000, 8] {
                let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
                ring.send_all(&bytes).unwrap();
            }
            ring.finish().unwrap();
        });
        let mut ring = Ring::<true>::new(segment, Side::B);
        for size in [8usize, 100, 1000, 5000, 100_000, 3_000_000, 8] {
            let mut bytes = vec![0; size];
            assert!(ring.recv_all(&mut bytes).unwrap());
            assert!(bytes.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
        }
        assert!(!ring.recv_all(&mut [0]).unwrap());
        sender.join().unwrap();
    }
}
