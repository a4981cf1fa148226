//! Everything the monitor knows, as a JSON document for `sd ss`.
//!
//! Sockets are read from the slabs of their owners, who may write there what they like: it is shown,
//! not believed.

mod ends;
mod roads;

use super::descriptors::std_fd;
use super::family::Family;
use super::files::comm;
use super::looks::What;
use super::peers::{EngineShown, Way};
use super::pumps::{CARRIER, PUMPED};
use super::rescue;
use super::segments::{Segment, Slab};
use super::server::{Counters, Server};
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use ends::{match_ends, shares, state_name};
use roads::{History, Promotion};
use sd_proto::{ErrorCode, Ip, Reply};
use sd_ring::TxCursor;
use sd_shm::channel::{GEOMETRY, SLOTS, Side, SlotState};
use sd_shm::slab::{self, Reason, State};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections, and processes, that one document shows at most: for who sees all, and for who sees its own only.
const SHOWN_MAX: [usize; 2] = [200_000, 1_000];

/// Channels of one process that are looked at for what waits, for who sees its own only.
const CHANNELS_MAX: usize = 64;

#[derive(Serialize)]
struct Document {
    version: &'static str,
    pid: u32,
    /// When it was made: CLOCK_MONOTONIC, so that rates can be made of two of them.
    clock_ns: u64,
    /// SO_NETNS_COOKIE of the network namespace that it is in.
    netns: Option<u64>,
    clients: Vec<Client>,
    connections: Vec<Connection>,
    /// There may be more.
    truncated: bool,
    listeners: Vec<Listener>,
    channels: usize,
    processes: usize,
    port_blocks: usize,
    promotion: Promotion,
    /// None: connections to other hosts are the kernel's.
    engine: Option<EngineShown>,
    counters: Counters,
}

#[derive(Serialize)]
struct Client {
    pid: u32,
    uid: u32,
    comm: String,
    client: u64,
    /// It is a pump or the engine: its own connections are nobody's.
    carries: bool,
    /// Bytes of its slab and of its channels that exist; a channel is counted for both of its sides.
    memory_bytes: u64,
    /// Bytes of the large rings that it sends into, as it says: its own memory cgroup pays for what of them exists.
    fills_bytes: u64,
    /// Bytes that its peers have sent and it has not read: in rings that their groups pay for.
    waiting_bytes: u64,
    /// See `sd_socket::stats`.
    counters: Vec<u64>,
}

#[derive(Serialize)]
struct Connection {
    pid: u32,
    comm: String,
    fd: i32,
    local: String,
    peer: String,
    state: &'static str,
    path: &'static str,
    #[serde(flatten)]
    way: Way,
    reason: Option<&'static str>,
    #[serde(flatten)]
    history: History,
    rx_bytes: u64,
    tx_bytes: u64,
    rx_queue: u64,
    tx_queue: u64,
    /// Options that are set.
    options: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    uid: u32,
    #[serde(skip)]
    client: ClientId,
    /// Of the large ring that it sends into.
    #[serde(skip)]
    fills_bytes: u64,
    #[serde(skip)]
    end: End,
}

/// Where a connection's end is, and what of it its peer's end must know.
#[derive(Clone, Copy, Default)]
struct End {
    /// Channel, slot, side. Through a pump it is that of the far channel, for both ends.
    place: Option<(ChannelKey, usize, u32)>,
    is_finished: bool,
}

#[derive(Serialize)]
struct Listener {
    pid: u32,
    comm: String,
    local: String,
    backlog: u32,
    pending: u32,
    accepting: bool,
    path: &'static str,
    /// Where it stands among the others.
    #[serde(skip)]
    place: (ClientId, u16, u32),
}

/// A document that is being made.
pub(super) struct Draft {
    /// Who asks.
    uid: u32,
    /// The user who sees its own only.
    sees: Option<u32>,
    shown_max: usize,
    comms: Comms,
    connections: Vec<Connection>,
    clients: Vec<Client>,
    listeners: Vec<Listener>,
    truncated: bool,
}

impl Draft {
    fn may_show(&self, user: u32) -> bool {
        self.sees.is_none_or(|sees| sees == user)
    }
}

impl Server {
    /// Answers with the document. Those who are neither root nor the monitor's user see their own only.
    pub(crate) fn status(&mut self, id: u64) -> Result<(), ErrorCode> {
        let uid = self.connections.get(&id).map(|connection| connection.uid).ok_or(ErrorCode::Protocol)?;
        let sees = Some(uid).filter(|uid| !self.core.quotas.is_exempt(*uid));
        let draft = Draft {
            uid,
            sees,
            shown_max: SHOWN_MAX[usize::from(sees.is_some())],
            comms: Comms::default(),
            connections: Vec::new(),
            clients: Vec::new(),
            listeners: Vec::new(),
            truncated: false,
        };
        // Those of others complete what is seen of the asking user's, as far as there is room. Nobody pays for a look at
        // processes that his own have nothing to do with.
        let (seen, others): (Vec<_>, Vec<_>) =
            self.families.iter().partition(|(_, family)| draft.may_show(family.uid));
        let peers = if others.is_empty() { BTreeSet::new() } else { self.peers_of(&seen) };
        let others = others.into_iter().filter(|(client, _)| peers.contains(client));
        // From the last one on.
        let families = others.chain(seen).map(|(client, _)| *client).collect();
        self.look(id, What::Status(Box::new(draft)), families);
        Ok(())
    }

    /// Adds what there is to be shown of a family.
    pub(super) fn draw(&self, draft: &mut Draft, client: ClientId) {
        let Some(family) = self.families.get(&client) else { return };
        let Draft { comms, connections, clients, listeners, shown_max, .. } = draft;
        if connections.len() < *shown_max {
            self.connections_of(client, family, comms, connections, *shown_max);
        }
        draft.truncated |= connections.len() >= *shown_max || clients.len() >= *shown_max;
        if clients.len() >= *shown_max || draft.sees.is_some_and(|sees| sees != family.uid) {
            return;
        }
        clients.push(self.client(client, family, comms));
        let own = self.core.listeners.of_client(client);
        let room = shown_max.saturating_sub(listeners.len());
        let own: Vec<_> = own.map(|listener| (listener, family.pending(listener.index))).take(room).collect();
        let channels_max = if draft.sees.is_some() { CHANNELS_MAX } else { usize::MAX };
        let is_quiet = own.iter().all(|(_, pending)| *pending == 0);
        let waiting = if is_quiet { None } else { self.waiting_of(client, channels_max) };
        for (l, known) in own {
            listeners.push(Listener {
                pid: family.pid,
                comm: comms.of(family.pid),
                local: address(l.ip, l.port, l.ip.to_v4().is_some()),
                backlog: l.backlog,
                pending: waiting_at(l, known, waiting.as_ref()),
                accepting: l.accepting,
                path: "shm",
                place: (l.client, l.port, l.index),
            });
        }
    }

    /// What all that was drawn comes to.
    pub(super) fn document(&self, draft: Draft) -> Option<File> {
        let Draft { uid, sees, mut connections, mut clients, mut listeners, truncated, .. } = draft;
        match_ends(&mut connections);
        let shares = shares(&connections);
        connections.retain(|connection| sees.is_none_or(|sees| sees == connection.uid));
        connections.sort_by(|a, b| (a.pid, a.fd, &a.local).cmp(&(b.pid, b.fd, &b.local)));
        for client in &mut clients {
            let share = shares.get(&ClientId(client.client)).copied().unwrap_or_default();
            [client.fills_bytes, client.waiting_bytes] = share;
        }
        clients.sort_by_key(|client| client.client);
        listeners.sort_by_key(|listener| listener.place);
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            clock_ns: sd_sys::time::now_ns(),
            netns: self.netns,
            listeners,
            clients,
            connections,
            truncated,
            channels: self.core.channels.len(),
            processes: self.core.members.len(),
            port_blocks: self.core.leases.count(),
            promotion: self.promotion(uid),
            engine: self.engine_shown(sees.is_none()),
            counters: self.counters,
        };
        memfd(&serde_json::to_vec(&document).ok()?)
    }

    /// What waits on the channels of a family that says that something does. `None`: they are too many to be looked at.
    fn waiting_of(&self, client: ClientId, channels_max: usize) -> Option<Waiting> {
        let keys = self.core.channels.of_family(client);
        let all = |key: ChannelKey| {
            let is_own = self.core.channels.founder(key) == Some(client);
            self.waiting_on(key).into_iter().map(move |request| (is_own, request))
        };
        (keys.len() <= channels_max).then(|| keys.into_iter().flat_map(all).collect())
    }

    /// Connections that wait at the kernel's socket of a listener of the client's, whichever process they were dealt to.
    pub(super) fn waiting_at_socket(&self, client: ClientId, index: u32) -> Result<Reply, ErrorCode> {
        let all = &self.core.listeners;
        let asked = all.iter().find(|l| l.client == client && l.index == index).ok_or(ErrorCode::Protocol)?;
        let of_socket = all.of_port(asked.netns, asked.port).iter().filter(|l| l.cookie == asked.cookie);
        let count = |l: &crate::core::listeners::Listener| {
            let mut keys = self.core.channels.of_family(l.client);
            keys.retain(|key| self.core.channels.founder(*key) == Some(l.client));
            let waiting = keys.iter().flat_map(|key| self.waiting_on(*key));
            waiting.filter(|request| request.listener == (l.index, l.generation)).count() as u32
        };
        Ok(Reply::Waiting { count: of_socket.map(count).sum() })
    }

    /// Who is at a side of some channel of theirs.
    fn peers_of(&self, families: &[(&ClientId, &Family)]) -> BTreeSet<ClientId> {
        let channels = families.iter().flat_map(|(client, _)| self.core.channels.of_family(**client));
        let sides = channels.flat_map(|key| [(key, Side::A), (key, Side::B)]);
        sides.flat_map(|(key, side)| self.core.channels.side(key, side)).map(|(client, _)| *client).collect()
    }

    /// What it fills is known at the end.
    fn client(&self, id: ClientId, family: &Family, comms: &mut Comms) -> Client {
        let counters = &family.slab.header().counters;
        let mut counters: Vec<u64> = counters.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        counters.truncate(counters.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1));
        let channels = self.core.channels.of_family(id);
        let segments = channels.iter().filter_map(|key| self.segments.get(key)).map(Segment::file);
        let memory_bytes = segments.chain([family.slab.file()]).map(bytes_in_memory).sum();
        let comm = comms.of(family.pid);
        let (pid, uid, client) = (family.pid, family.uid, id.0);
        let carries = self.pumps.is(id) || self.engine.is(id);
        Client { pid, uid, comm, client, carries, memory_bytes, fills_bytes: 0, waiting_bytes: 0, counters }
    }

    fn connections_of(
        &self,
        id: ClientId,
        family: &Family,
        comms: &mut Comms,
        all: &mut Vec<Connection>,
        shown_max: usize,
    ) {
        let mut last = core::ptr::null();
        family.slab.endpoints_while(|endpoint| {
            let state = State::from_u32(endpoint.state.load(Ordering::Acquire).into());
            let is_shown = matches!(state, State::Connected | State::Connecting | State::Kernel);
            // One that lies across pages may come twice in a row.
            if !is_shown || core::ptr::eq(last, endpoint) || all.len() >= shown_max {
                return all.len() < shown_max;
            }
            last = endpoint;
            let member = endpoint.holders.load(Ordering::Relaxed).trailing_zeros();
            let pid =
                Some(self.core.members.pid_of(id, member)).filter(|pid| *pid != 0).unwrap_or(family.pid);
            let mut shown = connection(&family.slab, endpoint, (pid, comms.of(pid)), family.uid);
            let offer = endpoint.generation.load(Ordering::Relaxed).into();
            if state == State::Connected {
                let is_bridged = endpoint.reason.load(Ordering::Relaxed) == Reason::Bridged as u8;
                let reason = endpoint.reason.load(Ordering::Relaxed);
                let is_promoted = reason == Reason::Promoted as u8;
                let by_kernel = is_promoted && family.slab.is_by_kernel(endpoint);
                shown.path = match (is_bridged, by_kernel) {
                    (true, _) => "bridged",
                    (_, true) => "kernel",
                    _ => "shm",
                };
                shown.reason = shown.reason.filter(|_| is_bridged || is_promoted);
                let sender = family.slab.sender(endpoint).0;
                shown.fills_bytes = sender.large_used().min(GEOMETRY.large).into();
                // What a ring counts, and where a slot ends, says nothing of what the kernel carries.
                match by_kernel {
                    true => shown.reason = Some(roads::on_the_way(&family.slab, endpoint)),
                    false => (shown.end, shown.state) = self.end_of(id, endpoint, sender),
                }
            }
            if state == State::Connecting {
                (shown.path, shown.state, shown.reason) = ("shm", "SYN_SENT", None);
            }
            if let Some(key) = self.channel_at(id, endpoint).filter(|_| shown.path == "shm")
                && self.is_pumped(key)
            {
                (shown.path, shown.way, shown.reason) = ("engine", Way::by(CARRIER), Some(PUMPED));
            }
            if let Some(key) = self.channel_at(id, endpoint).filter(|_| shown.path == "shm")
                && self.is_of_engine(key)
            {
                let remote = Ip(family.slab.address(endpoint, slab::End::Remote));
                let told = self.engine.carried.of(id, offer);
                (shown.path, shown.way) = self.engine.peers.way_to(remote, told).with_path();
            }
            shown.history = roads::history(&family.slab, endpoint, shown.path == "kernel", self.promotes());
            shown.history.stays(self.core.offers.why_it_stays(id, offer));
            shown.client = id;
            all.push(shown);
            true
        });
    }

    /// Where a connection's end is, and its state as far as it knows by itself.
    fn end_of(&self, family: ClientId, endpoint: &slab::Endpoint, sender: TxCursor) -> (End, &'static str) {
        let is_finished = sender.is_finished();
        let mut end = End { place: None, is_finished };
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        let mut peer_is_closed = false;
        if let Some(side) =
            Side::from_u32(endpoint.side.load(Ordering::Relaxed).into()).filter(|_| slot < SLOTS)
            && let Some(key) = self.channel_at(family, endpoint)
            && let Some(segment) = self.segments.get(&key)
        {
            end.place = Some((self.pumps.far(key), slot, side as u32));
            peer_is_closed = segment.state(slot, side.other()) == SlotState::Closed;
        }
        (end, state_name(is_finished, peer_is_closed))
    }

    /// The channel that an endpoint names, if its family has that.
    pub(super) fn channel_at(&self, family: ClientId, endpoint: &slab::Endpoint) -> Option<ChannelKey> {
        let side = Side::from_u32(endpoint.side.load(Ordering::Relaxed).into())?;
        self.channel_of(family, endpoint.channel_id.load(Ordering::Relaxed), side)
    }
}

/// Connections that wait on channels of a family, and whether it is the one that the channel was made for.
type Waiting = Vec<(bool, rescue::Request)>;

/// Connections that wait at a listener, of which it knew so many when it looked last: others may have accepted some since.
fn waiting_at(listener: &crate::core::listeners::Listener, known: u32, waiting: Option<&Waiting>) -> u32 {
    let waits_there = |(is_own, request): &&(bool, rescue::Request)| match is_own {
        true => request.listener == (listener.index, listener.generation),
        false => request.port == listener.port,
    };
    let most = known.min(listener.backlog.saturating_add(1));
    waiting.map_or(most, |all| most.min(all.iter().filter(waits_there).count() as u32))
}

/// A socket on the kernel path; the caller changes what is different on the other.
fn connection(slab: &Slab, endpoint: &slab::Endpoint, (pid, comm): (u32, String), uid: u32) -> Connection {
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let is_v4 = endpoint.family() == libc::AF_INET;
    let name = |end, port| address(Ip(slab.address(endpoint, end)), port, is_v4);
    let reason = Reason::from_u32(endpoint.reason.load(Ordering::Relaxed).into());
    let ((_, tx_bytes), (_, rx_bytes, lowat)) = (slab.sender(endpoint), slab.receiver(endpoint));
    Connection {
        pid,
        comm,
        fd: endpoint.fd.load(Ordering::Relaxed),
        local: name(slab::End::Local, (ports >> 16) as u16),
        peer: name(slab::End::Remote, ports as u16),
        state: if ports as u16 == 0 { "UNCONN" } else { "ESTABLISHED" },
        path: "kernel",
        way: Way::default(),
        reason: Some(if reason == Reason::None { "unknown" } else { reason.text() }),
        history: History::default(),
        rx_bytes,
        tx_bytes,
        rx_queue: 0,
        tx_queue: 0,
        options: options(slab, endpoint, lowat),
        uid,
        client: ClientId(0),
        fills_bytes: 0,
        end: End::default(),
    }
}

fn options(slab: &Slab, endpoint: &slab::Endpoint, lowat: u32) -> BTreeMap<&'static str, u64> {
    let cold = slab.cold(endpoint);
    let wide =
        |cell: fn(&slab::Cold) -> &AtomicU64| cold.map_or(0, |cold| cell(cold).load(Ordering::Relaxed));
    let linger = cold.map_or(0, |cold| cold.linger.load(Ordering::Relaxed));
    let all = [
        ("rcv_timeout_ns", wide(|cold| &cold.rx_timeout_ns)),
        ("snd_timeout_ns", wide(|cold| &cold.tx_timeout_ns)),
        ("linger", linger.into()),
        ("rcv_lowat", lowat.into()),
        ("snd_buf", (endpoint.flags.load(Ordering::Relaxed) & slab::FIXED_BUF != 0).into()),
    ];
    all.into_iter().filter(|(_, value)| *value != 0).collect()
}

/// Of a memfd, whose pages appear when they are first touched.
fn bytes_in_memory(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.blocks() * 512)
}

/// Names of programs, each read once.
#[derive(Default)]
struct Comms(HashMap<u32, String>);

impl Comms {
    fn of(&mut self, pid: u32) -> String {
        self.0.entry(pid).or_insert_with(|| comm(pid)).clone()
    }
}

/// As ss(8) shows it: mapped addresses of IPv6 sockets as such.
fn address(ip: Ip, port: u16, is_v4: bool) -> String {
    match ip.to_v4().filter(|_| is_v4) {
        Some(v4) => format!("{}:{port}", Ipv4Addr::from(v4)),
        None if is_v4 && ip.is_unspecified() => format!("{}:{port}", Ipv4Addr::UNSPECIFIED),
        None => format!("[{}]:{port}", Ipv6Addr::from(ip.0)),
    }
}

fn memfd(text: &[u8]) -> Option<File> {
    let fd = sd_sys::mem::memfd_sealed(c"sd-status", text.len()).ok()?;
    let file = File::from(std_fd(fd));
    // Not through the position, which the reader shares.
    file.write_all_at(text, 0).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let local = Ip::v4([127, 0, 0, 1]);
        assert_eq!(address(local, 80, true), "127.0.0.1:80");
        assert_eq!(address(local, 80, false), "[::ffff:127.0.0.1]:80");
        assert_eq!(address(Ip([0; 16]), 80, false), "[::]:80");
        assert_eq!(address(Ip([0; 16]), 80, true), "0.0.0.0:80");
    }
}
