//! Bounds of the fortified variants.

use libc::{nfds_t, pollfd, size_t};

/// Whether `count` entries lie in an array of `size` bytes.
pub(crate) fn fits(count: nfds_t, size: size_t) -> bool {
    count <= (size / size_of::<pollfd>()) as nfds_t
}
