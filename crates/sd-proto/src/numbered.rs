//! Enums whose numbers another process reads, in a message or in shared memory: one list of each, from which reading follows.

/// Makes `enum NAME { VARIANT = NUMBER, ... }` with `ALL` and `from_u32`. For a number that is none of them that says what
/// stands behind the list: `else VARIANT` that variant, `or none` nothing.
#[macro_export]
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        pub enum $enum:ident {$(
            $(#[$variant_doc:meta])*
            $variant:ident = $number:literal,
        )+}
        $($ending:ident)+
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

            $crate::numbered!(@read $enum {$($variant = $number)+} $($ending)+);
        }
    };
    (@read $enum:ident {$($variant:ident = $number:literal)+} else $other:ident) => {
        #[doc = concat!("The one with this number; `", stringify!($other), "` where there is none.")]
        #[inline]
        pub fn from_u32(number: u32) -> $enum {
            match number {
                $($number => $enum::$variant,)+
                _ => $enum::$other,
            }
        }
    };
    (@read $enum:ident {$($variant:ident = $number:literal)+} or none) => {
        /// The one with this number, if any.
        #[inline]
        pub fn from_u32(number: u32) -> Option<$enum> {
            match number {
                $($number => Some($enum::$variant),)+
                _ => None,
            }
        }
    };
}
