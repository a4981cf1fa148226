//! Large messages between engines without keys: the device places them (A12, ADR 124).

use super::{PASSED, placed, say, until_moved, until_rdma};
use crate::rdma::inside::PATIENCE;
use crate::sharing::checked::Checked;
use harness::host::Host;
use harness::network::configure;
use harness::{Result, until};
use std::fs::OpenOptions;
use std::io::Write;

/// Every byte of one connection is right while the network is gone for a time, so that what was placed is sent again by the trunk, and is placed again after
/// that; both ways.
pub(super) fn lives_through_an_outage(hosts: &[Host; 2], below: &str) -> Result<()> {
    let checked = Checked::start(&hosts[1], &hosts[0])?;
    until_moved(&hosts[0], checked.port, || true)?;
    until_placed(hosts)?;
    for _ in 0..2 {
        configure(&format!("link set {below} down\n"))?;
        until_rdma(&hosts[0], false)?;
        configure(&format!("link set {below} up\n"))?;
        until_rdma(&hosts[0], true)?;
        until_placed(hosts)?;
    }
    let placed = [placed(&hosts[0])?, placed(&hosts[1])?];
    eprintln!("through two outages: {}; placed: {placed:?} bytes", checked.end()?);
    say(PASSED)
}

/// Two connections take turns, and there are rings for one: those of the one that stands still are taken back.
pub(super) fn gives_rings_back(hosts: &[Host; 2]) -> Result<()> {
    for host in hosts {
        OpenOptions::new().append(true).open(host.hosts_file())?.write_all(b"pin 4\n")?;
        host.reload()?;
    }
    let first = Checked::start(&hosts[1], &hosts[0])?;
    until_moved(&hosts[0], first.port, || true)?;
    until_placed(hosts)?;
    first.is_to_run(false);
    let second = Checked::start(&hosts[1], &hosts[0])?;
    until_moved(&hosts[0], second.port, || true)?;
    until_placed(hosts)?;
    second.is_to_run(false);
    first.is_to_run(true);
    until_placed(hosts)?;
    second.is_to_run(true);
    eprintln!("by turns: {}, {}", first.end()?, second.end()?);
    say(PASSED)
}

/// Large messages are placed from now on, both ways.
fn until_placed(hosts: &[Host; 2]) -> Result<()> {
    let before = [placed(&hosts[0])?, placed(&hosts[1])?];
    until("large messages are placed, both ways", PATIENCE, || {
        let is_more = |at: usize| placed(&hosts[at]).is_ok_and(|now| now > before[at] + (1 << 20));
        is_more(0) && is_more(1)
    })
}
