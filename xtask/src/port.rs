//! `cargo xtask port`: the compiler checks the library's crates for the other architecture, aarch64.
//!
//! It wants the standard library for that target; where it cannot be had this is skipped. Nothing is run.

use harness::report::Count;
use harness::{Result, fail, product};
use std::process::{Command, Stdio};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LIBRARY: [&str; 6] = ["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-socket", "sd-preload"];

/// The target's standard library is there, or could be installed.
fn is_there() -> bool {
    let has = || {
        let list =
            Command::new("rustup").args(["target", "list", "--installed"]).stderr(Stdio::null()).output();
        list.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).lines().any(|line| line == TARGET))
    };
    let add = || {
        let add = Command::new("rustup").args(["target", "add", TARGET]).stdin(Stdio::null()).status();
        add.is_ok_and(|status| status.success())
    };
    has() || add()
}

pub(crate) fn run() -> Result<()> {
    if !is_there() {
        println!("skipped: no standard library for {TARGET} (rustup target add {TARGET})");
        println!("{}", Count { passed: 0, failed: 0, skipped: LIBRARY.len() }.line());
        return Ok(());
    }
    let mut count = Count::default();
    for name in LIBRARY {
        let mut check = product::cargo(&["check", "--quiet", "--target", TARGET, "--package", name]);
        let is_ok = check.env("RUSTFLAGS", "-Dwarnings").status()?.success();
        println!("{} {name} for {TARGET}", if is_ok { "ok  " } else { "FAIL" });
        count.add(Count::one(is_ok));
    }
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("port: {} crates failed", count.failed);
    }
    Ok(())
}
