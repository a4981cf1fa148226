//! The lower limit of a wake-up: a word each way; the side that answers sleeps on it in a futex. Eight bytes, no stream.

use super::link::Link;
use super::pair::Wait;
use sd_sys::futex::{Scope, wait, wake};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

const END: u32 = u32::MAX;

/// One end.
pub(crate) struct Futex {
    out: &'static AtomicU32,
    input: &'static AtomicU32,
    sent: u32,
    seen: u32,
    /// This end waits asleep, and the other is told so by nothing but the futex.
    sleeps: bool,
}

impl Futex {
    /// The end that asks, and the end that sleeps.
    pub(crate) fn ends() -> sd_sys::Result<[Futex; 2]> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-bench", 4096)?;
        let page = sd_sys::mem::map_shared(fd.raw(), 4096, true)?;
        // SAFETY: both words lie in a page-aligned mapping that is never unmapped.
        let words: [&'static AtomicU32; 2] =
            unsafe { [AtomicU32::from_ptr(page.cast()), AtomicU32::from_ptr(page.add(2048).cast())] };
        let end = |out, input, sleeps| Futex { out, input, sent: 0, seen: 0, sleeps };
        Ok([end(words[0], words[1], false), end(words[1], words[0], true)])
    }

    fn publish(&self, word: u32) {
        self.out.store(word, Ordering::SeqCst);
        if !self.sleeps {
            wake(self.out, 1, Scope::Shared);
        }
    }
}

impl Link for Futex {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent += 1;
        self.publish(self.sent);
        Ok(bytes.len())
    }

    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut pause = Wait::default();
        loop {
            let word = self.input.load(Ordering::SeqCst);
            if word == END {
                return Ok(0);
            }
            if word != self.seen {
                self.seen = word;
                return Ok(bytes.len());
            }
            if self.sleeps {
                // Any end of the sleep is a reason to look again.
                let _ = wait(self.input, word, None, Scope::Shared);
            } else {
                pause.relax();
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.publish(END);
        Ok(())
    }
}
