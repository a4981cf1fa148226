//! Connections of registered processes that the monitor does not know: those that have not lasted yet have no entry in any slab (ADR 97).
//! Found below /proc, as far as this user may look there.

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

/// Sockets that a status document names.
#[derive(Default)]
struct Known {
    inodes: HashSet<u64>,
    /// Both names of those that could not be found: a child has them, and their entry is its parent's.
    names: HashSet<(String, String)>,
}

/// Adds them to the connections of a status document.
pub(crate) fn add(status: &mut Value) {
    let (mut known, mut found) = (Known::of(status), Vec::new());
    for (pid, comm) in clients(status) {
        found.extend(of(pid, &comm, &mut known).unwrap_or_default());
    }
    if let Some(all) = status["connections"].as_array_mut() {
        all.extend(found);
    }
}

fn objects<'a>(status: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    status[list].as_array().into_iter().flatten()
}

fn clients(status: &Value) -> Vec<(i32, String)> {
    let client =
        |one: &Value| Some((i32::try_from(one["pid"].as_i64()?).ok()?, one["comm"].as_str()?.to_owned()));
    objects(status, "clients").filter_map(client).collect()
}

impl Known {
    fn of(status: &Value) -> Known {
        let mut known = Known::default();
        let mut processes: BTreeMap<i64, BTreeMap<i32, u64>> = BTreeMap::new();
        let sockets = |pid: i64| i32::try_from(pid).ok().and_then(|pid| sockets_of(&Process::new(pid).ok()?));
        for one in objects(status, "connections") {
            let (Some(pid), Some(fd)) = (one["pid"].as_i64(), one["fd"].as_i64()) else { continue };
            let numbers = processes.entry(pid).or_insert_with(|| sockets(pid).unwrap_or_default());
            let inode = i32::try_from(fd).ok().and_then(|fd| numbers.get(&fd));
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            match inode {
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

/// Numbers of a process that lead to sockets, with the inodes of those, in the order of the numbers.
fn sockets_of(process: &Process) -> Option<BTreeMap<i32, u64>> {
    let inode = |target| if let FDTarget::Socket(inode) = target { Some(inode) } else { None };
    Some(process.fd().ok()?.flatten().filter_map(|info| Some((info.fd, inode(info.target)?))).collect())
}

/// What a process has that is not known; it is then. A process of that number that has another name is another one's number: this
/// program is in another PID namespace than the monitor.
fn of(pid: i32, comm: &str, known: &mut Known) -> Option<Vec<Value>> {
    let process = Process::new(pid).ok()?;
    if process.stat().ok()?.comm != comm {
        return None;
    }
    let sockets = sockets_of(&process)?;
    if sockets.values().all(|inode| known.inodes.contains(inode)) {
        return None;
    }
    let tcp = tables(&process);
    let young = sockets.into_iter().filter_map(|(fd, inode)| {
        let entry = tcp.get(&inode).filter(|entry| !known.has(inode, entry))?;
        known.inodes.insert(inode);
        Some(line((pid, comm, fd), entry))
    });
    Some(young.collect())
}

/// TCP connections of the process's network namespace, by inode.
fn tables(process: &Process) -> BTreeMap<u64, TcpNetEntry> {
    let v4 = process.tcp().unwrap_or_default();
    let v6 = process.tcp6().unwrap_or_default();
    let is_connection = |entry: &TcpNetEntry| !matches!(entry.state, TcpState::Listen | TcpState::TimeWait);
    let all = v4.into_iter().chain(v6).filter(is_connection);
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
