//! Programs that have the library, or should have it, and TCP sockets, and are unknown to the monitor: their connections are the kernel's,
//! and no line of `sd ss` would show them. Found below /proc, as far as this user may look there.

use crate::absent;
use crate::young::Seen;
use sd_attach::dynamic::{Linked, Window};
use serde_json::{Value, json};
use std::fmt::{Display, Formatter, Result};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// auxv(5): the last one, and whether exec gave the program rights.
const AT_NULL: u64 = 0;
const AT_SECURE: u64 = 23;

/// A program of which the monitor knows nothing, though it was started to be known.
pub(crate) struct Unregistered {
    pid: u32,
    comm: String,
    has_library: bool,
    reason: String,
}

impl Display for Unregistered {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        let Unregistered { pid, comm, reason, .. } = self;
        let has = if self.has_library { "has" } else { "has not" };
        write!(
            to,
            "note: {comm} (process {pid}) {has} the library, and its TCP sockets are the kernel's: {reason}"
        )
    }
}

impl From<Unregistered> for Value {
    fn from(of: Unregistered) -> Value {
        json!({"pid": of.pid, "comm": of.comm, "has_library": of.has_library, "reason": of.reason})
    }
}

/// Each such program that would look for its monitor at `socket`, or whose exec left it without the library.
pub(crate) fn all(socket: &Path) -> impl Iterator<Item = Unregistered> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut seen = Seen::default();
    pids.filter(|pid| *pid != std::process::id()).filter_map(move |pid| one(pid, socket, &mut seen))
}

fn one(pid: u32, socket: &Path, seen: &mut Seen) -> Option<Unregistered> {
    let root = format!("/proc/{pid}");
    let maps = fs::read(format!("{root}/maps")).ok()?;
    let has_library = sd_cli::library::is_mapped(&maps);
    let is_one = if has_library { !is_registered(&root, &maps) } else { absent::is_named(&root) };
    if !is_one || !seen.has_tcp(pid as i32) {
        return None;
    }
    let named = variable(&root, b"SD_MONITOR=");
    if named.as_deref().is_some_and(|path| path != socket.as_os_str().as_bytes()) {
        return None;
    }
    let name = fs::read_to_string(format!("{root}/comm")).unwrap_or_default();
    let absence = absent::why(&root, &maps);
    let reason = absence.map_or_else(|| why_unknown(&root, socket).to_owned(), |absence| absence.reason);
    Some(Unregistered { pid, comm: name.trim().to_owned(), has_library, reason })
}

/// Of one that has the library.
fn why_unknown(root: &str, socket: &Path) -> &'static str {
    if is_secure(root) {
        "its exec gave it rights (set-user-id or file capabilities), so it is left alone"
    } else if is_unbegun(root) {
        "it begins without the start of musl's libc, which would begin the library (as Go's own linker makes programs with cgo): link it with gcc"
    } else if is_elsewhere(root) {
        "it is in another user namespace, and does not believe the monitor; sd doctor in there says why"
    } else if promotes(socket) {
        "it has not registered: none of its own connections has lasted, or sd doctor in its environment says why"
    } else {
        "it is not registered with the monitor; sd doctor in its environment says why"
    }
}

/// Whether processes register there only when a connection lasts (ADR 79, ADR 94).
fn promotes(socket: &Path) -> bool {
    fs::metadata(socket).is_ok_and(|found| found.mode() & sd_sys::trust::PROMOTES != 0)
}

/// Who has a slab is registered, or the child of one that is, or listens and waits for a monitor.
pub(crate) fn is_registered(root: &str, maps: &[u8]) -> bool {
    let has = |text: &[u8]| maps.windows(text.len()).any(|window| window == text);
    has(b"/memfd:sd-memory") || has(b"/memfd:sd-slab") && has_had_a_monitor(root)
}

/// Whether a monitor has set its mark in a slab of the process's; yes where that cannot be seen.
fn has_had_a_monitor(root: &str) -> bool {
    let links = fs::read_dir(format!("{root}/fd")).into_iter().flatten().flatten();
    let is_slab =
        |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == "/memfd:sd-slab (deleted)");
    let mut slabs = links.map(|entry| entry.path()).filter(|path| is_slab(path)).peekable();
    let marked = |path: std::path::PathBuf| {
        let mut place = [0; 8];
        let at = std::mem::offset_of!(sd_shm::slab::Header, place) as u64;
        let read = fs::File::open(path).and_then(|file| file.read_exact_at(&mut place, at));
        read.is_err() || place != [0; 8]
    };
    slabs.peek().is_none() || slabs.any(marked)
}

/// Of its environment, as it was when the program began.
pub(crate) fn variable(root: &str, name: &[u8]) -> Option<Vec<u8>> {
    let environment = fs::read(format!("{root}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name)).map(<[u8]>::to_vec)
}

/// Whether its exec gave it rights.
pub(crate) fn is_secure(root: &str) -> bool {
    let words = fs::read(format!("{root}/auxv")).unwrap_or_default();
    let mut words = words.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_SECURE || kind == AT_NULL {
            return kind == AT_SECURE && value != 0;
        }
    }
    false
}

/// Whether no constructor is run in the program, so the library does not begin.
fn is_unbegun(root: &str) -> bool {
    let Ok(file) = fs::File::open(format!("{root}/exe")) else { return false };
    let (fd, mut window) = (file.as_raw_fd(), [0; size_of::<Window>()]);
    Linked::of(fd, &mut window).is_some_and(|found| !found.runs_constructors(fd, &mut window))
}

fn is_elsewhere(root: &str) -> bool {
    let namespace = |root: &str| fs::read_link(format!("{root}/ns/user")).ok();
    namespace(root).is_some_and(|theirs| Some(theirs) != namespace("/proc/self"))
}
