//! Our own parts, and what stands in their way: library, socket, monitor, other preloaded libraries.

use super::{Check, container, peer, read};
use sd_cli::client::{self, Silence};
use sd_cli::{library, place};
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Libraries that hook the same calls. Behind us they see only what we pass on.
const RIVALS: &[&str] = &[
    "libvma",
    "libxlio",
    "libonload",
    "libsdp",
    "librspreload",
    "libproxychains",
    "libtsocks",
    "libtorsocks",
    "libmirrord",
    "libfstack",
    "libvcl_ldpreload",
    "libscopeux",
];

pub(super) fn checks(socket: &Path, answer: &Result<Value, Silence>) -> Vec<Check> {
    vec![library(), directory(socket), monitor(socket, answer), preload(), congestion()]
}

fn library() -> Check {
    let name = "library";
    let path = match library::find() {
        Ok(path) => path,
        Err(reason) => return Check::fail(name, reason, "install it there, or name it in SD_LIB"),
    };
    match load(&path) {
        Ok(()) => Check::ok(name, format!("{} is found and can be loaded", path.display())),
        Err(reason) => Check::fail(
            name,
            format!("{}: {reason}", path.display()),
            "build it for this machine and this C library; a sd that is linked statically cannot load it",
        ),
    }
}

/// Starts this program with the library, and asks it whether the library is there.
fn load(library: &Path) -> Result<(), String> {
    let preload = library::preload(library, None)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = std::process::Command::new(program);
    command.args([peer::NAME, "loaded"]).env("LD_PRELOAD", preload).env("SD_MONITOR", "/dev/null");
    let output = command.output().map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.stdout.as_slice() {
        b"loaded\n" if errors.is_empty() => Ok(()),
        b"loaded\n" => Err(format!("it writes to standard error: {}", errors.trim())),
        _ if !output.status.success() => Err(format!("a program with it ends with {}", output.status)),
        _ if errors.is_empty() => Err("it is not loaded".to_owned()),
        _ => Err(errors.trim().to_owned()),
    }
}

fn directory(socket: &Path) -> Check {
    let name = "socket directory";
    let folder = place::directory(socket);
    let shown = folder.display();
    let advice = "name a socket by SD_MONITOR, in a directory that only you or root can change";
    if folder.exists() {
        // Where somebody has put a socket already, nobody else needs to.
        return match place::check_way(socket) {
            Err(doubt) => Check::fail(name, doubt.text, advice),
            Ok(()) if socket.exists() || place::is_writable(folder) => {
                Check::ok(name, format!("{shown} can be used"))
            }
            Ok(()) => Check::fail(name, format!("{shown}: {}", sd_cli::failure::last_os_error()), advice),
        };
    }
    match folder.ancestors().find(|above| above.exists()).map(place::check_creatable) {
        Some(Ok(())) => Check::ok(name, format!("{shown} can be made")),
        Some(Err(reason)) => Check::fail(name, reason, advice),
        None => Check::fail(name, format!("{shown} cannot be made"), advice),
    }
}

fn monitor(socket: &Path, answer: &Result<Value, Silence>) -> Check {
    let name = "monitor";
    let shown = socket.display();
    match answer {
        Ok(status) => match client::foreign_version(status) {
            None => Check::ok(name, format!("{shown}: process {}, of this version", status["pid"])),
            Some(version) => Check::fail(
                name,
                format!("{shown}: process {} is of version {version}", status["pid"]),
                "end it; the next sd run starts a new one",
            ),
        },
        Err(silence @ Silence::Stale) if container::is_mounted_at(socket) => Check::fail(
            name,
            format!("{shown}: {silence}, and the socket itself was mounted here"),
            "a monitor that was started again has another socket: mount its directory instead, and start this container again",
        ),
        Err(silence @ Silence::Absent) if std::env::var_os("SD_MONITOR").is_some_and(|it| !it.is_empty()) => {
            Check::warn(
                name,
                format!("{shown}, which SD_MONITOR names: {silence}"),
                "mount the directory that has the socket there, or sd run starts a monitor that this container has alone",
            )
        }
        Err(silence @ Silence::Absent) if container::is_inside() => Check::warn(
            name,
            format!("{shown}: {silence} in this container"),
            "mount the directory with the host's socket and name it by SD_MONITOR; a monitor that sd run starts is this container's alone",
        ),
        Err(silence @ (Silence::Absent | Silence::Stale)) => {
            Check::warn(name, format!("{shown}: {silence}"), "none is needed now; sd run starts one")
        }
        Err(silence @ Silence::Stranger(sd_sys::trust::OVERFLOW_UID)) => Check::fail(
            name,
            format!("{shown}: {silence}"),
            "mount the socket, or its directory read-only, where only root of this namespace can write, or start a monitor inside",
        ),
        Err(silence) => Check::fail(
            name,
            format!("{shown}: {silence}"),
            "end that process, or name another socket by SD_MONITOR",
        ),
    }
}

fn preload() -> Check {
    let name = "LD_PRELOAD";
    let environment = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let file = std::fs::read("/etc/ld.so.preload").unwrap_or_default();
    let lines: Vec<u8> = file.iter().map(|b| if b.is_ascii_whitespace() { b':' } else { *b }).collect();
    let lines = OsString::from_vec(lines);
    let both = library::entries(&environment).chain(library::entries(&lines));
    let others: Vec<String> =
        both.filter(|e| !library::is_ours(e)).map(|e| String::from_utf8_lossy(e).into_owned()).collect();
    let both = library::entries(&environment).chain(library::entries(&lines));
    let missing = both
        .filter(|entry| library::is_ours(entry) && entry.contains(&b'/'))
        .find(|entry| !Path::new(std::ffi::OsStr::from_bytes(entry)).exists());
    if let Some(missing) = missing {
        let text =
            format!("{} is preloaded, and not in this mount namespace", String::from_utf8_lossy(missing));
        return Check::fail(name, text, "mount or copy the library to that place");
    }
    let rivals: Vec<&String> =
        others.iter().filter(|other| RIVALS.iter().any(|rival| other.contains(rival))).collect();
    let is_for_all = library::entries(&lines).any(library::is_ours);
    match (others.is_empty(), rivals.first()) {
        (true, _) if is_for_all => Check::ok(
            name,
            "/etc/ld.so.preload loads the library into every program; those that are set-user-id or have file capabilities are left alone",
        ),
        (true, _) => Check::ok(name, "no other library is preloaded"),
        (false, None) => Check::ok(name, format!("also preloaded: {}", others.join(", "))),
        (false, Some(rival)) => Check::warn(
            name,
            format!("{rival} hooks the same calls"),
            "it sees only what goes to the kernel; use one of the two",
        ),
    }
}

/// Not ours, but it decides how fast the other path is.
fn congestion() -> Check {
    let name = "kernel TCP";
    let control = read("/proc/sys/net/ipv4/tcp_congestion_control");
    match control.as_str() {
        "bbr" => Check::warn(
            name,
            "congestion control is bbr, which slows loopback TCP down",
            "sd bench pins cubic; net.ipv4.tcp_congestion_control=cubic helps connections on the kernel path",
        ),
        "" => Check::warn(name, "congestion control cannot be read", "mount /proc"),
        other => Check::ok(name, format!("congestion control is {other}")),
    }
}
