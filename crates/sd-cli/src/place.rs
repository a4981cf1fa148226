//! Where the monitor's socket is, and whether its directory can be used.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What `--monitor` or `--socket` says, else SD_MONITOR, else the user's own place; absolute, because the
/// program may change its directory.
pub(crate) fn socket(option: Option<&Path>) -> PathBuf {
    let from_environment =
        || std::env::var_os("SD_MONITOR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path =
        option.map(Path::to_owned).or_else(from_environment).unwrap_or_else(crate::monitor::default_socket);
    std::path::absolute(&path).unwrap_or(path)
}

/// The directory in which a socket is.
pub(crate) fn directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// Why a monitor cannot have its socket in this directory; makes it if it is missing.
pub(crate) fn prepare_directory(socket: &Path) -> Result<(), String> {
    if socket.as_os_str().len() >= 108 {
        return Err(format!("{}: longer than the 107 bytes that a socket's path can have", socket.display()));
    }
    let folder = directory(socket);
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(format!("{}: {error}", folder.display()));
    }
    check_directory(folder)
}

/// Why this directory is no place for a socket: others could put theirs there.
pub(crate) fn check_directory(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let meta = std::fs::metadata(folder).map_err(|error| format!("{shown}: {error}"))?;
    // SAFETY: no arguments, cannot fail.
    let me = unsafe { libc::geteuid() };
    if !meta.is_dir() {
        return Err(format!("{shown}: not a directory"));
    }
    if meta.uid() != me && meta.uid() != 0 {
        return Err(format!("{shown}: belongs to user {}", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 && meta.mode() & libc::S_ISVTX == 0 {
        return Err(format!("{shown}: can be changed by others"));
    }
    if !is_writable(folder) {
        return Err(format!("{shown}: {}", crate::failure::last_os_error()));
    }
    Ok(())
}

/// Why a directory cannot be made in this one.
pub(crate) fn check_creatable(parent: &Path) -> Result<(), String> {
    match std::fs::metadata(parent) {
        Err(error) => Err(format!("{}: {error}", parent.display())),
        Ok(meta) if !meta.is_dir() => Err(format!("{}: not a directory", parent.display())),
        Ok(_) if !is_writable(parent) => {
            Err(format!("{}: {}", parent.display(), crate::failure::last_os_error()))
        }
        Ok(_) => Ok(()),
    }
}

/// Whether files can be made there; sets errno when not.
fn is_writable(folder: &Path) -> bool {
    let Ok(path) = crate::program::c_string(folder.as_os_str()) else { return false };
    // SAFETY: a valid C string.
    unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
}

/// Where a monitor that `sd run` started writes what it has to say.
pub(crate) fn log_file(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_goes_first_and_is_made_absolute() {
        assert!(socket(Some(Path::new("x.sock"))).is_absolute());
        assert_eq!(socket(Some(Path::new("/run/x.sock"))), Path::new("/run/x.sock"));
    }

    #[test]
    fn impossible_directories_are_named() {
        let text = prepare_directory(Path::new("/proc/self/nowhere/monitor.sock")).unwrap_err();
        assert!(text.starts_with("/proc/self/nowhere: "), "{text}");
        assert!(prepare_directory(Path::new("/etc/hostname/monitor.sock")).is_err());
        assert!(prepare_directory(Path::new(&format!("/tmp/{}", "x".repeat(120)))).is_err());
    }
}
