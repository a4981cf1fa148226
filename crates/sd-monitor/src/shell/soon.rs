//! Sockets that are about to listen (ADR 46).
//!
//! Without this a client that tries until somebody listens finds the kernel's listener before the accelerated one, and stays
//! on the kernel's path for the life of its connection.
//!
//! ```text
//! B --WillListen + bound socket--> monitor: noted, published, routes invalid; then a look at who is connecting in the kernel
//!     somebody --> Error: InUse; B asks again in a moment
//!     nobody   --> Ok
//! B: the kernel's listen             A --Connect--> monitor --Soon--> A asks again in a moment
//! B --Listens, or Unlisten when the kernel refused--> monitor: who asks gets the route, or the kernel
//! ```
//! B waits for the first answer only. Its messages are taken in order, and whoever asks before Listens is taken asks again. That the
//! announced socket listens by then the kernel says; the monitor never has a descriptor of a listener that B could want to be
//! closed by now.
//!
//! **Why no client slips through** (SYNC POINT: will listen, with `once_more` and `new` in crates/sd-socket/src/setup/first_contact.rs). A client that was told that nobody listens notes the port in its
//! slab, fences, and looks whether its route is still valid; only then it connects in the kernel. The monitor voids routes,
//! fences, and reads those notes. Of the two at least one sees the other. Neither waits for long: who announced and does
//! not listen is believed for [`BELIEVED`], and both sides ask so many times only.

use super::descriptors::{Owned, Unfit};
use super::expected::Expected;
use super::proof::Proof;
use super::requests::Wanted;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_ring::sync::will_listen::is_noted;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// From listen(2) to the next message takes microseconds.
const BELIEVED: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(crate) struct Soon {
    announced: BTreeMap<(ClientId, u32), Place>,
    /// Those of whom it is known in another way.
    pub(crate) expected: Expected,
}

/// Where a socket is bound.
pub(crate) struct Place {
    pub(crate) netns: u64,
    pub(crate) ip: Ip,
    pub(crate) port: u16,
    pub(crate) v6only: bool,
    cookie: u64,
    owner: u32,
    mptcp_inode: Option<u32>,
    since: Instant,
}

impl Soon {
    /// Whether somebody is about to listen who would get a connection to there.
    pub(crate) fn includes(&self, netns: u64, ip: Ip, port: u16) -> bool {
        let fits = |place: &Place| {
            (place.netns, place.port) == (netns, port)
                && place.ip.rank_for(ip, place.v6only).is_some()
                && place.since.elapsed() < BELIEVED
        };
        self.announced.values().any(fits)
    }

    /// All of a namespace, with their clients.
    pub(crate) fn of(&self, netns: u64) -> impl Iterator<Item = (ClientId, &Place)> {
        self.announced
            .iter()
            .filter(move |(_, place)| place.netns == netns)
            .map(|((client, _), place)| (*client, place))
    }

    /// It listens, or never will. True when it was known.
    pub(crate) fn settle(&mut self, client: ClientId, index: u32) -> bool {
        self.announced.remove(&(client, index)).is_some()
    }

    /// A client has ended. True when something of it was known.
    pub(crate) fn forget(&mut self, client: ClientId) -> bool {
        let before = self.announced.len();
        self.announced.retain(|(known, _), _| *known != client);
        self.announced.len() != before
    }
}

impl Server {
    /// Answers [`sd_proto::Request::WillListen`].
    pub(crate) fn will_listen(
        &mut self,
        client: ClientId,
        index: u32,
        bound: Result<Owned, Unfit>,
    ) -> Result<Option<Reply>, ErrorCode> {
        let own = self.families.get(&client).map(|family| family.netns).ok_or(ErrorCode::Protocol)?;
        let Owned { netns, ip, port, v6only, cookie, owner, mptcp_inode } =
            bound.map_err(|_| ErrorCode::Descriptor)?;
        if netns != own || port == 0 || index as usize >= sd_shm::public::LISTENERS {
            return Err(ErrorCode::Protocol);
        }
        let place = Place { netns, ip, port, v6only, cookie, owner, mptcp_inode, since: Instant::now() };
        let known = self.soon.announced.insert((client, index), place);
        if known.is_none_or(|known| (known.ip, known.port) != (ip, port)) {
            self.routes_changed(Some(netns));
        }
        let in_netns = self.families.values().filter(|family| family.netns == netns);
        let notes = in_netns.flat_map(|family| &family.slab.header().kernel_connects);
        match is_noted(notes, port) {
            true => Err(ErrorCode::InUse),
            false if !self.namespaces.can_ask(netns) => Err(ErrorCode::Descriptor),
            false => Ok(Some(Reply::Ok)),
        }
    }

    /// Acts on [`sd_proto::Request::Listens`].
    pub(crate) fn listens(&mut self, client: ClientId, wanted: Wanted) -> Result<(), ErrorCode> {
        let place = self.soon.announced.get(&(client, wanted.index)).ok_or(ErrorCode::Protocol)?;
        let Place { netns, ip, port, v6only, cookie, owner, mptcp_inode, .. } = *place;
        let bound = Owned { netns, ip, port, v6only, cookie, owner, mptcp_inode };
        let done = match self.namespaces.as_listed(bound) {
            Ok(it) if self.namespaces.listens((netns, ip, port), it.cookie) == Proof::Alive => {
                self.listen(client, wanted, Ok(it))
            }
            _ => Err(ErrorCode::Descriptor),
        };
        if done.is_err() && self.soon.settle(client, wanted.index) {
            self.routes_changed(Some(netns));
        }
        done
    }
}
