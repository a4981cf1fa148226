//! The limit of a stream by copying: one copy into shared memory, one out of it, the pieces passed on by one word each.
//! Nothing else: no headers, no credits, no sizes but that of a piece.

use super::link::Link;
use super::pair::Wait;
use sd_ring::copy::copy_shared;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pieces under way, so that both sides copy at once; they stay in the caches together.
const PIECES: u64 = 8;
const PIECE_LEN: usize = 64 << 10;
const WORDS_LEN: usize = 4096;
/// Lengths lie beside the word that the sender writes.
const LENS_AT: usize = 64;
const END: u64 = u64::MAX;

/// One end of two such streams.
pub(crate) struct Copies {
    out: Half,
    input: Half,
}

/// One direction: words written by the sender, one by the receiver, and the pieces.
struct Half {
    sent: &'static AtomicU64,
    lens: &'static [AtomicU64; PIECES as usize],
    taken: &'static AtomicU64,
    pieces: *mut u8,
    count: u64,
}

impl Copies {
    /// Both ends over fresh shared memory.
    pub(crate) fn ends() -> sd_sys::Result<[Copies; 2]> {
        let half_len = WORDS_LEN + PIECES as usize * PIECE_LEN;
        let fd = sd_sys::mem::memfd_sealed(c"sd-bench", 2 * half_len)?;
        let base = sd_sys::mem::map_shared(fd.raw(), 2 * half_len, true)?;
        let half = |number: usize| {
            // SAFETY: words and pieces lie in a page-aligned mapping of two halves that is never unmapped.
            unsafe {
                let at = base.add(number * half_len);
                Half {
                    sent: AtomicU64::from_ptr(at.cast()),
                    lens: &*at.add(LENS_AT).cast(),
                    taken: AtomicU64::from_ptr(at.add(WORDS_LEN / 2).cast()),
                    pieces: at.add(WORDS_LEN),
                    count: 0,
                }
            }
        };
        Ok([Copies { out: half(0), input: half(1) }, Copies { out: half(1), input: half(0) }])
    }
}

// SAFETY: the pieces are written and read by the protocol of the two words only.
unsafe impl Send for Half {}

impl Half {
    /// Where the next piece and its length are.
    fn piece(&self) -> (*mut u8, &'static AtomicU64) {
        let number = (self.count % PIECES) as usize;
        // SAFETY: within the pieces of this half.
        (unsafe { self.pieces.add(number * PIECE_LEN) }, &self.lens[number])
    }
}

impl Link for Copies {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wait = Wait::default();
        while self.out.count - self.out.taken.load(Ordering::Acquire) == PIECES {
            wait.relax();
        }
        let n = bytes.len().min(PIECE_LEN);
        let (piece, len) = self.out.piece();
        // SAFETY: a piece has room for so many bytes, and the slice has as many; the receiver has done with it.
        unsafe { copy_shared(piece, bytes.as_ptr(), n) };
        len.store(n as u64, Ordering::Relaxed);
        self.out.count += 1;
        self.out.sent.store(self.out.count, Ordering::Release);
        Ok(n)
    }

    /// Both sides use buffers of one size, so that no piece is longer than what is asked for.
    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wait = Wait::default();
        loop {
            let sent = self.input.sent.load(Ordering::Acquire);
            if sent == END {
                return Ok(0);
            }
            if sent != self.input.count {
                break;
            }
            wait.relax();
        }
        let (piece, len) = self.input.piece();
        let n = bytes.len().min(len.load(Ordering::Relaxed) as usize);
        // SAFETY: as in `send`; the sender has published the piece and its length.
        unsafe { copy_shared(bytes.as_mut_ptr(), piece, n) };
        self.input.count += 1;
        self.input.taken.store(self.input.count, Ordering::Release);
        Ok(n)
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut wait = Wait::default();
        while self.out.taken.load(Ordering::Acquire) != self.out.count {
            wait.relax();
        }
        self.out.sent.store(END, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_arrive_in_order() {
        let [mut here, mut there] = Copies::ends().unwrap();
        let size = 3 * PIECE_LEN;
        let bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    here.send_all(&bytes).unwrap();
                }
                here.finish().unwrap();
            });
            for _ in 0..20 {
                let mut got = vec![0; size];
                assert!(there.recv_all(&mut got).unwrap());
                assert!(got == bytes);
            }
            assert!(!there.recv_all(&mut [0]).unwrap());
        });
    }
}
