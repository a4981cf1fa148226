//! The subjects as a static program of glibc's (`cargo xtask posix --static-glibc`).

use super::suite::Suite;
use harness::{Result, fail, product};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The program.
pub(super) fn build_static() -> Result<Suite> {
    let folder = product::target().join("glibc-static");
    let mut cargo = product::cargo(&["build", "--quiet", "--release", "-p", "sd-posix", "--target", TARGET]);
    let cargo = cargo.arg("--target-dir").arg(&folder).env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    // It is not measured.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if !cargo.status()?.success() {
        fail!("the subjects cannot be built as a static program of glibc's");
    }
    Ok(Suite::of(folder.join(TARGET).join("release/sd-posix")))
}
