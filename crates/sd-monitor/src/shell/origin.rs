//! Whose is a connection that waits? All who share the socket at which it waits may accept it. Those that share the address
//! only, by SO_REUSEPORT, are on their own in Linux and are dealt equal shares (`sd-socket/src/route/deal.rs`): they get what waits
//! at a process that has come to a stop.

use super::rescue::Request;
use super::server::Server;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use std::collections::BTreeSet;

/// Who has not accepted for so long has come to a stop.
const STOPPED_NS: u64 = 100_000_000;

/// Where connections to one place wait.
pub(super) struct Origin {
    /// The listener is gone, or its process has come to a stop.
    is_abandoned: bool,
    sockets: Vec<u64>,
}

impl Origin {
    /// Whether somebody who listens at that place may have some of them.
    pub(super) fn admits(&self, listener: &Listener) -> bool {
        self.is_abandoned || self.sockets.contains(&listener.cookie)
    }
}

impl Server {
    pub(super) fn origin(&self, key: ChannelKey, netns: u64, requests: &[&Request]) -> Origin {
        let founder = self.core.channels.founder(key);
        let asked: BTreeSet<_> = requests.iter().map(|request| (request.port, request.listener)).collect();
        let mut origin =
            Origin { is_abandoned: requests.iter().any(|r| has_stopped(r)), sockets: Vec::new() };
        for (port, named) in asked {
            let is_it = |l: &&Listener| Some(l.client) == founder && (l.index, l.generation) == named;
            match self.core.listeners.of_port(netns, port).iter().find(is_it) {
                Some(listener) => origin.sockets.push(listener.cookie),
                None => origin.is_abandoned = true,
            }
        }
        origin
    }
}

fn has_stopped(request: &Request) -> bool {
    sd_sys::time::ns_of_ticks(sd_sys::time::ticks().saturating_sub(request.asked_at)) >= STOPPED_NS
}
