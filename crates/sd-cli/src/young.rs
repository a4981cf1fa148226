//! Connections of registered processes that the monitor does not know: those that have not lasted yet have no entry in any slab (ADR 97).
//! Found below /proc, as far as this user may look there.

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::Process;
use sd_sys::netlink::{Netlink, Tcp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fs::DirEntry;
use std::net::SocketAddr;
use std::path::PathBuf;

/// By inode.
type All = BTreeMap<u64, Tcp>;

/// What the kernel was asked, each once.
#[derive(Default)]
pub(crate) struct Seen {
    /// Numbers that lead to sockets, with the inodes of those, by process.
    sockets: BTreeMap<i32, BTreeMap<i32, u64>>,
    /// By what the link to the network namespace says.
    tcp: BTreeMap<PathBuf, All>,
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

    fn has(&self, inode: u64, entry: &Tcp) -> bool {
        let names = || (name(entry.local), name(entry.peer));
        self.inodes.contains(&inode) || !self.names.is_empty() && self.names.contains(&names())
    }
}

impl Seen {
    /// None of a process that cannot be looked at.
    fn sockets_of(&mut self, pid: i32) -> &BTreeMap<i32, u64> {
        self.sockets.entry(pid).or_insert_with(|| sockets_of(pid))
    }

    /// Of the process's network namespace.
    fn tcp_of(&mut self, process: &Process) -> &All {
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net"));
        let pid = process.pid.to_string();
        let its = namespace(&pid).unwrap_or_else(|_| PathBuf::from(pid));
        let own = || if namespace("self").is_ok_and(|own| own == its) { all_here() } else { None };
        let found = || own().unwrap_or_else(|| all_of(process));
        self.tcp.entry(its.clone()).or_insert_with(found)
    }

    /// Whether a process has a TCP socket that is bound or connected.
    pub(crate) fn has_tcp(&mut self, pid: i32) -> bool {
        let sockets = self.sockets_of(pid).clone();
        let Some(process) = Process::new(pid).ok().filter(|_| !sockets.is_empty()) else { return false };
        let tcp = self.tcp_of(&process);
        sockets.values().any(|inode| tcp.contains_key(inode))
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
    let is_connection = |entry: &Tcp| !matches!(state(entry), Some(TcpState::Listen | TcpState::TimeWait));
    let young = sockets.into_iter().filter_map(|(fd, inode)| {
        let entry = tcp.get(&inode).filter(|entry| is_connection(entry) && !known.has(inode, entry))?;
        known.inodes.insert(inode);
        Some(line((pid, comm, fd), entry))
    });
    Some(young.collect())
}

/// Numbers of a process that lead to sockets, with the inodes of those. A link is all that is read of each, as there may be many.
fn sockets_of(pid: i32) -> BTreeMap<i32, u64> {
    let one = |entry: DirEntry| {
        let to = std::fs::read_link(entry.path()).ok()?;
        let inode = to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some((entry.file_name().to_str()?.parse().ok()?, inode.parse().ok()?))
    };
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    all.flatten().filter_map(one).collect()
}

/// TCP sockets of this program's own network namespace. `None`: the kernel does not say so.
fn all_here() -> Option<All> {
    let mut all = All::new();
    let mut add = |tcp: Tcp| {
        if tcp.inode != 0 {
            all.insert(tcp.inode.into(), tcp);
        }
    };
    let netlink = Netlink::of_sockets().ok().filter(Netlink::knows_tcp)?;
    netlink.tcp(&mut add).ok()?;
    Some(all)
}

/// TCP sockets of the process's network namespace.
fn all_of(process: &Process) -> All {
    let all = process.tcp().unwrap_or_default().into_iter().chain(process.tcp6().unwrap_or_default());
    let tcp = |of: TcpNetEntry| Tcp {
        state: of.state as u8,
        local: of.local_address,
        peer: of.remote_address,
        rx_queue: of.rx_queue,
        tx_queue: of.tx_queue,
        inode: of.inode as u32,
    };
    all.filter(|entry| entry.inode != 0).map(|entry| (entry.inode, tcp(entry))).collect()
}

fn line((pid, comm, fd): (i32, &str, i32), entry: &Tcp) -> Value {
    json!({
        "pid": pid, "comm": comm, "fd": fd,
        "local": name(entry.local), "peer": name(entry.peer),
        "state": state_name(entry), "path": "kernel", "reason": "it has not lasted yet, or is not followed",
        "rx_queue": entry.rx_queue, "tx_queue": entry.tx_queue, "rx_bytes": 0, "tx_bytes": 0,
    })
}

fn state(of: &Tcp) -> Option<TcpState> {
    TcpState::from_u8(of.state)
}

/// As the monitor writes it.
fn name(of: SocketAddr) -> String {
    SocketAddr::new(of.ip().to_canonical(), of.port()).to_string()
}

/// As the monitor names it.
fn state_name(of: &Tcp) -> &'static str {
    match state(of) {
        Some(TcpState::Established) => "ESTABLISHED",
        Some(TcpState::SynSent) => "SYN_SENT",
        Some(TcpState::SynRecv) => "SYN_RECV",
        Some(TcpState::FinWait1) => "FIN_WAIT1",
        Some(TcpState::FinWait2) => "FIN_WAIT2",
        Some(TcpState::CloseWait) => "CLOSE_WAIT",
        Some(TcpState::LastAck) => "LAST_ACK",
        Some(TcpState::Closing) => "CLOSING",
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
    fn the_kernel_says_what_is_below_proc() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _of_v4 = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _accepted = listener.accept().unwrap();
        let _of_v6 = TcpStream::connect(("::1", port)).unwrap();
        let own = |all: All| {
            let is_own = |tcp: &Tcp| [tcp.local.port(), tcp.peer.port()].contains(&port);
            all.into_values().filter(is_own).map(|tcp| (tcp.inode, tcp)).collect::<BTreeMap<_, _>>()
        };
        let (mut told, read) = (own(all_here().unwrap()), own(all_of(&Process::myself().unwrap())));
        // A listener's is its backlog.
        told.values_mut().filter(|tcp| tcp.state == TcpState::Listen as u8).for_each(|tcp| tcp.tx_queue = 0);
        assert_eq!(told, read);
        assert_eq!(told.len(), 4, "{told:?}");
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
