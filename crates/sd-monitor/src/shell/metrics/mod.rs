//! What a Prometheus server is told, where the monitor was asked to (`--metrics`).
//!
//! ```text
//! main thread --counts, as it acts--> registry <--encodes-- metrics thread --HTTP/1.0--> who asks
//!      ^------bell: look around------ metrics thread
//!      ------what it has seen-------> metrics thread
//! ```
//! # Guarantees
//! * Nobody who asks holds the main thread up: it never waits for the other thread, looks around in pieces, between which it
//!   serves its clients, and at most once in [`serve::FRESH`], however many ask.
//! * A reader that is slow is dropped, and so is the oldest when too many are there.
//! * Without `--metrics` nothing is counted, and there is no thread.
//!
//! | file | what |
//! |---|---|
//! | `place` | the socket or address |
//! | `http` | what a request asks for, what an answer looks like |
//! | `serve` | the thread |
//! | `peers` | other hosts' engines, in text |
//! | `sums` | what the main thread sees when it looks around, and its text |
//!
//! Tested by `metrics.rs` of the monitor's tests, with curl(1).

mod http;
mod peers;
pub(super) mod place;
mod serve;
mod sums;

use super::family::Family as Client;
use super::poller::{Poller, Token};
use super::server::Server;
use super::turns::busy;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use sd_proto::{ErrorCode, Route};
use sd_shm::slab::Reason;
use serve::Shared;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sums::{Sums, Waits};

/// What the main thread spends on looking around before it serves its clients again.
const PIECE: Duration = Duration::from_micros(300);

/// A name and its value.
type Label = [(&'static str, String); 1];

/// See the module. Nothing at all where nobody may ask.
#[derive(Default)]
pub(crate) struct Metrics(Option<Box<On>>);

struct On {
    requests: Family<Label, Histogram, fn() -> Histogram>,
    refusals: Family<Label, Counter>,
    routes: Family<[(&'static str, String); 2], Counter>,
    shared: Arc<Shared>,
    gathering: Option<Gathering>,
    /// Of processes that have ended.
    waits: Waits,
}

/// A look around that is under way.
struct Gathering {
    families: Vec<ClientId>,
    segments: Vec<ChannelKey>,
    sums: Sums,
}

impl Metrics {
    /// Serves them there, in a thread of its own.
    pub(super) fn start(listener: OwnedFd, poller: &Poller) -> io::Result<Metrics> {
        // A microsecond to a quarter of a second.
        let requests: Family<Label, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-6, 4.0, 10)));
        let (refusals, routes) = (Family::<Label, Counter>::default(), Family::default());
        let mut registry = Registry::with_prefix("socksdirect");
        registry.register_with_unit(
            "request",
            "Time that the monitor's main thread spends on a request",
            Unit::Seconds,
            requests.clone(),
        );
        registry.register("refusals", "Requests that were refused, by the reason given", refusals.clone());
        registry.register("routes", "Answers to the question where a connection leads", routes.clone());
        let shared = Arc::new(Shared::new()?);
        registry.register_collector(Box::new(sums::Seen(shared.clone())));
        poller.watch(&shared.bell, Token::Metrics)?;
        serve::start(listener, registry, shared.clone())?;
        Ok(Metrics(Some(Box::new(On {
            requests,
            refusals,
            routes,
            shared,
            gathering: None,
            waits: Waits::default(),
        }))))
    }

    /// When a request came, if anybody wants to know.
    pub(super) fn now(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| Instant::now())
    }

    /// A request was acted on that came at that time.
    pub(super) fn acted_on(&self, kind: &'static str, began: Option<Instant>) {
        if let (Some(on), Some(began)) = (&self.0, began) {
            let label = [("kind", words(kind))];
            on.requests.get_or_create(&label).observe(began.elapsed().as_secs_f64());
        }
    }

    /// A request was refused.
    pub(super) fn refused(&self, code: ErrorCode) {
        if let Some(on) = &self.0 {
            on.refusals.get_or_create(&[("reason", words(&format!("{code:?}")))]).inc();
        }
    }

    /// A client was told where a connection leads.
    pub(super) fn routed(&self, route: &Route) {
        let Some(on) = &self.0 else { return };
        let (road, reason) = match route {
            Route::Shm { fresh: true, .. } => ("shm", "first_contact".to_owned()),
            Route::Shm { .. } => ("shm", "known".to_owned()),
            Route::Kernel { reason } => ("kernel", words(&format!("{:?}", Reason::from_u32(*reason)))),
            Route::Denied => ("none", "policy".to_owned()),
            Route::Soon => ("none", "ask_again".to_owned()),
        };
        on.routes.get_or_create(&[("road", road.to_owned()), ("reason", reason)]).inc();
    }

    /// A process has ended, and takes its counts along.
    pub(super) fn ended(&mut self, client: ClientId, family: &Client) {
        let Some(on) = &mut self.0 else { return };
        on.waits.add(family);
        // Not looked at yet, and not there any more by then; else it was counted as one that is there.
        if let Some(gathering) = on.gathering.as_mut().filter(|it| it.families.contains(&client)) {
            gathering.sums.waits.add(family);
        }
    }

    /// How long to sleep at most before [`Server::gather_on`].
    pub(super) fn pause(&self) -> Option<Duration> {
        self.0.as_ref().and_then(|on| on.gathering.as_ref()).map(|_| Duration::ZERO)
    }
}

impl Server {
    /// Somebody wants to know: a look around begins.
    pub(super) fn begin_to_gather(&mut self) {
        let Some(on) = &mut self.metrics.0 else { return };
        let _ = nix::unistd::read(on.shared.bell.as_fd(), &mut [0; 8]);
        if on.gathering.is_none() {
            let families = self.families.keys().copied().collect();
            let segments = self.segments.keys().copied().collect();
            let sums = Sums::beginning_with(on.waits);
            on.gathering = Some(Gathering { families, segments, sums });
        }
    }

    /// Goes on with it for a while.
    pub(super) fn gather_on(&mut self) {
        let Some(mut gathering) = self.metrics.0.as_mut().and_then(|on| on.gathering.take()) else { return };
        let began = busy();
        while self.gather_next(&mut gathering) {
            if busy().saturating_sub(began) > PIECE {
                if let Some(on) = &mut self.metrics.0 {
                    on.gathering = Some(gathering);
                }
                return;
            }
        }
        self.gather_rest(&mut gathering.sums);
        if let Some(on) = &self.metrics.0 {
            on.shared.has_seen(gathering.sums);
        }
    }

    /// False when all was looked at.
    fn gather_next(&self, gathering: &mut Gathering) -> bool {
        if let Some(client) = gathering.families.pop() {
            if let Some(family) = self.families.get(&client) {
                gathering.sums.add_family(family);
            }
        } else if let Some(key) = gathering.segments.pop() {
            if let Some(segment) = self.segments.get(&key) {
                gathering.sums.add_segment(segment.file());
            }
        } else {
            return false;
        }
        true
    }

    /// What the core counts anyway.
    fn gather_rest(&self, sums: &mut Sums) {
        sums.counters = self.counters;
        sums.offers_waiting = self.core.offers.len() as u64;
        sums.peers = peers::seen(&self.engine.peers, self.engine.client().is_some());
        sums.processes = self.core.members.len() as u64;
        sums.channels = self.core.channels.len() as u64;
        sums.listeners = self.core.listeners.iter().count() as u64;
        sums.port_blocks = self.core.leases.count() as u64;
        sums.descriptors = self.core.quotas.all().collect();
        sums.descriptors_share = self.core.quotas.share();
    }
}

/// `NoListener` as `no_listener`.
pub(super) fn words(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!([words("Hello"), words("NoListener")], ["hello", "no_listener"]);
    }
}
