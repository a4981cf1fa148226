//! What each carrier must do: one suite, and each implementation as it is, with small buffers, and without what a kernel may lack.
//!
//! A test asks `Carrier::kind` where the promises differ, and for nothing else.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod flow;

use common::{LONGEST, Make, NOT_JOINED, PLAIN, SMALL};
use sd_carrier::{DatagramConfig, TrunkConfig};

macro_rules! suite {
    ($($carrier:ident: $make:expr, $tests:tt;)*) => {
        $(mod $carrier {
            use super::*;
            suite!(each $make, $tests);
        })*
    };
    (each $make:expr, [$($module:ident :: $test:ident),* $(,)?]) => {
        $(#[test]
        fn $test() {
            $module::$test($make);
        })*
    };
}

macro_rules! carriers {
    ($($carrier:ident: $make:expr;)*) => {
        suite! {
            $($carrier: $make, [
                flow::each_length,
                flow::random_batches,
                flow::full_both_ways,
                flow::more_than_a_buffer,
                flow::what_is_not_committed,
                flow::nothing_to_do,
                ends::the_other_ends,
                ends::the_other_dies,
                ends::lengths_that_lie,
                ends::any_bytes,
                ends::byte_by_byte,
            ];)*
        }
    };
}

carriers! {
    trunk: Make::Trunk(TrunkConfig::default());
    trunk_small: Make::Trunk(SMALL);
    trunk_longest: Make::Trunk(TrunkConfig { packet_max: usize::MAX, ..TrunkConfig::default() });
    datagram: Make::Datagram("127.0.0.1:0", DatagramConfig::default());
    datagram_v6: Make::Datagram("[::1]:0", DatagramConfig::default());
    datagram_mapped: Make::Datagram("[::ffff:127.0.0.1]:0", DatagramConfig::default());
    datagram_plain: Make::Datagram("127.0.0.1:0", PLAIN);
    datagram_not_joined: Make::Datagram("127.0.0.1:0", NOT_JOINED);
    datagram_refused: Make::Refused;
    datagram_longest: Make::Datagram("127.0.0.1:0", LONGEST);
}
