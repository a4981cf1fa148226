//! What the main thread sees when it looks around, and its text.
//!
//! Sockets are read from the slabs of their owners, who may write there what they like: it is counted, not believed.

use super::super::family::Family;
use super::super::server::Counters;
use super::peers::{self, Engines};
use super::serve::Shared;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use sd_shm::slab::{Awaits, Counter, ROAD_WATCHED, Reason, State};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module.
#[derive(Clone, Default, Debug)]
pub(super) struct Sums {
    /// Ends of connections by road and user.
    connections: BTreeMap<(&'static str, u32), u64>,
    /// Those on the kernel path by reason.
    kernel: BTreeMap<String, u64>,
    /// Those of them that may be moved to shared memory, by what that waits for.
    awaiting: BTreeMap<String, u64>,
    pub(super) offers_waiting: u64,
    pub(super) waits: Waits,
    /// By user.
    clients: BTreeMap<u32, u64>,
    slab_bytes: u64,
    channel_bytes: u64,
    pub(super) listeners: u64,
    pub(super) processes: u64,
    pub(super) channels: u64,
    pub(super) port_blocks: u64,
    /// What each user is charged for.
    pub(super) descriptors: BTreeMap<u32, u64>,
    pub(super) descriptors_share: u64,
    pub(super) counters: Counters,
    /// Other hosts' engines.
    pub(super) peers: Engines,
}

/// Waits that ended while a thread looked, and those that it slept through.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Waits([u64; 2]);

impl Waits {
    /// What one process says counts for at most so much: nobody makes the sum useless for others.
    const OF_ONE_MAX: u64 = 1 << 48;

    pub(super) fn add(&mut self, family: &Family) {
        let counters = &family.slab.header().counters;
        for (sum, which) in self.0.iter_mut().zip([Counter::SpinHit, Counter::Sleep]) {
            let count = counters.get(which as usize).map_or(0, |count| count.load(Ordering::Relaxed));
            *sum = sum.saturating_add(count.min(Waits::OF_ONE_MAX));
        }
    }
}

impl Sums {
    /// When only processes that have ended were counted.
    pub(super) fn beginning_with(ended: Waits) -> Sums {
        Sums { waits: ended, ..Sums::default() }
    }

    /// A process and its sockets.
    pub(super) fn add_family(&mut self, family: &Family) {
        self.waits.add(family);
        *self.clients.entry(family.uid).or_default() += 1;
        self.slab_bytes += bytes_in_memory(family.slab.file());
        let mut last = core::ptr::null();
        family.slab.endpoints(|endpoint| {
            // One that lies across pages may come twice in a row.
            if core::ptr::eq(std::mem::replace(&mut last, endpoint), endpoint) {
                return;
            }
            let reason = Reason::from_u32(endpoint.reason.load(Ordering::Relaxed).into());
            let road = match State::from_u32(endpoint.state.load(Ordering::Acquire).into()) {
                State::Connected if reason == Reason::Bridged => "bridged",
                State::Connected if reason == Reason::Promoted && family.slab.is_by_kernel(endpoint) => {
                    "kernel"
                }
                State::Connected | State::Connecting => "shm",
                State::Kernel => "kernel",
                _ => return,
            };
            *self.connections.entry((road, family.uid)).or_default() += 1;
            if road == "kernel" {
                *self.kernel.entry(super::words(&format!("{reason:?}"))).or_default() += 1;
            }
            let cold = family.slab.cold(endpoint).filter(|_| road == "kernel");
            if let Some(cold) = cold.filter(|cold| cold.road.load(Ordering::Relaxed) & ROAD_WATCHED != 0) {
                let awaits = Awaits::from_u32(cold.road_awaits.load(Ordering::Relaxed).into());
                *self.awaiting.entry(super::words(&format!("{awaits:?}"))).or_default() += 1;
            }
        });
    }

    /// A channel's segment.
    pub(super) fn add_segment(&mut self, file: &File) {
        self.channel_bytes += bytes_in_memory(file);
    }
}

fn bytes_in_memory(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.blocks() * 512)
}

/// Tells what was seen last.
#[derive(Debug)]
pub(super) struct Seen(pub(super) Arc<Shared>);

impl Collector for Seen {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let it = self.0.sums();
        let mut page = Page(&mut to);
        let by_user = |all: &BTreeMap<u32, u64>| {
            all.iter().map(|(user, count)| ([("uid", user.to_string())], *count)).collect::<Vec<_>>()
        };
        let connections = it
            .connections
            .iter()
            .map(|((road, user), count)| ([("road", (*road).to_owned()), ("uid", user.to_string())], *count));
        page.gauges("connections", "Ends of connections, by road and user", None, connections)?;
        let kernel = it.kernel.iter().map(|(reason, count)| ([("reason", reason.clone())], *count));
        page.gauges("kernel_connections", "Ends of connections on the kernel path, by reason", None, kernel)?;
        let awaiting = it.awaiting.iter().map(|(what, count)| ([("awaits", what.clone())], *count));
        let text = "Ends of connections that may be moved to shared memory, by what that waits for";
        page.gauges("watched_connections", text, None, awaiting)?;
        page.gauge("offers_waiting", "Connections whose other end was not offered yet", it.offers_waiting)?;
        page.gauges("clients", "Processes that are registered, by user", None, by_user(&it.clients))?;
        page.gauge("processes", "Processes that are known, children of clients too", it.processes)?;
        page.gauge("channels", "Pairs of processes that have a channel", it.channels)?;
        page.gauge("listeners", "Sockets that listen", it.listeners)?;
        page.gauge("port_blocks", "Blocks of source ports that are lent", it.port_blocks)?;
        let memory = [("slabs", it.slab_bytes), ("channels", it.channel_bytes)];
        let memory = memory.map(|(of, bytes)| ([("of", of.to_owned())], bytes));
        page.gauges("memory", "Shared memory that exists", Some(&Unit::Bytes), memory)?;
        let text = "Descriptors of the monitor that a user is charged for";
        page.gauges("quota_descriptors", text, None, by_user(&it.descriptors))?;
        let text = "Descriptors that a user may be charged for, root and the monitor's own excepted";
        page.gauge("quota_descriptors_limit", text, it.descriptors_share)?;
        page.waits(it.waits)?;
        page.counters(&it.counters)?;
        peers::encode(&it.peers, &mut to)
    }
}

/// A page that is being written.
struct Page<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Page<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        all: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut to = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        all.into_iter()
            .try_for_each(|(labels, value)| ConstGauge::new(value).encode(to.encode_family(&labels)?))
    }

    /// How threads have waited, of processes that are there and of those that have ended.
    fn waits(&mut self, Waits(all): Waits) -> fmt::Result {
        let help = "Waits of threads, by whether they ended while the thread looked or it slept";
        let mut to = self.0.encode_descriptor("waits", help, None, MetricType::Counter)?;
        ["spin", "sleep"]
            .into_iter()
            .zip(all)
            .try_for_each(|(how, count)| ConstCounter::new(count).encode(to.encode_family(&[("how", how)])?))
    }

    /// What the monitor has done so far.
    fn counters(&mut self, it: &Counters) -> fmt::Result {
        for (name, help, count) in [
            ("registrations", "Processes that have registered", it.clients),
            ("introductions", "Channels that were made: first contacts of two processes", it.channels),
            ("offers", "Channels of others that were offered to a listening process", it.offers),
            (
                "reaped_connections",
                "Connections that were closed for processes that had died",
                it.connections_reaped,
            ),
            ("promotions", "Connections of the kernel's whose both ends were found", it.promotions),
            ("malformed", "Messages that made no sense", it.malformed),
            ("refused_clients", "Connections to the monitor that were refused", it.refused_connections),
        ] {
            let counter = ConstCounter::new(count);
            counter.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}
