//! The one private detail of a libc's `FILE` that we rely on; `tests/file_layout.rs` checks it against the running glibc, the scenario
//! `musl-program` against musl.

/// Where the descriptor's number is, in bytes.
pub(crate) fn fileno_offset() -> usize {
    // musl 1.1 and 1.2, on machines of 64 bits.
    const MUSL: usize = 120;
    if sd_sys::libcs::is_musl() { MUSL } else { sd_sys::arch::FILENO_OFFSET }
}
