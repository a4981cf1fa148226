//! Connections of registered processes that the monitor does not know: those that have not lasted yet have no entry in any slab (ADR 97).
//! Found below /proc, as far as this user may look there.

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;

type Tcp = BTreeMap<u64, TcpNetEntry>;

/// What was read below /proc, each once.
#[derive(Default)]
struct Seen {
    /// Numbers that lead to sockets, with the inodes of those, by process.
    sockets: BTreeMap<i32, BTreeMap<i32, u64>>,
    /// By what the link to the network namespace says.
    tcp: BTreeMap<PathBuf, Tcp>,
}

/// Sockets that a status document names.
#[derive(Default)]
struct Known {
    inodes: HashSet<u64>,
    /// Both names of those that could not be found: a child has them, and their entry is its parent's.
    names: HashSet<(String, String)>,
}

/// Adds them to the connections of a status document.
pub(crate) fn add(status: &mut Value) {
    let mut seen = Seen::default();
    let (mut known, mut found) = (Known::of(status, &mut seen), Vec::new());
    for (pid, comm) in clients(status) {
        found.extend(of(pid, &comm, &mut known, &mut seen).unwrap_or_default());
    }
    if let Some(all) = status["connections"].as_array_mut() {
        all.extend(found);
    }
}

fn objects<'a>(status: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    status[list].as_array().into_iter().flatten()
}

fn number(of: &Value, name: &str) -> Option<i32> {
    i32::try_from(of[name].as_i64()?).ok()
}

fn clients(status: &Value) -> Vec<(i32, String)> {
    let client = |one: &Value| Some((number(one, "pid")?, one["comm"].as_str()?.to_owned()));
    let own = objects(status, "clients").filter(|one| one["carries"] != true);
    own.filter_map(client).collect()
}

impl Known {
    fn of(status: &Value, seen: &mut Seen) -> Known {
        let mut known = Known::default();
        for one in objects(status, "connections") {
            let (Some(pid), Some(fd)) = (number(one, "pid"), number(one, "fd")) else { continue };
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            match seen.sockets_of(pid).get(&fd) {
                Some(inode) => known.inodes.insert(*inode),
                None => known.names.insert((text("local"), text("peer"))),
            };
        }
        known
    }

    fn has(&self, inode: u64, entry: &TcpNetEntry) -> bool {
        let names = || (name(entry.local_address), name(entry.remote_address));
        self.inodes.contains(&inode) || !self.names.is_empty() && self.names.contains(&names())
    }
}

impl Seen {
    /// None of a process that cannot be looked at.
    fn sockets_of(&mut self, pid: i32) -> &BTreeMap<i32, u64> {
        let read = || Process::new(pid).map(|process| sockets_of(&process)).unwrap_or_default();
        self.sockets.entry(pid).or_insert_with(read)
    }

    /// Of the process's network namespace.
    fn tcp_of(&mut self, process: &Process) -> &Tcp {
        let namespace = std::fs::read_link(format!("/proc/{}/ns/net", process.pid));
        let unknown = || PathBuf::from(process.pid.to_string());
        self.tcp.entry(namespace.unwrap_or_else(|_| unknown())).or_insert_with(|| tcp_of(process))
    }
}

/// What a process has that is not known; it is then. A process of that number that has another name is another one's number: this
/// program is in another PID namespace than the monitor.
fn of(pid: i32, comm: &str, known: &mut Known, seen: &mut Seen) -> Option<Vec<Value>> {
    let process = Process::new(pid).ok()?;
    if process.stat().ok()?.comm != comm {
        return None;
    }
    let sockets = seen.sockets_of(pid).clone();
    if sockets.values().all(|inode| known.inodes.contains(inode)) {
        return None;
    }
    let tcp = seen.tcp_of(&process);
    let is_connection = |entry: &TcpNetEntry| !matches!(entry.state, TcpState::Listen | TcpState::TimeWait);
    let young = sockets.into_iter().filter_map(|(fd, inode)| {
        let entry = tcp.get(&inode).filter(|entry| is_connection(entry) && !known.has(inode, entry))?;
        known.inodes.insert(inode);
        Some(line((pid, comm, fd), entry))
    });
    Some(young.collect())
}

/// Whether a process has a TCP socket that is bound or connected.
pub(crate) fn has_tcp(pid: i32) -> bool {
    Process::new(pid).is_ok_and(|process| {
        let tcp = tcp_of(&process);
        sockets_of(&process).values().any(|inode| tcp.contains_key(inode))
    })
}

/// Numbers of a process that lead to sockets, with the inodes of those.
fn sockets_of(process: &Process) -> BTreeMap<i32, u64> {
    let inode = |target| if let FDTarget::Socket(inode) = target { Some(inode) } else { None };
    let all = process.fd().into_iter().flatten().flatten();
    all.filter_map(|info| Some((info.fd, inode(info.target)?))).collect()
}

/// TCP sockets of the process's network namespace, by inode.
fn tcp_of(process: &Process) -> Tcp {
    let all = process.tcp().unwrap_or_default().into_iter().chain(process.tcp6().unwrap_or_default());
    all.filter(|entry| entry.inode != 0).map(|entry| (entry.inode, entry)).collect()
}

fn line((pid, comm, fd): (i32, &str, i32), entry: &TcpNetEntry) -> Value {
    json!({
        "pid": pid, "comm": comm, "fd": fd,
        "local": name(entry.local_address), "peer": name(entry.remote_address),
        "state": state(&entry.state), "path": "kernel", "reason": "it has not lasted yet, or is not followed",
        "rx_queue": entry.rx_queue, "tx_queue": entry.tx_queue, "rx_bytes": 0, "tx_bytes": 0,
    })
}

/// As the monitor writes it.
fn name(of: SocketAddr) -> String {
    SocketAddr::new(of.ip().to_canonical(), of.port()).to_string()
}

/// As the monitor names it.
fn state(of: &TcpState) -> &'static str {
    match of {
        TcpState::Established => "ESTABLISHED",
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynRecv => "SYN_RECV",
        TcpState::FinWait1 => "FIN_WAIT1",
        TcpState::FinWait2 => "FIN_WAIT2",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::LastAck => "LAST_ACK",
        TcpState::Closing => "CLOSING",
        _ => "CLOSE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn own_name() -> String {
        Process::myself().unwrap().stat().unwrap().comm
    }

    #[test]
    fn a_connection_without_an_entry_is_found_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let duplicate = one.try_clone().unwrap();
        let (pid, comm) = (std::process::id(), own_name());
        let is_one = |line: &&Value| {
            [one.as_raw_fd(), duplicate.as_raw_fd()].map(i64::from).contains(&line["fd"].as_i64().unwrap())
        };
        let mut status = json!({"clients": [{"pid": pid, "comm": comm}], "connections": []});
        add(&mut status);
        let all = status["connections"].as_array().unwrap();
        let found: Vec<&Value> = all.iter().filter(is_one).collect();
        assert_eq!(found.len(), 1, "{all:?}");
        let found = found[0];
        assert_eq!(found["peer"], listener.local_addr().unwrap().to_string());
        assert_eq!((found["path"].as_str(), found["state"].as_str()), (Some("kernel"), Some("ESTABLISHED")));
        add(&mut status);
        let again = status["connections"].as_array().unwrap().iter().filter(is_one).count();
        assert_eq!(again, 1, "it is known now");
    }

    #[test]
    fn what_a_child_of_its_owner_has_is_known_by_its_names() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, peer) = (one.local_addr().unwrap().to_string(), one.peer_addr().unwrap().to_string());
        let listed = json!({"pid": 1, "comm": "parent", "fd": 100_000, "local": local, "peer": peer});
        let mut status =
            json!({"clients": [{"pid": std::process::id(), "comm": own_name()}], "connections": [listed]});
        add(&mut status);
        let all = status["connections"].as_array().unwrap();
        assert!(all.iter().skip(1).all(|line| line["fd"] != one.as_raw_fd()), "{all:?}");
    }

    #[test]
    fn another_process_of_that_number_is_left_out() {
        let mut status =
            json!({"clients": [{"pid": std::process::id(), "comm": "other"}], "connections": []});
        add(&mut status);
        assert_eq!(status["connections"], json!([]));
    }
}
