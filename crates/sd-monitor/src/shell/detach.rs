//! `sd detach`: a process that is about to be checkpointed lets go of everything that it shares with others (ADR 86).
//!
//! ```text
//! sd detach --Detach: process--> monitor --Detach--> the process, which takes its connections back to the kernel's, and leaves (Separate)
//! sd detach --Detach: what is in the way?--> monitor
//! ```
//! What is in the way the monitor sees in the process's slab, and among its members; when the process has left it is no client any more.
//! Who may: as for `sd demote`.

use super::family::Family;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Reply};
use sd_shm::slab::{Reason, State};
use std::sync::atomic::Ordering;

impl Server {
    /// Acts on [`sd_proto::Request::Detach`].
    pub(super) fn detach(&mut self, id: u64, pid: u32, tell: bool) -> Result<Reply, ErrorCode> {
        let uid = self.whose(id)?;
        let is_it = |family: &Family| family.pid == pid && uid.is_none_or(|uid| uid == family.uid);
        let found = self.families.iter().find(|(_, family)| is_it(family));
        let Some((client, family)) = found.map(|(client, family)| (*client, family)) else {
            return Ok(Reply::Detaching { is_there: false, promoted: 0, shared: 0, relatives: 0 });
        };
        let (mut promoted, mut shared) = (0u32, 0u32);
        family.slab.endpoints(|endpoint| {
            if State::from_u32(endpoint.state.load(Ordering::Acquire).into()) == State::Connected {
                let is_promoted = endpoint.reason.load(Ordering::Relaxed) == Reason::Promoted as u8;
                *(if is_promoted { &mut promoted } else { &mut shared }) += 1;
            }
        });
        let members = family.slab.header().members.load(Ordering::Acquire);
        let relatives = members.count_ones().saturating_sub(1);
        if tell {
            self.tell_to_detach(client);
        }
        Ok(Reply::Detaching { is_there: true, promoted, shared, relatives })
    }

    fn tell_to_detach(&mut self, client: ClientId) {
        self.core.offers.forget(client);
        self.tell_unasked(client, Reply::Detach);
    }
}
