//! What two documents of the monitor's come to: rates of connections and of processes.
//!
//! All figures are counts that connections and processes keep anyway: nobody counts for this, and who is looked at notices
//! nothing. So there are bytes and no messages of connections over shared memory; messages and no bytes of those of the kernel's that are
//! watched, where calls are counted for promotion's sake; and no rate of the kernel's others, which the library does not touch.

use super::peers::Far;
use sd_cli::failure::Result;
use sd_cli::peers::{self, Peer};
use sd_cli::status::{self, Connection};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;

/// `sd_shm::slab::Counter`.
const SPIN_HIT: usize = 5;
const SLEEP: usize = 6;

/// One answer of the monitor's, and what /proc says of the processes in it.
pub(super) struct Sample {
    clock_ns: u64,
    connections: Vec<Connection>,
    clients: Vec<Client>,
    /// Ticks of processor time, by process.
    ticks: HashMap<u64, u64>,
    ticks_per_second: f64,
    is_truncated: bool,
    peers: Vec<Peer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Client {
    pid: u64,
    comm: String,
    memory_bytes: u64,
    counters: Vec<u64>,
}

impl Sample {
    /// Reads a document; `clock_ns` is for one that does not say when it was made.
    pub(super) fn new(document: &Value, clock_ns: u64) -> Result<Sample> {
        let connections = status::connections(document)?;
        let clients: Vec<Client> = status::list(document, "clients")?;
        let pids = connections.iter().map(|c| c.pid).chain(clients.iter().map(|c| c.pid));
        let mut ticks = HashMap::new();
        for pid in pids {
            if let std::collections::hash_map::Entry::Vacant(place) = ticks.entry(pid)
                && let Some(used) = ticks_of(pid)
            {
                place.insert(used);
            }
        }
        // SAFETY: no pointers.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        let clock_ns = document["clock_ns"].as_u64().unwrap_or(clock_ns);
        let is_truncated = document["truncated"] == Value::Bool(true);
        let peers = peers::engine(document).unwrap_or_default().peers;
        Ok(Sample { clock_ns, connections, clients, ticks, ticks_per_second, is_truncated, peers })
    }
}

/// utime and stime of proc_pid_stat(5). The name before them may have spaces and parentheses.
fn ticks_of(pid: u64) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks_in(&text)
}

fn ticks_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()?.saturating_add(next()?))
}

/// A connection's end, and what it did since the document before.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Busy {
    pub(super) pid: u64,
    pub(super) comm: String,
    pub(super) fd: Option<i64>,
    pub(super) local: String,
    pub(super) peer: String,
    pub(super) state: String,
    /// The road: `shm`, `kernel`, `bridged`.
    pub(super) path: String,
    pub(super) reason: Option<String>,
    /// Why it takes that road, and what would bring it elsewhere.
    #[serde(skip)]
    pub(super) why: String,
    /// How long it does; how often that has changed.
    #[serde(skip)]
    pub(super) road_age: String,
    pub(super) road_seconds: Option<f64>,
    pub(super) road_changes: u32,
    pub(super) awaits: Option<String>,
    /// Calls per second that moved bytes; `None`: nobody counts them, or the connection was not there before.
    pub(super) messages_per_second: Option<f64>,
    /// Payload bytes per second; `None`: not known, the connection is the kernel's, or was not there before.
    pub(super) rx_bytes_per_second: Option<f64>,
    pub(super) tx_bytes_per_second: Option<f64>,
    pub(super) rx_bytes: u64,
    pub(super) tx_bytes: u64,
    /// Sent to it and not read yet; sent by it and not read yet.
    pub(super) rx_queue: u64,
    pub(super) tx_queue: u64,
    /// Of its process: processors, 1.0 is one.
    pub(super) cpu: Option<f64>,
}

/// A process with connections, or that the monitor knows.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u64,
    pub(super) comm: String,
    pub(super) shm: usize,
    pub(super) kernel: usize,
    pub(super) rx_bytes_per_second: f64,
    pub(super) tx_bytes_per_second: f64,
    pub(super) rx_queue: u64,
    pub(super) tx_queue: u64,
    pub(super) cpu: Option<f64>,
    /// Waits per second that ended while it looked; those that it slept through. Children count for who has forked them.
    pub(super) spins_per_second: f64,
    pub(super) sleeps_per_second: f64,
    pub(super) memory_bytes: u64,
}

/// What happened between two samples.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Rates {
    pub(super) seconds: f64,
    pub(super) connections: Vec<Busy>,
    pub(super) processes: Vec<Process>,
    /// There are more connections than the monitor shows.
    pub(super) truncated: bool,
    /// Other hosts' engines.
    pub(super) peers: Vec<Far>,
}

impl Rates {
    /// From `before` to `now`.
    pub(super) fn between(before: &Sample, now: &Sample) -> Rates {
        let seconds = now.clock_ns.saturating_sub(before.clock_ns) as f64 / 1e9;
        let of = |more: u64, less: u64| {
            let made = more.checked_sub(less).filter(|_| seconds > 0.0)?;
            Some(made as f64 / seconds)
        };
        let cpu = |pid: u64| {
            let used = of(*now.ticks.get(&pid)?, *before.ticks.get(&pid)?)?;
            Some(used / now.ticks_per_second)
        };
        let old: HashMap<_, _> = before.connections.iter().map(|c| (key(c), c)).collect();
        let messages = |c: &Connection| {
            let before = old.get(&key(c)).and_then(|old| old.messages)?;
            of(c.messages?.into(), before.into())
        };
        let connections = now.connections.iter().map(|c| {
            let known = old.get(&key(c)).filter(|_| c.path != "kernel");
            // Fewer bytes than before: it is another connection of that name.
            let known = known.filter(|old| old.rx_bytes <= c.rx_bytes && old.tx_bytes <= c.tx_bytes);
            Busy {
                pid: c.pid,
                comm: c.comm.clone(),
                fd: c.fd,
                local: c.local.clone(),
                peer: c.peer.clone(),
                state: c.state.clone(),
                path: c.path.clone(),
                reason: c.reason.clone().filter(|reason| !reason.is_empty()),
                why: c.why(),
                road_age: c.age(now.clock_ns),
                road_seconds: c.road_since_ns.map(|since| now.clock_ns.saturating_sub(since) as f64 / 1e9),
                road_changes: c.road_changes,
                awaits: c.awaits.clone(),
                messages_per_second: messages(c),
                rx_bytes_per_second: known.and_then(|old| of(c.rx_bytes, old.rx_bytes)),
                tx_bytes_per_second: known.and_then(|old| of(c.tx_bytes, old.tx_bytes)),
                rx_bytes: c.rx_bytes,
                tx_bytes: c.tx_bytes,
                rx_queue: c.rx_queue,
                tx_queue: c.tx_queue,
                cpu: cpu(c.pid),
            }
        });
        let connections: Vec<Busy> = connections.collect();
        let mut processes = totals(&connections);
        let waits: HashMap<u64, &Client> = before.clients.iter().map(|client| (client.pid, client)).collect();
        for client in &now.clients {
            let process = processes.entry(client.pid).or_default();
            (process.pid, process.comm, process.cpu) = (client.pid, client.comm.clone(), cpu(client.pid));
            process.memory_bytes += client.memory_bytes;
            let Some(old) = waits.get(&client.pid) else { continue };
            let count = |which| of(count_of(client, which), count_of(old, which)).unwrap_or_default();
            process.spins_per_second += count(SPIN_HIT);
            process.sleeps_per_second += count(SLEEP);
        }
        let mut processes: Vec<Process> = processes.into_values().collect();
        processes.sort_by_key(|process| process.pid);
        let old: HashMap<&str, &Peer> =
            before.peers.iter().map(|peer| (peer.address.as_str(), peer)).collect();
        let far = |peer: &Peer| Far::between(old.get(&*peer.address).copied(), peer, now.clock_ns, of);
        let peers = now.peers.iter().map(far);
        Rates { seconds, connections, processes, truncated: now.is_truncated, peers: peers.collect() }
    }
}

fn key(c: &Connection) -> (u64, Option<i64>, &str, &str) {
    (c.pid, c.fd, &c.local, &c.peer)
}

/// Counts that are zero at the end of the list are left out of it.
fn count_of(client: &Client, which: usize) -> u64 {
    client.counters.get(which).copied().unwrap_or_default()
}

fn totals(connections: &[Busy]) -> HashMap<u64, Process> {
    let mut processes: HashMap<u64, Process> = HashMap::new();
    for c in connections {
        let process = processes.entry(c.pid).or_default();
        (process.pid, process.cpu) = (c.pid, c.cpu);
        process.comm.clone_from(&c.comm);
        match c.path.as_str() {
            "kernel" => process.kernel += 1,
            _ => process.shm += 1,
        }
        process.rx_bytes_per_second += c.rx_bytes_per_second.unwrap_or_default();
        process.tx_bytes_per_second += c.tx_bytes_per_second.unwrap_or_default();
        process.rx_queue = process.rx_queue.saturating_add(c.rx_queue);
        process.tx_queue = process.tx_queue.saturating_add(c.tx_queue);
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(clock_ns: u64, rx: u64, tx: u64, sleeps: u64) -> Sample {
        let document = json!({
            "clock_ns": clock_ns,
            "clients": [{"pid": 7, "comm": "redis", "memory_bytes": 4096, "counters": [0, 0, 0, 0, 0, 3, sleeps]}],
            "connections": [
                {"pid": 7, "comm": "redis", "fd": 8, "local": "a:1", "peer": "b:2", "path": "shm",
                 "rx_bytes": rx, "tx_bytes": tx, "rx_queue": 5, "tx_queue": 6},
                {"pid": 7, "comm": "redis", "fd": 9, "local": "a:1", "peer": "b:3", "path": "kernel",
                 "reason": "policy", "messages": tx, "road_since_ns": 500_000_000u64, "road_changes": 2,
                 "awaits": "too slow"}]});
        Sample::new(&document, 0).unwrap()
    }

    #[test]
    fn rates_are_what_came_in_between() {
        let rates = Rates::between(&sample(1_000_000_000, 100, 50, 3), &sample(3_000_000_000, 300, 50, 9));
        assert_eq!(rates.seconds, 2.0);
        let busy = &rates.connections[0];
        assert_eq!((busy.rx_bytes_per_second, busy.tx_bytes_per_second), (Some(100.0), Some(0.0)));
        assert_eq!((busy.rx_queue, busy.tx_queue, busy.rx_bytes), (5, 6, 300));
        let kernels = &rates.connections[1];
        assert_eq!((kernels.rx_bytes_per_second, kernels.reason.as_deref()), (None, Some("policy")));
        assert_eq!(
            (kernels.road_seconds, kernels.road_age.as_str(), kernels.road_changes),
            (Some(2.5), "2s", 2)
        );
        assert_eq!((kernels.awaits.as_deref(), kernels.messages_per_second), (Some("too slow"), Some(0.0)));
        assert_eq!(kernels.why, "policy; not moved: too slow (50 calls)");
        assert_eq!((busy.road_seconds, busy.messages_per_second), (None, None));
        let [process] = &rates.processes[..] else { panic!("{:?}", rates.processes) };
        assert_eq!((process.shm, process.kernel, process.rx_queue), (1, 1, 5));
        assert_eq!((process.rx_bytes_per_second, process.tx_bytes_per_second), (100.0, 0.0));
        assert_eq!((process.spins_per_second, process.sleeps_per_second), (0.0, 3.0));
        assert_eq!(process.memory_bytes, 4096);
    }

    #[test]
    fn another_connection_of_that_name_has_no_rate_yet() {
        let rates = Rates::between(&sample(1, 100, 50, 3), &sample(2, 99, 60, 3));
        assert_eq!(rates.connections[0].rx_bytes_per_second, None);
        assert!(rates.connections[1].messages_per_second > Some(0.0));
        let rates = Rates::between(&sample(5, 1, 1, 3), &sample(5, 2, 2, 3));
        assert_eq!(rates.connections[0].rx_bytes_per_second, None, "no time went by");
    }

    #[test]
    fn processor_time_of_a_process_with_a_strange_name() {
        let stat = "7 (a) b) c) R 1 7 7 0 -1 4194304 90 0 0 0 11 22 0 0 20 0 1 0 100 1 1 1";
        assert_eq!(ticks_in(stat), Some(33));
        assert!(ticks_of(std::process::id().into()).is_some());
    }
}
