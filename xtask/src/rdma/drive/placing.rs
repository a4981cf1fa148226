//! Large messages between engines without keys: the device places them (A12, ADR 124).

use super::{PASSED, placed, say, until_moved, until_rdma};
use crate::rdma::inside::PATIENCE;
use crate::sharing::checked::Checked;
use harness::host::Host;
use harness::network::configure;
use harness::{Result, until};

/// Every byte of one connection is right while the network is gone for a time, so that what was placed is sent again by the trunk, and is placed again after
/// that; both ways.
pub(super) fn lives_through_an_outage(hosts: &[Host; 2], below: &str) -> Result<()> {
    let checked = Checked::start(&hosts[1], &hosts[0])?;
    let are_placed = || {
        until_moved(&hosts[0], checked.port, || true)?;
        let before = [placed(&hosts[0])?, placed(&hosts[1])?];
        until("large messages are placed, both ways", PATIENCE, || {
            let is_more = |at: usize| placed(&hosts[at]).is_ok_and(|now| now > before[at] + (1 << 20));
            is_more(0) && is_more(1)
        })
    };
    are_placed()?;
    for _ in 0..2 {
        configure(&format!("link set {below} down\n"))?;
        until_rdma(&hosts[0], false)?;
        configure(&format!("link set {below} up\n"))?;
        until_rdma(&hosts[0], true)?;
        are_placed()?;
    }
    let placed = [placed(&hosts[0])?, placed(&hosts[1])?];
    eprintln!("through two outages: {}; placed: {placed:?} bytes", checked.end()?);
    say(PASSED)
}
