//! What the Debian package is built with and tried in. Both come from a network, once, and stay below the target directory.

use crate::process::{find_program, output};
use crate::{Result, product};
use std::path::PathBuf;
use std::process::Command;

const CARGO_DEB: &str = "3.8.0";
const SUITE: &str = "bookworm";
const PACKAGES: &str = "iproute2,redis-server,redis-tools,systemd";

/// cargo-deb, built where it is not installed.
pub fn cargo_deb() -> Result<PathBuf> {
    let tools = product::target().join("tools");
    let own = tools.join("bin/cargo-deb");
    if let Some(found) = find_program("cargo-deb").or_else(|| own.exists().then(|| own.clone())) {
        return Ok(found);
    }
    eprintln!("install: cargo-deb {CARGO_DEB}");
    let mut command =
        product::cargo(&["install", "--quiet", "--locked", "cargo-deb", "--version", CARGO_DEB]);
    // Not as products are built.
    command.arg("--root").arg(&tools).arg("--target-dir").arg(tools.join("build"));
    output(&mut command)?;
    std::fs::remove_dir_all(tools.join("build"))?;
    Ok(own)
}

/// The root directory of a Debian system, by mmdebstrap.
pub fn root() -> Result<PathBuf> {
    let folder = product::target().join("package");
    let (root, stamp) = (folder.join("root"), folder.join("root.packages"));
    let wanted = format!("{SUITE} {PACKAGES}");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(root);
    }
    if root.exists() {
        std::fs::remove_dir_all(&root)?;
    }
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--mode=root", "--variant=essential", &format!("--include={PACKAGES}"), SUITE]);
    output(command.arg(&root))?;
    std::fs::write(&stamp, wanted)?;
    Ok(root)
}
