//! A short name for people.

use crate::Malformed;
use crate::table::Field;
use crate::wire::{Reader, Writer};
use core::fmt;

/// Bytes of one.
const LEN: usize = 64;

/// Text of at most 64 bytes, as somebody has sent it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; LEN]);

impl Name {
    /// The first 64 bytes of a text.
    pub fn of(text: &str) -> Name {
        let mut bytes = [0; LEN];
        bytes.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        Name(bytes)
    }

    /// The text up to the first zero, or nothing if that is no text.
    ///
    /// ```
    /// assert_eq!(sd_proto::Name::of("blue").text(), "blue");
    /// ```
    pub fn text(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(LEN);
        core::str::from_utf8(self.0.get(..len).unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl Field for Name {
    fn put(self, to: &mut Writer<'_>) {
        self.0.into_iter().for_each(|byte| _ = to.u8(byte));
    }
    fn take(from: &mut Reader<'_>) -> Result<Name, Malformed> {
        let mut bytes = [0; LEN];
        for place in &mut bytes {
            *place = from.u8()?;
        }
        Ok(Name(bytes))
    }
    fn made_of(next: &mut dyn FnMut() -> u64) -> Name {
        let mut bytes = [0; LEN];
        bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&next().to_le_bytes()));
        Name(bytes)
    }
}
