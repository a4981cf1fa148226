//! `sd ss`: connections and listeners of all programs that run over shared memory, in the manner of ss(8).

use sd_cli::cli::SsOptions;
use sd_cli::failure::{Failure, Result, print, printable};
use sd_cli::peers::{self, Peer};
use sd_cli::status::{Connection, connections, list};
use sd_cli::table::{Align, render};
use sd_cli::{client, place};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Listener {
    pid: u64,
    comm: String,
    fd: Option<i64>,
    local: String,
    pending: u64,
    backlog: u64,
    path: Option<String>,
    reason: Option<String>,
}

impl Listener {
    /// As ss(8) shows a listener: the queues are those of connections.
    fn into_line(self) -> Connection {
        Connection {
            pid: self.pid,
            comm: self.comm,
            fd: self.fd,
            local: self.local,
            peer: "*".to_owned(),
            state: "LISTEN".to_owned(),
            path: self.path.unwrap_or_else(|| "shm".to_owned()),
            carrier: None,
            reason: self.reason,
            rx_queue: self.pending,
            tx_queue: self.backlog,
            ..Connection::default()
        }
    }
}

/// Prints the list.
pub(crate) fn main(options: &SsOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    let mut status = client::status(&socket)
        .map_err(|silence| Failure::new(format!("{}: {silence}", socket.display())))?;
    crate::young::add(&mut status);
    if let Some(version) = client::foreign_version(&status) {
        sd_cli::failure::warn(&format!(
            "warning: the monitor has version {version}, this is {}",
            env!("CARGO_PKG_VERSION")
        ));
    }
    if status["truncated"] == Value::Bool(true) {
        sd_cli::failure::warn("warning: there are more connections than the monitor shows");
    }
    if options.json {
        let unregistered: Vec<Value> = crate::unregistered::all(&socket).map(Value::from).collect();
        return print(&format!("{}\n", document(status, unregistered)));
    }
    if options.memory {
        return print(&memory(&status)?);
    }
    print(&table(&status)?)?;
    print(&engines(&status))?;
    crate::unregistered::all(&socket).for_each(|one| sd_cli::failure::warn(&one.to_string()));
    Ok(())
}

/// `{"monitor":{...},"connections":[...],"listeners":[...],"unregistered":[...]}`.
fn document(status: Value, unregistered: Vec<Value>) -> Value {
    let mut monitor = match status {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let mut take = |name: &str| monitor.remove(name).unwrap_or_else(|| json!([]));
    let (connections, listeners) = (take("connections"), take("listeners"));
    json!({ "monitor": monitor, "connections": connections, "listeners": listeners, "unregistered": unregistered })
}

fn table(status: &Value) -> Result<String> {
    let listeners = list::<Listener>(status, "listeners")?.into_iter().map(Listener::into_line);
    let clock_ns = status["clock_ns"].as_u64().unwrap_or_else(sd_sys::time::now_ns);
    let rows: Vec<Vec<String>> =
        listeners.chain(connections(status)?).map(|connection| row(connection, clock_ns)).collect();
    let header = [
        ("State", Align::Left),
        ("Recv-Q", Align::Right),
        ("Send-Q", Align::Right),
        ("Local Address:Port", Align::Left),
        ("Peer Address:Port", Align::Left),
        ("Path", Align::Left),
        ("Since", Align::Right),
        ("Moves", Align::Right),
        ("Reason", Align::Left),
        ("Process", Align::Left),
    ];
    Ok(render(&header, &rows))
}

/// Other hosts' engines, behind an empty line; nothing where there are none.
fn engines(status: &Value) -> String {
    let all = peers::engine(status).unwrap_or_default().peers;
    if all.is_empty() {
        return String::new();
    }
    let clock_ns = status["clock_ns"].as_u64().unwrap_or_else(sd_sys::time::now_ns);
    let row = |peer: &Peer| {
        let how = if peer.encrypted { "encrypted" } else { "plain" };
        let state = if peer.is_up() { format!("up, {how}") } else { peer.why.clone() };
        let cells = [
            peer.address.clone(),
            peer.carrier.clone(),
            peer.connections.to_string(),
            peer.rtt().unwrap_or("-".to_owned()),
            peer.again().to_string(),
            peer.age(clock_ns),
            if peer.tenants.is_empty() { "-".to_owned() } else { peer.tenants.join(",") },
            state,
        ];
        cells.iter().map(|cell| printable(cell)).collect()
    };
    let header = [
        ("Other engine", Align::Left),
        ("Carrier", Align::Left),
        ("Conns", Align::Right),
        ("RTT", Align::Right),
        ("Again", Align::Right),
        ("Since", Align::Right),
        ("Tenants", Align::Left),
        ("State", Align::Left),
    ];
    format!("\n{}", render(&header, &all.iter().map(row).collect::<Vec<_>>()))
}

/// A process, and what it has to do with the memory of connections.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Holder {
    pid: u64,
    comm: String,
    memory_bytes: u64,
    fills_bytes: u64,
    waiting_bytes: u64,
}

/// Who holds how much: in its segments, which it shares with its peers; in large rings that it fills, which its own memory
/// cgroup pays for; and unread in rings that its peers fill, which theirs pay for.
fn memory(status: &Value) -> Result<String> {
    let mut holders = list::<Holder>(status, "clients")?;
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.memory_bytes));
    let row = |h: Holder| {
        let bytes = [h.memory_bytes, h.fills_bytes, h.waiting_bytes].map(|bytes| bytes.to_string());
        let [memory, fills, waiting] = bytes;
        vec![memory, fills, waiting, printable(&owner(&h.comm, h.pid, None))]
    };
    let header = [
        ("Memory", Align::Right),
        ("Fills", Align::Right),
        ("Unread", Align::Right),
        ("Process", Align::Left),
    ];
    Ok(render(&header, &holders.into_iter().map(row).collect::<Vec<_>>()))
}

fn row(c: Connection, clock_ns: u64) -> Vec<String> {
    let (road, reason, age) = (c.road(), c.why(), c.age(clock_ns));
    let moves = if c.road_since_ns.is_some() { c.road_changes.to_string() } else { "-".to_owned() };
    let (recv, send) = (c.rx_queue.to_string(), c.tx_queue.to_string());
    let cells = [c.state, recv, send, c.local, c.peer, road, age, moves, reason, owner(&c.comm, c.pid, c.fd)];
    cells.iter().map(|cell| printable(cell)).collect()
}

fn owner(comm: &str, pid: u64, fd: Option<i64>) -> String {
    let fd = fd.map(|fd| format!(",fd={fd}")).unwrap_or_default();
    format!("(\"{comm}\",pid={pid}{fd})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        json!({
            "version": 1, "pid": 3, "clock_ns": 8_500_000_000u64, "clients": [], "channels": 1, "counters": {},
            "connections": [
                {"pid": 7, "comm": "redis\u{1b}", "fd": 8, "local": "127.0.0.1:6379", "peer": "127.0.0.1:40000",
                 "state": "ESTAB", "path": "shm", "reason": null, "rx_queue": 5, "tx_queue": 0},
                {"pid": 7, "comm": "redis", "fd": 9, "local": "127.0.0.1:6379", "peer": "127.0.0.1:40001",
                 "state": "ESTAB", "path": "kernel", "reason": "peer is not accelerated",
                 "road_since_ns": 1_000_000_000u64, "road_changes": 2, "road_moved": "asked for",
                 "awaits": "too slow", "messages": 17},
                {"pid": 7, "comm": "redis", "fd": 10, "local": "127.0.0.1:6379", "peer": "127.0.0.1:40002",
                 "state": "ESTAB", "path": "engine", "carrier": "loopback", "reason": "told to"},
                {"pid": 7, "comm": "redis", "fd": 11, "local": "10.0.0.1:6379", "peer": "10.1.0.2:40002",
                 "state": "ESTAB", "path": "engine", "carrier": "trunk", "engine": "10.0.0.2:7077", "tenant": "blue"}],
            "listeners": [{"pid": 7, "comm": "redis", "local": "127.0.0.1:6379", "backlog": 511}]
        })
    }

    #[test]
    fn table_has_a_line_for_each_and_no_control_characters() {
        let text = table(&status()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1].starts_with("LISTEN") && lines[1].contains("511"));
        assert!(lines[2].contains("shm") && lines[2].contains("(\"redis \",pid=7,fd=8)"));
        assert!(lines[3].contains(
            " 7s      2  peer is not accelerated; was moved back: asked for; not moved: too slow (17 calls)"
        ));
        assert!(lines[2].contains(" shm ") && lines[2].contains("  -      -  -  "), "{text}");
        assert!(lines[4].contains(" engine/loopback ") && lines[4].contains("told to"));
        assert!(lines[5].contains(" engine/trunk ") && lines[5].contains("to 10.0.0.2:7077; tenant blue"));
    }

    #[test]
    fn other_engines_stand_below() {
        assert_eq!(engines(&status()), "");
        let peers = json!([{"address": "10.0.0.2:7077\u{1b}", "carrier": "datagram", "state": "up", "encrypted": true,
            "since_ns": 1_000_000_000u64, "rtt_ns": 80_000, "connections": 40, "said_again": 3, "retransmitted": 4,
            "tenants": ["blue", "red"]}]);
        let text = engines(&json!({"clock_ns": 6_000_000_000u64, "engine": {"pid": 7, "peers": peers}}));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[2],
            ["10.0.0.2:7077", "datagram", "40", "80us", "7", "5s", "blue,red", "up,", "encrypted"]
        );
    }

    #[test]
    fn who_holds_most_comes_first() {
        let status = json!({"clients": [
            {"pid": 7, "comm": "small", "memory_bytes": 4096},
            {"pid": 8, "comm": "large\u{1b}", "memory_bytes": 8192, "fills_bytes": 65536, "waiting_bytes": 5}]});
        let text = memory(&status).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["8192", "65536", "5", "(\"large", "\",pid=8)"]);
        assert_eq!(lines[2][..3], ["4096", "0", "0"]);
    }

    #[test]
    fn document_keeps_what_the_monitor_said() {
        let document = document(status(), Vec::new());
        assert_eq!(document["monitor"]["pid"], 3);
        assert_eq!(document["connections"][1]["path"], "kernel");
        assert_eq!(document["listeners"][0]["backlog"], 511);
        assert!(document["monitor"].get("connections").is_none());
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(table(&json!({"connections": [{"pid": "x"}]})).is_err());
    }
}
