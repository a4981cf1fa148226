//! Where the workspace and its products are, and how they are built.

use crate::{Result, fail};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace's root directory.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The target directory: `CARGO_TARGET_DIR`, or `target` in the root.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The command-line program.
pub fn sd() -> PathBuf {
    target().join("release/sd")
}

/// What `sd bench` becomes.
pub fn sd_bench() -> PathBuf {
    target().join("release/sd-bench")
}

/// The preload library.
pub fn libsd() -> PathBuf {
    target().join("release/libsd.so")
}

/// The library for programs without libc.
pub fn freestanding() -> PathBuf {
    target().join("release/libsd-freestanding.so")
}

/// Cargo, in the workspace's root, with no standard input.
pub fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Crates that AddressSanitizer checks: all but those whose code runs before its runtime has begun, in the hooks.
const UNDER_ASAN: [&str; 7] =
    ["sd-ring", "sd-shm", "sd-proto", "sd-socket", "sd-monitor", "sd-cli", "sd-sharing"];

/// Builds the products and `sd-sharing` with AddressSanitizer, whose runtime the programs bring for the library: the target
/// directory to use.
pub fn build_with_asan() -> Result<PathBuf> {
    let folder = target().join("asan");
    let mut command = cargo(&["build", "--release", "-Zprofile-rustflags", "--target", TRIPLE]);
    command.arg("--target-dir").arg(&folder).args(["-p", "sd-preload", "-p", "sd-cli", "-p", "sd-sharing"]);
    for name in UNDER_ASAN {
        let flags = r#"["-Zsanitizer=address", "-Clink-arg=-Wl,--export-dynamic"]"#;
        command.arg("--config").arg(format!("profile.release.package.{name}.rustflags={flags}"));
    }
    // For the flag, which a stable compiler has as well. Checked and unchecked crates are not to be merged into one.
    let status = command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_PROFILE_RELEASE_LTO", "off").status()?;
    if !status.success() {
        fail!("the build with AddressSanitizer failed");
    }
    Ok(folder.join(TRIPLE))
}

/// Builds command and library as if they were of the next version of the protocol: the command.
pub fn build_next_version() -> Result<PathBuf> {
    let folder = target().join("next-version");
    let mut command = cargo(&["build", "--release", "-p", "sd-cli", "-p", "sd-preload"]);
    command.arg("--target-dir").arg(&folder).env("RUSTFLAGS", "--cfg sd_next_version");
    // It is not measured.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if !command.status()?.success() {
        fail!("the build of the next version failed");
    }
    Ok(folder.join("release/sd"))
}

/// What some tests build or fetch when they begin, so that they find it.
pub fn build_others() -> Result<()> {
    build_next_version()?;
    build_with_asan()?;
    for fetched in [crate::debian::cargo_deb(), crate::debian::root()] {
        match fetched {
            Ok(place) => println!("there is {}", place.display()),
            // What is tried with it is skipped then.
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}

/// Becomes a program of the workspace, built as this one is and always anew; returns only when that failed.
pub fn become_program(package: &str, args: &[String]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--package", package, "--"]);
    Err(command.args(args).exec().into())
}

/// Builds every product and test program in release mode.
pub fn build() -> Result<()> {
    // Those are built as they are run.
    let others = ["xtask", "sd-harness", "sd-apps", "sd-packaging", "sd-suites"];
    let mut command = cargo(&["build", "--release", "--workspace"]);
    let status = command.args(others.iter().flat_map(|name| ["--exclude", name])).status()?;
    if !status.success() {
        fail!("the build failed");
    }
    for product in [sd(), sd_bench(), libsd()] {
        if !product.exists() {
            fail!("the build made no {}", product.display());
        }
    }
    build_freestanding()
}

/// A command of Cargo's about the library without libc; `None` for processors that it is not written for. The flag is for it alone, not for what
/// is run while it is built, so a target is named.
pub fn freestanding_with(command: &str, more: &[&str]) -> Option<Command> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let mut command = cargo(&[command, "--package", "sd-preload", "--lib", "--target", TRIPLE]);
    command.args(more).env("RUSTFLAGS", "--cfg sd_freestanding");
    Some(command)
}

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The library once more, without libc.
fn build_freestanding() -> Result<()> {
    let folder = target().join("freestanding");
    let at = folder.display().to_string();
    let Some(mut command) = freestanding_with("build", &["--release", "--target-dir", &at]) else {
        return Ok(());
    };
    if !command.status()?.success() {
        fail!("the build without libc failed");
    }
    // In one step: programs may have the former one mapped.
    let (made, new) = (folder.join(TRIPLE).join("release/libsd.so"), freestanding().with_extension("new"));
    std::fs::copy(made, &new)?;
    std::fs::rename(&new, freestanding())?;
    Ok(())
}
