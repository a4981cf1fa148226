//! The lower limit: one cache line each way that two processors pass to and fro. Eight bytes, no stream.

use super::link::Link;
use super::pair::Wait;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const END: u64 = u64::MAX;
/// Processors fetch pairs of 64-byte lines, so the two directions are further apart.
const DISTANCE: usize = 4096 / 2;

/// One end.
pub(crate) struct Line {
    out: &'static AtomicU64,
    input: &'static AtomicU64,
    sent: u64,
    seen: u64,
}

impl Line {
    /// Both ends over one fresh shared page.
    pub(crate) fn ends() -> sd_sys::Result<[Line; 2]> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-bench", 4096)?;
        let page = sd_sys::mem::map_shared(fd.raw(), 4096, true)?;
        // SAFETY: both words lie in a page-aligned mapping that is never unmapped.
        let words: [&'static AtomicU64; 2] =
            unsafe { [AtomicU64::from_ptr(page.cast()), AtomicU64::from_ptr(page.add(DISTANCE).cast())] };
        let end = |out, input| Line { out, input, sent: 0, seen: 0 };
        Ok([end(words[0], words[1]), end(words[1], words[0])])
    }
}

impl Link for Line {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent += 1;
        self.out.store(self.sent, Ordering::Release);
        Ok(bytes.len())
    }

    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wait = Wait::default();
        loop {
            let word = self.input.load(Ordering::Acquire);
            if word == END {
                return Ok(0);
            }
            if word != self.seen {
                self.seen = word;
                return Ok(bytes.len());
            }
            wait.relax();
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.store(END, Ordering::Release);
        Ok(())
    }
}
