//! The hosts file: which networks have an engine, where it is, and how it shows that it is the one.
//!
//! ```text
//! # What stands behind a # is for people.
//! listen      ADDRESS:PORT                 where this host's engine awaits others
//! key         FILE                         its own key (sd key new FILE)
//! shared-key  FILE
//! least       NUMBER                       between two hosts with fewer connections these stay the kernel's
//! carrier     trunk|datagram|either        what goes between engines: TCP, UDP, or what is better now (either)
//! congestion  dctcp|newreno|swift[=US]     how much datagrams may have under way: by marks, by loss, by a delay to aim at (dctcp)
//! tenant      NAME  [weight=NUMBER] [rate=BYTES]
//! host        NETWORK  ADDRESS:PORT  key=BASE64|shared|plain  [tenant=NAME]
//! ```
//! Each `host` line names the addresses behind an engine (`10.1.2.0/24`, `fd00::7`), and the engine's own address. Of several networks
//! that an address is in the longest prefix counts; the order of lines does not. How the engine is known has to be said: its public
//! key, the key that all share, or `plain`: nobody is checked and everybody may read. A tenant is whose networks these
//! are: connections between networks of two tenants stay the kernel's. To each other engine a tenant has its part of what is sent, by weight (1), and sends
//! at most so many bytes a second.
//!
//! No I/O: text in, rules out, for the monitor and the engine alike. What a file cannot mean is an error with its line: a network
//! twice, bits behind its prefix, one engine that is known in two ways, a key that is wanted and not named.

use crate::identity::PublicKey;
use sd_link::congestion::Congestion;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

/// How another engine shows who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It holds the private part of this.
    Key(PublicKey),
    /// It has the shared key.
    Shared,
    /// Not at all, and nothing is encrypted.
    Plain,
}

/// What may carry packets between engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carriers {
    /// What is better now.
    #[default]
    Either,
    /// TCP.
    Trunk,
    /// UDP, as long as it is answered.
    Datagrams,
}

/// Where `swift` says no other delay to aim at.
const SWIFT_US: u64 = 100;

/// Addresses with the same first bits. One of IPv4 that is written as IPv6 is one of IPv4.
///
/// ```
/// let network: sd_keys::hosts::Network = "10.1.0.0/16".parse().unwrap();
/// assert!(network.contains("10.1.2.3".parse().unwrap()) && network.contains("::ffff:10.1.0.9".parse().unwrap()));
/// assert!("10.1.2.0/16".parse::<sd_keys::hosts::Network>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    is_v6: bool,
    prefix: u8,
    /// To the left.
    bits: u128,
}

fn family_bits(address: IpAddr) -> (bool, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (false, u128::from(u32::from(address)) << 96),
        IpAddr::V6(address) => (true, u128::from(address)),
    }
}

fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        let (is_v6, bits) = family_bits(address);
        is_v6 == self.is_v6 && bits & mask(self.prefix) == self.bits
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let (name, prefix) = text.split_once('/').map_or((text, None), |(name, prefix)| (name, Some(prefix)));
        let address: IpAddr = name.parse().map_err(|_| format!("{name:?} is no address"))?;
        let (is_v6, bits) = family_bits(address);
        let most = if address.is_ipv6() { 128 } else { 32 };
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.map_or(Some(most), |text| Some(text).filter(is_number)?.parse().ok());
        let prefix: u8 =
            prefix.filter(|prefix| *prefix <= most).ok_or(format!("{text:?}: no such prefix"))?;
        // ::ffff:10.0.0.0/104 is 10.0.0.0/8.
        let prefix = if is_v6 || most == 32 { Some(prefix) } else { prefix.checked_sub(96) };
        let prefix = prefix.ok_or(format!("{text:?} mixes IPv4 and IPv6"))?;
        let network = Network { is_v6, prefix, bits: bits & mask(prefix) };
        if network.bits == bits {
            Ok(network)
        } else {
            Err(format!("{text:?} has bits behind its prefix: {network}?"))
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v4 = ((self.bits >> 96) as u32).to_be_bytes();
        let address = if self.is_v6 { IpAddr::from(self.bits.to_be_bytes()) } else { IpAddr::from(v4) };
        write!(f, "{address}/{}", self.prefix)
    }
}

/// Addresses behind another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub network: Network,
    pub engine: SocketAddr,
    pub trust: Trust,
    pub tenant: Option<String>,
    /// Where the file says so, from 1.
    pub line: usize,
}

/// Whose connections these are, and what of the way to each engine is theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    pub weight: u32,
    /// Bytes a second.
    pub rate: Option<u64>,
}

impl Tenant {
    fn new(name: &str) -> Tenant {
        Tenant { name: name.to_owned(), weight: 1, rate: None }
    }

    /// By which engines know it ([`tenant_id`]).
    pub fn id(&self) -> u32 {
        tenant_id(&self.name)
    }
}

/// The number of a tenant's name (FNV-1a), which is the same on all hosts, and not 0: so are connections of no tenant.
pub fn tenant_id(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

/// What a hosts file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    pub listen: Option<SocketAddr>,
    pub key: Option<PathBuf>,
    pub shared_key: Option<PathBuf>,
    pub least: Option<usize>,
    pub carriers: Option<Carriers>,
    pub congestion: Option<Congestion>,
    /// Those that a line names, here or of a host.
    tenants: Vec<Tenant>,
    /// By prefix from the longest on, then by network.
    hosts: Vec<Host>,
    /// Those of one prefix each.
    runs: Vec<Range<usize>>,
}

/// A line that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsError {
    /// From 1.
    pub line: usize,
    pub message: String,
}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

impl std::error::Error for HostsError {}

impl Hosts {
    pub fn parse(text: &str) -> Result<Hosts, HostsError> {
        let mut hosts = Hosts::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let done = match words.as_slice() {
                [] => Ok(()),
                ["listen", address] => socket(address).and_then(|address| once(&mut hosts.listen, address)),
                ["key", path] => once(&mut hosts.key, path.into()),
                ["shared-key", path] => once(&mut hosts.shared_key, path.into()),
                ["least", number] => {
                    let number = number.parse().map_err(|_| format!("{number:?} is no number"));
                    number.and_then(|number| once(&mut hosts.least, number))
                }
                ["carrier", name] => carriers(name).and_then(|which| once(&mut hosts.carriers, which)),
                ["congestion", name] => congestion(name).and_then(|which| once(&mut hosts.congestion, which)),
                ["tenant", name, rest @ ..] => tenant(name, rest).and_then(|tenant| hosts.adds(tenant)),
                ["host", network, engine, rest @ ..] => {
                    host(at + 1, network, engine, rest).map(|host| hosts.hosts.push(host))
                }
                ["listen" | "key" | "shared-key" | "least" | "carrier" | "congestion", ..] => {
                    Err("one word is wanted behind the first".into())
                }
                ["tenant"] => Err("tenant NAME [weight=NUMBER] [rate=BYTES]".into()),
                ["host", ..] => Err("host NETWORK ADDRESS:PORT key=BASE64|shared|plain".into()),
                [word, ..] => Err(format!(
                    "{word:?}: no such word (listen, key, shared-key, least, carrier, congestion, tenant, host)"
                )),
            };
            done.map_err(|message| HostsError { line: at + 1, message })?;
        }
        hosts.check()?;
        hosts.name_tenants()?;
        hosts.sort();
        Ok(hosts)
    }

    fn adds(&mut self, tenant: Tenant) -> Result<(), String> {
        match self.tenants.iter().find(|other| other.id() == tenant.id()) {
            Some(other) if other.name == tenant.name => {
                Err(format!("the tenant {} is said twice", tenant.name))
            }
            Some(other) => {
                Err(format!("the tenants {} and {} have the same number", other.name, tenant.name))
            }
            None => {
                self.tenants.push(tenant);
                Ok(())
            }
        }
    }

    /// Those that only hosts name are tenants as well.
    fn name_tenants(&mut self) -> Result<(), HostsError> {
        for at in 0..self.hosts.len() {
            let (name, line) = (self.hosts[at].tenant.clone(), self.hosts[at].line);
            let new = name.filter(|name| !self.tenants.iter().any(|tenant| tenant.name == *name));
            let added = new.map_or(Ok(()), |name| self.adds(Tenant::new(&name)));
            added.map_err(|message| HostsError { line, message })?;
        }
        Ok(())
    }

    /// What holds of lines together.
    fn check(&self) -> Result<(), HostsError> {
        let mut networks = HashMap::new();
        let mut engines = HashMap::new();
        for host in &self.hosts {
            let error = |message| Err(HostsError { line: host.line, message });
            if let Some(other) = networks.insert(host.network, host.line) {
                return error(format!("{} stands in line {other} as well", host.network));
            }
            let (trust, other) = *engines.entry(host.engine).or_insert((host.trust, host.line));
            if trust != host.trust {
                return error(format!("the engine {} is known in another way in line {other}", host.engine));
            }
            match host.trust {
                Trust::Key(_) if self.key.is_none() => {
                    return error("`key FILE` is missing: one's own key".into());
                }
                Trust::Shared if self.shared_key.is_none() => {
                    return error("`shared-key FILE` is missing".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn sort(&mut self) {
        self.hosts.sort_by_key(|host| (u8::MAX - host.network.prefix, host.network));
        let mut at = 0;
        for run in self.hosts.chunk_by(|a, b| a.network.prefix == b.network.prefix) {
            self.runs.push(at..at + run.len());
            at += run.len();
        }
    }

    /// The host that has this address: the one with the longest prefix.
    pub fn lookup(&self, address: IpAddr) -> Option<&Host> {
        let (is_v6, bits) = family_bits(address);
        self.runs.iter().find_map(|run| {
            let run = self.hosts.get(run.clone())?;
            let prefix = run.first()?.network.prefix;
            let wanted = Network { is_v6, prefix, bits: bits & mask(prefix) };
            let at = run.binary_search_by_key(&wanted, |host| host.network).ok()?;
            run.get(at)
        })
    }

    /// All of them, those with long prefixes first.
    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter()
    }

    /// All that some line names, in the order of lines.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// The engine that has this address: whoever comes from there is to show himself so.
    pub fn trust_of_engine(&self, address: IpAddr) -> Option<Trust> {
        let is_it = |host: &&Host| host.engine.ip().to_canonical() == address.to_canonical();
        self.hosts.iter().find(is_it).map(|host| host.trust)
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    if place.replace(value).is_some() { Err("said twice".into()) } else { Ok(()) }
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| format!("{text:?} is not ADDRESS:PORT"))?;
    if address.port() == 0 { Err(format!("{text:?}: port 0")) } else { Ok(address) }
}

fn tenant(name: &str, rest: &[&str]) -> Result<Tenant, String> {
    if !is_name(name) {
        return Err(format!("{name:?} is no name for a tenant"));
    }
    let (mut weight, mut rate) = (None, None);
    for word in rest {
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        match word.split_once('=') {
            Some(("weight", text)) => {
                let number = number(text).filter(|weight| *weight <= 1000);
                once(&mut weight, number.ok_or(format!("{text:?} is no weight from 1 to 1000"))? as u32)?;
            }
            Some(("rate", text)) => {
                once(&mut rate, number(text).ok_or(format!("{text:?} are no bytes a second"))?)?;
            }
            _ => return Err(format!("{word:?}: no such word (weight=NUMBER, rate=BYTES)")),
        }
    }
    Ok(Tenant { weight: weight.unwrap_or(1), rate, ..Tenant::new(name) })
}

fn carriers(name: &str) -> Result<Carriers, String> {
    match name {
        "either" => Ok(Carriers::Either),
        "trunk" => Ok(Carriers::Trunk),
        "datagram" => Ok(Carriers::Datagrams),
        _ => Err(format!("{name:?} is no carrier (either, trunk, datagram)")),
    }
}

fn congestion(name: &str) -> Result<Congestion, String> {
    let (name, target) = name.split_once('=').map_or((name, None), |(name, target)| (name, Some(target)));
    let target = target.map(|text| text.parse().ok().filter(|us| (1..=1_000_000).contains(us)).ok_or(text));
    match (name, target.transpose()) {
        ("dctcp", Ok(None)) => Ok(Congestion::Dctcp),
        ("newreno", Ok(None)) => Ok(Congestion::NewReno),
        ("swift", Ok(target)) => Ok(Congestion::Swift(1_000 * target.unwrap_or(SWIFT_US))),
        ("swift", Err(text)) => Err(format!("{text:?} are no microseconds from 1 to 1000000")),
        _ => Err(format!("{name:?} is no controller (dctcp, newreno, swift, swift=MICROSECONDS)")),
    }
}

fn host(line: usize, network: &str, engine: &str, rest: &[&str]) -> Result<Host, String> {
    let network = network.parse()?;
    let engine = socket(engine)?;
    if engine.ip().is_unspecified() || engine.ip().is_multicast() {
        return Err(format!("no engine is at {}", engine.ip()));
    }
    let (mut trust, mut tenant) = (None, None);
    for word in rest {
        match word.split_once('=') {
            None if *word == "shared" => once(&mut trust, Trust::Shared)?,
            None if *word == "plain" => once(&mut trust, Trust::Plain)?,
            Some(("key", key)) => {
                let key = key.parse().map_err(|error| format!("key={key}: {error}"))?;
                once(&mut trust, Trust::Key(key))?;
            }
            Some(("tenant", name)) if is_name(name) => once(&mut tenant, name.to_owned())?,
            Some(("tenant", name)) => return Err(format!("{name:?} is no name for a tenant")),
            _ => {
                return Err(format!("{word:?}: no such word (key=BASE64, shared, plain, tenant=NAME)"));
            }
        }
    }
    let trust = trust.ok_or("how the engine is known has to be said: key=BASE64, shared or plain")?;
    Ok(Host { network, engine, trust, tenant, line })
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}
