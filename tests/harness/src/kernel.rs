//! Debian's kernels for guests: fetched by apt, unpacked, not installed.

use crate::process::output;
use crate::scratch::Scratch;
use crate::{Result, fail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel that lives as long as this value.
pub struct Kernel {
    /// As its modules' folder is named: `6.1.0-1-amd64`.
    pub version: String,
    scratch: Scratch,
}

impl Kernel {
    /// The newest one of a package that depends on it, as `linux-image-amd64` does.
    pub fn fetch(package: &str) -> Result<Kernel> {
        let scratch = Scratch::new("kernel")?;
        let name = newest(package)?;
        let download = |name: &str| {
            output(Command::new("apt-get").args(["download", "-q", name]).current_dir(scratch.path()))
        };
        // Lists that are older than the server's packages name what is gone.
        if let Err(error) = download(&name) {
            output(Command::new("apt-get").args(["-o", "DPkg::Lock::Timeout=120", "update", "-q"]))
                .and_then(|_| download(&newest(package)?))
                .map_err(|second| format!("{error}; {second}"))?;
        }
        let archive = only_file(scratch.path())?;
        output(Command::new("dpkg").arg("-x").arg(&archive).arg(scratch.path().join("root")))?;
        std::fs::remove_file(archive)?;
        let modules = only_file(&scratch.path().join("root/lib/modules"))?;
        let version = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kernel { version, scratch })
    }

    /// What is booted.
    pub fn image(&self) -> PathBuf {
        self.root().join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Files of these modules and of those they need, in the order in which they are loaded.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let root = self.root();
        let program = |name: &str| crate::process::find_program(name).unwrap_or_else(|| name.into());
        output(Command::new(program("depmod")).arg("-b").arg(&root).arg(&self.version))?;
        let mut files: Vec<PathBuf> = Vec::new();
        for name in names {
            let mut command = Command::new(program("modprobe"));
            command.arg("-d").arg(&root).args(["-S", &self.version, "--show-depends", name]);
            for line in output(&mut command)?.lines() {
                // `builtin NAME` is in the kernel already.
                let Some(file) = line.trim().strip_prefix("insmod ") else { continue };
                let file = PathBuf::from(file.split(' ').next().unwrap_or_default());
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }
}

fn newest(package: &str) -> Result<String> {
    let said = output(Command::new("apt-cache").args(["depends", package]))?;
    match said.lines().find_map(|line| line.trim().strip_prefix("Depends: ")) {
        Some(name) => Ok(name.to_owned()),
        None => fail!("apt-cache knows no {package}"),
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    match std::fs::read_dir(folder)?.next() {
        Some(entry) => Ok(entry?.path()),
        None => fail!("there is nothing in {}", folder.display()),
    }
}
