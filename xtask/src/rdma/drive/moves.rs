//! A server that moves from one host to the other, and back.

use super::super::agent::start_engine;
use super::placing::{gives_rings_back, lives_through_an_outage};
use super::{PASSED, RDMA, placed, say, until_rdma};
use crate::sharing::migrated_between;
use harness::host::{Host, PLAIN};
use harness::network::{Network, addresses, configure};
use harness::{Result, fail};
use std::net::Ipv4Addr;
use std::path::Path;

/// Two hosts more, in the one guest.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 11), Ipv4Addr::new(10, 9, 0, 12)];

/// From shared memory to RDMA, and to shared memory again, with its connections (A16); without keys, so that large messages are placed (A12).
pub(super) fn between_hosts(below: &str) -> Result<()> {
    HOSTS.iter().try_for_each(|address| configure(&addresses(*address, below)))?;
    let host = |address| Host::bare(Network::at(Path::new("/proc/self/ns/net"))?, address);
    let mut hosts = [host(HOSTS[0])?, host(HOSTS[1])?];
    for (at, host) in hosts.iter_mut().enumerate() {
        host.make_key("engine.key")?;
        start_engine(host, (HOSTS[1 - at], PLAIN.to_owned()))?;
    }
    hosts[0].wait_for_other_engine(&HOSTS[1].to_string())?;
    until_rdma(&hosts[0], true)?;
    let said = migrated_between::with(&hosts, RDMA)?;
    let placed = [placed(&hosts[0])?, placed(&hosts[1])?];
    eprintln!("from shared memory to RDMA and back: {said}; placed: {placed:?} bytes");
    if placed.contains(&0) {
        fail!("without keys nothing was placed: {placed:?}");
    }
    say(PASSED)?;
    lives_through_an_outage(&hosts, below)?;
    gives_rings_back(&hosts)?;
    hosts.into_iter().try_for_each(Host::finish)
}
