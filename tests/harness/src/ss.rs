//! Reads `sd ss --json`, and watches it while traffic flows.

use crate::{Result, fail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// One end of a connection, as its owner sees it.
#[derive(Clone, Debug)]
pub struct Connection {
    pub pid: u64,
    pub comm: String,
    pub local: String,
    pub peer: String,
    pub state: String,
    pub path: String,
    /// What moves its bytes, if its path is `engine`.
    pub carrier: Option<String>,
    /// The other host's engine, and whose connection it is.
    pub engine: Option<String>,
    pub tenant: Option<String>,
    pub reason: Option<String>,
    /// Why it took another road the last time.
    pub moved: Option<String>,
    /// What it waits for until it is moved to shared memory, or why it is not, where it is the kernel's.
    pub awaits: Option<String>,
    /// Calls that have moved bytes over the kernel's connection, while it may be moved.
    pub messages: Option<u64>,
    /// Bytes that were read, and that were sent.
    pub bytes: [u64; 2],
    /// Bytes that have come and were not read; that were sent and the peer has not read.
    pub queues: [u64; 2],
}

/// What the monitor and its clients showed at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub connections: Vec<Connection>,
    /// Local addresses of listeners.
    pub listeners: Vec<String>,
    /// Those of them that somebody accepts from.
    pub accepting: Vec<String>,
    /// How often a client asked for a way to a listener and was told shared memory.
    pub routes_shm: u64,
    /// Pairs of processes that the monitor has put a pump between.
    pub twins: u64,
    /// Connections of the kernel's whose both ends were found.
    pub promotions: u64,
}

impl Snapshot {
    fn parse(text: &str) -> Result<Snapshot> {
        let value: Value = serde_json::from_str(text)?;
        let Some(connections) = value["connections"].as_array() else {
            fail!("no \"connections\" in {text}")
        };
        let Some(listeners) = value["listeners"].as_array() else { fail!("no \"listeners\" in {text}") };
        let connections = connections.iter().map(Connection::parse).collect::<Result<_>>()?;
        let accepting = listeners.iter().filter(|l| l["accepting"] == true);
        let accepting = accepting.map(|l| field(l, "local")).collect::<Result<_>>()?;
        let listeners = listeners.iter().map(|l| field(l, "local")).collect::<Result<_>>()?;
        let counter = |name: &str| value["monitor"]["counters"][name].as_u64().unwrap_or(0);
        let [routes_shm, twins, promotions] = ["routes_shm", "twins", "promotions"].map(counter);
        Ok(Snapshot { connections, listeners, accepting, routes_shm, twins, promotions })
    }

    /// Ends of connections that touch this port.
    pub fn of_port(&self, port: u16) -> Vec<&Connection> {
        self.connections.iter().filter(|c| c.touches(port)).collect()
    }
}

impl Connection {
    fn parse(value: &Value) -> Result<Connection> {
        let path = field(value, "path")?;
        if !["shm", "engine", "rdma", "kernel", "bridged"].contains(&path.as_str()) {
            fail!("unknown path in {value}");
        }
        let carrier = value["carrier"].as_str().map(str::to_owned);
        if (path == "engine") != carrier.is_some() {
            fail!("an engine without a carrier, or a carrier without an engine, in {value}");
        }
        Ok(Connection {
            pid: value["pid"].as_u64().unwrap_or(0),
            comm: field(value, "comm")?,
            local: field(value, "local")?,
            peer: field(value, "peer")?,
            state: field(value, "state")?,
            path,
            carrier,
            engine: value["engine"].as_str().map(str::to_owned),
            tenant: value["tenant"].as_str().map(str::to_owned),
            reason: value["reason"].as_str().map(str::to_owned),
            moved: value["road_moved"].as_str().map(str::to_owned),
            awaits: value["awaits"].as_str().map(str::to_owned),
            messages: value["messages"].as_u64(),
            bytes: ["rx_bytes", "tx_bytes"].map(|name| value[name].as_u64().unwrap_or(0)),
            queues: ["rx_queue", "tx_queue"].map(|name| value[name].as_u64().unwrap_or(0)),
        })
    }

    fn touches(&self, port: u16) -> bool {
        let suffix = format!(":{port}");
        self.local.ends_with(&suffix) || self.peer.ends_with(&suffix)
    }
}

fn field(value: &Value, name: &str) -> Result<String> {
    match value[name].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => fail!("no {name:?} in {value}"),
    }
}

/// What the monitor says of a client's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// In its segments.
    pub memory: u64,
    /// Of large rings that it sends into.
    pub fills: u64,
    /// Sent by its peers and not read.
    pub waiting: u64,
}

/// The memory of each client, by process.
pub fn memory(sd: &Path, socket: &Path) -> Result<BTreeMap<u64, Held>> {
    let value = document(sd, socket)?;
    let Some(clients) = value["monitor"]["clients"].as_array() else { fail!("no \"clients\" in {value}") };
    let number = |client: &Value, name: &str| client[name].as_u64().unwrap_or(0);
    let held = |client: &Value| Held {
        memory: number(client, "memory_bytes"),
        fills: number(client, "fills_bytes"),
        waiting: number(client, "waiting_bytes"),
    };
    Ok(clients.iter().map(|client| (number(client, "pid"), held(client))).collect())
}

/// Asks the monitor behind `socket`.
pub fn snapshot(sd: &Path, socket: &Path) -> Result<Snapshot> {
    Snapshot::parse(&text(sd, socket)?)
}

/// All that it knows.
pub fn document(sd: &Path, socket: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&text(sd, socket)?)?)
}

fn text(sd: &Path, socket: &Path) -> Result<String> {
    let output = Command::new(sd)
        .args(["ss", "--json"])
        .env("SD_MONITOR", socket)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if !output.status.success() {
        fail!(
            "sd ss --json ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks at a port again and again, in a thread of its own, and keeps every end of a connection it has seen.
pub struct Watch {
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
    has_seen: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<Connection>>>>,
}

impl Watch {
    pub fn start(sd: PathBuf, socket: PathBuf, port: u16, interval: Duration) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let looks = Arc::new(AtomicUsize::new(0));
        let has_seen = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (stop, looks, has_seen) = (stop.clone(), looks.clone(), has_seen.clone());
            move || {
                let mut seen = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    for c in snapshot(&sd, &socket)?.of_port(port) {
                        seen.insert((c.pid, c.local.clone(), c.peer.clone(), c.path.clone()), c.clone());
                    }
                    has_seen.store(!seen.is_empty(), Ordering::Relaxed);
                    looks.fetch_add(1, Ordering::Release);
                    std::thread::sleep(interval);
                }
                Ok(seen.into_values().collect())
            }
        });
        Watch { stop, looks, has_seen, thread: Some(thread) }
    }

    /// Whether it has seen any connection so far.
    pub fn has_seen(&self) -> bool {
        self.has_seen.load(Ordering::Relaxed)
    }

    /// Returns when it has looked once more, from now on.
    pub fn look(&self) {
        // The look that is under way may have begun before.
        let enough = self.looks.load(Ordering::Acquire) + 2;
        let is_running = || self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        while self.looks.load(Ordering::Acquire) < enough && is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the watch and returns what it has seen.
    pub fn finish(mut self) -> Result<Vec<Connection>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(seen)) => seen,
            _ => fail!("the watch over sd ss broke down"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Fails unless something was seen and all of it went over shared memory.
pub fn require_shm(seen: &[Connection]) -> Result<()> {
    if let Some(c) = seen.iter().find(|c| c.path != "shm") {
        fail!("expected path shm, but sd ss shows {}", describe(c));
    }
    if seen.is_empty() {
        fail!("expected path shm, but sd ss showed no connection at all");
    }
    Ok(())
}

/// Who has had so many messages, and not slowly, is on shared memory if the other end has: each counts 64 of its own, and then a moment is
/// awaited at which nobody is in a call, and nothing waits to be sent.
const MOVED_AFTER: u64 = 4000;

/// Why one that is busy may still be the kernel's.
const PUT_OFF: [&str; 3] =
    ["too slow", "it had unsent bytes when it was offered", "it was ending when it was offered"];

/// As [`require_shm`], where connections begin as the kernel's and are moved when they last: one of which an end has had few messages, or
/// slow ones, or is full or ending when it is looked at, may still be the kernel's. An end that is not shown has had few.
pub fn require_earned(seen: &[Connection]) -> Result<()> {
    let is_moved = |c: &Connection| {
        let is_it = |one: &Connection| {
            (one.pid, &one.local, &one.peer) == (c.pid, &c.local, &c.peer) && one.path == "shm"
        };
        c.path == "shm" || seen.iter().any(is_it)
    };
    let is_going = |c: &Connection| c.reason.as_deref() == Some("on the way to shared memory");
    let is_listed =
        |c: &Connection| c.reason.as_deref().is_some_and(|why| why.starts_with("it has not lasted yet"));
    let is_young = |c: &Connection| {
        let is_put_off = c.awaits.as_deref().is_some_and(|why| PUT_OFF.contains(&why));
        is_put_off || is_going(c) || is_listed(c) || c.messages.is_some_and(|number| number < MOVED_AFTER)
    };
    let has_young_peer = |c: &Connection| {
        let mut others = seen.iter().filter(|one| (&one.local, &one.peer) == (&c.peer, &c.local));
        others.all(is_young)
    };
    let may_stay = |c: &Connection| {
        // One that has been offered may be shown with what it waits for, and without a count.
        let is_looked_after = c.messages.is_some() || c.awaits.is_some();
        let is_followed = is_looked_after && (is_young(c) || has_young_peer(c));
        c.path == "kernel" && (is_going(c) || is_listed(c) || is_followed)
    };
    if let Some(c) = seen.iter().find(|c| !is_moved(c) && !may_stay(c)) {
        let other = seen.iter().find(|one| (&one.local, &one.peer) == (&c.peer, &c.local));
        let other = other.map_or("nothing of the other end".to_owned(), describe);
        fail!("expected path shm, or few messages, but sd ss shows {}; and {other}", describe(c));
    }
    if seen.is_empty() {
        fail!("expected path shm, but sd ss showed no connection at all");
    }
    Ok(())
}

/// Fails unless something was seen, all of it over the kernel and each with a reason.
pub fn require_kernel(seen: &[Connection]) -> Result<()> {
    if let Some(c) = seen.iter().find(|c| c.path != "kernel" || c.reason.as_deref().unwrap_or("").is_empty())
    {
        fail!("expected path kernel with a reason, but sd ss shows {}", describe(c));
    }
    if seen.is_empty() {
        fail!("expected path kernel, but sd ss showed no connection at all");
    }
    Ok(())
}

pub fn describe(c: &Connection) -> String {
    let reason = c.reason.as_deref().unwrap_or("none");
    let Connection { pid, comm, local, peer, state, path, .. } = c;
    let waits = c.awaits.iter().map(|why| format!(", {} messages: {why}", c.messages.unwrap_or(0)));
    let waits = waits.collect::<String>();
    format!("{comm} ({pid}) {local} -> {peer} {state}: path {path}, reason {reason}{waits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"connections":[{"pid":7,"comm":"redis-server","local":"127.0.0.1:6379",
        "peer":"127.0.0.1:40000","state":"ESTABLISHED","path":"shm","reason":null,"rx_queue":0,"tx_queue":0},
        {"pid":7,"comm":"redis-server","local":"127.0.0.1:6379","peer":"127.0.0.1:40001","state":"ESTABLISHED",
        "path":"kernel","reason":"peer is not accelerated","rx_queue":0,"tx_queue":0}],
        "listeners":[{"pid":7,"local":"127.0.0.1:6379","backlog":511,"accepting":true},
        {"pid":8,"local":"127.0.0.1:6380","backlog":511,"accepting":false}],"monitor":{}}"#;

    #[test]
    fn contract() {
        let snapshot = Snapshot::parse(TEXT).unwrap();
        assert_eq!(snapshot.listeners, ["127.0.0.1:6379", "127.0.0.1:6380"]);
        assert_eq!(snapshot.accepting, ["127.0.0.1:6379"]);
        assert_eq!(snapshot.of_port(6379).len(), 2);
        assert_eq!(snapshot.of_port(40000).len(), 1);
        assert_eq!(snapshot.of_port(379).len(), 0);
        require_shm(&snapshot.connections[..1]).unwrap();
        require_shm(&snapshot.connections).unwrap_err();
        require_kernel(&snapshot.connections[1..]).unwrap();
    }

    #[test]
    fn who_has_lasted_is_moved() {
        let end = |local: &str, path: &str, rest: &str| {
            let peer = if local == "1:1" { "1:2" } else { "1:1" };
            format!(
                r#"{{"pid":{},"comm":"x","local":"{local}","peer":"{peer}","state":"ESTABLISHED","path":"{path}"{rest}}}"#,
                local.len()
            )
        };
        let judged = |ends: &[String]| {
            let text = format!(r#"{{"connections":[{}],"listeners":[],"monitor":{{}}}}"#, ends.join(","));
            require_earned(&Snapshot::parse(&text).unwrap().connections).is_ok()
        };
        let (many, few) = (r#","messages":9000"#, r#","messages":9"#);
        let slow = r#","messages":9000,"awaits":"too slow""#;
        let kernel = |local: &str, rest: &str| end(local, "kernel", rest);
        assert!(judged(&[end("1:1", "shm", "")]));
        assert!(judged(&[kernel("1:1", many), end("1:1", "shm", "")]), "it was moved");
        assert!(judged(&[kernel("1:1", few)]));
        assert!(judged(&[kernel("1:1", many)]), "the other end is not shown");
        assert!(judged(&[kernel("1:1", many), kernel("1:2", few)]));
        assert!(judged(&[kernel("1:1", many), kernel("1:2", slow)]));
        assert!(!judged(&[kernel("1:1", many), kernel("1:2", many)]));
        assert!(!judged(&[kernel("1:1", "")]), "it is not looked after");
        assert!(judged(&[kernel("1:1", r#","reason":"it has not lasted yet, or is not followed""#)]));
        assert!(!judged(&[end("1:1", "bridged", many)]));
        assert!(!judged(&[]));
    }

    #[test]
    fn an_engine_has_a_carrier() {
        let engine = TEXT.replace(r#""path":"kernel""#, r#""path":"engine","carrier":"loopback""#);
        let seen = Snapshot::parse(&engine).unwrap().connections;
        assert_eq!(seen[1].carrier.as_deref(), Some("loopback"));
        require_shm(&seen).unwrap_err();
        Snapshot::parse(&TEXT.replace("\"kernel\"", "\"engine\"")).unwrap_err();
    }

    #[test]
    fn unknown_path_is_refused() {
        Snapshot::parse(&TEXT.replace("\"kernel\"", "\"moon\"")).unwrap_err();
    }
}
