//! The one private detail of glibc's `FILE` that we rely on; `tests/file_layout.rs` checks it against the running libc.

pub(crate) use sd_sys::arch::FILENO_OFFSET;
