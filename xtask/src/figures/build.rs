//! Which figure is made of which rows.

use super::data::{Bar, Figure, Origin, bar, linear, log};
use super::source::Rows;
use super::{PIPE, RING, SOCKSDIRECT, TCP, UNIX, paper};
use serde_json::Value;

/// What `sd bench` said, by its first argument.
pub(crate) struct Sources<'a>(pub(crate) &'a [(&'static str, Rows)]);

impl Sources<'_> {
    fn rows(&self, bench: &str) -> Rows {
        self.0.iter().find(|(name, _)| *name == bench).map(|(_, rows)| rows.clone()).unwrap_or_default()
    }
}

/// All figures that need nothing but `sd bench`.
pub(crate) fn figures(sources: &Sources) -> Vec<Figure> {
    vec![
        table_2(sources),
        table_4(sources),
        fig_7_latency(sources),
        fig_7_throughput(sources),
        rate(sources),
        fig_9(sources),
        fig_10(sources),
        fig_12(sources),
        connection_count(sources),
        connection_memory(sources),
        connection_rate(sources),
        first_contacts(sources),
        tokens(sources),
        wake_up(sources),
        idle(sources),
    ]
}

fn table_2(sources: &Sources) -> Figure {
    let (latency, machine, wake) = (sources.rows("latency"), sources.rows("machine"), sources.rows("wake"));
    let rtt = |system: &str| latency.median(system, None, Some(8));
    let item = |name: &str| machine.median("machine", Some(name), None);
    let here = |name: &str| match name {
        "inter-core cache migration" => rtt("cacheline").map(|ns| ns / 2.0),
        "lockless shared memory queue" => rtt("ring"),
        "SocksDirect inside a host" => rtt("socksdirect"),
        "cooperative context switch" => item("context switch by yielding"),
        "process wake-up" => wake.median("futex", None, None).map(|ns| ns / 2.0),
        "Linux pipe" => rtt("pipe"),
        "Unix socket" => rtt("unix"),
        "Linux TCP inside a host" => rtt("tcp"),
        _ => item(name),
    };
    let bars = paper::TABLE_2
        .iter()
        .map(|(name, us)| bar(*name).here("here", here(name)).paper("Table 2", Some(us * 1e3)))
        .collect();
    let title = "Table 2: latency of operations";
    let mut figure = Figure::new("table2", title, linear("operation"), log("ns")).bars(bars);
    figure.needed = vec!["here"];
    figure
        .note("Round trips of 8 bytes for queues and sockets. A cache line and a wake-up are half of a round trip.")
        .note("The copies are of pages that are in the cache. RDMA rows of the paper's table are left out.")
}

fn table_4(sources: &Sources) -> Figure {
    let (latency, cost, wake) = (sources.rows("latency"), sources.rows("cost"), sources.rows("wake"));
    let (machine, connect) = (sources.rows("machine"), sources.rows("connect").item(None));
    let one_way = |system: &str| latency.median(system, None, Some(8)).map(|ns| ns / 2.0);
    let per_kib = |system: &str| {
        let [small, large] = [8, 64 << 10].map(|size| latency.median(system, None, Some(size)));
        // Below zero it is noise.
        Some((large? - small?) / 2.0 / 64.0).filter(|ns| *ns > 0.0)
    };
    let each = |system: &str| connect.median(system, None, None).map(|rate| 1e9 / rate);
    let here = |name: &str| match name {
        "per operation: total (fcntl)" => ["socksdirect", "tcp"].map(|s| cost.median(s, Some("fcntl"), None)),
        "per operation: kernel crossing" => [None, machine.median("machine", Some("system call"), None)],
        "per packet: total" => ["socksdirect", "tcp"].map(one_way),
        "per packet: buffer management" => [one_way("ring"), None],
        "per packet: process wake-up" => [None, wake.median("futex", None, None).map(|ns| ns / 2.0)],
        "per KiB: total" => ["socksdirect", "tcp"].map(per_kib),
        "per connection: total" => ["socksdirect", "tcp"].map(each),
        _ => [None, None],
    };
    let row = |row: &paper::Breakdown| {
        let [socksdirect, tcp] = here(row.name);
        let bar = bar(row.name).here(SOCKSDIRECT, socksdirect).here(TCP, tcp);
        bar.paper("SocksDirect", row.socksdirect).paper("Linux", row.linux)
    };
    let bars: Vec<Bar> = paper::TABLE_4.iter().map(row).collect();
    Figure::new("table4", "Table 4: where the time goes", linear("what"), log("ns"))
        .bars(bars)
        .note("Per packet is half of a round trip of 8 bytes; buffer management is the bare ring without calls around it.")
        .note("Per connection: connect, accept, one byte each way, close; the paper's figure is connection set-up.")
        .note("Instructions per call: cargo xtask instructions --parts, and docs/PERFORMANCE.md.")
}

fn fig_7_latency(sources: &Sources) -> Figure {
    let rows = sources.rows("latency");
    let mut figure =
        Figure::new("fig7-latency", "Fig. 7: round trip by message size", log("bytes"), log("ns")).systems(
            &rows,
            "size",
            |_, ns| ns,
        );
    figure.needed.extend([RING, UNIX, PIPE]);
    let (socksdirect, linux, queue) = paper::RTT_8_NS;
    figure
        .series("SocksDirect", Origin::Paper, vec![(8.0, socksdirect)])
        .series("Linux", Origin::Paper, vec![(8.0, linux)])
        .series("bare queue", Origin::Paper, vec![(8.0, queue)])
        .note("The paper: 1/35 of Linux at 8 bytes, 1/4 at 8 KiB, 1/13 at 1 MiB (by remapping pages from 16 KiB on).")
}

fn fig_7_throughput(sources: &Sources) -> Figure {
    let rows = sources.rows("bandwidth");
    let title = "Fig. 7: one-way throughput by message size";
    let mut figure =
        Figure::new("fig7-throughput", title, log("bytes"), log("Gbit/s"))
            .systems(&rows, "size", |_, mb| mb * 8.0 / 1e3);
    figure.needed.extend([RING, UNIX, super::TWO_COPIES]);
    let gbits = |rate: f64| vec![(8.0, rate * 64.0 / 1e9)];
    let (socksdirect, linux, queue) = paper::RATE_8;
    figure
        .series("SocksDirect", Origin::Paper, gbits(socksdirect))
        .series("Linux", Origin::Paper, gbits(linux))
        .series("bare queue", Origin::Paper, gbits(queue))
        .note("A send and a receive call for each message. Two copies: into shared memory and out of it, pipelined.")
        .note("The paper: 20 times Linux at 8 bytes, 1.6 times at 8 KiB, 26 times at 1 MiB (by remapping pages).")
}

fn rate(sources: &Sources) -> Figure {
    let rows = sources.rows("rate");
    let value = |system: &str| rows.median(system, None, None);
    let (socksdirect, linux, queue) = paper::RATE_8;
    let names =
        [("socksdirect", Some(socksdirect)), ("tcp", Some(linux)), ("sockmap", None), ("unix", Some(0.9e6))];
    let names =
        names.into_iter().chain([("pipe", Some(1.2e6)), ("ring", Some(queue)), ("ring-doorbell", None)]);
    let bars = names.map(|(system, paper)| {
        bar(super::system_name(system)).here("here", value(system)).paper("§5.2.1, Table 2", paper)
    });
    let title = "Messages of 8 bytes per second, one call each way";
    let mut figure = Figure::new("rate", title, linear("system"), log("messages/s")).bars(bars.collect());
    figure.needed = vec!["here"];
    figure
}

fn fig_9(sources: &Sources) -> Figure {
    let rows = sources.rows("scale");
    let mut figure = Figure::new(
        "fig9",
        "Fig. 9: messages per second by pairs of threads",
        linear("pairs"),
        log("messages/s"),
    )
    .systems(&rows, "count", |_, rate| rate);
    figure.needed.push(RING);
    figure
        .series("SocksDirect", Origin::Paper, paper::SCALE.to_vec())
        .series("Linux", Origin::Paper, paper::SCALE_LINUX.to_vec())
        .note("Each pair has two processors. As many pairs as this machine has room for.")
}

fn fig_10(sources: &Sources) -> Figure {
    let rows = sources.rows("processes");
    let title = "Fig. 10: time to an answer of processes that share a processor";
    Figure::new("fig10", title, log("processes"), log("ns"))
        .systems(&rows, "count", |_, ns| ns)
        .note("A client on another processor keeps a message of 8 bytes under way to each of them.")
        .note("The paper: 1/20 to 1/30 of Linux at every number.")
}

fn fig_12(sources: &Sources) -> Figure {
    let rows = sources.rows("pipeline");
    let title = "Fig. 12: packets per second through a chain of processes";
    let mut figure = Figure::new("fig12", title, linear("processes"), log("packets/s")).systems(
        &rows,
        "count",
        |_, rate| rate,
    );
    figure.needed.push(PIPE);
    figure
        .note("Packets of 64 bytes with a pcap header, by read of standard input and write to standard output, one by one.")
        .note("The paper: 15 times a pipe, 20 times TCP, each process on a processor of its own.")
}

fn connection_count(sources: &Sources) -> Figure {
    let rows = sources.rows("connections").item(None);
    let title = "Round trips per second over open connections, in turn through epoll";
    Figure::new("connection-count", title, log("connections"), log("round trips/s"))
        .systems(&rows, "count", |_, rate| rate)
        .note("16 messages of 8 bytes are under way at a time. All numbers are open at once and take turns. Ours, of which memory is given back meanwhile, are used once before the clock runs; what that costs is in the data, as \"after a pause\".")
        .note("More than a process may have descriptors are spread over pairs of processes, which run one after the other, each once over all of its connections.")
}

fn connection_memory(sources: &Sources) -> Figure {
    let rows = |item: &str| sources.rows("connections").item(Some(item));
    let title = "Memory that each open connection takes, of both sides together";
    let each = |_, bytes: f64| bytes;
    let mut figure = Figure::new("connection-memory", title, log("connections"), log("bytes"))
        .systems(&rows("memory per connection"), "count", each)
        .systems(&rows("kernel memory per connection"), "count", each)
        .note("SocksDirect: what the processes and the monitor have, beyond what they have with 64 connections. Others: what the kernel's allocator grew by, in all of the machine.");
    figure.needed = vec![SOCKSDIRECT];
    figure
}

fn connection_rate(sources: &Sources) -> Figure {
    let rows = sources.rows("connect");
    let (socksdirect, linux) = paper::CONNECTIONS_PER_S;
    let papers =
        [("socksdirect", Some(socksdirect)), ("tcp", Some(linux)), ("sockmap", None), ("unix", None)];
    let bars = papers.map(|(system, paper)| {
        let rate = |item: Option<&str>| rows.item(item).median(system, None, None);
        bar(super::system_name(system))
            .here("one after the other", rate(None))
            .here("batches of 64", rate(Some("batches of 64")))
            .here("each to a new address", rate(Some("first contacts")))
            .paper("§6", paper)
    });
    let title = "Connections per second of one thread";
    let mut figure = Figure::new("connection-rate", title, linear("system"), log("connections/s"))
        .bars(bars.into_iter().collect());
    figure.needed = vec!["one after the other", "batches of 64", "each to a new address"];
    figure.note("connect, accept, one byte each way, close. The paper's figure is for creation alone.")
}

fn first_contacts(sources: &Sources) -> Figure {
    let rows = sources.rows("connect");
    let (per_connection, items) = (paper::MONITOR_NS, ["monitor: first contact", "monitor: introduction"]);
    let bars = items.map(|item| {
        bar(item).here("here", rows.median("socksdirect", Some(item), None)).paper("§6", Some(per_connection))
    });
    let title = "Processor time of the monitor";
    const HAND_OVER: &str = "hand fresh memory to two processes";
    let least = bar("the kernel's part of an introduction")
        .here("here", sources.rows("machine").median("machine", Some(HAND_OVER), None));
    let mut figure = Figure::new("monitor", title, linear("for each"), linear("ns"))
        .bars(bars.into_iter().chain([least]).collect());
    figure.needed = vec!["here"];
    figure
        .note("A first contact: a connection to an address that the process has not connected to before.")
        .note("An introduction: of two processes that have not been connected before. The monitor has no part in other connections; the paper's has in each.")
        .note("The kernel's part: what making a segment, handing it to two processes and mapping it costs without anything else, both of them included.")
}

/// The rows of an item of `sd bench tokens` or `cost` as a category.
fn item_bar(rows: &Rows, item: &str, systems: &[&str]) -> Bar {
    let mut bar = bar(item);
    for system in systems {
        bar = bar.here(super::static_name(system), rows.median(system, Some(item), None));
    }
    bar
}

fn items(rows: &Rows) -> Vec<String> {
    let mut items: Vec<String> =
        rows.0.iter().filter_map(|row| Some(row["item"].as_str()?.to_owned())).collect();
    items.dedup();
    items.sort();
    items.dedup();
    items
}

fn tokens(sources: &Sources) -> Figure {
    let rows = sources.rows("tokens");
    let bars = items(&rows).into_iter().map(|item| {
        let bar = item_bar(&rows, &item, &["socksdirect", "tcp", "unix", "ring"]);
        match item.starts_with("take-over") {
            true => bar.paper("§4.1.1", Some(paper::TAKE_OVER_NS)),
            false => bar,
        }
    });
    let title = "Tokens: taking one over, and what sharing costs who is alone";
    let figure = Figure::new("tokens", title, linear("what"), log("ns")).bars(bars.collect());
    let with = |item: &str| {
        let row = rows.of("socksdirect").find(|row| row["item"] == item)?;
        row["ratio_to_without"].as_f64()
    };
    let ratios = with("send, with tokens").zip(with("recv, with tokens"));
    let figure = match ratios {
        Some((send, recv)) => {
            figure.note(format!("With tokens, by the time without: send {send:.3}, recv {recv:.3}."))
        }
        None => figure,
    };
    figure.note(
        "The bare ring is its round trip, from the same rounds. Others: the send after one from elsewhere.",
    )
}

fn wake_up(sources: &Sources) -> Figure {
    let rows = sources.rows("wake");
    let bars = rows
        .systems()
        .into_iter()
        .map(|system| bar(super::system_name(&system)).here("here", rows.median(&system, None, None)));
    let title = "Round trip with a side that sleeps";
    let mut figure = Figure::new("wake", title, linear("system"), log("ns")).bars(bars.collect());
    figure.needed = vec!["here"];
    figure
}

fn idle(sources: &Sources) -> Figure {
    let rows = sources.rows("cost");
    let systems = ["socksdirect", "tcp"];
    let bars = ["idle wake-ups", "idle CPU"].map(|item| item_bar(&rows, item, &systems));
    let title = "Idle: wake-ups per second, and milliseconds of processor per second";
    Figure::new("idle", title, linear("what"), linear("per second"))
        .bars(bars.into_iter().collect())
        .note("Two processes with many open connections, and the monitor.")
}

/// Why a system was not measured, if it was not.
pub(crate) fn unavailable(sources: &Sources, system: &str) -> Option<String> {
    let why = |row: &Value| Some(row["unavailable"].as_str()?.to_owned());
    sources.0.iter().flat_map(|(_, rows)| rows.of(system)).find_map(why)
}

/// The congestion control that every kernel socket in these rows had.
pub(crate) fn congestion(sources: &Sources) -> Option<String> {
    sources.0.iter().find_map(|(_, rows)| rows.congestion())
}

/// All rows as they were printed, for the archive.
pub(crate) fn raw(sources: &Sources) -> Value {
    let rows = sources.0.iter().map(|(name, rows)| ((*name).to_owned(), Value::Array(rows.0.clone())));
    Value::Object(rows.collect())
}
