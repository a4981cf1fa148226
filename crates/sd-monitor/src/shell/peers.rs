//! Other hosts' engines, as this host's engine says how it stands with each ([`Request::Peer`]): for `sd ss --json`, `sd top`, `sd doctor` and
//! metrics. It is shown and decides nothing.

use super::networks::Networks;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{Carrier, ErrorCode, Ip, PeerState, Request};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// An engine with more in its hosts file has some that are not shown.
const PEERS_MAX: usize = 1024;

/// What the engine has said last of each, and of the hosts file.
#[derive(Default)]
pub(crate) struct Peers {
    all: BTreeMap<SocketAddr, Peer>,
    networks: Networks,
    file: FileShown,
}

/// How the engine has taken the hosts file.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileShown {
    /// It has a mistake in this line (zero: not in a line), and the one before is in force.
    mistake: Option<u32>,
    /// So many of its names have no address.
    unresolved: u32,
}

/// One of them.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    #[serde(skip)]
    pub(super) state: PeerState,
    #[serde(skip)]
    errno: u32,
    encrypted: bool,
    #[serde(skip)]
    pub(super) carrier: Carrier,
    /// Since when it is reached, or is not.
    since_ns: u64,
    #[serde(flatten)]
    pub(super) counts: Option<Counts>,
}

/// For who sees all connections of the host.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Zero: not known.
    pub(super) rtt_ns: u64,
    pub(super) connections: u32,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) packets_sent: u64,
    pub(super) packets_received: u64,
    pub(super) placed_sent: u64,
    pub(super) placed_received: u64,
    pub(super) said_again: u64,
    pub(super) retransmitted: u64,
}

/// As the document has one.
#[derive(Serialize)]
struct Shown {
    address: SocketAddr,
    carrier: &'static str,
    state: String,
    why: String,
    /// Whose networks are behind it.
    tenants: Vec<String>,
    #[serde(flatten)]
    peer: Peer,
}

/// The engine, as the document has it.
#[derive(Serialize)]
pub(super) struct EngineShown {
    /// None: it is not there.
    pid: Option<u32>,
    hosts: FileShown,
    peers: Vec<Shown>,
}

/// By what a connection goes to another host, as the document has it.
#[derive(Serialize, Default)]
pub(super) struct Way {
    /// What moves the bytes of a connection whose path is `engine`.
    pub(super) carrier: Option<&'static str>,
    /// The other host's engine.
    engine: Option<SocketAddr>,
    tenant: Option<String>,
}

impl Way {
    pub(super) fn by(carrier: &'static str) -> Way {
        Way { carrier: Some(carrier), ..Way::default() }
    }

    /// The path that `sd ss` shows: RDMA is one of its own.
    pub(super) fn with_path(mut self) -> (&'static str, Way) {
        let path = self.carrier.take_if(|carrier| *carrier == Carrier::Rdma.text());
        (path.unwrap_or("engine"), self)
    }
}

impl Peers {
    pub(super) fn clear(&mut self) {
        *self = Peers::default();
    }

    /// Whether the hosts file that is there is not in force, and names without an address.
    pub(super) fn file(&self) -> (bool, u32) {
        (self.file.mistake.is_some(), self.file.unresolved)
    }

    pub(super) fn tenants(&self, engine: &SocketAddr) -> Vec<String> {
        self.networks.tenants(*engine).into_iter().map(str::to_owned).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SocketAddr, &Peer)> {
        self.all.iter()
    }

    /// What is said of one, or of the file. Of those for which there is no room nothing is kept.
    fn note(&mut self, said: &Request) -> Result<(), ErrorCode> {
        match *said {
            Request::Listed { mistaken: true, line, names } => {
                self.file = FileShown { mistake: Some(line), unresolved: names };
                return Ok(());
            }
            Request::Listed { names, .. } => {
                self.clear();
                self.file.unresolved = names;
                return Ok(());
            }
            Request::Network { .. } => {
                self.networks.note(said);
                return Ok(());
            }
            _ => {}
        }
        let Request::Peer {
            ip,
            port,
            state,
            errno,
            sealed,
            carrier,
            since_ns,
            rtt_ns,
            connections,
            bytes_sent,
            bytes_received,
            packets_sent,
            packets_received,
            placed_sent,
            placed_received,
            said_again,
            retransmitted,
        } = *said
        else {
            return Err(ErrorCode::Protocol);
        };
        let address = SocketAddr::new(ip.to_addr(), port);
        if self.all.len() >= PEERS_MAX && !self.all.contains_key(&address) {
            return Err(ErrorCode::Exhausted);
        }
        let counts = Counts {
            rtt_ns,
            connections,
            bytes_sent,
            bytes_received,
            packets_sent,
            packets_received,
            placed_sent,
            placed_received,
            said_again,
            retransmitted,
        };
        let peer = Peer { state, errno, encrypted: sealed, carrier, since_ns, counts: Some(counts) };
        self.all.insert(address, peer);
        Ok(())
    }

    /// By what a connection to this address goes now; what the engine has told of it. Where it has told nothing, neither of the address' network, by what
    /// is at the address itself, or else by what most of them have.
    pub(super) fn way_to(&self, remote: Ip, told: Option<(SocketAddr, Option<&str>)>) -> Way {
        let known = told.or_else(|| self.networks.of(remote));
        let remote = remote.to_addr().to_canonical();
        let there = match known {
            Some((engine, _)) => self.all.get_key_value(&engine),
            None => self.all.iter().find(|(engine, _)| engine.ip().to_canonical() == remote),
        };
        let count = |carrier| self.all.values().filter(|peer| peer.carrier == carrier).count();
        let most = Carrier::ALL.iter().rev().max_by_key(|carrier| count(**carrier));
        let most = most.copied().unwrap_or(Carrier::Trunk);
        Way {
            carrier: Some(there.map_or(most, |(_, peer)| peer.carrier).text()),
            engine: there.map(|(engine, _)| *engine),
            tenant: known.and_then(|(_, tenant)| Some(tenant?.to_owned())),
        }
    }

    fn shown(&self, sees_all: bool) -> Vec<Shown> {
        let show = |(address, peer): (&SocketAddr, &Peer)| Shown {
            address: *address,
            carrier: peer.carrier.text(),
            state: super::metrics::words(&format!("{:?}", peer.state)),
            why: peer.why(),
            tenants: self.tenants(address),
            peer: Peer { counts: peer.counts.filter(|_| sees_all), ..*peer },
        };
        self.all.iter().map(show).collect()
    }
}

impl Peer {
    fn why(&self) -> String {
        let text = self.state.text();
        match i32::try_from(self.errno) {
            Ok(errno @ 1..) => format!("{text}: {}", std::io::Error::from_raw_os_error(errno)),
            _ => text.to_owned(),
        }
    }
}

impl Server {
    /// The engine says how it stands with another one.
    pub(super) fn peer(&mut self, client: ClientId, said: &Request) -> Result<(), ErrorCode> {
        if !self.engine.is(client) {
            return Err(ErrorCode::Protocol);
        }
        self.engine.peers.note(said)
    }

    /// The engine and those that it knows; `None` where there is to be none. Counts are of all users' connections together, and for those
    /// who may see all of them.
    pub(super) fn engine_shown(&self, sees_all: bool) -> Option<EngineShown> {
        let engine = &self.engine;
        let pid = || self.families.get(&engine.client()?).map(|family| family.pid);
        engine.is_wanted().then(|| EngineShown {
            pid: pid(),
            hosts: engine.peers.file,
            peers: engine.peers.shown(sees_all),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(port: u16, state: PeerState) -> Request {
        Request::Peer {
            ip: Ip::v4([10, 0, 0, 2]),
            port,
            state,
            errno: libc::ECONNREFUSED as u32,
            sealed: true,
            carrier: Carrier::Trunk,
            since_ns: 1,
            rtt_ns: 2,
            connections: 3,
            bytes_sent: 7,
            bytes_received: 8,
            packets_sent: 0,
            packets_received: 0,
            placed_sent: 0,
            placed_received: 0,
            said_again: 0,
            retransmitted: 0,
        }
    }

    #[test]
    fn the_last_word_counts_and_what_is_kept_is_bounded() {
        let mut peers = Peers::default();
        assert_eq!(peers.note(&said(1, PeerState::Up)), Ok(()));
        assert_eq!(peers.note(&said(1, PeerState::Refused)), Ok(()));
        assert_eq!(peers.iter().count(), 1);
        for port in 2..=PEERS_MAX as u16 {
            assert_eq!(peers.note(&said(port, PeerState::Up)), Ok(()));
        }
        assert_eq!(peers.note(&said(5000, PeerState::Up)), Err(ErrorCode::Exhausted));
        assert_eq!(peers.note(&said(1, PeerState::Up)), Ok(()), "one that is known");
        peers.clear();
        assert_eq!(peers.iter().count(), 0);
        assert_eq!(peers.note(&Request::Engine), Err(ErrorCode::Protocol));
    }

    #[test]
    fn rdma_is_a_path_and_other_carriers_are_an_engines() {
        let mut peers = Peers::default();
        let path = |peers: &Peers| {
            let (path, way) = peers.way_to(Ip::v4([10, 0, 0, 2]), None).with_path();
            (path, way.carrier)
        };
        assert_eq!(path(&peers), ("engine", Some("trunk")));
        for (carrier, shown) in [
            (Carrier::Rdma, ("rdma", None)),
            (Carrier::Datagram, ("engine", Some("datagram"))),
            (Carrier::Trunk, ("engine", Some("trunk"))),
        ] {
            let mut now = said(7, PeerState::Up);
            if let Request::Peer { carrier: by, .. } = &mut now {
                *by = carrier;
            }
            peers.note(&now).unwrap();
            assert_eq!(path(&peers), shown);
        }
    }

    #[test]
    fn counts_are_for_who_sees_all() {
        let mut peers = Peers::default();
        peers.note(&said(7, PeerState::Refused)).unwrap();
        let [of_root, of_a_user] =
            [true, false].map(|sees_all| serde_json::to_value(&peers.shown(sees_all)[0]).unwrap());
        assert_eq!(of_root["address"], "10.0.0.2:7");
        assert_eq!((&of_root["state"], &of_root["bytes_sent"]), (&"refused".into(), &7.into()));
        assert!(of_root["why"].as_str().unwrap().contains("nobody listens there: Connection refused"));
        assert_eq!(of_a_user["state"], "refused");
        assert!(of_a_user.get("bytes_sent").is_none(), "{of_a_user}");
    }
}
