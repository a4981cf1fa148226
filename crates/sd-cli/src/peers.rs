//! Other hosts' engines, as the monitor's document has them.

use serde::Deserialize;
use serde_json::Value;

/// How this host's engine stands with another one. What only root and the monitor's user are told is zero for others.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Peer {
    /// Where it listens.
    pub address: String,
    pub carrier: String,
    /// `up`, or by one word why not.
    pub state: String,
    /// The same in words.
    pub why: String,
    pub encrypted: bool,
    /// Whose networks are behind it.
    pub tenants: Vec<String>,
    /// Since when it is reached, or is not: CLOCK_MONOTONIC.
    pub since_ns: u64,
    pub rtt_ns: u64,
    pub connections: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    pub placed_sent: u64,
    pub placed_received: u64,
    pub said_again: u64,
    pub retransmitted: u64,
}

/// This host's engine.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Engine {
    /// None: it is not there.
    pub pid: Option<u64>,
    pub hosts: HostsFile,
    pub peers: Vec<Peer>,
}

/// How the engine has taken the hosts file.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct HostsFile {
    /// It has a mistake in this line (zero: not in a line), and the one before is in force.
    pub mistake: Option<u64>,
    /// So many of its names have no address.
    pub unresolved: u64,
}

impl Peer {
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }

    /// The time from a packet to its acknowledgement.
    pub fn rtt(&self) -> Option<String> {
        match self.rtt_ns {
            0 => None,
            ns @ ..1_000_000 => Some(format!("{}us", ns.div_ceil(1000))),
            ns => Some(format!("{:.1}ms", ns as f64 / 1e6)),
        }
    }

    /// What was sent again: records by the engine, and segments by the kernel.
    pub fn again(&self) -> u64 {
        self.said_again.saturating_add(self.retransmitted)
    }

    /// `tenants blue, red`; nothing where there are none.
    pub fn whose(&self) -> Option<String> {
        let word = if self.tenants.len() == 1 { "tenant" } else { "tenants" };
        (!self.tenants.is_empty()).then(|| format!("{word} {}", self.tenants.join(", ")))
    }

    /// Since when, in a document of that time.
    pub fn age(&self, clock_ns: u64) -> String {
        crate::status::duration(clock_ns.saturating_sub(self.since_ns))
    }
}

/// The engine, where the monitor is to have one.
pub fn engine(document: &Value) -> Option<Engine> {
    Engine::deserialize(&document["engine"]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_has_one_or_none() {
        assert!(engine(&json!({})).is_none() && engine(&json!({"engine": null})).is_none());
        let peers = json!([{"address": "10.0.0.2:7", "state": "up", "since_ns": 5, "rtt_ns": 1_250_000}]);
        let found = engine(&json!({"engine": {"pid": 7, "peers": peers}})).unwrap();
        assert_eq!((found.pid, found.peers[0].is_up()), (Some(7), true));
        assert_eq!(found.peers[0].rtt().as_deref(), Some("1.2ms"));
        assert_eq!(found.peers[0].age(3_000_000_005), "3s");
        assert_eq!(Peer { rtt_ns: 40_001, ..Peer::default() }.rtt().as_deref(), Some("41us"));
        assert_eq!(Peer::default().rtt(), None);
    }
}
