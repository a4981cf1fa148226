//! What processes can read of who listens where (`sd_shm::directory`), one for each network namespace.
//!
//! It says what the monitor would answer, so it is of use only where that does not depend on who asks.

use super::descriptors::std_fd;
use super::soon::Soon;
use crate::core::Core;
use sd_shm::directory::{Listing, Writer};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is published.
type Known<'a> = (&'a Core, &'a Soon);

/// See the module.
#[derive(Default)]
pub(crate) struct Directories(HashMap<u64, Directory>);

struct Directory {
    writer: Writer,
    fd: OwnedFd,
}

impl Directories {
    /// That of a namespace, made if need be; `None` when that is not possible.
    pub(crate) fn of(&mut self, netns: u64, core: Known<'_>) -> Option<BorrowedFd<'_>> {
        let directory = match self.0.entry(netns) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (fd, writer) = Writer::create().ok()?;
                let fd = std_fd(fd);
                let directory = place.insert(Directory { writer, fd });
                directory.publish(core, netns);
                directory
            }
        };
        Some(directory.fd.as_fd())
    }

    /// Listeners or policy have changed (in one namespace).
    pub(crate) fn publish(&self, core: Known<'_>, netns: Option<u64>) {
        let concerned = self.0.iter().filter(|(own, _)| netns.is_none_or(|netns| netns == **own));
        concerned.for_each(|(own, directory)| directory.publish(core, *own));
    }

    /// Keeps those of the namespaces that are needed.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(u64) -> bool) {
        self.0.retain(|netns, _| is_needed(*netns));
    }
}

impl Directory {
    fn publish(&self, known: Known<'_>, netns: u64) {
        let all = known.0.policy.is_alike_for_all().then(|| listings(known, netns));
        self.writer.publish(all.as_deref());
    }
}

/// In the order of their ports, and of their registration.
fn listings((core, soon): Known<'_>, netns: u64) -> Vec<Listing> {
    let of_netns = core.listeners.iter().filter(|listener| listener.netns == netns);
    let listing = |listener: &crate::core::listeners::Listener| Listing {
        client: listener.client.0,
        ip: listener.ip.halves(),
        port: listener.port,
        v6only: listener.v6only,
        accepting: listener.accepting,
        soon: false,
        user: listener.user,
        cookie: listener.cookie,
        index: listener.index,
        generation: listener.generation,
    };
    let will = |(client, place): (crate::core::ClientId, &super::soon::Place)| Listing {
        client: client.0,
        ip: place.ip.halves(),
        port: place.port,
        v6only: place.v6only,
        soon: true,
        ..Listing::NONE
    };
    let expected = |place: &super::expected::Place| Listing {
        ip: place.ip.halves(),
        port: place.port,
        v6only: place.v6only,
        soon: true,
        ..Listing::NONE
    };
    let expected = soon.expected.of(netns).map(expected);
    let mut all: Vec<Listing> =
        of_netns.map(listing).chain(soon.of(netns).map(will)).chain(expected).collect();
    all.sort_by_key(|listing| listing.port);
    all
}
