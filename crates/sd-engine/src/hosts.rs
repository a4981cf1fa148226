//! The file that names the other hosts.
//!
//! ```text
//! # here                      where this host's engine is reached
//! listen 10.77.0.1:7441
//! # network or address        where the engine of the hosts in it is
//! 10.77.0.2                   10.77.0.2:7441
//! 10.1.0.0/16                 10.77.0.3:7441
//! # connections between two hosts below which each stays the kernel's
//! least 4
//! ```

use sd_proto::Ip;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Where this engine listens.
    pub listen: SocketAddr,
    /// The others.
    pub engines: Vec<Engine>,
    /// Between two hosts with fewer connections these stay the kernel's: the gain is that bytes of several go together, and one alone pays for
    /// two processes more that have to be woken.
    pub least: usize,
}

const LEAST: usize = 4;

/// Another host's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Where it listens.
    pub address: SocketAddr,
    /// Addresses of its host, and how many of their bits count.
    pub networks: Vec<(Ip, u8)>,
}

/// Why a file is none.
#[derive(Debug)]
pub struct Mistake {
    /// From 1; 0: of the whole.
    line: usize,
    what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

impl std::error::Error for Mistake {}

impl Hosts {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Hosts, Mistake> {
        match std::fs::read_to_string(path) {
            Ok(text) => Hosts::parse(&text),
            Err(error) => Err(Mistake { line: 0, what: error.to_string() }),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Hosts, Mistake> {
        let (mut listen, mut least) = (None, LEAST);
        let mut engines: Vec<Engine> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mistake = |what: String| Mistake { line: number + 1, what };
            let line = line.split('#').next().unwrap_or("");
            let words: Vec<&str> = line.split_whitespace().collect();
            let [what, place] = words[..] else {
                if words.is_empty() {
                    continue;
                }
                return Err(mistake("two words are wanted".into()));
            };
            if what == "least" {
                least = place.parse().map_err(|_| mistake(format!("{place} is no number")))?;
                continue;
            }
            let address: SocketAddr =
                place.parse().map_err(|_| mistake(format!("{place} is not ADDRESS:PORT")))?;
            if what == "listen" {
                if listen.replace(address).is_some() {
                    return Err(mistake("a second listen".into()));
                }
                continue;
            }
            let network = network(what).ok_or_else(|| mistake(format!("{what} is no address or network")))?;
            match engines.iter_mut().find(|engine| engine.address == address) {
                Some(engine) => engine.networks.push(network),
                None => engines.push(Engine { address, networks: vec![network] }),
            }
        }
        let listen = listen.ok_or_else(|| Mistake { line: 0, what: "there is no listen line".into() })?;
        Ok(Hosts { listen, engines, least })
    }

    /// The engine of the host with this address; the longest network counts.
    pub(crate) fn engine_of(&self, ip: Ip) -> Option<usize> {
        let fits = |engine: &Engine| engine.networks.iter().filter(|n| holds(**n, ip)).map(|n| n.1).max();
        let all = self.engines.iter().enumerate().filter_map(|(at, engine)| Some((fits(engine)?, at)));
        all.max_by_key(|(bits, _)| *bits).map(|(_, at)| at)
    }
}

pub(crate) fn ip_of(address: IpAddr) -> Ip {
    match address {
        IpAddr::V4(v4) => Ip::v4(v4.octets()),
        IpAddr::V6(v6) => Ip(v6.octets()),
    }
}

fn network(text: &str) -> Option<(Ip, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    // An IPv4 address is the last 32 bits of 128.
    (bits <= most).then(|| (ip_of(address), bits + 128 - most))
}

fn holds((network, bits): (Ip, u8), ip: Ip) -> bool {
    let [network, ip] = [network, ip].map(|ip| u128::from_be_bytes(ip.0));
    bits == 0 || (network ^ ip) >> (128 - u32::from(bits)) == 0
}
