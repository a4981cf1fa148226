//! The hosts file: which networks have an engine, where it is, and how it shows that it is the one.
//!
//! ```text
//! # What stands behind a # is for people.
//! listen      ADDRESS:PORT                 where this host's engine awaits others
//! key         FILE                         its own key (sd key new FILE)
//! shared-key  FILE
//! least       NUMBER                       between two hosts with fewer connections these stay the kernel's
//! trial       on|off                       connections that are slower by the engines than they were go back (on)
//! carrier     trunk|datagram|either|rdma   what goes between engines: TCP, UDP, or what is better now (either); RDMA where it works, or else that
//! congestion  dctcp|newreno|swift[=US]     how much datagrams may have under way: by marks, by loss, by a delay to aim at (dctcp)
//! rekey       SECONDS                      packets have new keys at least so often (3600)
//! resolve     SECONDS                      names are looked up again so often (30)
//! pin         MEBIBYTES                    so much of programs' rings a device for RDMA may have at a time (128); 0: nothing is placed
//! tenant      NAME  [weight=NUMBER] [rate=BYTES] [netns=PATH]...
//! host        NETWORK  ADDRESS:PORT  key=BASE64|shared|plain  [tenant=NAME]
//! host        NETWORK  NAME:PORT  key=BASE64|shared|plain  [each]  [tenant=NAME]
//! ```
//! Each `host` line names the addresses behind an engine (`10.1.2.0/24`, `fd00::7`), and the engine's own address. Of several networks
//! that an address is in the longest prefix counts; the order of lines does not. How the engine is known has to be said: its public
//! key, the key that all share, or `plain`: nobody is checked and everybody may read. A tenant is whose networks these
//! are: connections between networks of two tenants stay the kernel's. To each other engine a tenant has its part of what is sent, by weight (1), and sends
//! at most so many bytes a second.
//!
//! A tenant may have network namespaces of its own, by their files (`netns=/run/netns/blue`, `netns=/run/netns/blue-*`). For connections of processes in
//! these its `host` lines hold, and no others; and they hold for nobody else. So two tenants may use the same addresses.
//!
//! Where a name stands in the place of an address ([`names`]), what it has now is the engine's address; with `each`, all that it has are addresses of
//! engines, each of its own host alone. An address is taken from a name only if a `host` line's network has it: that line's where it says `each`.
//!
//! No I/O: text in, rules out, for the monitor and the engine alike. What a file cannot mean is an error with its line: a network
//! twice, bits behind its prefix, one engine that is known in two ways, a key that is wanted and not named.

mod lines;
pub mod names;

use crate::identity::PublicKey;
use lines::{Line, carriers, congestion, host, number, on_or_off, once, seconds, socket, tenant};
use names::Named;
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
    /// RDMA where both engines want it and have a device; else what is better now.
    Rdma,
}

/// What is followed by one word.
const ONE_WORD: [&str; 10] =
    ["listen", "key", "shared-key", "least", "trial", "carrier", "congestion", "rekey", "resolve", "pin"];

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

    /// One address alone.
    pub fn of(address: IpAddr) -> Network {
        let (is_v6, bits) = family_bits(address);
        Network { is_v6, prefix: if is_v6 { 128 } else { 32 }, bits }
    }

    /// The first address of it.
    pub fn first(&self) -> IpAddr {
        let v4 = ((self.bits >> 96) as u32).to_be_bytes();
        if self.is_v6 { IpAddr::from(self.bits.to_be_bytes()) } else { IpAddr::from(v4) }
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
        write!(f, "{}/{}", self.first(), self.prefix)
    }
}

/// Addresses behind another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub network: Network,
    pub engine: SocketAddr,
    pub trust: Trust,
    pub tenant: Option<String>,
    /// The tenant's number if the line holds in its own network namespaces alone; else 0.
    pub owner: u32,
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
    /// Its own network namespaces, if it has some: their files, or how names of these begin, and `*`.
    pub namespaces: Vec<String>,
}

impl Tenant {
    fn new(name: &str) -> Tenant {
        Tenant { name: name.to_owned(), weight: 1, rate: None, namespaces: Vec::new() }
    }

    /// By which engines know it ([`tenant_id`]).
    pub fn id(&self) -> u32 {
        tenant_id(&self.name)
    }
}

/// The number of a tenant's name (FNV-1a), which is the same on all hosts, and not 0: so are connections of no tenant. Nor `u32::MAX`.
pub fn tenant_id(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.clamp(1, u32::MAX - 1)
}

/// What a hosts file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    pub listen: Option<SocketAddr>,
    pub key: Option<PathBuf>,
    pub shared_key: Option<PathBuf>,
    pub least: Option<usize>,
    /// Connections that are slower by the engines than they were go back.
    pub trial: Option<bool>,
    pub carriers: Option<Carriers>,
    pub congestion: Option<Congestion>,
    /// Packets have new keys at least so often.
    pub rekey_seconds: Option<u64>,
    /// Names are looked up again so often.
    pub resolve_seconds: Option<u64>,
    /// Of programs' rings a device may have so much.
    pub pin_mebibytes: Option<usize>,
    /// Those that a line names, here or of a host.
    tenants: Vec<Tenant>,
    /// By owner, by prefix from the longest on, then by network.
    hosts: Vec<Host>,
    /// By line.
    named: Vec<Named>,
    /// Those of one owner and one prefix each.
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
                ["least", text] => number(text).and_then(|number| once(&mut hosts.least, number)),
                ["pin", text] => number(text).and_then(|number| once(&mut hosts.pin_mebibytes, number)),
                ["trial", word] => on_or_off(word).and_then(|is_on| once(&mut hosts.trial, is_on)),
                ["carrier", name] => carriers(name).and_then(|which| once(&mut hosts.carriers, which)),
                ["congestion", name] => congestion(name).and_then(|which| once(&mut hosts.congestion, which)),
                ["rekey", number] => {
                    seconds(number).and_then(|number| once(&mut hosts.rekey_seconds, number))
                }
                ["resolve", number] => {
                    seconds(number).and_then(|number| once(&mut hosts.resolve_seconds, number))
                }
                ["tenant", name, rest @ ..] => tenant(name, rest).and_then(|tenant| hosts.adds(tenant)),
                ["host", network, engine, rest @ ..] => {
                    host(at + 1, network, engine, rest).map(|line| hosts.add_host(line))
                }
                [word, ..] if ONE_WORD.contains(word) => Err("one word is wanted behind the first".into()),
                ["tenant"] => Err("tenant NAME [weight=NUMBER] [rate=BYTES] [netns=PATH]...".into()),
                ["host", ..] => Err("host NETWORK ADDRESS:PORT key=BASE64|shared|plain".into()),
                [word, ..] => Err(format!("{word:?}: no such word ({}, tenant, host)", ONE_WORD.join(", "))),
            };
            done.map_err(|message| HostsError { line: at + 1, message })?;
        }
        hosts.name_owners();
        hosts.check()?;
        hosts.name_tenants()?;
        hosts.sort();
        Ok(hosts)
    }

    fn add_host(&mut self, line: Line) {
        match line {
            Line::Host(host) => self.hosts.push(host),
            Line::Named(named) => self.named.push(named),
        }
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

    fn name_owners(&mut self) {
        let with_namespaces = self.tenants.iter().filter(|tenant| !tenant.namespaces.is_empty());
        let owners: HashMap<String, u32> =
            with_namespaces.map(|tenant| (tenant.name.clone(), tenant.id())).collect();
        for host in self.hosts.iter_mut().chain(self.named.iter_mut().map(Named::host_mut)) {
            host.owner = host.tenant.as_ref().and_then(|name| owners.get(name)).copied().unwrap_or(0);
        }
    }

    /// Those that only hosts name are tenants as well.
    fn name_tenants(&mut self) -> Result<(), HostsError> {
        let said: Vec<_> = self.lines().map(|host| (host.tenant.clone(), host.line)).collect();
        for (name, line) in said {
            let new = name.filter(|name| !self.tenants.iter().any(|tenant| tenant.name == *name));
            let added = new.map_or(Ok(()), |name| self.adds(Tenant::new(&name)));
            added.map_err(|message| HostsError { line, message })?;
        }
        Ok(())
    }

    /// Those with an address, and then those with a name.
    fn lines(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().chain(self.named.iter().map(|named| &named.host))
    }

    /// What holds of lines together.
    fn check(&self) -> Result<(), HostsError> {
        let mut networks = HashMap::new();
        let mut engines = HashMap::new();
        let mut names = HashMap::new();
        for (host, name) in
            self.hosts.iter().map(|host| (host, None)).chain(self.named.iter().map(Named::said))
        {
            let error = |message| Err(HostsError { line: host.line, message });
            if let Some(other) = networks.insert((host.owner, host.network), host.line) {
                return error(format!("{} stands in line {other} as well", host.network));
            }
            let (trust, other, said) = match name {
                None => {
                    let (trust, other) = *engines.entry(host.engine).or_insert((host.trust, host.line));
                    (trust, other, host.engine.to_string())
                }
                Some(name) => {
                    let (trust, other) =
                        *names.entry((name, host.engine.port())).or_insert((host.trust, host.line));
                    (trust, other, format!("{name}:{}", host.engine.port()))
                }
            };
            if trust != host.trust {
                return error(format!("the engine {said} is known in another way in line {other}"));
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
        self.hosts.sort_by_key(|host| (host.owner, u8::MAX - host.network.prefix, host.network));
        let mut at = 0;
        for run in self.hosts.chunk_by(|a, b| (a.owner, a.network.prefix) == (b.owner, b.network.prefix)) {
            self.runs.push(at..at + run.len());
            at += run.len();
        }
    }

    /// The host that has this address: the one with the longest prefix. Not of a tenant with namespaces of its own.
    pub fn lookup(&self, address: IpAddr) -> Option<&Host> {
        self.lookup_in(0, address)
    }

    /// The same in the namespaces of an owner ([`Host::owner`]).
    pub fn lookup_in(&self, owner: u32, address: IpAddr) -> Option<&Host> {
        let (is_v6, bits) = family_bits(address);
        self.runs.iter().find_map(|run| {
            let run = self.hosts.get(run.clone())?;
            let first = run.first().filter(|first| first.owner == owner)?;
            let prefix = first.network.prefix;
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
