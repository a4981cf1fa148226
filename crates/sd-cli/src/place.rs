//! Where the monitor's socket is, and whether its directory can be used.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What `--monitor` or `--socket` says, else SD_MONITOR, else the host's place if there is a socket, else the user's own;
/// absolute, because the program may change its directory.
pub fn socket(option: Option<&Path>) -> PathBuf {
    named(option, sd_monitor::default_socket_path)
}

/// Where a monitor serves that was not told where: never at the host's place.
pub fn socket_to_serve(option: Option<&Path>) -> PathBuf {
    named(option, sd_monitor::own_socket_path)
}

fn named(option: Option<&Path>, otherwise: fn() -> PathBuf) -> PathBuf {
    let from_environment =
        || std::env::var_os("SD_MONITOR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = option.map(Path::to_owned).or_else(from_environment).unwrap_or_else(otherwise);
    std::path::absolute(&path).unwrap_or(path)
}

/// The directory in which a socket is.
pub fn directory(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}

/// Why a monitor cannot have its socket here; makes the directory if it is missing, with those on the way.
pub fn prepare_directory(socket: &Path) -> Result<(), String> {
    if socket.as_os_str().len() >= 108 {
        return Err(format!("{}: longer than the 107 bytes that a socket's path can have", socket.display()));
    }
    let folder = directory(socket);
    let made = sd_monitor::make_socket_directory(folder);
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    check_way(socket).map_err(|doubt| doubt.text)?;
    if is_writable(folder) {
        return Ok(());
    }
    Err(format!("{}: {}", folder.display(), crate::failure::last_os_error()))
}

/// Why a socket's place is not believed.
pub struct Doubted {
    pub text: String,
    pub errno: Option<i32>,
}

/// Whether others could have put their socket there; as the library looks before it connects.
pub fn check_way(socket: &Path) -> Result<(), Doubted> {
    let path = socket.as_os_str().as_bytes();
    sd_sys::trust::way_to(path, true).map_err(|doubt| {
        let part = OsStr::from_bytes(path.get(..doubt.len).unwrap_or(path));
        let errno = match doubt.why {
            sd_sys::trust::Why::Error(error) => Some(error.0),
            _ => None,
        };
        Doubted { text: format!("{}: {}", part.display(), doubt.why), errno }
    })
}

/// Why a directory cannot be made in this one.
pub fn check_creatable(parent: &Path) -> Result<(), String> {
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
pub fn is_writable(folder: &Path) -> bool {
    let Ok(path) = crate::program::c_string(folder.as_os_str()) else { return false };
    // SAFETY: a valid C string.
    unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
}

/// Where a monitor that `sd run` started writes what it has to say.
pub fn log_file(socket: &Path) -> PathBuf {
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
        assert_eq!(
            prepare_directory(Path::new("/tmp/monitor.sock")).unwrap_err(),
            "/tmp: can be changed by others"
        );
        assert!(prepare_directory(Path::new("/etc/hostname/monitor.sock")).is_err());
        assert!(prepare_directory(Path::new(&format!("/tmp/{}", "x".repeat(120)))).is_err());
    }
}
