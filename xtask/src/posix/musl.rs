//! The subjects as a program of musl's: built for musl's target, linked dynamically by musl-gcc (musl-tools, `cargo xtask posix --musl`), or
//! statically (`--static`).

use super::suite::Suite;
use crate::port;
use harness::{Result, fail, install, product};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-musl";
/// Names of glibc's that subjects call.
const NAMES: &str = "tests/posix/musl/names.c";

/// The program; `None` where musl-gcc, or Rust's standard library for the target, cannot be had.
pub(super) fn build() -> Result<Option<Suite>> {
    let folder = product::target().join("musl");
    let Some(names) = names(&folder, &[])? else { return Ok(None) };
    // The standard library asks for the shared one, which there is for glibc alone.
    fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n")?;
    let flags = format!(
        "-Ctarget-feature=-crt-static -Clinker=musl-gcc -L{} -Clink-arg={}",
        folder.display(),
        names.display()
    );
    Suite::build(TARGET, &folder, &flags).map(Some)
}

/// As a static program, linked as Rust does it for this target.
pub(super) fn build_static() -> Result<Option<Suite>> {
    let folder = product::target().join("musl-static");
    let Some(names) = names(&folder, &["-DSTATIC"])? else { return Ok(None) };
    Suite::build(TARGET, &folder, &format!("-Clink-arg={}", names.display())).map(Some)
}

/// What [`NAMES`] is compiled to.
fn names(folder: &Path, options: &[&str]) -> Result<Option<PathBuf>> {
    if !install::obtain(&["musl-gcc"]) {
        return Ok(None);
    }
    if !port::has_target(TARGET) {
        println!("skipped: no standard library for musl");
        return Ok(None);
    }
    fs::create_dir_all(folder)?;
    let names = folder.join("names.o");
    let mut compile = Command::new("musl-gcc");
    compile.args(options).args(["-O1", "-fPIC", "-c", "-o"]).arg(&names).arg(product::root().join(NAMES));
    if !compile.status()?.success() {
        fail!("musl-gcc: {NAMES} cannot be compiled");
    }
    Ok(Some(names))
}
