//! Root directories of guests and containers, made of this machine's own files.

use crate::Result;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies a file to a place in a root directory, and the libraries that it needs to where they are here.
pub fn add(root: &Path, file: &Path, at: &str) -> Result<()> {
    copy(root, file, at)?;
    let needs = Command::new("ldd").arg(file).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    for library in String::from_utf8_lossy(&needs.stdout).split_whitespace().filter(|w| w.starts_with('/')) {
        let at = library.trim_start_matches('/');
        if !root.join(at).exists() {
            copy(root, Path::new(library), at)?;
        }
    }
    Ok(())
}

/// Copies a file alone to a place in a root directory.
pub fn copy(root: &Path, file: &Path, at: &str) -> Result<()> {
    let to = root.join(at);
    std::fs::create_dir_all(to.parent().unwrap_or(root))?;
    std::fs::copy(file, to).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(())
}
