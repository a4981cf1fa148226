//! The one private detail of glibc's `FILE` that we rely on; `tests/file_layout.rs` checks it against the running libc.

/// Where `struct _IO_FILE` keeps the number that fileno(3) returns, on x86-64: after `_flags` (padded to 8),
/// eleven buffer pointers, `_markers` and `_chain`.
pub(crate) const FILENO_OFFSET: usize = 8 + 11 * 8 + 2 * 8;
