//! `sd doctor --pid PID`: why the connections of a process that runs already are the kernel's.

use super::{Check, Verdict};
use crate::unregistered as look;
use sd_cli::client::Silence;
use sd_cli::status::{self, Connection};
use sd_cli::{library, place};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(super) fn checks(pid: u32, answer: &Result<Value, Silence>) -> Vec<Check> {
    let root = format!("/proc/{pid}");
    let name = "process";
    let Ok(maps) = std::fs::read(format!("{root}/maps")) else {
        let advice = "look as root or as its user, in its PID namespace or around it";
        return vec![Check::fail(
            name,
            format!("there is no process {pid}, or it may not be looked at"),
            advice,
        )];
    };
    let comm = std::fs::read_to_string(format!("{root}/comm")).unwrap_or_default();
    let mut checks = vec![Check::ok(name, format!("{} (process {pid})", comm.trim()))];
    checks.push(preloaded(&root, &maps));
    let is_loaded = checks.last().is_some_and(|check| check.verdict == Verdict::Ok);
    checks.push(socket(&root));
    checks.push(namespace(
        &root,
        "user",
        "user namespace",
        "sd doctor in there says whether it believes the monitor",
    ));
    let advice = "with programs of its own namespace it talks over shared memory, with others it begins over the kernel";
    checks.push(namespace(&root, "net", "network namespace", advice));
    if is_loaded {
        checks.push(registered(&root, &maps));
    }
    checks.push(connections(pid, answer));
    checks
}

/// Whether the library is in it; and if not, who has lost it.
fn preloaded(root: &str, maps: &[u8]) -> Check {
    let name = "library";
    let has = |text: &[u8]| maps.windows(text.len()).any(|window| window == text);
    if has(b"/libsd.so") {
        return Check::ok(name, "it is loaded");
    }
    let named = look::variable(root, b"LD_PRELOAD=").unwrap_or_default();
    let named = OsString::from_vec(named);
    let ours = library::entries(&named).find(|entry| library::is_ours(entry)).map(OsStr::from_bytes);
    if look::is_secure(root) {
        let advice = "none: such programs are left alone";
        return Check::warn(name, "its exec gave it rights (set-user-id or file capabilities)", advice);
    }
    if has(b"/ld-musl") {
        let advice = "use an image whose C library is glibc";
        return Check::fail(name, "it is not loaded: the program uses musl, the library needs glibc", advice);
    }
    if !has(b"/ld-linux") && !has(b"/ld-") {
        let advice = "none: a program without a dynamic linker loads no library";
        return Check::fail(name, "it is not loaded: the program is linked statically", advice);
    }
    match ours {
        None => Check::fail(
            name,
            "it is not loaded: LD_PRELOAD is not in the environment that it was started with",
            "whoever started it has cleared that (sudo, su, env -i, a service manager): start it by sd run in there",
        ),
        Some(path) if !inside(root, Path::new(path)).exists() => Check::fail(
            name,
            format!("it is not loaded: {} is not in its mount namespace", path.display()),
            "mount or copy the library to that place",
        ),
        Some(path) => Check::fail(
            name,
            format!("{} is there, and is not loaded", path.display()),
            "the dynamic linker has said why on its standard error: another C library, or an older one",
        ),
    }
}

/// A path as the process sees it.
fn inside(root: &str, path: &Path) -> PathBuf {
    Path::new(&format!("{root}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether it can reach the monitor that we ask.
fn socket(root: &str) -> Check {
    let name = "monitor's socket";
    let ours = place::socket(None);
    let named = look::variable(root, b"SD_MONITOR=").map(|path| PathBuf::from(OsString::from_vec(path)));
    let path = named.clone().unwrap_or_else(|| ours.clone());
    let shown = path.display();
    let found = std::fs::metadata(inside(root, &path));
    let identity = |found: &std::fs::Metadata| (found.dev(), found.ino());
    match (found, std::fs::metadata(&ours)) {
        (Err(error), _) if named.is_some() => Check::fail(
            name,
            format!("SD_MONITOR is {shown}, and in its mount namespace that cannot be found: {error}"),
            "mount the directory that has the monitor's socket there",
        ),
        (Err(error), _) => Check::fail(
            name,
            format!("it has no SD_MONITOR, and {shown} cannot be found in its mount namespace: {error}"),
            "mount the socket's directory, and name the socket by SD_MONITOR",
        ),
        (Ok(found), Ok(known)) if identity(&found) != identity(&known) => Check::warn(
            name,
            format!("it uses {shown}, which is not the socket of {}", ours.display()),
            "name the same one by SD_MONITOR on both sides, or mount it again if the monitor was started again",
        ),
        _ => Check::ok(name, format!("{shown} is the monitor's, in its mount namespace too")),
    }
}

fn namespace(root: &str, kind: &str, name: &'static str, advice: &str) -> Check {
    let of = |root: &str| std::fs::read_link(format!("{root}/ns/{kind}")).ok();
    match (of(root), of("/proc/self")) {
        (Some(theirs), Some(own)) if theirs != own => {
            Check::warn(name, format!("{}, and this is {}", theirs.display(), own.display()), advice)
        }
        (None, _) => Check::warn(name, "it may not be looked at", "look as root"),
        _ => Check::ok(name, "the same as here"),
    }
}

fn registered(root: &str, maps: &[u8]) -> Check {
    let name = "registration";
    match look::is_registered(root, maps) {
        true => Check::ok(name, "a monitor knows it"),
        false => Check::warn(
            name,
            "no monitor knows it",
            "a process without a socket needs none; else the lines above, or sd doctor in there, say why",
        ),
    }
}

/// What the monitor says of its connections.
fn connections(pid: u32, answer: &Result<Value, Silence>) -> Check {
    let name = "connections";
    let all = match answer {
        Ok(status) => status::connections(status).unwrap_or_default(),
        Err(silence) => {
            return Check::warn(name, format!("not known: {silence}"), "start a monitor; sd run does");
        }
    };
    let mut ways: BTreeMap<String, usize> = BTreeMap::new();
    let way = |c: Connection| match c.reason {
        Some(reason) if !reason.is_empty() => format!("{} ({reason})", c.path),
        _ => c.path,
    };
    all.into_iter().filter(|c| c.pid == u64::from(pid)).for_each(|c| *ways.entry(way(c)).or_default() += 1);
    let text: Vec<String> = ways.iter().map(|(way, count)| format!("{count} {way}")).collect();
    match text.is_empty() {
        true => Check::ok(name, "the monitor knows none of it"),
        false => Check::ok(name, text.join(", ")),
    }
}
