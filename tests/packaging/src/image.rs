//! The OCI image, built by buildah as its recipe says.
//!
//! A registry's base image cannot be had everywhere: the Debian root directory of [`crate::machine`] stands in for it, under its name.

use harness::process::output;
use harness::scratch::Scratch;
use harness::{Result, product};
use std::path::{Path, PathBuf};
use std::process::Command;

const BASE: &str = "docker.io/library/debian:bookworm-slim";
const NAME: &str = "socksdirect:test";

/// What an image starts, as its recipe says.
pub(crate) fn starts(recipe: &str) -> Result<Vec<String>> {
    let line = recipe.lines().find_map(|line| line.strip_prefix("CMD "));
    Ok(serde_json::from_str(line.unwrap_or_default())?)
}

/// The store in which images are; it goes away with this value.
pub(crate) struct Store {
    scratch: Scratch,
    mounted: Vec<String>,
}

impl Store {
    pub(crate) fn new() -> Result<Store> {
        Ok(Store { scratch: Scratch::new("images")?, mounted: Vec::new() })
    }

    fn buildah(&self, action: &str) -> Command {
        let mut command = Command::new("buildah");
        let place = |name| self.scratch.path().join(name);
        command.arg("--root").arg(place("store")).arg("--runroot").arg(place("run"));
        command.args(["--storage-driver", "vfs", action]);
        command
    }

    /// Builds the image of a package, and says what it starts.
    pub(crate) fn build(&self, root: &Path, package: &Path) -> Result<Vec<String>> {
        let container = output(self.buildah("from").arg("scratch"))?;
        output(self.buildah("add").args(["--quiet", container.trim()]).arg(root).arg("/"))?;
        output(self.buildah("commit").args(["--quiet", "--rm", container.trim(), BASE]))?;
        let context = self.scratch.path().join("context");
        std::fs::create_dir(&context)?;
        std::fs::copy(package, context.join(package.file_name().unwrap_or_default()))?;
        let mut command = self.buildah("bud");
        command.args(["--quiet", "--isolation", "chroot", "--pull-never", "--tag", NAME, "--file"]);
        output(command.arg(product::root().join("packaging/oci/Containerfile")).arg(context))?;
        let said = output(self.buildah("inspect").args(["--type", "image", NAME]))?;
        let found: serde_json::Value = serde_json::from_str(&said)?;
        Ok(serde_json::from_value(found["OCIv1"]["config"]["Cmd"].clone())?)
    }

    /// The image's root directory.
    pub(crate) fn mount(&mut self) -> Result<PathBuf> {
        let container = output(self.buildah("from").args(["--pull-never", NAME]))?.trim().to_owned();
        let root = output(self.buildah("mount").arg(&container))?;
        self.mounted.push(container);
        Ok(root.trim().into())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for container in &self.mounted {
            let _ = output(self.buildah("umount").arg(container));
        }
    }
}
