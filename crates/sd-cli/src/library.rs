//! Where libsd.so is, and what LD_PRELOAD becomes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Name of the preload library's file.
pub const FILE: &str = "libsd.so";

/// Whether one of the two libraries is in a process, by its `/proc/PID/maps`: this one, or that for programs without libc.
pub fn is_mapped(maps: &[u8]) -> bool {
    let names = [FILE.as_bytes(), sd_attach::FILE.to_bytes()];
    maps.split(|byte| *byte == b'\n').any(|line| {
        // Of a file that was replaced since.
        let line = line.strip_suffix(b" (deleted)").unwrap_or(line);
        names.iter().any(|name| line.strip_suffix(*name).is_some_and(|folder| folder.ends_with(b"/")))
    })
}

/// The library: SD_LIB, else beside this program, else in ../lib/socksdirect of it.
pub fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SD_LIB").filter(|path| !path.is_empty()) {
        let path = std::path::absolute(&path).unwrap_or_else(|_| PathBuf::from(&path));
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("SD_LIB={}: no such file", path.display()))
        };
    }
    let program = std::env::current_exe().map_err(|error| format!("the path of sd itself: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(FILE), folder.join("../lib/socksdirect").join(FILE)];
    match places.into_iter().find(|place| place.is_file()) {
        Some(path) => Ok(path.canonicalize().unwrap_or(path)),
        None => Err(format!("no {FILE} in {} or ../lib/socksdirect; SD_LIB can name it", folder.display())),
    }
}

/// The library in front of what LD_PRELOAD names already. ld.so cannot be told of a path with a space
/// or a colon in it.
pub fn preload(library: &Path, existing: Option<&OsStr>) -> Result<OsString, String> {
    let path = library.as_os_str().as_bytes();
    if path.iter().any(|b| matches!(b, b' ' | b':')) {
        return Err(format!("{}: LD_PRELOAD cannot hold a path with a space or colon", library.display()));
    }
    let mut value = path.to_vec();
    for entry in entries(existing.unwrap_or_default()).filter(|entry| *entry != path) {
        value.push(b':');
        value.extend_from_slice(entry);
    }
    Ok(OsString::from_vec(value))
}

/// LD_PRELOAD without our library, `None` when nothing is left.
pub fn preload_without_ours(existing: &OsStr) -> Option<OsString> {
    let others: Vec<&[u8]> = entries(existing).filter(|entry| !is_ours(entry)).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

/// What LD_PRELOAD names.
pub fn entries(value: &OsStr) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|b| matches!(b, b' ' | b':')).filter(|entry| !entry.is_empty())
}

/// Whether an entry of LD_PRELOAD is this library, wherever it lies.
pub fn is_ours(entry: &[u8]) -> bool {
    entry.rsplit(|b| *b == b'/').next() == Some(FILE.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_stay_behind_us_and_we_stand_there_once() {
        let library = Path::new("/x/libsd.so");
        assert_eq!(preload(library, None).unwrap(), "/x/libsd.so");
        let value = preload(library, Some(OsStr::new("a.so /x/libsd.so:b.so"))).unwrap();
        assert_eq!(value, "/x/libsd.so:a.so:b.so");
        assert!(preload(Path::new("/a b/libsd.so"), None).is_err());
    }

    #[test]
    fn it_is_seen_in_maps() {
        let line =
            |name: &str| format!("7f00-7f01 r--p 0 00:00 0 /bin/true\n7f10-7f11 r-xp 0 00:00 0   {name}\n");
        let is_seen = |name: &str| is_mapped(line(name).as_bytes());
        assert!(
            is_seen("/x/libsd.so") && is_seen("/x/libsd.so (deleted)") && is_seen("/libsd-freestanding.so")
        );
        assert!(!is_seen("/x/alibsd.so") && !is_seen("/x/libsd.so.1") && !is_mapped(b""));
    }

    #[test]
    fn we_can_be_taken_out_again() {
        assert_eq!(preload_without_ours(OsStr::new("/x/libsd.so:b.so")).unwrap(), "b.so");
        assert_eq!(preload_without_ours(OsStr::new("libsd.so")), None);
    }
}
