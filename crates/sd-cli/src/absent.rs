//! Why a process that runs already has not the library, so that its connections are the kernel's.

use crate::unregistered as look;
use sd_attach::unled::Unled;
use sd_cli::library;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What is seen of it, and what may be done.
pub(crate) struct Absence {
    pub(crate) reason: String,
    pub(crate) advice: &'static str,
    /// Such programs are left alone, and nothing is amiss.
    pub(crate) is_meant: bool,
}

impl Absence {
    fn new(reason: impl Into<String>, advice: &'static str) -> Absence {
        Absence { reason: reason.into(), advice, is_meant: false }
    }
}

/// `None`: the library is loaded. `root` is its directory below /proc, `maps` the file of that name.
pub(crate) fn why(root: &str, maps: &[u8]) -> Option<Absence> {
    if library::is_mapped(maps) {
        return None;
    }
    if look::is_secure(root) {
        let advice = "none: such programs are left alone";
        let reason = "its exec gave it rights (set-user-id or file capabilities)".to_owned();
        return Some(Absence { reason, advice, is_meant: true });
    }
    let has = |text: &[u8]| maps.windows(text.len()).any(|window| window == text);
    Some(if has(b"/ld-") { not_preloaded(root) } else { not_led(root) })
}

/// Whether it was to be: LD_PRELOAD of the environment that it was started with names the library.
pub(crate) fn is_named(root: &str) -> bool {
    named(root).is_some()
}

fn named(root: &str) -> Option<PathBuf> {
    let value = OsString::from_vec(look::variable(root, b"LD_PRELOAD=")?);
    library::entries(&value).find(|entry| library::is_ours(entry)).map(|path| OsStr::from_bytes(path).into())
}

/// The dynamic linker has not loaded it.
fn not_preloaded(root: &str) -> Absence {
    match named(root) {
        None => Absence::new(
            "LD_PRELOAD is not in the environment that it was started with",
            "whoever started it has cleared that (sudo, su, env -i, a service manager): start it by sd run in there",
        ),
        Some(path) if !inside(root, &path).exists() => Absence::new(
            format!("{} is not in its mount namespace", path.display()),
            "mount or copy the library to that place",
        ),
        Some(path) => Absence::new(
            format!("{} is there, and the dynamic linker has not loaded it", path.display()),
            "the dynamic linker has said why on its standard error: another C library, or an older one",
        ),
    }
}

/// It has no dynamic linker, and nobody has brought it there.
fn not_led(root: &str) -> Absence {
    let can_be_led = || {
        let file = std::fs::File::open(format!("{root}/exe")).map_err(|_| Unled::Unknown)?;
        sd_attach::program::can_be_led(file.as_raw_fd())
    };
    match can_be_led() {
        Ok(()) => Absence::new(
            "it is statically linked, and nobody has brought the library there",
            "start it by sd run, or by a program that has the library, and not under a debugger; where ptrace(2) is refused, \
             libsd-freestanding.so must be executable",
        ),
        Err(unled) => Absence::new(
            format!("it is statically linked, {unled}"),
            "link it dynamically, or with musl; Go programs are served from Go 1.19 on",
        ),
    }
}

/// A path as the process sees it.
pub(crate) fn inside(root: &str, path: &Path) -> PathBuf {
    Path::new(&format!("{root}/root")).join(path.strip_prefix("/").unwrap_or(path))
}
