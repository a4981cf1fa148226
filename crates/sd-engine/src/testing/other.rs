//! The other engine's side of a link, and the input that says what it does.

use sd_link::seal::{Seal, Session};
use sd_link::{Connection as Number, Ends, News, Way};
use std::collections::HashMap;

/// Takes what comes as it is: who sends it has the keys.
pub(super) struct NoSeal;

impl Seal for NoSeal {
    fn begin(&mut self, _: &Session) {}
    fn overhead(&self) -> usize {
        0
    }
    fn seal(&mut self, _: u8, _: u64, _: &mut [u8], _: usize) {}
    fn open(&mut self, _: u8, _: u64, _: &mut [u8], _: usize) -> bool {
        true
    }
    fn sign(&mut self, _: &mut [u8]) {}
    fn is_signed(&mut self, _: &[u8]) -> bool {
        true
    }
}

/// Bytes of an input; zeros when there are no more.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    pub(super) fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(super) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |word, at| word | u64::from(self.u8()) << (8 * at))
    }

    /// Mostly small, sometimes anything.
    pub(super) fn number(&mut self) -> u64 {
        match self.u8() {
            255 => self.u64(),
            254 => u64::from(self.u8()) << 16 | u64::from(self.u8()) << 8 | u64::from(self.u8()),
            small => u64::from(small),
        }
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.u8()) % limit.max(1)
    }
}

/// What the other engine sends on a connection: bytes, then others up to a length.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) bytes: Vec<u8>,
    pub(super) len: u64,
}

/// The other engine's ends.
#[derive(Default)]
pub(super) struct Other {
    pub(super) streams: HashMap<u64, Stream>,
    pub(super) numbers: Vec<(Number, u64)>,
    pub(super) offered: Vec<Number>,
}

impl Ends for Other {
    fn read(&mut self, end: u64, position: u64, out: &mut [u8]) {
        let stream = self.streams.get(&end).map_or(&[][..], |stream| &stream.bytes);
        let from = usize::try_from(position).ok().and_then(|at| stream.get(at..)).unwrap_or_default();
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        out[len..].fill(7);
    }
    fn place(&mut self, _: u64, position: u64, len: usize) -> Way {
        if position.is_multiple_of(3) { Way::Placed(len) } else { Way::Copied(len) }
    }
    fn write(&mut self, _: u64, _: u64, _: &[u8]) {}
    fn told(&mut self, number: Number, _: u64, news: News<'_>) {
        if let News::Offered { .. } = news {
            self.offered.push(number);
        }
    }
}
