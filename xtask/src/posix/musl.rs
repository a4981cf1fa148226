//! The subjects as a program of musl's (`cargo xtask posix --musl`): built for musl's target, linked dynamically by musl-gcc (musl-tools).

use super::suite::Suite;
use crate::port;
use harness::{Result, fail, install, product};
use std::fs;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-musl";
/// Names of glibc's that subjects call.
const NAMES: &str = "tests/posix/musl/names.c";

/// The program; `None` where musl-gcc, or Rust's standard library for the target, cannot be had.
pub(super) fn build() -> Result<Option<Suite>> {
    if !install::obtain(&["musl-gcc"]) {
        return Ok(None);
    }
    if !port::has_target(TARGET) {
        println!("skipped: no standard library for musl");
        return Ok(None);
    }
    let folder = product::target().join("musl");
    fs::create_dir_all(&folder)?;
    // The standard library asks for the shared one, which there is for glibc alone.
    fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n")?;
    let names = folder.join("names.o");
    let mut compile = Command::new("musl-gcc");
    compile.args(["-O1", "-fPIC", "-c", "-o"]).arg(&names).arg(product::root().join(NAMES));
    if !compile.status()?.success() {
        fail!("musl-gcc: {NAMES} cannot be compiled");
    }
    let flags = format!(
        "-Ctarget-feature=-crt-static -Clinker=musl-gcc -L{} -Clink-arg={}",
        folder.display(),
        names.display()
    );
    let mut cargo = product::cargo(&["build", "--quiet", "--release", "-p", "sd-posix", "--target", TARGET]);
    let cargo = cargo.arg("--target-dir").arg(&folder).env("RUSTFLAGS", flags);
    // It is not measured.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if !cargo.status()?.success() {
        fail!("the subjects cannot be built for {TARGET}");
    }
    Ok(Some(Suite::of(folder.join(TARGET).join("release/sd-posix"))))
}
