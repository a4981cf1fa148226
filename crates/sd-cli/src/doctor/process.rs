//! `sd doctor --pid PID`: why the connections of a process that runs already are the kernel's.

use super::{Check, Verdict, go};
use crate::absent::{self, Absence, inside};
use crate::unregistered as look;
use sd_cli::client::Silence;
use sd_cli::place;
use sd_cli::status::{self, Connection};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

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
    if is_loaded {
        checks.extend(go::led(&root, &maps));
    }
    checks.push(socket(&root));
    checks.extend(no_proc(&root));
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
    checks.extend(connections(pid, answer));
    checks
}

/// Whether the library is in it; and if not, who has lost it.
fn preloaded(root: &str, maps: &[u8]) -> Check {
    let name = "library";
    match absent::why(root, maps) {
        None => Check::ok(name, "it is loaded"),
        Some(Absence { reason, advice, is_meant: true }) => Check::warn(name, reason, advice),
        Some(absence) => Check::fail(name, format!("it is not loaded: {}", absence.reason), absence.advice),
    }
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

/// The library asks the kernel by proc(5) what an epoll instance has registered.
fn no_proc(root: &str) -> Option<Check> {
    let is_there = std::fs::symlink_metadata(inside(root, "/proc/self".as_ref())).is_ok();
    (!is_there).then(|| {
        Check::warn(
            "proc(5)",
            "there is no /proc in its root file system: connections in epoll instances are not moved to shared memory",
            "mount proc(5) there",
        )
    })
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

/// Connections that are shown one by one.
const SHOWN: usize = 32;

/// What the monitor says of its connections: how many take which road, and of each why, and what would bring it elsewhere.
fn connections(pid: u32, answer: &Result<Value, Silence>) -> Vec<Check> {
    let name = "connections";
    let all = match answer {
        Ok(status) => status::connections(status).unwrap_or_default(),
        Err(silence) => {
            return vec![Check::warn(name, format!("not known: {silence}"), "start a monitor; sd run does")];
        }
    };
    let own: Vec<Connection> = all.into_iter().filter(|c| c.pid == u64::from(pid)).collect();
    let mut roads: BTreeMap<String, usize> = BTreeMap::new();
    own.iter().for_each(|c| *roads.entry(c.road()).or_default() += 1);
    let mut counts: Vec<String> = roads.iter().map(|(road, count)| format!("{count} {road}")).collect();
    if own.len() > SHOWN {
        counts.push(format!("of which {SHOWN} are shown; sd ss shows all"));
    }
    let counts = if own.is_empty() { "the monitor knows none of it".to_owned() } else { counts.join(", ") };
    let each = |c: &Connection| {
        Check::ok("connection", format!("{} to {}: {}: {}", c.local, c.peer, c.road(), c.why()))
    };
    let mut checks = vec![Check::ok(name, counts)];
    checks.extend(own.iter().take(SHOWN).map(each));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_connection_has_its_road_and_the_reason() {
        let of = |pid: u32, port: usize| {
            json!({"pid": pid, "comm": "redis", "fd": 8, "local": "127.0.0.1:6379", "peer": format!("127.0.0.1:{port}"),
                "state": "ESTAB", "path": "kernel", "reason": "peer is not accelerated", "awaits": "too slow"})
        };
        let mut ring = of(7, 40001);
        (ring["path"], ring["reason"], ring["awaits"]) = (json!("shm"), json!(null), json!(null));
        let mut all = vec![of(7, 40000), ring, of(8, 40002)];
        let said = |all: &[Value]| -> Vec<String> {
            connections(7, &Ok(json!({ "connections": all }))).into_iter().map(|check| check.detail).collect()
        };
        assert_eq!(
            said(&all),
            [
                "1 kernel, 1 shm",
                "127.0.0.1:6379 to 127.0.0.1:40000: kernel: peer is not accelerated; not moved: too slow",
                "127.0.0.1:6379 to 127.0.0.1:40001: shm: -",
            ]
        );
        all.extend((0..SHOWN).map(|at| of(7, at)));
        let many = said(&all);
        assert!(many.len() == 1 + SHOWN && many[0].ends_with("sd ss shows all"), "{}", many[0]);
        assert_eq!(said(&[]), ["the monitor knows none of it"]);
    }
}
