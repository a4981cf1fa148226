//! What kinds of requests there are, by the decoder's own word: for tests that are to leave none out.

use crate::{MESSAGE_MAX, Request};

impl Request {
    /// The first byte of its message.
    pub fn kind(&self) -> u8 {
        self.encode(&mut [0; MESSAGE_MAX]).first().copied().unwrap_or(0)
    }

    /// An example of each kind: zeros are a value of every field.
    pub fn examples() -> impl Iterator<Item = Request> {
        (0..=u8::MAX).filter_map(|kind| {
            let mut message = [0; MESSAGE_MAX];
            message[0] = kind;
            (1..MESSAGE_MAX).find_map(|len| Request::decode(message.get(..len)?).ok())
        })
    }
}
