//! Everything the monitor knows, as a JSON document for `sd ss`.
//!
//! Sockets are read from the slabs of their owners, who may write there what they like: it is shown,
//! not believed.

use super::family::Family;
use super::files::comm;
use super::rescue;
use super::segments::{Segment, Slab};
use super::server::{Counters, Server};
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_ring::TxCursor;
use sd_shm::channel::{GEOMETRY, SLOTS, Side, SlotState};
use sd_shm::slab::{self, Reason, State};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections that are looked at for one document, for who sees all and for who sees its own only: nobody else is served
/// meanwhile.
const SHOWN_MAX: [usize; 2] = [200_000, 1_000];

#[derive(Serialize)]
struct Document {
    version: &'static str,
    pid: u32,
    clients: Vec<Client>,
    connections: Vec<Connection>,
    /// There may be more connections.
    truncated: bool,
    listeners: Vec<Listener>,
    channels: usize,
    processes: usize,
    port_blocks: usize,
    counters: Counters,
}

#[derive(Serialize)]
struct Client {
    pid: u32,
    uid: u32,
    comm: String,
    client: u64,
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
    reason: Option<&'static str>,
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
    /// Channel, slot, side.
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
}

impl Server {
    /// Answers with the document. Those who are neither root nor the monitor's user see their own only.
    pub(crate) fn status(&mut self, id: u64) -> Result<(), ErrorCode> {
        let uid = self.connections.get(&id).map(|connection| connection.uid).ok_or(ErrorCode::Protocol)?;
        let sees_all = uid == 0 || uid == nix::unistd::geteuid().as_raw();
        let shown_max = SHOWN_MAX[usize::from(!sees_all)];
        let document = self.document(|owner| sees_all || owner == uid, shown_max);
        let text = serde_json::to_vec(&document).map_err(|_| ErrorCode::Exhausted)?;
        let file = memfd(&text).ok_or(ErrorCode::Exhausted)?;
        self.reply(id, &Reply::Status, &[file.as_fd()]);
        Ok(())
    }

    fn document(&self, may_see: impl Fn(u32) -> bool, shown_max: usize) -> Document {
        let mut comms = Comms::default();
        let mut connections = Vec::new();
        // Those of others complete what is seen of the asking user's, as far as there is room. Nobody pays for a look at
        // processes that his own have nothing to do with.
        let (seen, others): (Vec<_>, Vec<_>) = self.families.iter().partition(|(_, f)| may_see(f.uid));
        let peers = if others.is_empty() { BTreeSet::new() } else { self.peers_of(&seen) };
        let others = others.into_iter().filter(|(client, _)| peers.contains(client));
        for (client, family) in seen.into_iter().chain(others) {
            if connections.len() < shown_max {
                self.connections_of(*client, family, &mut comms, &mut connections, shown_max);
            }
        }
        let truncated = connections.len() >= shown_max;
        match_ends(&mut connections);
        let shares = shares(&connections);
        connections.retain(|connection| may_see(connection.uid));
        connections.sort_by(|a, b| (a.pid, a.fd, &a.local).cmp(&(b.pid, b.fd, &b.local)));
        let visible = || self.families.iter().filter(|(_, family)| may_see(family.uid));
        let mut clients: Vec<Client> =
            visible().map(|(id, family)| self.client(*id, family, &mut comms, &shares)).collect();
        clients.sort_by_key(|client| client.client);
        let mut listeners: Vec<_> = self.core.listeners.iter().collect();
        listeners.sort_by_key(|l| (l.client, l.port, l.index));
        let listeners = listeners.into_iter().filter_map(|l| {
            let family = self.families.get(&l.client).filter(|family| may_see(family.uid))?;
            Some(Listener {
                pid: family.pid,
                comm: comms.of(family.pid),
                local: address(l.ip, l.port, l.ip.to_v4().is_some()),
                backlog: l.backlog,
                pending: self.waiting_at(l, family.pending(l.index)),
                accepting: l.accepting,
                path: "shm",
            })
        });
        Document {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            listeners: listeners.collect(),
            clients,
            connections,
            truncated,
            channels: self.core.channels.len(),
            processes: self.core.members.len(),
            port_blocks: self.core.leases.count(),
            counters: self.counters,
        }
    }

    /// Connections that wait at a listener, of which it knew so many when it looked last: others may have accepted some since.
    fn waiting_at(&self, listener: &crate::core::listeners::Listener, known: u32) -> u32 {
        if known == 0 {
            return 0;
        }
        let count = |key: &ChannelKey| {
            let is_own = self.core.channels.founder(*key) == Some(listener.client);
            let waits_there = |request: &&rescue::Request| match is_own {
                true => request.listener == (listener.index, listener.generation),
                false => request.port == listener.port,
            };
            self.waiting_on(*key).iter().filter(waits_there).count() as u32
        };
        let most = known.min(listener.backlog.saturating_add(1));
        most.min(self.core.channels.of_family(listener.client).iter().map(count).sum())
    }

    /// Who is at a side of some channel of theirs.
    fn peers_of(&self, families: &[(&ClientId, &Family)]) -> BTreeSet<ClientId> {
        let channels = families.iter().flat_map(|(client, _)| self.core.channels.of_family(**client));
        let sides = channels.flat_map(|key| [(key, Side::A), (key, Side::B)]);
        sides.flat_map(|(key, side)| self.core.channels.side(key, side)).map(|(client, _)| *client).collect()
    }

    fn client(&self, id: ClientId, family: &Family, comms: &mut Comms, shares: &Shares) -> Client {
        let counters = &family.slab.header().counters;
        let mut counters: Vec<u64> = counters.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        counters.truncate(counters.iter().rposition(|count| *count != 0).map_or(0, |last| last + 1));
        let channels = self.core.channels.of_family(id);
        let segments = channels.iter().filter_map(|key| self.segments.get(key)).map(Segment::file);
        let memory_bytes = segments.chain([family.slab.file()]).map(bytes_in_memory).sum();
        let comm = comms.of(family.pid);
        let [fills_bytes, waiting_bytes] = shares.get(&id).copied().unwrap_or_default();
        let (pid, uid, client) = (family.pid, family.uid, id.0);
        Client { pid, uid, comm, client, memory_bytes, fills_bytes, waiting_bytes, counters }
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
            if state == State::Connected {
                let is_bridged = endpoint.reason.load(Ordering::Relaxed) == Reason::Bridged as u8;
                shown.path = if is_bridged { "bridged" } else { "shm" };
                shown.reason = shown.reason.filter(|_| is_bridged);
                let sender = family.slab.sender(endpoint).0;
                shown.fills_bytes = sender.large_used().min(GEOMETRY.large).into();
                (shown.end, shown.state) = self.end_of(id, endpoint, sender);
            }
            if state == State::Connecting {
                (shown.path, shown.state, shown.reason) = ("shm", "SYN_SENT", None);
            }
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
        let id = endpoint.channel_id.load(Ordering::Relaxed);
        let mut peer_is_closed = false;
        if let Some(side) =
            Side::from_u32(endpoint.side.load(Ordering::Relaxed).into()).filter(|_| slot < SLOTS)
            && let Some(key) = self.channel_of(family, id, side)
            && let Some(segment) = self.segments.get(&key)
        {
            end.place = Some((key, slot, side as u32));
            peer_is_closed = segment.state(slot, side.other()) == SlotState::Closed;
        }
        (end, state_name(is_finished, peer_is_closed))
    }
}

/// As ss(8) names them, from which ends have finished sending.
fn state_name(own_is_finished: bool, peer_is_finished: bool) -> &'static str {
    match (own_is_finished, peer_is_finished) {
        (false, false) => "ESTABLISHED",
        (false, true) => "CLOSE_WAIT",
        (true, false) => "FIN_WAIT2",
        (true, true) => "CLOSING",
    }
}

/// Completes what one end of a connection cannot know alone.
fn match_ends(connections: &mut [Connection]) {
    let ends: HashMap<_, _> = connections
        .iter()
        .filter_map(|c| Some((c.end.place?, (c.rx_bytes, c.tx_bytes, c.end.is_finished))))
        .collect();
    for connection in connections {
        let Some((key, slot, side)) = connection.end.place else { continue };
        let Some((rx_bytes, tx_bytes, is_finished)) = ends.get(&(key, slot, side ^ 1)) else { continue };
        connection.rx_queue = tx_bytes.saturating_sub(connection.rx_bytes);
        connection.tx_queue = connection.tx_bytes.saturating_sub(*rx_bytes);
        let is_finished = *is_finished || matches!(connection.state, "CLOSE_WAIT" | "CLOSING");
        connection.state = state_name(connection.end.is_finished, is_finished);
    }
}

/// What each client's connections fill, and what waits for it in those that its peers fill.
type Shares = HashMap<ClientId, [u64; 2]>;

fn shares(connections: &[Connection]) -> Shares {
    let mut shares = Shares::new();
    for connection in connections.iter().filter(|connection| connection.end.place.is_some()) {
        let [fills, waiting] = shares.entry(connection.client).or_default();
        *fills = fills.saturating_add(connection.fills_bytes);
        *waiting = waiting.saturating_add(connection.rx_queue);
    }
    shares
}

/// A socket on the kernel path; the caller changes what is different on the other.
fn connection(slab: &Slab, endpoint: &slab::Endpoint, (pid, comm): (u32, String), uid: u32) -> Connection {
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let is_v4 = i32::from(endpoint.domain.load(Ordering::Relaxed)) == libc::AF_INET;
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
        reason: Some(if reason == Reason::None { "unknown" } else { reason.text() }),
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
    let rare = slab.rare(endpoint);
    let wide =
        |cell: fn(&slab::Rare) -> &AtomicU64| rare.map_or(0, |rare| cell(rare).load(Ordering::Relaxed));
    let linger = rare.map_or(0, |rare| rare.linger.load(Ordering::Relaxed));
    let all = [
        ("rcv_timeout_ns", wide(|rare| &rare.rx_timeout_ns)),
        ("snd_timeout_ns", wide(|rare| &rare.tx_timeout_ns)),
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
    // SAFETY: a descriptor that was just made for us.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
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

    #[test]
    fn states() {
        assert_eq!(state_name(false, true), "CLOSE_WAIT");
        assert_eq!(state_name(true, false), "FIN_WAIT2");
    }
}
