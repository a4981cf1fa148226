//! `sd demote`: connections that were promoted go back to the kernel's, as their processes are told.
//!
//! ```text
//! sd demote --Demote: process, name--> monitor --Demote: name--> processes that have such connections --WANTS_KERNEL--> their peers
//! ```
//! Who may: root and the monitor's own user for everybody's; others for their own, as kill(2) would let them. A connection's other end may be another
//! user's: that one goes back as well, as it would if the process that was told had ended the connection. Nothing is lost by it but speed.

use super::family::Family;
use super::looks::What;
use super::poller::Token;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_shm::slab::{End, Endpoint, Reason, State};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Notices that wait for a process to read them; it is not told more often.
const WAITING_MAX: usize = 64;

/// What is asked for, and how many were found.
pub(super) struct Demotion {
    /// Whose; `None`: everybody's.
    uid: Option<u32>,
    /// Zero: any.
    pid: u32,
    /// An address, perhaps unspecified, and a port, zero: any.
    name: (Ip, u16),
    at_once: bool,
    pub(super) count: u32,
}

impl Server {
    /// Acts on [`sd_proto::Request::Demote`].
    pub(super) fn demote(
        &mut self,
        id: u64,
        pid: u32,
        name: (Ip, u16),
        at_once: bool,
    ) -> Result<(), ErrorCode> {
        let uid = self.connections.get(&id).map(|connection| connection.uid).ok_or(ErrorCode::Protocol)?;
        let uid = Some(uid).filter(|uid| !self.core.quotas.is_exempt(*uid));
        let is_asked = |family: &Family| uid.is_none_or(|uid| uid == family.uid);
        let families = self.families.iter().filter(|(_, family)| is_asked(family)).map(|(client, _)| *client);
        let families = families.collect();
        self.look(id, What::Demotion(Demotion { uid, pid, name, at_once, count: 0 }), families);
        Ok(())
    }

    /// Tells those who have such connections, of one family.
    pub(super) fn demote_of(&mut self, asked: &mut Demotion, client: ClientId) {
        let Some(family) = self.families.get(&client) else { return };
        if asked.uid.is_some_and(|uid| uid != family.uid) {
            return;
        }
        let mut holders = BTreeSet::new();
        family.slab.endpoints(|endpoint| {
            if !is_promoted(endpoint) || !has_name(family, endpoint, asked.name) {
                return;
            }
            let member = endpoint.holders.load(Ordering::Relaxed).trailing_zeros();
            let pid = Some(self.core.members.pid_of(client, member)).filter(|pid| *pid != 0);
            let pid = pid.unwrap_or(family.pid);
            if asked.pid == 0 || asked.pid == pid {
                asked.count = asked.count.saturating_add(1);
                holders.insert(pid);
            }
        });
        for pid in holders {
            // A relative may have it alone.
            let own = self.families.iter().find(|(_, family)| family.pid == pid);
            let holder = own.map_or(client, |(own, _)| *own);
            self.tell_of_demotion(holder, asked.name, asked.at_once);
        }
    }

    pub(super) fn tell_of_demotion(&mut self, client: ClientId, (ip, port): (Ip, u16), at_once: bool) {
        let Some(family) = self.families.get(&client) else { return };
        let connection = family.connection.and_then(|id| Some((id, self.connections.get_mut(&id)?)));
        let Some((number, connection)) = connection else { return };
        if connection.notices_waiting() < WAITING_MAX
            && connection.notify(Reply::Demote { ip, port, at_once })
        {
            let _ = self.poller.watch_room(connection.fd(), Token::Connection(number), true);
        }
        family.announce_mail();
    }
}

fn is_promoted(endpoint: &Endpoint) -> bool {
    State::from_u32(endpoint.state.load(Ordering::Acquire).into()) == State::Connected
        && endpoint.reason.load(Ordering::Relaxed) == Reason::Promoted as u8
}

/// One of its ends has that name.
fn has_name(family: &Family, endpoint: &Endpoint, (ip, port): (Ip, u16)) -> bool {
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let ends = [(End::Local, (ports >> 16) as u16), (End::Remote, ports as u16)];
    ends.into_iter().any(|(end, at)| {
        let has_ip = || ip.is_unspecified() || ip == Ip(family.slab.address(endpoint, end));
        (port == 0 || port == at) && has_ip()
    })
}
