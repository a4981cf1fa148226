//! What `/proc` says about processes: descendants, processor time, descriptors, shared memory, listeners.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub comm: String,
    /// As in proc(5): `R`, `S`, `Z` and so on.
    pub state: char,
}

/// Reads `/proc/PID/stat`; `None` when there is no such process.
pub fn process(pid: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&text)
}

fn parse_stat(text: &str) -> Option<Process> {
    // The name stands in parentheses and may contain any character, so cut at the last one.
    let (head, tail) = text.rsplit_once(')')?;
    let (pid, comm) = head.split_once('(')?;
    let mut fields = tail.split_whitespace();
    Some(Process {
        pid: pid.trim().parse().ok()?,
        comm: comm.to_owned(),
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
    })
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(process).collect()
}

/// Every live process below `root`, parents first. Zombies are left out: they hold nothing but a number.
pub fn descendants(root: u32) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        for process in children.remove(&pid).unwrap_or_default() {
            next.push(process.pid);
            if process.state != 'Z' {
                found.push(process);
            }
        }
    }
    found
}

/// The live processes that a process has started itself.
pub fn children(parent: u32) -> Vec<Process> {
    let mut found = descendants(parent);
    found.retain(|process| process.parent == parent);
    found
}

pub fn is_alive(pid: u32) -> bool {
    process(pid).is_some_and(|p| p.state != 'Z')
}

/// Processor time, so far, of all threads of a process that live.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Number of open descriptors.
pub fn fd_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The lowest number that no descriptor has.
pub fn lowest_free_fd(pid: u32) -> u64 {
    let is_open = |number: &u64| Path::new(&format!("/proc/{pid}/fd/{number}")).symlink_metadata().is_ok();
    (0..).find(|number| !is_open(number)).unwrap_or(0)
}

/// Address space in use.
pub fn mapped_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// What the open descriptors are, for the message about a leak.
pub fn fd_targets(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut targets: Vec<String> = entries
        .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
        .collect();
    targets.sort();
    targets
}

/// Bytes of memory files (memfd or tmpfs) that these processes hold open or mapped, each file counted once.
pub fn shared_memory_bytes(pids: &[u32]) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for pid in pids {
        for folder in ["fd", "map_files"] {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/{folder}")) else { continue };
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                if !is_memory_file(&path) {
                    continue;
                }
                let Ok(meta) = fs::metadata(&path) else { continue };
                if seen.insert((meta.dev(), meta.ino())) {
                    bytes += meta.blocks() * 512;
                }
            }
        }
    }
    bytes
}

/// A line of proc_meminfo(5).
pub fn memory_kib(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Bytes of shared memory that a process has touched or seen (proc_pid_status(5), RssShmem).
pub fn shared_resident_bytes(pid: u32) -> u64 {
    status_kib(pid, "RssShmem:") << 10
}

/// Memory of a process that no file stands behind: heap and stacks.
pub fn anonymous_kib(pid: u32) -> u64 {
    status_kib(pid, "RssAnon:")
}

fn status_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn is_memory_file(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| {
        let target = target.to_string_lossy();
        target.starts_with("/memfd:") || target.starts_with("/dev/shm/") || target.starts_with("/dev/zero")
    })
}

/// Whether somebody listens on this TCP port of this network namespace.
pub fn is_listening(port: u16) -> bool {
    is_listening_in("/proc/net", port)
}

/// As `is_listening`, in the network of a process, which is ours once it has ended.
pub fn is_listening_near(pid: u32, port: u16) -> bool {
    let folder = format!("/proc/{pid}/net");
    let is_there = Path::new(&folder).join("tcp").exists();
    is_listening_in(if is_there { &folder } else { "/proc/net" }, port)
}

fn is_listening_in(folder: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|name| {
        let text = fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            local.ends_with(&suffix) && state == LISTEN
        })
    })
}

/// Names in `/dev/shm` that could be ours. Programs of others, also such as run beside us, leave theirs there.
pub fn shm_files() -> HashSet<String> {
    let Ok(entries) = fs::read_dir("/dev/shm") else { return HashSet::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("sd") || name.contains("socksdirect")).collect()
}

/// Whether others want the processors: all the while that this looks, more than two threads for each of them. What a test has
/// set off itself is over, or asleep.
pub fn is_busy() -> bool {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let running = || {
        std::thread::sleep(std::time::Duration::from_millis(3));
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let count = stat.lines().find_map(|line| line.strip_prefix("procs_running ")?.trim().parse().ok());
        count.unwrap_or(0_usize)
    };
    (0..20).all(|_| running() > 2 * processors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn stat_with_odd_name() {
        let p = parse_stat("42 (a) b (c) S 7 42 42 0").unwrap();
        assert_eq!((p.pid, p.parent, p.state, p.comm.as_str()), (42, 7, 'S', "a) b (c"));
    }

    #[test]
    fn own_listener_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        assert!(!is_listening(port));
    }

    #[test]
    fn time_passes() {
        // Not this process: of its threads, other tests' end meanwhile.
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; read line";
        let mut shell = Command::new("sh");
        let mut shell =
            shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut done = [0; 5];
        shell.stdout.take().unwrap().read_exact(&mut done).unwrap();
        assert!(cpu_ns(shell.id()) > 0);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
