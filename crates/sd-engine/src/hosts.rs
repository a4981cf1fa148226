//! What the hosts file says, with the keys that it names.
//!
//! Its text is `sd_keys::Hosts`' business; here its lines are engines, each with the networks behind it, and files are read. A name of a file
//! that is relative begins at the hosts file's folder.

use crate::policy;
use sd_keys::handshake::Mode;
use sd_keys::hosts::names::Answers;
use sd_keys::hosts::{Carriers, Tenant, tenant_id};
use sd_keys::{Cipher, Credentials, Identity, SharedKey, Trust};
use sd_link::Limits;
use sd_link::congestion::Congestion;
use sd_proto::{Ip, Name};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Between two hosts with fewer connections these stay the kernel's, unless the file says another number: the gain is that bytes of several go
/// together, and one alone pays for two processes more that have to be woken.
const LEAST: usize = 32;
/// Of what a tenant may send in a second so much may be saved up, and at least this.
const BURST_PART: u64 = 100;
const BURST_MIN: u64 = 64 << 10;
/// Names are looked up again so often, unless the file says another time.
const RESOLVE_S: u64 = 30;
/// Packets have new keys at least so often, unless the file says another time.
const REKEY_S: u64 = 3600;
/// Of programs' rings, 2 MiB each, a device may have so much, unless the file says otherwise.
const PIN_MIB: usize = 128;
/// No hosts file is longer.
const BYTES_MAX: u64 = 4 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Where this engine listens.
    pub listen: SocketAddr,
    /// The others. One that is gone keeps its place until another one takes it.
    pub engines: Vec<Engine>,
    /// Between two hosts with fewer connections these stay the kernel's.
    pub least: usize,
    /// Connections are measured before they come, and meanwhile.
    pub(crate) has_trials: bool,
    /// What may carry packets to them, and how much datagrams may have under way.
    pub(crate) carriers: Carriers,
    pub(crate) congestion: Congestion,
    pub(crate) credentials: Arc<Credentials>,
    /// As it is written, and with what names have.
    written: Arc<sd_keys::Hosts>,
    file: sd_keys::Hosts,
}

/// Another host's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Where it listens.
    pub address: SocketAddr,
    /// How it shows who it is.
    pub trust: Trust,
    /// The file names it no more.
    pub is_gone: bool,
}

impl Engine {
    fn new(host: &sd_keys::Host) -> Engine {
        Engine { address: host.engine, trust: host.trust, is_gone: false }
    }

    /// What an engine shows itself with to it.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self.trust {
            Trust::Key(_) => Some(Mode::Pinned),
            Trust::Shared => Some(Mode::Shared),
            Trust::Plain => None,
        }
    }
}

/// Why a file is none.
#[derive(Debug)]
pub struct Mistake {
    /// From 1; 0: no line is to blame.
    pub line: usize,
    what: String,
}

impl Mistake {
    fn new(what: impl fmt::Display) -> Mistake {
        Mistake { line: 0, what: what.to_string() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line != 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Mistake {}

impl Hosts {
    /// Reads the file, and the keys that it names. Names are not looked up: their engines are added by `Hosts::with`.
    pub fn read(path: &Path) -> Result<Hosts, Mistake> {
        let file = File::open(path).map_err(Mistake::new)?;
        Hosts::parse(&text_of(&file)?, path.parent().unwrap_or(Path::new("")))
    }

    /// The same of a file that is open, as is the folder in which names of files begin.
    pub(crate) fn read_open(file: &File, folder: &File) -> Result<Hosts, Mistake> {
        let folder = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        Hosts::parse(&text_of(file)?, &folder.map_err(Mistake::new)?)
    }

    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Hosts, Mistake> {
        let file =
            sd_keys::Hosts::parse(text).map_err(|error| Mistake { line: error.line, what: error.message })?;
        let listen = file.listen.ok_or_else(|| Mistake::new("there is no line `listen ADDRESS:PORT`"))?;
        let identity = file.key.as_deref().map(|key| read(&folder.join(key), Identity::read)).transpose()?;
        let shared =
            file.shared_key.as_deref().map(|key| read(&folder.join(key), SharedKey::read)).transpose()?;
        let credentials = Credentials::new(identity, shared, Cipher::Aes128Gcm);
        let credentials = Arc::new(credentials.map_err(Mistake::new)?);
        let least = file.least.unwrap_or(LEAST);
        let has_trials = file.trial.unwrap_or(true) && policy::judges(least);
        let (carriers, congestion) =
            (file.carriers.unwrap_or_default(), file.congestion.unwrap_or(Congestion::Dctcp));
        let written = Arc::new(file);
        let file = sd_keys::Hosts::default();
        let engines = Vec::new();
        let hosts =
            Hosts { listen, engines, least, has_trials, carriers, congestion, credentials, written, file };
        Ok(hosts.with(&Answers::new()).0)
    }

    /// The same with what names have; and what of that is not taken.
    pub(crate) fn with(&self, answers: &Answers) -> (Hosts, Vec<String>) {
        let (file, refused) = self.written.resolved(answers, self.listen.ip());
        let mut engines: Vec<Engine> = Vec::new();
        let mut known = HashSet::new();
        engines.extend(file.iter().filter(|host| known.insert(host.engine)).map(Engine::new));
        (Hosts { engines, file, ..self.clone() }, refused)
    }

    /// Names, each once, and how often they are looked up.
    pub(crate) fn names(&self) -> (Vec<String>, Duration) {
        let every = self.written.resolve_seconds.unwrap_or(RESOLVE_S);
        (self.written.names().into_iter().map(str::to_owned).collect(), Duration::from_secs(every))
    }

    /// Engines that `before` has as well keep their places, and so do those that are gone. New ones take the places that are free, and then others.
    pub(crate) fn arrange(&mut self, before: &[Engine], is_free: impl Fn(usize) -> bool) {
        let mut new: HashMap<SocketAddr, Engine> =
            self.engines.drain(..).map(|engine| (engine.address, engine)).collect();
        let keep = |old: &Engine| {
            let kept = new.remove(&old.address);
            kept.unwrap_or(Engine { is_gone: true, ..old.clone() })
        };
        self.engines = before.iter().map(keep).collect();
        let mut new: Vec<Engine> = new.into_values().collect();
        new.sort_by_key(|engine| engine.address);
        let mut new = new.into_iter();
        for (at, place) in self.engines.iter_mut().enumerate() {
            if place.is_gone && is_free(at) {
                *place = new.next().unwrap_or(place.clone());
            }
        }
        self.engines.extend(new);
    }

    /// What an engine shows itself with is made once, if the keys are the same.
    pub(crate) fn keep_credentials(&mut self, before: &Hosts) {
        if [Mode::Pinned, Mode::Shared]
            .iter()
            .all(|mode| self.credentials.is_same(&before.credentials, *mode))
        {
            self.credentials = Arc::clone(&before.credentials);
        }
    }

    /// Packets have new keys after this, in nanoseconds.
    pub(crate) fn rekey_ns(&self) -> u64 {
        self.written.rekey_seconds.unwrap_or(REKEY_S) * 1_000_000_000
    }

    /// Rings that may be lent to devices at a time.
    pub(crate) fn rings(&self) -> usize {
        self.written.pin_mebibytes.unwrap_or(PIN_MIB) / 2
    }

    /// Whether links have to be made anew for what has changed besides engines.
    pub(crate) fn is_other_way(&self, other: &Hosts) -> bool {
        (self.listen, self.carriers, self.congestion) != (other.listen, other.carriers, other.congestion)
    }

    /// Whether this engine shows itself to that one as `before`.
    pub(crate) fn shows_the_same(&self, before: &Hosts, engine: &Engine) -> bool {
        engine.mode().is_none_or(|mode| self.credentials.is_same(&before.credentials, mode))
    }

    /// Networks with the engine and the tenant of each.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &sd_keys::Host> {
        self.file.iter()
    }

    /// The engine of the host with this address, and the tenant whose address it is; 0: nobody's. In the namespaces of an owner, or of nobody: 0.
    pub(crate) fn engine_of(&self, owner: u32, ip: Ip) -> Option<(usize, u32)> {
        let host = self.file.lookup_in(owner, IpAddr::V6(Ipv6Addr::from(ip.0)))?;
        let engine =
            self.engines.iter().position(|engine| engine.address == host.engine && !engine.is_gone)?;
        Some((engine, host.tenant.as_deref().map_or(0, tenant_id)))
    }

    /// An engine's address and port, and a tenant's name, for people.
    pub(crate) fn named(&self, engine: usize, tenant: u32) -> (Ip, u16, Name) {
        let address = self.engines.get(engine).map_or(self.listen, |engine| engine.address);
        let name = self.file.tenants().iter().find(|it| it.id() == tenant).map_or("", |it| it.name.as_str());
        (address.ip().into(), address.port(), Name::of(name))
    }

    /// Tenants' own network namespaces, by the tenant's number: each a file, or how names of files begin, and `*`.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (u32, &str)> {
        let tenants = self.file.tenants().iter();
        tenants.flat_map(|tenant| tenant.namespaces.iter().map(|path| (tenant.id(), path.as_str())))
    }

    /// In whose namespaces connections of a tenant are: its own, or nobody's (0).
    pub(crate) fn owner(&self, tenant: u32) -> u32 {
        if self.namespaces().any(|(owner, _)| owner == tenant) { tenant } else { 0 }
    }

    /// Tenants by number, and what each may use of the way to an engine.
    pub(crate) fn tenants(&self) -> Vec<(u32, Limits)> {
        let nobody = (0, Limits { weight: 1, rate: None });
        let limits = |tenant: &Tenant| {
            let rate = tenant.rate.map(|rate| (rate, (rate / BURST_PART).max(BURST_MIN)));
            (tenant.id(), Limits { weight: tenant.weight, rate })
        };
        std::iter::once(nobody).chain(self.file.tenants().iter().map(limits)).collect()
    }
}

fn text_of(file: &File) -> Result<String, Mistake> {
    if !file.metadata().map_err(Mistake::new)?.is_file() {
        return Err(Mistake::new("it is not a regular file"));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(Mistake::new)?;
    if read as u64 > BYTES_MAX { Err(Mistake::new("it is longer than 4 MiB")) } else { Ok(text) }
}

fn read<T>(path: &Path, read: impl Fn(&Path) -> Result<T, sd_keys::FileError>) -> Result<T, Mistake> {
    read(path).map_err(|error| Mistake::new(format_args!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_engine_and_a_tenant() {
        let file = "listen 10.0.0.1:7077\ntenant blue weight=3 rate=20000000\n\
                    host 10.1.0.0/16 10.0.0.2:7077 plain tenant=blue\nhost 10.2.0.0/16 10.0.0.2:7077 plain tenant=red\n\
                    host 10.3.0.0/16 10.0.0.3:7077 plain\n";
        let hosts = Hosts::parse(file, Path::new("/nowhere")).unwrap();
        let of = |address| hosts.engine_of(0, Ip::v4(address));
        let [blue, red] = ["blue", "red"].map(tenant_id);
        assert_eq!((of([10, 1, 0, 1]), of([10, 2, 0, 1])), (Some((0, blue)), Some((0, red))));
        assert_eq!((of([10, 3, 0, 1]), of([10, 4, 0, 1])), (Some((1, 0)), None));
        let limits = |weight, rate| Limits { weight, rate };
        let all =
            [(0, limits(1, None)), (blue, limits(3, Some((20_000_000, 200_000)))), (red, limits(1, None))];
        assert_eq!(hosts.tenants(), all);
    }
}
