//! `cargo xtask port`: the compiler checks the library's crates and `sd` for the other architecture, aarch64; the library's unit tests run by
//! qemu's emulator of a user's programs. `cargo xtask posix --aarch64` runs the library itself.
//!
//! It wants the standard library for that target, a linker and the emulator (Debian's gcc-aarch64-linux-gnu and qemu-user), and installs them; where they
//! cannot be had this is skipped.

use harness::report::Count;
use harness::{Result, fail, install, product};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";
/// What runs a program for it, with Debian's glibc for it.
pub(crate) const EMULATOR: [&str; 3] = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"];
/// Crates whose unit tests run.
const TESTED: [&str; 4] = ["sd-sys", "sd-ring", "sd-shm", "sd-socket"];
/// Tests of what the emulator does not pass on, or does as slowly as it emulates.
const NOT_THERE: [&str; 12] = [
    "diag::",
    "duties::tests::each_at_its_time",
    "filters::tests::without_a_filter",
    "leaving::",
    "mem::tests::a_core_dump",
    "mem::tests::a_mapping_is_replaced",
    "netlink::",
    "origins::",
    "quiet::tests::programs_of_this_system",
    "ringer::",
    "tcp::tests::positions",
    "trust::owner::tests::users_who_are_shown_alike",
];
const LIBRARY: [&str; 6] = ["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-socket", "sd-preload"];
/// It has parts in C (encryption): it wants the compiler for that.
const COMMAND: &str = "sd-cli";

/// A target's standard library is there, or could be installed.
pub(crate) fn has_target(target: &str) -> bool {
    let has = || {
        let list =
            Command::new("rustup").args(["target", "list", "--installed"]).stderr(Stdio::null()).output();
        list.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).lines().any(|line| line == target))
    };
    let add = || {
        let add = Command::new("rustup").args(["target", "add", target]).stdin(Stdio::null()).status();
        add.is_ok_and(|status| status.success())
    };
    has() || add()
}

/// Where the release build for the emulator lies; `None`, and it is said, where it cannot be built or run.
pub(crate) fn build_for_emulator(packages: &[&str]) -> Result<Option<PathBuf>> {
    if !can_run() {
        return Ok(None);
    }
    let mut build = cargo(&["build", "--quiet", "--release"]);
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    // It is not measured.
    build.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if !build.status()?.success() {
        fail!("{packages:?} cannot be built for {TARGET}");
    }
    Ok(Some(product::target().join(TARGET).join("release")))
}

/// Cargo for the target.
fn cargo(words: &[&str]) -> Command {
    let mut cargo = product::cargo(words);
    let name = TARGET.to_uppercase().replace('-', "_");
    cargo.env(format!("CARGO_TARGET_{name}_LINKER"), LINKER);
    cargo.env(format!("CARGO_TARGET_{name}_RUNNER"), EMULATOR.join(" "));
    cargo.args(["--target", TARGET]);
    cargo
}

fn can_run() -> bool {
    if !install::obtain(&[LINKER, LIBC, EMULATOR[0]]) {
        return false;
    }
    let has = has_target(TARGET);
    if !has {
        println!("skipped: no standard library for {TARGET} (rustup target add {TARGET})");
    }
    has
}

/// The unit tests of the library's crates.
fn test() -> Result<Count> {
    if !can_run() {
        return Ok(Count { passed: 0, failed: 0, skipped: TESTED.len() });
    }
    let mut count = Count::default();
    for name in TESTED {
        let mut test = cargo(&["test", "--quiet", "--lib", "--package", name]);
        test.arg("--").args(NOT_THERE.iter().flat_map(|name| ["--skip", name]));
        let is_ok = test.status()?.success();
        println!("{} unit tests of {name}, emulated", if is_ok { "ok  " } else { "FAIL" });
        count.add(Count::one(is_ok));
    }
    Ok(count)
}

pub(crate) fn run() -> Result<()> {
    if !has_target(TARGET) {
        println!("skipped: no standard library for {TARGET} (rustup target add {TARGET})");
        println!("{}", Count { passed: 0, failed: 0, skipped: LIBRARY.len() + 1 }.line());
        return Ok(());
    }
    let command = can_run().then_some(COMMAND);
    let mut count = Count { skipped: usize::from(command.is_none()), ..Count::default() };
    for name in LIBRARY.into_iter().chain(command) {
        let mut check = cargo(&["check", "--quiet", "--package", name]);
        let is_ok = check.env("RUSTFLAGS", "-Dwarnings").status()?.success();
        println!("{} {name} for {TARGET}", if is_ok { "ok  " } else { "FAIL" });
        count.add(Count::one(is_ok));
    }
    count.add(test()?);
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("port: {} crates failed", count.failed);
    }
    Ok(())
}
