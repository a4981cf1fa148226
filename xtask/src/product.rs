//! Where the workspace and its products are, and how they are built.

use crate::{Result, fail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace's root directory.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The target directory: `CARGO_TARGET_DIR`, or `target` in the root.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The command-line program.
pub(crate) fn sd() -> PathBuf {
    target().join("release/sd")
}

/// The preload library.
pub(crate) fn libsd() -> PathBuf {
    target().join("release/libsd.so")
}

/// Cargo, in the workspace's root, with no standard input.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Builds every product and test program in release mode.
pub(crate) fn build() -> Result<()> {
    let status = cargo(&["build", "--release", "--workspace", "--exclude", "xtask"]).status()?;
    if !status.success() {
        fail!("the build failed");
    }
    for product in [sd(), libsd()] {
        if !product.exists() {
            fail!("the build made no {}", product.display());
        }
    }
    Ok(())
}
