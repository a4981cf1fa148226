//! One table for each direction: a row says a message's number, its fields in the order of their bytes, how many descriptors
//! it brings at most, and whether it is answered. All else that must know each message follows from it.

use crate::wire::{Reader, Writer};
use crate::{Ip, Malformed};

/// What can be a field.
pub(crate) trait Field: Sized {
    /// Writes it.
    fn put(self, to: &mut Writer<'_>);
    /// Reads it.
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;
    /// A value made of numbers: zeros are a value of every field, and each value can be made.
    fn made_of(next: &mut dyn FnMut() -> u64) -> Self;
}

macro_rules! plain {
    ($($kind:ident)+) => {
        $(impl Field for $kind {
            fn put(self, to: &mut Writer<'_>) {
                to.$kind(self);
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.$kind()
            }
            fn made_of(next: &mut dyn FnMut() -> u64) -> Self {
                next() as $kind
            }
        })+
    };
}
plain!(u16 u32 u64);

/// Fields that are one of a [`crate::numbered!`] enum, each named by a variant.
macro_rules! by_number {
    ($($kind:ident :: $any:ident)+) => {
        $(impl $crate::table::Field for $kind {
            fn put(self, to: &mut $crate::wire::Writer<'_>) {
                to.u32(self as u32);
            }
            fn take(from: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::Malformed> {
                $kind::from_u32(from.u32()?).ok_or($crate::Malformed)
            }
            fn made_of(next: &mut dyn FnMut() -> u64) -> Self {
                let at = next() as usize % $kind::ALL.len();
                $kind::ALL.get(at).copied().unwrap_or($kind::$any)
            }
        })+
    };
}
pub(crate) use by_number;

impl Field for bool {
    fn put(self, to: &mut Writer<'_>) {
        to.bool(self);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.bool()
    }
    fn made_of(next: &mut dyn FnMut() -> u64) -> Self {
        next() & 1 != 0
    }
}

impl Field for Ip {
    fn put(self, to: &mut Writer<'_>) {
        to.ip(self);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.ip()
    }
    fn made_of(next: &mut dyn FnMut() -> u64) -> Self {
        match next() {
            kind if kind & 1 != 0 => Ip::v4((next() as u32).to_ne_bytes()),
            high => Ip((u128::from(high) << 64 | u128::from(next())).to_ne_bytes()),
        }
    }
}

/// Makes of the rows `NUMBER NAME { FIELDS } brings DESCRIPTORS, answered|silent;` an enum, and what knows all of its kinds.
macro_rules! messages {
    (
        $(#[$doc:meta])*
        pub enum $enum:ident {$(
            $(#[$row_doc:meta])*
            $number:literal $name:ident $({$(
                $(#[$field_doc:meta])*
                $field:ident: $type:ty
            ),* $(,)?})? brings $descriptors:literal, $is_answered:ident;
        )+}
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {$(
            $(#[$row_doc])*
            $name $({$(
                $(#[$field_doc])*
                $field: $type
            ),*})?,
        )+}

        impl $enum {
            /// The number of each kind, which is the first byte of its messages.
            pub const KINDS: &[u8] = &[$($number),+];

            /// Writes the message into `buf`; the bytes used.
            pub fn encode<'a>(&self, buf: &'a mut [u8; $crate::MESSAGE_MAX]) -> &'a [u8] {
                let mut to = $crate::wire::Writer::new(buf);
                match *self {$(
                    $enum::$name $({ $($field),* })? => {
                        to.u8($number);
                        $($($crate::table::Field::put($field, &mut to);)*)?
                    }
                )+}
                to.done()
            }

            /// Reads a message.
            pub fn decode(bytes: &[u8]) -> Result<$enum, $crate::Malformed> {
                let mut from = $crate::wire::Reader::new(bytes);
                let message = match from.u8()? {
                    $($number => $enum::$name $({ $($field: $crate::table::Field::take(&mut from)?),* })?,)+
                    _ => return Err($crate::Malformed),
                };
                from.end().map(|()| message)
            }

            /// The number of its kind.
            pub fn kind(&self) -> u8 {
                match self {$(
                    $enum::$name { .. } => $number,
                )+}
            }

            /// What its kind is called here.
            pub fn name(&self) -> &'static str {
                match self {$(
                    $enum::$name { .. } => stringify!($name),
                )+}
            }

            /// How many descriptors come beside it at most.
            pub fn brings(&self) -> usize {
                match self {$(
                    $enum::$name { .. } => $descriptors,
                )+}
            }

            /// Whether its sender waits for an answer.
            pub fn is_answered(&self) -> bool {
                match self {$(
                    $enum::$name { .. } => $crate::table::messages!(@ $is_answered),
                )+}
            }

            /// A message of that kind whose fields are made of numbers; `None` when there is no such kind. For tests that
            /// are to leave none out.
            pub fn made_of(kind: u8, next: &mut dyn FnMut() -> u64) -> Option<$enum> {
                let _ = &next;
                Some(match kind {
                    $($number => $enum::$name $({ $($field: $crate::table::Field::made_of(next)),* })?,)+
                    _ => return None,
                })
            }

            /// An example of each kind, whose fields are zero.
            pub fn examples() -> impl Iterator<Item = $enum> {
                Self::KINDS.iter().filter_map(|kind| Self::made_of(*kind, &mut || 0))
            }
        }
    };
    (@ answered) => { true };
    (@ silent) => { false };
}
pub(crate) use messages;
