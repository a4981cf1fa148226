//! May a program bind a port? The kernel does not know the accelerated connections that use it, or used it a moment
//! ago; their slabs do. A port that nobody has listened on and that is not lent needs no look at them.

use super::family::Family;
use super::server::Server;
use crate::core::ClientId;
use crate::core::time_wait::Wanted;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_shm::slab::{End, State};
use sd_shm::time_wait::{TimeWait, step};
use std::sync::atomic::Ordering;

/// The time as it stands in a TimeWait.
pub(crate) fn now() -> u32 {
    step(sd_sys::time::tsc())
}

impl Server {
    /// Answers a Bind request.
    pub(crate) fn bind(&self, client: ClientId, ip: Ip, port: u16, reuse: bool) -> Result<Reply, ErrorCode> {
        let netns = self.families.get(&client).map(|family| family.netns).ok_or(ErrorCode::Protocol)?;
        let address = (!ip.is_unspecified()).then(|| ip.halves());
        let wanted = Wanted { netns, address, port, reuse };
        let owner = self.core.leases.owner(netns, port);
        let everywhere = self.core.time_waits.was_listened_on(netns, port);
        let looked_at = self
            .families
            .iter()
            .filter(|(id, family)| family.netns == netns && (everywhere || Some(**id) == owner));
        let in_use = self.core.time_waits.block(&wanted, now())
            || looked_at.into_iter().any(|(_, family)| is_in_use(family, &wanted));
        if in_use { Err(ErrorCode::InUse) } else { Ok(Reply::Ok) }
    }

    /// What a family that is gone leaves in TIME-WAIT.
    pub(crate) fn inherit_time_waits(&mut self, family: &Family) {
        for one in family.slab.time_waits().all() {
            self.core.time_waits.add(family.netns, one, now());
        }
    }
}

fn is_in_use(family: &Family, wanted: &Wanted) -> bool {
    let waits = family.slab.time_waits().of(wanted.port).filter(|one| !one.is_over(now()));
    if waits.is_some_and(|one| wanted.meets(one.port, one.address, one.reuse)) {
        return true;
    }
    let mut found = false;
    family.slab.endpoints(|endpoint| {
        let state = State::from_u32(endpoint.state.load(Ordering::Acquire).into());
        if matches!(state, State::Connected | State::Connecting) {
            let one = TimeWait::of(endpoint, family.slab.address(endpoint, End::Local), now());
            found |= wanted.meets(one.port, one.address, one.reuse);
        }
    });
    found
}
