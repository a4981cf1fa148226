//! Hosts of ours on one machine: each has a network namespace and a monitor of its own.
//!
//! ```text
//!   10.77.0.1 eth0 ------------- eth0 10.77.0.2
//!   programs  lo, all ports      programs  lo, all ports
//!   monitor                      monitor
//! ```
//! They share files and process numbers, but no port, no address and no monitor, so that what goes from one to the other
//! goes as it does between machines.

use crate::cable::{Cable, Faults};
use crate::lab::Lab;
use crate::network::Network;
use crate::{Result, fail};
use std::net::Ipv4Addr;

/// Its programs are run by its lab.
pub struct Host {
    pub lab: Lab,
    /// Of the device that leads to the other one.
    pub address: Ipv4Addr,
    /// What joins it to the other one, if that has faults; the first host has it.
    pub cable: Option<Cable>,
}

/// Of a cable's fate.
const SEED: u64 = 77;
/// Where engines are reached.
const ENGINE_PORT: u16 = 7077;

/// Two of them, joined by a cable.
pub fn two(is_oracle: bool) -> Result<[Host; 2]> {
    let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let (here, there) = (Network::new()?, Network::new()?);
    Network::join([(&here, addresses[0]), (&there, addresses[1])])?;
    let host = |network, address| {
        Ok::<_, crate::Error>(Host { lab: Lab::on(network, is_oracle)?, address, cable: None })
    };
    Ok([host(here, addresses[0])?, host(there, addresses[1])?])
}

/// Two of them with an engine each, joined by a cable that has these faults. The kernel's own pair of devices where it has none.
pub fn two_with_engines(faults: Faults) -> Result<[Host; 2]> {
    let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let (here, there) = (Network::new()?, Network::new()?);
    let ends = [(&here, addresses[0]), (&there, addresses[1])];
    let cable = match faults == Faults::default() {
        true => Network::join(ends).map(|()| None)?,
        false => Some(Cable::join(ends, faults, SEED)?),
    };
    let mut hosts = [(here, 0), (there, 1)].into_iter().map(|(network, at)| {
        let mut lab = Lab::on_without_monitor(network)?;
        let (own, other) = (addresses[at], addresses[1 - at]);
        let file = lab.path().join("hosts");
        std::fs::write(&file, format!("listen {own}:{ENGINE_PORT}\n{other} {other}:{ENGINE_PORT}\n"))?;
        lab.start_monitor_with(&["--hosts", &file.display().to_string()])?;
        Ok::<_, crate::Error>(Host { lab, address: own, cable: None })
    });
    let (Some(first), Some(second)) = (hosts.next(), hosts.next()) else { fail!("there are two hosts") };
    let mut hosts = [first?, second?];
    hosts[0].cable = cable;
    Ok(hosts)
}

impl Host {
    /// Ends its monitor, after a check that nothing is left in it.
    pub fn finish(self) -> Result<()> {
        self.lab.finish()
    }
}
