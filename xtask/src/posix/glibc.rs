//! The subjects as a static program of glibc's (`cargo xtask posix --static-glibc`).

use super::suite::Suite;
use harness::{Result, product};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The program.
pub(super) fn build_static() -> Result<Suite> {
    Suite::build(TARGET, &product::target().join("glibc-static"), "-Ctarget-feature=+crt-static")
}
