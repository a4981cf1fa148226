//! How two engines agree on a session.

use super::{Malformed, take};

/// Bytes of a greeting behind its header.
pub const HELLO: usize = 25;

/// A greeting. Who hears his own nonce again knows that the other one is there now, and not a packet of his from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Another one after each start of the engine.
    pub epoch: u64,
    /// The sender's, for the session that is to be.
    pub nonce: u64,
    /// The nonce that the sender has heard, or 0.
    pub echo: u64,
    /// The sender has a session with whom it speaks to.
    pub is_up: bool,
}

impl Hello {
    pub fn encode(&self, out: &mut [u8; HELLO]) {
        let words = [self.epoch, self.nonce, self.echo];
        for (place, word) in out.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        if let Some(last) = out.last_mut() {
            *last = u8::from(self.is_up);
        }
    }

    pub fn decode(mut rest: &[u8]) -> Result<Hello, Malformed> {
        let epoch = u64::from_le_bytes(take(&mut rest)?);
        let nonce = u64::from_le_bytes(take(&mut rest)?);
        let echo = u64::from_le_bytes(take(&mut rest)?);
        let is_up = match rest {
            [0] => false,
            [1] => true,
            _ => return Err(Malformed),
        };
        if nonce == 0 {
            return Err(Malformed);
        }
        Ok(Hello { epoch, nonce, echo, is_up })
    }
}
