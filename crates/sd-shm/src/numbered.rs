//! Enums that stand in shared memory as numbers: one list of each, from which reading follows.

/// Makes `enum NAME { VARIANT = NUMBER, ... }` with `from_u32`, which says that variant for a number that is none.
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        pub enum $enum:ident {$(
            $(#[$variant_doc:meta])*
            $variant:ident = $number:literal,
        )+}
        else $other:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $enum {$(
            $(#[$variant_doc])*
            $variant = $number,
        )+}

        impl $enum {
            /// All of them.
            pub const ALL: &[$enum] = &[$($enum::$variant),+];

            #[doc = concat!("The one with this number; `", stringify!($other), "` where there is none.")]
            #[inline]
            pub fn from_u32(number: u32) -> $enum {
                match number {
                    $($number => $enum::$variant,)+
                    _ => $enum::$other,
                }
            }
        }
    };
}
pub(crate) use numbered;
