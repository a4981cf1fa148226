//! Hosts of ours on one machine: each has a network namespace and a monitor of its own.
//!
//! ```text
//!   10.77.0.1 eth0 ------------- eth0 10.77.0.2
//!   programs  lo, all ports      programs  lo, all ports
//!   monitor                      monitor
//! ```
//! They share files and process numbers, but no port, no address and no monitor, so that what goes from one to the other
//! goes as it does between machines.

use crate::Result;
use crate::lab::Lab;
use crate::network::Network;
use std::net::Ipv4Addr;

/// Its programs are run by its lab.
pub struct Host {
    pub lab: Lab,
    /// Of the device that leads to the other one.
    pub address: Ipv4Addr,
}

/// Two of them, joined by a cable.
pub fn two(is_oracle: bool) -> Result<[Host; 2]> {
    let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let (here, there) = (Network::new()?, Network::new()?);
    Network::join([(&here, addresses[0]), (&there, addresses[1])])?;
    let host = |network, address| Ok::<_, crate::Error>(Host { lab: Lab::on(network, is_oracle)?, address });
    Ok([host(here, addresses[0])?, host(there, addresses[1])?])
}

impl Host {
    /// Ends its monitor, after a check that nothing is left in it.
    pub fn finish(self) -> Result<()> {
        self.lab.finish()
    }
}
