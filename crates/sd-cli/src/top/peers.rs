//! Other hosts' engines in `sd top`: what goes each way, how long it takes, what was sent again.

use super::lines::{Table, bytes};
use sd_cli::failure::printable;
use sd_cli::peers::Peer;
use sd_cli::table::Align;
use serde::Serialize;

const HEADER: &[(&str, Align)] = &[
    ("Other engine", Align::Left),
    ("Recv/s", Align::Right),
    ("Sent/s", Align::Right),
    ("Packets/s", Align::Right),
    ("RTT", Align::Right),
    ("Again/s", Align::Right),
    ("Conns", Align::Right),
    ("Since", Align::Right),
    ("State", Align::Left),
];

/// One of them, and what it did since the document before.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Far {
    address: String,
    carrier: String,
    state: String,
    why: String,
    encrypted: bool,
    tenants: Vec<String>,
    #[serde(skip)]
    age: String,
    #[serde(skip)]
    rtt: Option<String>,
    seconds: f64,
    rtt_seconds: Option<f64>,
    connections: u64,
    /// Of packets; `None`: it was not there before.
    rx_bytes_per_second: Option<f64>,
    tx_bytes_per_second: Option<f64>,
    rx_packets_per_second: Option<f64>,
    tx_packets_per_second: Option<f64>,
    /// Records that the engine has sent again, and segments that the kernel has.
    again_per_second: Option<f64>,
    said_again: u64,
    retransmitted: u64,
}

impl Far {
    /// `of`: a rate of two counts.
    pub(super) fn between(
        before: Option<&Peer>,
        now: &Peer,
        clock_ns: u64,
        of: impl Fn(u64, u64) -> Option<f64>,
    ) -> Far {
        let rate = |count: fn(&Peer) -> u64| before.and_then(|before| of(count(now), count(before)));
        Far {
            address: now.address.clone(),
            carrier: now.carrier.clone(),
            state: now.state.clone(),
            why: now.why.clone(),
            encrypted: now.encrypted,
            tenants: now.tenants.clone(),
            age: now.age(clock_ns),
            rtt: now.rtt(),
            seconds: clock_ns.saturating_sub(now.since_ns) as f64 / 1e9,
            rtt_seconds: Some(now.rtt_ns as f64 / 1e9).filter(|seconds| *seconds > 0.0),
            connections: now.connections,
            rx_bytes_per_second: rate(|peer| peer.bytes_received),
            tx_bytes_per_second: rate(|peer| peer.bytes_sent),
            rx_packets_per_second: rate(|peer| peer.packets_received),
            tx_packets_per_second: rate(|peer| peer.packets_sent),
            again_per_second: rate(|peer| peer.said_again.saturating_add(peer.retransmitted)),
            said_again: now.said_again,
            retransmitted: now.retransmitted,
        }
    }

    fn cells(&self) -> Vec<String> {
        let rate = |count: Option<f64>| count.map_or("-".to_owned(), bytes);
        let both = self.rx_packets_per_second.zip(self.tx_packets_per_second);
        let how = if self.encrypted { "encrypted" } else { "plain" };
        let whose: String = self.tenants.iter().map(|tenant| format!(", {tenant}")).collect();
        let state = if self.state == "up" { format!("up, {how}{whose}") } else { self.why.clone() };
        let cells = [
            format!("{} {}", self.address, self.carrier),
            rate(self.rx_bytes_per_second),
            rate(self.tx_bytes_per_second),
            rate(both.map(|(received, sent)| received + sent)),
            self.rtt.clone().unwrap_or("-".to_owned()),
            rate(self.again_per_second),
            self.connections.to_string(),
            self.age.clone(),
            state,
        ];
        cells.iter().map(|cell| printable(cell)).collect()
    }
}

/// The table of them; `None` where there are none.
pub(super) fn table(all: &[Far]) -> Option<Table> {
    (!all.is_empty()).then(|| Table { header: HEADER, rows: all.iter().map(Far::cells).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each() {
        let peer = |bytes_sent, packets_received| Peer {
            address: "10.0.0.2:7077\u{1b}".to_owned(),
            carrier: "trunk".to_owned(),
            state: "up".to_owned(),
            encrypted: true,
            tenants: vec!["blue".to_owned()],
            since_ns: 1,
            rtt_ns: 80_000,
            connections: 40,
            bytes_sent,
            packets_received,
            ..Peer::default()
        };
        let of = |more: u64, less: u64| Some(more.checked_sub(less)? as f64 / 2.0);
        let known = Far::between(Some(&peer(1000, 4)), &peer(5000, 10), 5_000_000_001, of);
        let new = Far::between(None, &peer(1, 1), 5_000_000_001, of);
        let Table { header, rows } = table(&[known, new]).unwrap();
        assert!(rows.iter().all(|row| row.len() == header.len()));
        assert_eq!(
            rows[0],
            ["10.0.0.2:7077  trunk", "0", "2.0k", "3", "80us", "0", "40", "5s", "up, encrypted, blue"]
        );
        assert_eq!(rows[1][1..4], ["-", "-", "-"]);
        assert!(table(&[]).is_none());
    }
}
