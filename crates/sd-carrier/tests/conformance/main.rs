//! What each carrier must do: one suite, and each implementation as it is, with small buffers, and without what a kernel may lack.
//!
//! A test asks `Carrier::kind` where the promises differ, and for nothing else.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod flow;

use common::{LONGEST, Make, NOT_JOINED, PLAIN, SMALL};
use sd_carrier::{DatagramConfig, TrunkConfig, VerbsConfig};

macro_rules! suite {
    ($($carrier:ident: $make:expr, $tests:tt;)*) => {
        $(mod $carrier {
            use super::*;
            suite!(each $make, $tests);
        })*
    };
    (each $make:expr, [$($(#[$ignored:meta])? $module:ident :: $test:ident),* $(,)?]) => {
        $(#[test]
        $(#[$ignored])?
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

/// Those that want a device, which `cargo xtask rdma` has in its guest. No peer can write there what it likes with a socket of its own, so
/// the tests that do so are not among them.
macro_rules! device_carriers {
    ($($carrier:ident: $make:expr, $more:tt;)*) => {
        $(device_carriers!(one $carrier: $make, $more);)*
    };
    (one $carrier:ident: $make:expr, [$($more:ident),*]) => {
        suite! {
            $carrier: $make, [
                #[ignore = "wants an RDMA device: cargo xtask rdma"] flow::each_length,
                #[ignore = "wants an RDMA device: cargo xtask rdma"] flow::random_batches,
                #[ignore = "wants an RDMA device: cargo xtask rdma"] flow::full_both_ways,
                #[ignore = "wants an RDMA device: cargo xtask rdma"] flow::more_than_a_buffer,
                #[ignore = "wants an RDMA device: cargo xtask rdma"] flow::nothing_to_do,
                #[ignore = "wants an RDMA device: cargo xtask rdma"] ends::the_other_ends,
                $(#[ignore = "wants an RDMA device: cargo xtask rdma"] flow::$more,)*
            ];
        }
    };
}

const VERBS_SMALL: VerbsConfig =
    VerbsConfig { port: 1, gid_index: 0, packet_max: 3000, slots: 16, slot_bytes: 0, inline_bytes: 0 };

device_carriers! {
    verbs: Make::Verbs(VerbsConfig::default()), [what_is_not_committed];
    verbs_small: Make::Verbs(VERBS_SMALL), [what_is_not_committed];
    // They hold less than that test sends before it reads.
    verbs_two_slots: Make::Verbs(VerbsConfig { slots: 2, ..VERBS_SMALL }), [];
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
