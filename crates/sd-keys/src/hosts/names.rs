//! Names in the place of engines' addresses. What a name has is asked for elsewhere; here it is only said what follows from the answers.
//!
//! # Guarantees
//! * Answers are believed as far as where an engine is, and no further: who it is its key shows, and which networks are behind it the file says.
//! * An address that no `host` line's network has is not taken, whatever a name has: that line's own network where it says `each`.
//! * What lines with addresses say comes before what names have.

use super::lines::may_have_an_engine;
use super::{Host, Hosts, Network};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

/// Of how many engines a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// Of one, with the line's network behind it.
    One,
    /// Of one at each address that it has in the line's network, with that address behind it.
    Each,
}

/// A `host` line with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub engines: Engines,
    /// What else the line says; its engine has only a port.
    pub(super) host: Host,
}

/// What names have.
pub type Answers = HashMap<String, Vec<IpAddr>>;

impl Named {
    pub(super) fn said(&self) -> (&Host, Option<&str>) {
        (&self.host, Some(&self.name))
    }

    pub(super) fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}

impl Hosts {
    /// All names, each once.
    pub fn names(&self) -> BTreeSet<&str> {
        self.named.iter().map(|named| named.name.as_str()).collect()
    }

    /// The same with addresses only, as names have them now, for the engine that listens at `own`: it is none of the others, and reaches those
    /// of its own kind of address. Besides, what of the answers is not taken, in words.
    ///
    /// ```
    /// let text = "host 10.1.0.0/16 engines.example:7077 plain each\nhost 10.2.0.0/16 b.example:7077 plain\n";
    /// let hosts = sd_keys::Hosts::parse(text).unwrap();
    /// let has = |name: &str, all: &[&str]| (name.to_owned(), all.iter().map(|ip| ip.parse().unwrap()).collect());
    /// let answers = [has("engines.example", &["10.1.0.1", "10.1.0.2", "10.9.9.9"]), has("b.example", &["10.1.0.7"])];
    /// let (resolved, refused) = hosts.resolved(&answers.into(), "10.1.0.1".parse().unwrap());
    /// let engine = |ip: &str| resolved.lookup(ip.parse().unwrap()).map(|host| host.engine.to_string());
    /// assert_eq!(engine("10.1.0.2").as_deref(), Some("10.1.0.2:7077"));
    /// assert_eq!(engine("10.2.5.5").as_deref(), Some("10.1.0.7:7077"));
    /// assert_eq!((engine("10.1.0.1"), engine("10.1.0.3"), refused.len()), (None, None, 1));
    /// ```
    pub fn resolved(&self, answers: &Answers, own: IpAddr) -> (Hosts, Vec<String>) {
        let mut resolved = Hosts { named: Vec::new(), hosts: Vec::new(), runs: Vec::new(), ..self.clone() };
        let mut refused = Vec::new();
        let mut all: Vec<Host> = self.hosts.clone();
        for Named { name, engines, host } in &self.named {
            let is_known = |ip: IpAddr| match engines {
                // Of a tenant with namespaces of its own addresses are not the hosts'.
                Engines::One => self.lines().any(|line| line.owner == 0 && line.network.contains(ip)),
                Engines::Each => host.network.contains(ip),
            };
            let answer = answers.get(name).map(Vec::as_slice).unwrap_or_default();
            let answer: BTreeSet<IpAddr> = answer.iter().map(IpAddr::to_canonical).collect();
            let (known, strange): (Vec<IpAddr>, Vec<IpAddr>) =
                answer.into_iter().partition(|ip| is_known(*ip) && may_have_an_engine(*ip));
            refused.extend(
                strange
                    .iter()
                    .map(|ip| format!("{name} has {ip}, which is in no network of the file for it")),
            );
            let is_other =
                |ip: &IpAddr| *ip != own.to_canonical() && ip.is_ipv4() == own.to_canonical().is_ipv4();
            let mut addresses = known.into_iter().filter(is_other);
            let engine = |ip| SocketAddr::new(ip, host.engine.port());
            match engines {
                // Of several it is always the same one, in whatever order they come.
                Engines::One => {
                    all.extend(addresses.next().map(|ip| Host { engine: engine(ip), ..host.clone() }))
                }
                Engines::Each => all.extend(addresses.map(|ip| Host {
                    network: Network::of(ip),
                    engine: engine(ip),
                    ..host.clone()
                })),
            }
        }
        for host in all {
            let before = |other: &&Host| (other.owner, other.network) == (host.owner, host.network);
            let other_way = |other: &&Host| other.engine == host.engine && other.trust != host.trust;
            if let Some(other) = resolved.hosts.iter().find(|other| before(other) || other_way(other)) {
                refused.push(format!(
                    "line {} gives {} another engine, or another key, than line {}",
                    host.line, host.network, other.line
                ));
                continue;
            }
            resolved.hosts.push(host);
        }
        resolved.sort();
        (resolved, refused)
    }
}
