//! The engine of this host: a process that carries promoted connections to the engines of other hosts (`sd_engine`).
//!
//! ```text
//!  client --Offer--> monitor --Seek--> engine ==== other host's engine --Sought--> its monitor <--Offer-- client
//!                    monitor <--Found-- engine <==== engine <--Promote: channel, side A-- monitor --Promote--> client
//!  client <--Promote: channel-- monitor --Promote: channel, side B--> engine
//! ```
//! To the monitor it is a client that offers the other end of a connection, and gets a channel for it as any client does ([`super::offers`]). So
//! what ends channels, and wakes who waits there, is the same. The end that has connected is sought at the host of the other: a question waits
//! there as an offer does. Which two are one connection the monitor decides that has both, by the same judge as within a host; between
//! hosts names mean the network namespace that the engine is in.
//!
//! # Who may be one
//! As for pumps ([`super::pumps`]): root, or the monitor's own user, and only if the monitor was told to use one.

use super::carried::{By, Carried};
use super::family::Family;
use super::peers::Peers;
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::offers::{Facts, Name, Numbers, Offer, Outcome};
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::channel::{Mapping, Side};
use sd_shm::link::Link;
use sd_shm::slab::Awaits;
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Of a question: there is no socket of this host, so its cookie is one that the kernel gives none.
const NOT_HERE: u64 = 1 << 63;

/// So many of the offers that wait are told to an engine when it comes.
const SOUGHT_MAX: usize = 1024;

/// See the module.
pub(crate) struct Engine {
    /// If one is to be used: the hosts file.
    hosts: Option<PathBuf>,
    client: Option<ClientId>,
    /// Clients whose offers it was told of.
    seekers: HashSet<ClientId>,
    pub(super) peers: Peers,
    pub(super) carried: Carried,
}

impl Engine {
    pub(crate) fn new(hosts: Option<PathBuf>) -> Engine {
        Engine {
            hosts,
            client: None,
            seekers: HashSet::new(),
            peers: Peers::default(),
            carried: Carried::default(),
        }
    }

    /// One is to be used.
    pub(super) fn is_wanted(&self) -> bool {
        self.hosts.is_some()
    }

    /// Which client is the engine.
    pub(super) fn client(&self) -> Option<ClientId> {
        self.client
    }

    /// Whether this client is the engine.
    pub(super) fn is(&self, client: ClientId) -> bool {
        self.client == Some(client)
    }

    /// A channel is made for these; nobody has it yet.
    pub(super) fn note(&self, segment: &Segment, sides: [ClientId; 2]) -> Option<()> {
        let links = sides.map(|side| if self.client == Some(side) { Link::ENGINE } else { Link::LOCAL });
        match links {
            [Link::LOCAL, Link::LOCAL] => Some(()),
            links => Mapping::note_links(segment.file().as_raw_fd(), links).ok(),
        }
    }
}

impl Server {
    /// What pumps and engines say.
    pub(super) fn act_for_carrier(
        &mut self,
        client: ClientId,
        asked: &Request,
    ) -> Result<Option<Reply>, ErrorCode> {
        match *asked {
            Request::Pump { again } => return self.pump(client, again).map(Some),
            Request::Over { channel } => self.over(client, channel)?,
            Request::Carries { near, far } => self.carries(client, near, far)?,
            Request::Engine => return self.engine(client).map(Some),
            Request::Sought { .. } => self.sought(client, asked)?,
            Request::Found { client: offers, offer, serial, behind, engine, port, tenant } => {
                let by = By::new(engine, port, tenant);
                self.found(client, (ClientId(offers), offer), (serial, behind), by)?;
            }
            Request::Peer { .. } | Request::Listed { .. } | Request::Network { .. } => {
                self.peer(client, asked)?
            }
            Request::Stays { client: offers, offer, why } if self.engine.is(client) => {
                let why = match Awaits::from_u32(why) {
                    why @ (Awaits::Small | Awaits::Faster) => why,
                    _ => Awaits::Few,
                };
                self.core.offers.stays(ClientId(offers), offer, why);
            }
            _ => return Err(ErrorCode::Protocol),
        }
        Ok(None)
    }

    /// A client says that it is the engine.
    pub(super) fn engine(&mut self, client: ClientId) -> Result<Reply, ErrorCode> {
        let user = self.families.get(&client).ok_or(ErrorCode::Protocol)?.uid;
        if !self.engine.is_wanted() || !self.core.quotas.is_exempt(user) {
            return Err(ErrorCode::Denied);
        }
        if self.engine.client.is_some() {
            return Err(ErrorCode::InUse);
        }
        tracing::info!(client = client.0, "connections to other hosts may go through an engine");
        self.engine.client = Some(client);
        // The one before may not have asked, or not have been answered; what is not sought now is offered again within a minute.
        let waiting = self.core.offers.waiting().filter(|offer| offer.connected);
        let waiting: Vec<Offer> = waiting.take(SOUGHT_MAX).copied().collect();
        waiting.iter().for_each(|offer| self.seek(offer));
        // The one of a monitor before this one may have had another file.
        self.hand_hosts_over();
        Ok(Reply::Ok)
    }

    /// The engine gets the hosts file as it is now. What it makes of it, it says in the log, and by [`Request::Listed`].
    pub(super) fn hand_hosts_over(&mut self) {
        let (Some(path), Some(engine)) = (&self.engine.hosts, self.engine.client) else { return };
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        // What is no file is not waited for.
        let open = |path: &Path| File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        match open(path).and_then(|file| Ok((file, open(folder)?))) {
            Ok((file, folder)) => {
                _ = self.tell_engine(engine, &Reply::Hosts, &[file.as_fd(), folder.as_fd()]);
            }
            Err(error) => tracing::error!("{}: {error}; the old hosts file stays", path.display()),
        }
    }

    /// Nobody here offers the other end of this one, which has connected.
    pub(super) fn seek(&mut self, offer: &Offer) {
        let Offer { client, serial, uid, connected, facts, load, .. } = *offer;
        let Some(engine) = self.engine.client.filter(|engine| *engine != client) else { return };
        if !connected || facts.remote.0.is_loopback() {
            return;
        }
        // The other host's policy speaks for the other end.
        if !self.core.policy.lets_move(uid, [facts.remote; 2], [facts.netns; 2]) {
            return;
        }
        let (local, local_port) = facts.local;
        let (remote, remote_port) = facts.remote;
        let told = offer.began().is_some();
        let (sent, received) = offer.began().unwrap_or_default();
        let (sent_from, received_from) = offer.counted().unwrap_or_default();
        let notice = Reply::Seek {
            client: client.0,
            offer: serial,
            local,
            local_port,
            remote,
            remote_port,
            told,
            sent,
            received,
            sent_from,
            received_from,
            messages: load.0,
            bytes: load.1,
            netns: facts.netns,
        };
        if self.tell_engine(engine, &notice, &[]).is_some() {
            self.engine.seekers.insert(client);
        }
    }

    /// A client has ended, the engine perhaps.
    pub(super) fn engine_forgets(&mut self, client: ClientId) {
        let is_engine = self.engine.is(client);
        if is_engine {
            self.engine.client = None;
            self.engine.peers.clear();
        }
        self.unseek(client, 0);
        self.engine.seekers.remove(&client);
        self.engine.carried.forget(client, is_engine);
    }

    /// An offer that the engine may have been told of is over; zero: all of that client's.
    pub(super) fn unseek(&mut self, client: ClientId, offer: u64) {
        if self.engine.seekers.contains(&client)
            && let Some(engine) = self.engine.client
        {
            self.tell_engine(engine, &Reply::Unseek { client: client.0, offer }, &[]);
        }
    }

    fn tell_engine(&mut self, engine: ClientId, notice: &Reply, fds: &[BorrowedFd<'_>]) -> Option<()> {
        let family: &Family = self.families.get(&engine)?;
        self.connections.get_mut(&family.connection?)?.tell(notice, fds).ok()?;
        family.announce_mail();
        Some(())
    }

    /// Another host has an end of a connection, which may be offered here.
    pub(super) fn sought(&mut self, client: ClientId, asked: &Request) -> Result<(), ErrorCode> {
        let Request::Sought {
            serial,
            local,
            local_port,
            remote,
            remote_port,
            told,
            sent,
            received,
            sent_from,
            received_from,
            engine,
            port,
            tenant,
        } = *asked
        else {
            return Err(ErrorCode::Protocol);
        };
        let (local, remote) = ((local, local_port), (remote, remote_port));
        let (began, counted) = ((sent, received), (sent_from, received_from));
        let numbers = match told {
            true => Numbers::Known { sent: sent_from.wrapping_sub(1), received: received_from },
            false => Numbers::Untold,
        };
        let offer = self.foreign_offer(client, serial, (local, remote), (true, numbers))?;
        let offer = Offer { restored: (told && began != counted).then_some(began), ..offer };
        self.engine.carried.asked(serial, By::new(engine, port, tenant));
        let now_ms = sd_sys::time::now_ns() / 1_000_000;
        let namespaces = &self.namespaces;
        let is_there =
            |other: &Offer| other.client == client || namespaces.is_connected(&other.facts) != Some(false);
        if let Outcome::Pair(both, evidence) = self.core.offers.add(offer, (now_ms, true), is_there) {
            let [a, b] = *both;
            let (names, places) = ([a.facts.remote, b.facts.local], [a.facts.netns, b.facts.netns]);
            let done = self.core.policy.lets_move(a.uid, names, places) && self.promote(&a, &b).is_some();
            tracing::debug!(
                a = a.client.0,
                b = b.client.0,
                ?evidence,
                done,
                "another host has the other end"
            );
        }
        Ok(())
    }

    /// The other end of an offer is another host's, and is promised there.
    pub(super) fn found(
        &mut self,
        engine: ClientId,
        (client, offer): (ClientId, u64),
        (serial, behind): (u64, u32),
        by: By,
    ) -> Result<(), ErrorCode> {
        let a = self.core.offers.take(client, offer).ok_or(ErrorCode::Protocol)?;
        let names = (a.facts.remote, a.facts.local);
        // The numbers are not compared any more.
        let b = self.foreign_offer(engine, serial, names, (false, a.far_numbers(behind)))?;
        self.engine.carried.asked(serial, by);
        let done = self.promote(&a, &b).is_some();
        tracing::debug!(a = a.client.0, done, "another host has the other end");
        Ok(())
    }

    /// What the engine offers: an end at another host.
    fn foreign_offer(
        &self,
        client: ClientId,
        serial: u64,
        (local, remote): (Name, Name),
        (connected, numbers): (bool, Numbers),
    ) -> Result<Offer, ErrorCode> {
        let family = self.families.get(&client).ok_or(ErrorCode::Protocol)?;
        if self.engine.client != Some(client) {
            return Err(ErrorCode::Protocol);
        }
        // A question that is asked again is the same.
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let (addresses, ports) = ((local.0.0, remote.0.0), (local.1, remote.1));
        let cookie = NOT_HERE | hasher.hash_one((addresses, ports, format!("{numbers:?}")));
        let facts = Facts { netns: family.netns, cookie, local, remote, numbers };
        Ok(Offer { client, serial, uid: family.uid, connected, facts, restored: None, load: (0, 0) })
    }

    /// Whether the engine has a side of a channel: for `sd ss`.
    pub(super) fn is_of_engine(&self, key: ChannelKey) -> bool {
        let is_its = |side| {
            let mut holders = self.core.channels.side(key, side).iter();
            holders.any(|(holder, _)| Some(*holder) == self.engine.client)
        };
        self.engine.client.is_some() && (is_its(Side::A) || is_its(Side::B))
    }
}
