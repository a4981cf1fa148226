//! `sd trace PID`: the socket calls of a process, and the roads that its connections take.
//!
//! ```text
//! kernel's probes at the library's functions --registers, time--> hits --pairs--> calls
//! monitor --document, ten times a second--> roads, where they changed
//! ```

mod calls;
mod probes;
mod program;
mod roads;

use calls::Done;
use probes::{Hit, Passed, Probes};
use roads::Roads;
use sd_cli::cli::TraceOptions;
use sd_cli::failure::{Failure, Result, print, warn};
use sd_cli::place;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// A signal asks for the end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end(_signal: i32) {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Runs until the process ends, a signal comes, or the time is over.
pub(crate) fn main(options: &TraceOptions) -> Result<()> {
    let pid = options.pid;
    let library = library_of(pid)?;
    let places =
        probes::places(&library).map_err(|error| Failure::new(format!("{}: {error}", library.display())))?;
    let pidfd = sd_sys::fd::pidfd_open(pid as i32)
        .map_err(|error| Failure::new(format!("process {pid}: {}", sd_cli::failure::os_error(error))))?;
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let handler = note_end as extern "C" fn(i32);
        // SAFETY: the handler stores to an atomic and nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let probes = Probes::set(pid, &library, &places).map_err(|error| refused(&error))?;
    let mut trace = Trace {
        pid,
        probes,
        open: BTreeMap::new(),
        sockets: BTreeMap::new(),
        roads: Roads::new(place::socket(options.socket.as_deref()), pid),
        wall_ns: wall_ns(),
        is_json: options.json,
    };
    let end = options.seconds.map(|seconds| Instant::now() + seconds);
    let mut has_ended = false;
    while !has_ended && !IS_OVER.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        has_ended = ends_within(pidfd.raw(), PAUSE);
        trace.look()?;
    }
    let lost = trace.probes.lost();
    if lost > 0 {
        warn(&format!("{lost} events came faster than they could be read, and are not shown"));
    }
    Ok(())
}

struct Trace {
    pid: u32,
    probes: Probes,
    /// Calls that have not returned, by thread: within each other, as handlers interrupt.
    open: BTreeMap<u32, Vec<Hit>>,
    /// Whether descriptors are sockets, as far as that was looked at.
    sockets: BTreeMap<i32, bool>,
    roads: Roads,
    /// What has to be added to CLOCK_MONOTONIC for the time of day.
    wall_ns: u64,
    is_json: bool,
}

impl Trace {
    /// Shows what has happened since.
    fn look(&mut self) -> Result<()> {
        let mut hits = Vec::new();
        self.probes.take(&mut hits);
        let mut lines: Vec<(u64, String)> = Vec::new();
        for hit in hits {
            let Some(done) = self.pair(hit) else { continue };
            let line = if self.is_json { json(&done) } else { done.line() };
            lines.push((done.at_ns, line));
        }
        for change in self.roads.changes() {
            let line = if self.is_json { json(&change) } else { change.line() };
            lines.push((change.at_ns, line));
        }
        lines.sort_by_key(|(at_ns, _)| *at_ns);
        let line = |(at_ns, line): (u64, String)| match self.is_json {
            true => line + "\n",
            false => format!("{} {line}\n", clock(at_ns + self.wall_ns)),
        };
        print(&lines.into_iter().map(line).collect::<String>())
    }

    /// The call that has returned, if this is where, and it was about a socket.
    fn pair(&mut self, hit: Hit) -> Option<Done> {
        let open = self.open.entry(hit.tid).or_default();
        let Passed::End(result) = hit.passed else {
            open.push(hit);
            return None;
        };
        // What has begun inside of it and did not return was left by longjmp.
        let at = open.iter().rposition(|begun| begun.call == hit.call)?;
        let begun = open.drain(at..).next()?;
        let (call, Passed::Begin(given)) = (calls::numbered(hit.call)?, begun.passed) else {
            return None;
        };
        let done = Done::new(call, (begun.at_ns, begun.tid), &given, (result, hit.at_ns));
        let fd = call.fd(&given.registers);
        let is_shown = fd.is_none_or(|fd| self.is_socket(fd));
        if let Some(fd) = fd.filter(|_| call.name == "close") {
            self.sockets.remove(&fd);
        }
        if call.makes_fd && done.result >= 0 {
            self.sockets.insert(done.result as i32, is_shown);
        }
        is_shown.then_some(done)
    }

    fn is_socket(&mut self, fd: i32) -> bool {
        let path = format!("/proc/{}/fd/{fd}", self.pid);
        let look = || std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        *self.sockets.entry(fd).or_insert_with(look)
    }
}

/// The library that the process has, by a path that leads to it from here: also from another mount namespace, and when its name is
/// gone or another file's.
fn library_of(pid: u32) -> Result<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| Failure::new(format!("process {pid}: {error}")))?;
    match mapping_of_library(&maps) {
        Some(range) => Ok(PathBuf::from(format!("/proc/{pid}/map_files/{range}"))),
        None => {
            let text = format!("process {pid} does not have the library; sd doctor --pid {pid} says why");
            Err(Failure::new(text))
        }
    }
}

/// The addresses of a mapping of it, in proc_pid_maps(5).
fn mapping_of_library(maps: &str) -> Option<&str> {
    let is_it = |line: &&str| {
        let path = line.find('/').and_then(|at| line.get(at..)).unwrap_or_default().trim();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        std::path::Path::new(path).file_name().is_some_and(|name| name == sd_cli::library::FILE)
    };
    maps.lines().find(is_it)?.split(' ').next()
}

/// Why there is no probe.
fn refused(error: &std::io::Error) -> Failure {
    let why = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => " (it takes root: CAP_BPF and CAP_PERFMON)",
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
            " (Linux 6.6 with CONFIG_BPF_EVENTS is needed)"
        }
        _ => "",
    };
    Failure::new(format!("no probe can be set: {error}{why}"))
}

/// Waits so long; true when the process has ended.
fn ends_within(pidfd: i32, pause: Duration) -> bool {
    let mut watched = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one element, valid during the call.
    unsafe { libc::poll(&raw mut watched, 1, pause.as_millis() as i32) > 0 }
}

fn json(event: &impl serde::Serialize) -> String {
    serde_json::to_string(event).unwrap_or_default()
}

fn wall_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).saturating_sub(sd_sys::time::now_ns())
}

/// The time of day, in UTC.
fn clock(ns: u64) -> String {
    let (seconds, us) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
    format!("{:02}:{:02}:{:02}.{us:06}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day() {
        assert_eq!(clock(((25 * 3600 + 61) * 1_000_000 + 7) * 1000), "01:01:01.000007");
    }
    #[test]
    fn libraries() {
        let maps =
            "7f1-7f2 r--p 0 fe:01 7   /lib/libc.so.6\n7f3-7f4 r-xp 0 fe:01 8   /a b/libsd.so (deleted)\n";
        assert_eq!(mapping_of_library(maps), Some("7f3-7f4"));
        assert_eq!(
            mapping_of_library("7f1-7f2 r--p 0 fe:01 7   /lib/notlibsd.so\n7f5-7f6 rw-p 0 00:00 0\n"),
            None
        );
    }
}
