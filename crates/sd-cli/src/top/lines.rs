//! The two tables of `sd top`: which columns, in which order, in which words.

use super::sample::{Busy, Process, Rates};
use sd_cli::cli::Column;
use sd_cli::failure::printable;
use sd_cli::table::Align;
use std::cmp::Ordering;

/// How the lists are to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    pub(super) sort: Column,
    /// The smallest first; names, the last first.
    pub(super) is_reversed: bool,
    /// Processes, not connections.
    pub(super) has_processes: bool,
}

/// Heads of columns, and rows of cells without control characters.
pub(super) struct Table {
    pub(super) header: &'static [(&'static str, Align)],
    pub(super) rows: Vec<Vec<String>>,
}

const CONNECTIONS: &[(&str, Align)] = &[
    ("Recv/s", Align::Right),
    ("Sent/s", Align::Right),
    ("Recv-Q", Align::Right),
    ("Send-Q", Align::Right),
    ("CPU", Align::Right),
    ("Msg/s", Align::Right),
    ("Road", Align::Left),
    ("Since", Align::Right),
    ("Moves", Align::Right),
    ("Local Address:Port", Align::Left),
    ("Peer Address:Port", Align::Left),
    ("Process", Align::Left),
    ("Reason", Align::Left),
];

const PROCESSES: &[(&str, Align)] = &[
    ("Recv/s", Align::Right),
    ("Sent/s", Align::Right),
    ("Recv-Q", Align::Right),
    ("Send-Q", Align::Right),
    ("CPU", Align::Right),
    ("Spins/s", Align::Right),
    ("Sleeps/s", Align::Right),
    ("Memory", Align::Right),
    ("Shm", Align::Right),
    ("Kernel", Align::Right),
    ("Process", Align::Left),
];

/// The table that is wanted.
pub(super) fn table(rates: &Rates, look: Look) -> Table {
    if look.has_processes {
        let rows = sorted(&rates.processes, look, |process| Weight {
            rx: process.rx_bytes_per_second,
            tx: process.tx_bytes_per_second,
            queue: process.rx_queue.saturating_add(process.tx_queue),
            cpu: process.cpu,
            pid: process.pid,
        });
        return Table { header: PROCESSES, rows: rows.map(process).collect() };
    }
    let rows = sorted(&rates.connections, look, |c| Weight {
        rx: c.rx_bytes_per_second.unwrap_or(-1.0),
        tx: c.tx_bytes_per_second.unwrap_or(-1.0),
        queue: c.rx_queue.saturating_add(c.tx_queue),
        cpu: c.cpu,
        pid: c.pid,
    });
    Table { header: CONNECTIONS, rows: rows.map(connection).collect() }
}

/// One line above the table.
pub(super) fn summary(rates: &Rates) -> String {
    let kernel = rates.connections.iter().filter(|c| c.path == "kernel").count();
    let sum = |of: fn(&Busy) -> Option<f64>| rates.connections.iter().filter_map(of).sum::<f64>();
    let more = if rates.truncated { ", and more that the monitor does not show" } else { "" };
    format!(
        "{} processes, {} ends of connections: {} shm, {kernel} kernel{more}; {}/s received, {}/s sent",
        rates.processes.len(),
        rates.connections.len(),
        rates.connections.len() - kernel,
        bytes(sum(|c| c.rx_bytes_per_second)),
        bytes(sum(|c| c.tx_bytes_per_second)),
    )
}

/// What rows are sorted by.
struct Weight {
    rx: f64,
    tx: f64,
    queue: u64,
    cpu: Option<f64>,
    pid: u64,
}

impl Weight {
    /// The largest comes first; of processes the lowest number.
    fn compare(&self, other: &Weight, column: Column) -> Ordering {
        match column {
            Column::Rate => (other.rx + other.tx).total_cmp(&(self.rx + self.tx)),
            Column::Received => other.rx.total_cmp(&self.rx),
            Column::Sent => other.tx.total_cmp(&self.tx),
            Column::Queue => other.queue.cmp(&self.queue),
            Column::Cpu => other.cpu.unwrap_or(-1.0).total_cmp(&self.cpu.unwrap_or(-1.0)),
            Column::Process => self.pid.cmp(&other.pid),
        }
    }
}

/// Of rows that weigh the same the order stays.
fn sorted<T>(all: &[T], look: Look, weight: impl Fn(&T) -> Weight) -> impl Iterator<Item = &T> {
    let mut rows: Vec<(Weight, &T)> = all.iter().map(|row| (weight(row), row)).collect();
    rows.sort_by(|(a, _), (b, _)| {
        let order = a.compare(b, look.sort);
        if look.is_reversed { order.reverse() } else { order }
    });
    rows.into_iter().map(|(_, row)| row)
}

fn connection(c: &Busy) -> Vec<String> {
    let rate = |bytes_per_second: Option<f64>| bytes_per_second.map_or("-".to_owned(), bytes);
    let fd = c.fd.map(|fd| format!(",fd={fd}")).unwrap_or_default();
    let cells = [
        rate(c.rx_bytes_per_second),
        rate(c.tx_bytes_per_second),
        bytes(c.rx_queue as f64),
        bytes(c.tx_queue as f64),
        share(c.cpu),
        c.messages_per_second.map_or("-".to_owned(), bytes),
        c.path.clone(),
        c.road_age.clone(),
        if c.road_seconds.is_some() { c.road_changes.to_string() } else { "-".to_owned() },
        c.local.clone(),
        c.peer.clone(),
        format!("{},pid={}{fd}", c.comm, c.pid),
        c.why.clone(),
    ];
    cells.iter().map(|cell| printable(cell)).collect()
}

fn process(p: &Process) -> Vec<String> {
    let cells = [
        bytes(p.rx_bytes_per_second),
        bytes(p.tx_bytes_per_second),
        bytes(p.rx_queue as f64),
        bytes(p.tx_queue as f64),
        share(p.cpu),
        format!("{:.0}", p.spins_per_second),
        format!("{:.0}", p.sleeps_per_second),
        bytes(p.memory_bytes as f64),
        p.shm.to_string(),
        p.kernel.to_string(),
        format!("{},pid={}", p.comm, p.pid),
    ];
    cells.iter().map(|cell| printable(cell)).collect()
}

fn share(cpu: Option<f64>) -> String {
    cpu.map_or("-".to_owned(), |cpu| format!("{:.0}%", cpu * 100.0))
}

/// Three figures and a unit of a thousand.
pub(super) fn bytes(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G"] {
        if number < 999.5 {
            return match unit {
                "" => format!("{number:.0}"),
                unit if number < 9.95 => format!("{number:.1}{unit}"),
                unit => format!("{number:.0}{unit}"),
            };
        }
        number /= 1000.0;
    }
    format!("{number:.1}T")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::top) fn rates() -> Rates {
        let busy = |pid, rx: Option<f64>, queue| Busy {
            pid,
            comm: "a\u{1b}b".to_owned(),
            path: if rx.is_some() { "shm" } else { "kernel" }.to_owned(),
            local: "127.0.0.1:80".to_owned(),
            peer: "127.0.0.1:40000".to_owned(),
            reason: rx.is_none().then(|| "policy".to_owned()),
            why: if rx.is_none() { "policy; not moved: too slow".to_owned() } else { "-".to_owned() },
            road_age: if rx.is_none() { "7s".to_owned() } else { "-".to_owned() },
            road_seconds: rx.is_none().then_some(7.0),
            messages_per_second: rx.is_none().then_some(9.0),
            rx_bytes_per_second: rx,
            tx_bytes_per_second: rx.map(|rx| rx / 2.0),
            rx_queue: queue,
            cpu: Some(pid as f64 / 10.0),
            ..Busy::default()
        };
        let process = Process {
            pid: 3,
            comm: "three".to_owned(),
            shm: 2,
            sleeps_per_second: 7.0,
            ..Process::default()
        };
        Rates {
            seconds: 1.0,
            connections: vec![busy(2, Some(10.0), 9), busy(3, None, 0), busy(1, Some(12_345.0), 4)],
            processes: vec![process],
            peers: Vec::new(),
            truncated: false,
        }
    }

    pub(in crate::top) const LOOK: Look =
        Look { sort: Column::Rate, is_reversed: false, has_processes: false };

    fn pids(look: Look) -> Vec<String> {
        let rows = table(&rates(), look).rows;
        rows.iter().map(|row| row[11].split('=').nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn order() {
        assert_eq!(pids(LOOK), ["1", "2", "3"], "what is not known comes last");
        assert_eq!(pids(Look { is_reversed: true, ..LOOK }), ["3", "2", "1"]);
        assert_eq!(pids(Look { sort: Column::Queue, ..LOOK }), ["2", "1", "3"]);
        assert_eq!(pids(Look { sort: Column::Cpu, ..LOOK }), ["3", "2", "1"]);
        assert_eq!(pids(Look { sort: Column::Process, ..LOOK }), ["1", "2", "3"]);
    }

    #[test]
    fn rows_have_a_cell_for_each_column_and_no_control_characters() {
        for has_processes in [false, true] {
            let Table { header, rows } = table(&rates(), Look { has_processes, ..LOOK });
            assert!(rows.iter().all(|row| row.len() == header.len()));
            assert!(rows.iter().flatten().all(|cell| !cell.contains(char::is_control)));
        }
        let first = &table(&rates(), LOOK).rows[0];
        assert_eq!(first[..9], ["12k", "6.2k", "4", "0", "10%", "-", "shm", "-", "-"]);
        let last = table(&rates(), LOOK).rows.pop().unwrap_or_default();
        assert_eq!(last[5..9], ["9", "kernel", "7s", "0"]);
        assert!(summary(&rates()).contains("3 ends of connections: 2 shm, 1 kernel; 12k/s received"));
    }

    #[test]
    fn numbers() {
        let all = [0.4, 999.0, 999.6, 1500.0, 9_960.0, 123_456.0, 2.5e9, 3e12].map(bytes);
        assert_eq!(all, ["0", "999", "1.0k", "1.5k", "10k", "123k", "2.5G", "3.0T"]);
    }
}
