//! What the memory cgroups of this process leave to it, of version 1 and 2 (cgroups(7)).
//!
//! Raw system calls, no allocation. A group that cannot be found (another mount point, chroot, a filter) limits nothing here.

use crate::fd;
use crate::scratch::{self, Scratch};

/// A limit, and what is left below it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit.
    pub limit: u64,
    /// What may still be used, with file pages that nobody misses.
    pub left: u64,
    /// Shared memory, of what is used.
    pub shared: u64,
}

/// Names of the files of one version.
struct Names {
    mount: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    cache: &'static str,
    shared: &'static str,
}

const V1: Names = Names {
    mount: "/sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
    shared: "total_shmem ",
};
const V2: Names = Names {
    mount: "/sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cache: "inactive_file ",
    shared: "shmem ",
};

/// More is no limit.
const NONE: u64 = 1 << 60;
const PATH_MAX: usize = 512;

/// The groups from the innermost outwards: of those that have a limit, the one that leaves least.
pub fn room() -> Option<Room> {
    let mut room = Scratch::take().ok()?;
    let (text, stat) = room.split_at_mut(scratch::LEN / 2);
    let len = read_file(b"/proc/self/cgroup\0", text)?;
    let (names, path) = find(core::str::from_utf8(text.get(..len)?).ok()?)?;
    let mut least: Option<Room> = None;
    let mut path = path;
    loop {
        if let Some(room) = room_of(names, path, stat)
            && least.is_none_or(|least| room.left < least.left)
        {
            least = Some(room);
        }
        let Some(at) = path.rfind('/') else { return least };
        path = path.get(..at)?;
    }
}

/// The version in charge of memory, and the group's path without a slash at its end.
fn find(text: &str) -> Option<(&'static Names, &str)> {
    let of = |wanted: fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            wanted(controllers).then_some(path.trim_end_matches('/'))
        })
    };
    let v1 = of(|controllers| controllers.split(',').any(|name| name == "memory"));
    v1.map(|path| (&V1, path)).or_else(|| of(str::is_empty).map(|path| (&V2, path)))
}

/// `text`: room for a file.
fn room_of(names: &Names, path: &str, text: &mut [u8]) -> Option<Room> {
    let number = |name: &str| number_in(names, path, name);
    let limit = names.limits.iter().filter_map(|name| number(name)).min().filter(|limit| *limit < NONE)?;
    let used = number(names.usage)?;
    let stat = read(names, path, "memory.stat", text).unwrap_or("");
    let field =
        |name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
    let used = used.saturating_sub(field(names.cache));
    Some(Room { limit, left: limit.saturating_sub(used), shared: field(names.shared) })
}

/// "max" is none.
fn number_in(names: &Names, path: &str, name: &str) -> Option<u64> {
    let mut text = [0u8; 32];
    read(names, path, name, &mut text)?.trim().parse().ok()
}

fn read<'a>(names: &Names, path: &str, name: &str, into: &'a mut [u8]) -> Option<&'a str> {
    let mut whole = [0u8; PATH_MAX];
    let mut at = 0;
    for part in [names.mount, path, "/", name, "\0"] {
        whole.get_mut(at..at + part.len())?.copy_from_slice(part.as_bytes());
        at += part.len();
    }
    let len = read_file(&whole, into)?;
    core::str::from_utf8(into.get(..len)?).ok()
}

/// Reads the start of a file. `path` ends with a zero byte.
fn read_file(path: &[u8], into: &mut [u8]) -> Option<usize> {
    fd::read_file(path, into).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<(&'static str, &str)> {
        find(text).map(|(names, path)| (names.mount, path))
    }

    #[test]
    fn the_group_is_found() {
        assert_eq!(found("0::/user.slice/a.service\n"), Some((V2.mount, "/user.slice/a.service")));
        assert_eq!(found("0::/\n"), Some((V2.mount, "")));
        let hybrid = "5:cpu,cpuacct:/x\n4:memory:/docker/1\n1:name=systemd:/y\n0::/z\n";
        assert_eq!(found(hybrid), Some((V1.mount, "/docker/1")));
        assert_eq!(found("1:name=systemd:/y\n"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_long_path_is_no_limit() {
        assert_eq!(room_of(&V2, &"/a".repeat(PATH_MAX), &mut [0; 16]), None);
    }
}
