//! `cargo xtask miri`: the tests of the protocols and layouts under Miri, which finds what a compiler may make of unsafe
//! code: references that reach too far, memory without contents, races.
//!
//! It wants a nightly compiler with the component `miri`; without one this is skipped. Where tests map files there are
//! others, which have the same layouts in ordinary memory; assembly has a plain twin. The model of references is that of Tree
//! Borrows: from one side's words of a slot the other's are reached (`SlotSide::other`), which Stacked Borrows forbids.

use harness::report::Count;
use harness::{Result, fail, product};
use std::process::{Command, Stdio};

/// What is tested: crate, and what of it.
const PARTS: [(&str, &[&str]); 3] = [
    ("sd-proto", &["--test", "messages"]),
    ("sd-ring", &["--lib", "--test", "model"]),
    ("sd-shm", &["--lib"]),
];

const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks";

fn cargo() -> Command {
    // The one that runs us is of another toolchain.
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "miri"]).current_dir(product::root()).stdin(Stdio::null());
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run() -> Result<()> {
    let is_there = cargo().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        println!(
            "skipped: no nightly compiler with miri is installed (rustup component add --toolchain nightly miri)"
        );
        println!("{}", Count { passed: 0, failed: 0, skipped: PARTS.len() }.line());
        return Ok(());
    }
    let mut count = Count::default();
    for (name, tests) in PARTS {
        let mut command = cargo();
        command
            .args(["test", "-p", name])
            .args(tests)
            .arg("--target-dir")
            .arg(product::target().join("miri"));
        // Few cases: each costs what a thousand cost without.
        command.env("PROPTEST_CASES", "3").env("SD_FUZZ_SECONDS", "0.05").env("MIRIFLAGS", FLAGS);
        // Of tests that fail, proptest would write files.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        let is_ok = command.status()?.success();
        println!("{} {name} under miri", if is_ok { "ok  " } else { "FAIL" });
        count.add(Count::one(is_ok));
    }
    if count.failed > 0 {
        fail!("miri: {} crates failed", count.failed);
    }
    Ok(())
}
