//! Other hosts' engines, in text.

use super::super::peers::Peers;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use sd_proto::PeerState;
use std::fmt;

/// Other engines, and how this host's one has taken the hosts file.
#[derive(Clone, Default, Debug)]
pub(super) struct Engines {
    peers: Vec<Peer>,
    /// The file that is there is not in force; names without an address.
    file: Option<(bool, u32)>,
}

/// How the engine stands with another one, and what both have exchanged.
#[derive(Clone, Debug)]
struct Peer {
    address: String,
    is_up: bool,
    carrier: &'static str,
    tenants: Vec<String>,
    rtt_ns: u64,
    connections: u64,
    /// Sent, and received.
    bytes: [u64; 2],
    packets: [u64; 2],
    placed: [u64; 2],
    /// By the engine, and by the kernel.
    again: [u64; 2],
}

/// All of them.
pub(super) fn seen(peers: &Peers, is_there: bool) -> Engines {
    let one = |(address, peer): (&std::net::SocketAddr, &super::super::peers::Peer)| {
        let counts = peer.counts?;
        Some(Peer {
            address: address.to_string(),
            is_up: peer.state == PeerState::Up,
            carrier: peer.carrier.text(),
            tenants: peers.tenants(address),
            rtt_ns: counts.rtt_ns,
            connections: counts.connections.into(),
            bytes: [counts.bytes_sent, counts.bytes_received],
            packets: [counts.packets_sent, counts.packets_received],
            placed: [counts.placed_sent, counts.placed_received],
            again: [counts.said_again, counts.retransmitted],
        })
    };
    Engines { peers: peers.iter().filter_map(one).collect(), file: is_there.then(|| peers.file()) }
}

/// Nothing where there is no engine.
pub(super) fn encode(engines: &Engines, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Some((is_mistaken, unresolved)) = engines.file {
        let help = "Whether the hosts file has a mistake, so that the one before is in force";
        gauge(to, "engine_hosts_file_mistaken", help, is_mistaken.into())?;
        let help = "Names of the hosts file that have no address";
        gauge(to, "engine_names_unresolved", help, unresolved.into())?;
    }
    let peers = &engines.peers[..];
    if peers.is_empty() {
        return Ok(());
    }
    let help = "What carries packets to another host's engine now";
    pairs(to, ("engine_peer_carrier", help), "carrier", peers.iter().map(|peer| (peer, peer.carrier)))?;
    let tenants =
        peers.iter().flat_map(|peer| peer.tenants.iter().map(move |tenant| (peer, tenant.as_str())));
    let help = "A tenant that has networks behind another host's engine";
    pairs(to, ("engine_peer_tenant", help), "tenant", tenants)?;
    gauges(to, "engine_peer_up", "Whether another host's engine is reached", peers, |peer| {
        peer.is_up.into()
    })?;
    let help = "Connections that are carried to another host's engine";
    gauges(to, "engine_peer_connections", help, peers, |peer| peer.connections)?;
    let help = "Time from a packet to another host's engine to its acknowledgement";
    let mut family =
        to.encode_descriptor("engine_peer_rtt", help, Some(&Unit::Seconds), MetricType::Gauge)?;
    for peer in peers.iter().filter(|peer| peer.rtt_ns > 0) {
        let labels = [("peer", peer.address.as_str())];
        ConstGauge::new(peer.rtt_ns as f64 / 1e9).encode(family.encode_family(&labels)?)?;
    }
    let ways = ("direction", ["sent", "received"]);
    let help = "Bytes of packets that another host's engine was sent, and has sent";
    counters(to, ("engine_peer_bytes", help), peers, ways, |peer| peer.bytes)?;
    let help = "Packets that another host's engine was sent, and has sent";
    counters(to, ("engine_peer_packets", help), peers, ways, |peer| peer.packets)?;
    let help = "Bytes of those that went between rings here and there without a copy";
    counters(to, ("engine_peer_placed_bytes", help), peers, ways, |peer| peer.placed)?;
    let help = "What was sent again to another host's engine: records by the engine, segments by the kernel";
    counters(to, ("engine_peer_retransmissions", help), peers, ("by", ["engine", "kernel"]), |peer| {
        peer.again
    })
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, count: u64) -> fmt::Result {
    ConstGauge::new(count).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// One for each that there is.
fn pairs<'a>(
    to: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    label: &'static str,
    all: impl Iterator<Item = (&'a Peer, &'a str)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (peer, value) in all {
        let labels = [("peer", peer.address.as_str()), (label, value)];
        ConstGauge::new(1u64).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    peers: &[Peer],
    of: fn(&Peer) -> u64,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    peers.iter().try_for_each(|peer| {
        let labels = [("peer", peer.address.as_str())];
        ConstGauge::new(of(peer)).encode(family.encode_family(&labels)?)
    })
}

fn counters(
    to: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    peers: &[Peer],
    (label, values): (&'static str, [&'static str; 2]),
    of: fn(&Peer) -> [u64; 2],
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for peer in peers {
        for (value, count) in values.into_iter().zip(of(peer)) {
            let labels = [("peer", peer.address.as_str()), (label, value)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
