//! `sd demote`: connections that were promoted go back to the kernel's, as their processes are told.
//!
//! ```text
//! sd demote --Demote: process, name--> monitor --Demote: name--> processes that have such connections --WANTS_KERNEL--> their peers
//! sd demote --Demote: how many are there still?--> monitor
//! ```
//! Who may: root and the monitor's own user for everybody's; others for their own, as kill(2) would let them. A connection's other end may be another
//! user's: that one goes back as well, as it would if the process that was told had ended the connection. Nothing is lost by it but speed.

use super::family::Family;
use super::looks::What;
use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_shm::channel::Side;
use sd_shm::slab::{End, Endpoint, Reason, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// More names than that, and a process is told of none but of all.
const NAMES_MAX: usize = 32;

/// What is asked for, and how many were found.
pub(super) struct Demotion {
    /// Whose; `None`: everybody's.
    uid: Option<u32>,
    /// Zero: any.
    pid: u32,
    /// An address, perhaps unspecified, and a port, zero: any.
    name: (Ip, u16),
    at_once: bool,
    /// Not zero: nobody is told, and those count that have had their road since before that time.
    before_ns: u64,
    pub(super) count: u32,
}

impl Server {
    /// Acts on [`sd_proto::Request::Demote`].
    pub(super) fn demote(
        &mut self,
        id: u64,
        (pid, ip, port): (u32, Ip, u16),
        (at_once, before_ns): (bool, u64),
    ) -> Result<(), ErrorCode> {
        let uid = self.whose(id)?;
        let is_asked = |family: &Family| uid.is_none_or(|uid| uid == family.uid);
        let families = self.families.iter().filter(|(_, family)| is_asked(family)).map(|(client, _)| *client);
        let families = families.collect();
        self.look(
            id,
            What::Demotion(Demotion { uid, pid, name: (ip, port), at_once, before_ns, count: 0 }),
            families,
        );
        Ok(())
    }

    /// Whose processes somebody may have moved; `None`: everybody's.
    pub(super) fn whose(&self, id: u64) -> Result<Option<u32>, ErrorCode> {
        let uid = self.connections.get(&id).map(|connection| connection.uid).ok_or(ErrorCode::Protocol)?;
        Ok(Some(uid).filter(|uid| !self.core.quotas.is_exempt(*uid)))
    }

    /// Tells those who have such connections, of one family.
    pub(super) fn demote_of(&mut self, asked: &mut Demotion, client: ClientId) {
        let Some(family) = self.families.get(&client) else { return };
        if asked.uid.is_some_and(|uid| uid != family.uid) {
            return;
        }
        let mut holders = BTreeSet::new();
        family.slab.endpoints(|endpoint| {
            let is_meant = is_promoted(endpoint) && has_name(family, endpoint, asked.name);
            if !is_meant || !is_older(family, endpoint, asked.before_ns) {
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
        for pid in holders.into_iter().filter(|_| asked.before_ns == 0) {
            // A relative may have it alone.
            let own = self.families.iter().find(|(_, family)| family.pid == pid);
            let holder = own.map_or(client, |(own, _)| *own);
            self.tell_of_demotion(holder, asked.name, (asked.at_once, false));
        }
    }

    pub(super) fn tell_of_demotion(
        &mut self,
        client: ClientId,
        (ip, port): (Ip, u16),
        (at_once, by_policy): (bool, bool),
    ) {
        self.tell_unasked(client, Reply::Demote { ip, port, at_once, by_policy });
    }

    /// Tells a client something that it may have been told before.
    pub(super) fn tell_unasked(&mut self, client: ClientId, notice: Reply) {
        let Some(family) = self.families.get(&client) else { return };
        let Some(connection) = family.connection.and_then(|id| self.connections.get_mut(&id)) else { return };
        let _ = connection.tell(&notice, &[]);
        family.announce_mail();
    }
}

impl Server {
    /// Another policy is in force: connections that it would not have moved go back. What an administrator asks for is done in one go.
    pub(super) fn demote_what_stays(&mut self) {
        let mut told: BTreeMap<ClientId, BTreeSet<(Ip, u16)>> = BTreeMap::new();
        for (client, family) in &self.families {
            family.slab.endpoints(|endpoint| {
                if is_promoted(endpoint)
                    && let Some(name) = self.name_if_it_stays(*client, family, endpoint)
                {
                    let member = endpoint.holders.load(Ordering::Relaxed).trailing_zeros();
                    let pid = self.core.members.pid_of(*client, member);
                    let own = self.families.iter().find(|(_, family)| family.pid == pid);
                    told.entry(own.map_or(*client, |(own, _)| *own)).or_default().insert(name);
                }
            });
        }
        for (client, names) in told {
            // All of them, where they are many: those that may be moved come back.
            let names = if names.len() > NAMES_MAX { [(Ip([0; 16]), 0)].into() } else { names };
            for name in names {
                self.tell_of_demotion(client, name, (false, true));
            }
        }
    }

    /// A name that no other connection of the process has, if the policy wants this one where the kernel has made it. It is asked about
    /// the user who connected, what this end knows of the name that was reached, and where both ends are.
    fn name_if_it_stays(&self, client: ClientId, family: &Family, endpoint: &Endpoint) -> Option<(Ip, u16)> {
        let side = Side::from_u32(endpoint.side.load(Ordering::Relaxed).into())?;
        let key = self.channel_at(client, endpoint)?;
        let other = self.families.get(&self.core.channels.maker(key, side.other())?)?;
        let ports = endpoint.ports.load(Ordering::Relaxed);
        let local = (Ip(family.slab.address(endpoint, End::Local)), (ports >> 16) as u16);
        let remote = (Ip(family.slab.address(endpoint, End::Remote)), ports as u16);
        let (uid, reached, of_client) = match side {
            Side::A => (family.uid, remote, local),
            Side::B => (other.uid, local, remote),
        };
        let stays = !self.core.policy.lets_move(uid, [reached; 2], [family.netns, other.netns]);
        stays.then_some(of_client)
    }
}

fn is_promoted(endpoint: &Endpoint) -> bool {
    State::from_u32(endpoint.state.load(Ordering::Acquire).into()) == State::Connected
        && endpoint.reason.load(Ordering::Relaxed) == Reason::Promoted as u8
}

/// It has had its road since before that time, if that is asked.
fn is_older(family: &Family, endpoint: &Endpoint, before_ns: u64) -> bool {
    let since = || family.slab.cold(endpoint).map(|cold| cold.road_since_ns.load(Ordering::Relaxed));
    before_ns == 0 || since().is_none_or(|since| since < before_ns)
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
