//! What the hosts file says, with the keys that it names.
//!
//! Its text is `sd_keys::Hosts`' business; here its lines are engines, each with the networks behind it, and files are read. A name of a file
//! that is relative begins at the hosts file's folder.

use sd_keys::hosts::{Carriers, Tenant, tenant_id};
use sd_keys::{Cipher, Credentials, Identity, SharedKey, Trust};
use sd_link::Limits;
use sd_link::congestion::Congestion;
use sd_proto::Ip;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// Between two hosts with fewer connections these stay the kernel's, unless the file says another number: the gain is that bytes of several go
/// together, and one alone pays for two processes more that have to be woken.
const LEAST: usize = 32;
/// Of what a tenant may send in a second so much may be saved up, and at least this.
const BURST_PART: u64 = 100;
const BURST_MIN: u64 = 64 << 10;

/// See the module.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Where this engine listens.
    pub listen: SocketAddr,
    /// The others.
    pub engines: Vec<Engine>,
    /// Between two hosts with fewer connections these stay the kernel's.
    pub least: usize,
    /// What may carry packets to them, and how much datagrams may have under way.
    pub(crate) carriers: Carriers,
    pub(crate) congestion: Congestion,
    pub(crate) credentials: Arc<Credentials>,
    file: sd_keys::Hosts,
}

/// Another host's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Where it listens.
    pub address: SocketAddr,
    /// How it shows who it is.
    pub trust: Trust,
}

/// Why a file is none.
#[derive(Debug)]
pub struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

impl Hosts {
    /// Reads the file, and the keys that it names.
    pub fn read(path: &Path) -> Result<Hosts, Mistake> {
        let text = std::fs::read_to_string(path).map_err(|error| Mistake(error.to_string()))?;
        Hosts::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Hosts, Mistake> {
        let file = sd_keys::Hosts::parse(text).map_err(|error| Mistake(format!("line {error}")))?;
        let listen = file.listen.ok_or_else(|| Mistake("there is no line `listen ADDRESS:PORT`".into()))?;
        let identity = file.key.as_deref().map(|key| read(&folder.join(key), Identity::read)).transpose()?;
        let shared =
            file.shared_key.as_deref().map(|key| read(&folder.join(key), SharedKey::read)).transpose()?;
        let credentials = Credentials::new(identity, shared, Cipher::Aes128Gcm);
        let credentials = Arc::new(credentials.map_err(|error| Mistake(error.to_string()))?);
        let mut engines: Vec<Engine> = Vec::new();
        for host in file.iter() {
            if !engines.iter().any(|engine| engine.address == host.engine) {
                engines.push(Engine { address: host.engine, trust: host.trust });
            }
        }
        let least = file.least.unwrap_or(LEAST);
        let (carriers, congestion) =
            (file.carriers.unwrap_or_default(), file.congestion.unwrap_or(Congestion::Dctcp));
        Ok(Hosts { listen, engines, least, carriers, congestion, credentials, file })
    }

    /// The engine of the host with this address, and the tenant whose address it is; 0: nobody's.
    pub(crate) fn engine_of(&self, ip: Ip) -> Option<(usize, u32)> {
        let host = self.file.lookup(IpAddr::V6(Ipv6Addr::from(ip.0)))?;
        let engine = self.engines.iter().position(|engine| engine.address == host.engine)?;
        Some((engine, host.tenant.as_deref().map_or(0, tenant_id)))
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

fn read<T>(path: &Path, read: impl Fn(&Path) -> Result<T, sd_keys::FileError>) -> Result<T, Mistake> {
    read(path).map_err(|error| Mistake(format!("{}: {error}", path.display())))
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
        let of = |address| hosts.engine_of(Ip::v4(address));
        let [blue, red] = ["blue", "red"].map(tenant_id);
        assert_eq!((of([10, 1, 0, 1]), of([10, 2, 0, 1])), (Some((0, blue)), Some((0, red))));
        assert_eq!((of([10, 3, 0, 1]), of([10, 4, 0, 1])), (Some((1, 0)), None));
        let limits = |weight, rate| Limits { weight, rate };
        let all =
            [(0, limits(1, None)), (blue, limits(3, Some((20_000_000, 200_000)))), (red, limits(1, None))];
        assert_eq!(hosts.tenants(), all);
    }
}
