//! May a program bind a port? The kernel does not know the accelerated connections that use it, or used it a moment
//! ago; their slabs do. A port that nobody has listened on and that is not lent needs no look at them.
//!
//! A slab says what its processes like, so another user's is believed only of ports that were its own: lent to it, or
//! listened on by that user.

use super::connection::Identity;
use super::family::Family;
use super::looks::What;
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::time_wait::Wanted;
use sd_proto::{ErrorCode, Ip, Reply, Request};
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, SLOTS, Side, SlotState};
use sd_shm::slab::{End, Endpoint, State};
use sd_shm::time_wait::{Now, SECONDS, TimeWait, step};
use std::sync::atomic::Ordering;

/// The time, for what is in TIME-WAIT.
fn now() -> Now {
    Now::new(sd_sys::time::ticks(), sd_sys::time::ns_of_ticks)
}

/// The time as it stands in a TimeWait.
pub(crate) fn step_now() -> u32 {
    step(sd_sys::time::ticks())
}

impl Server {
    /// Answers a Bind, Tuple or Admits request.
    pub(crate) fn may_use(
        &mut self,
        id: u64,
        who: Identity,
        asked: Request,
    ) -> Result<Option<Reply>, ErrorCode> {
        let client = who.client;
        match asked {
            Request::Bind { ip, port, reuse } => self.bind(id, client, ip, port, reuse)?,
            Request::Tuple { ip, port, to_ip, to_port } => {
                let ports = u32::from(port) << 16 | u32::from(to_port);
                self.tuple(id, client, Tuple { ip, to_ip, ports })?;
            }
            Request::Admits { channel, listener, ip } => {
                return self.admits(client, (channel, listener), ip).map(Some);
            }
            _ => return Err(ErrorCode::Protocol),
        }
        Ok(None)
    }

    /// Whether a living connection of the user's, or of whom the port is lent to, has the four numbers.
    fn tuple(&mut self, id: u64, client: ClientId, wanted: Tuple) -> Result<(), ErrorCode> {
        let asking = self.families.get(&client).ok_or(ErrorCode::Protocol)?;
        let owner = self.core.leases.owner(asking.netns, (wanted.ports >> 16) as u16);
        let is_believed = |(id, family): &(&ClientId, &Family)| {
            family.netns == asking.netns && (family.uid == asking.uid || Some(**id) == owner)
        };
        let believed = self.families.iter().filter(is_believed).map(|(id, _)| *id).collect();
        self.look(id, What::Tuple(wanted), believed);
        Ok(())
    }

    /// Whether a living connection of a family's has the four numbers.
    pub(super) fn has_tuple(&self, client: ClientId, wanted: &Tuple) -> bool {
        let Some(family) = self.families.get(&client) else { return false };
        let mut is_taken = false;
        family.slab.endpoints_while(|endpoint| {
            is_taken = wanted.is_of(family, endpoint) && self.is_alive(client, endpoint);
            !is_taken
        });
        is_taken
    }

    /// Neither side has reset the connection, or is dead.
    fn is_alive(&self, family: ClientId, endpoint: &Endpoint) -> bool {
        let id = endpoint.channel_id.load(Ordering::Relaxed);
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        let segment = self.channel_of(family, id, Side::A).and_then(|key| self.segments.get(&key));
        let Some(map) = segment.filter(|_| slot < SLOTS).and_then(Segment::map) else { return true };
        let [a, b] = &map.slot(slot).side;
        let is_refused = b.state() == (a.state().0, SlotState::Refused);
        !is_refused
            && [a, b].iter().all(|side| side.flags.load(Ordering::Relaxed) & (FLAG_RESET | FLAG_DEAD) == 0)
    }

    /// Answers a Bind request.
    fn bind(&mut self, id: u64, client: ClientId, ip: Ip, port: u16, reuse: bool) -> Result<(), ErrorCode> {
        let asking = self.families.get(&client).ok_or(ErrorCode::Protocol)?;
        let (netns, user) = (asking.netns, asking.uid);
        let address = (!ip.is_unspecified()).then(|| ip.halves());
        let wanted = Wanted { netns, address, port, reuse, user };
        if self.core.time_waits.block(&wanted, now()) {
            return Err(ErrorCode::InUse);
        }
        let owner = self.core.leases.owner(netns, port);
        let everywhere = self.core.time_waits.was_listened_on(netns, port);
        let is_believed = |(id, family): &(&ClientId, &Family)| {
            let is_lent = Some(**id) == owner;
            let believed = self.core.time_waits.believed(netns, port, family.uid, is_lent);
            family.netns == netns && (everywhere || is_lent) && believed.by(user)
        };
        let believed = self.families.iter().filter(is_believed).map(|(id, _)| *id).collect();
        self.look(id, What::Bind(Bind(wanted)), believed);
        Ok(())
    }

    /// What a family that is gone leaves in TIME-WAIT, while its ports are lent to it still.
    pub(crate) fn inherit_time_waits(&mut self, client: ClientId, family: &Family) {
        family.slab.time_waits().all().for_each(|one| self.remember(client, family.netns, family.uid, one));
    }

    /// Remembers the TIME-WAIT that one connection of a client's has left.
    pub(crate) fn remember(&mut self, client: ClientId, netns: u64, user: u32, one: TimeWait) {
        let is_lent = self.core.leases.owner(netns, one.port) == Some(client);
        let believed = self.core.time_waits.believed(netns, one.port, user, is_lent);
        self.core.time_waits.add(netns, one, (believed, user), now());
    }
}

/// The four numbers of a connection, as it stands in the endpoint of who connects.
pub(super) struct Tuple {
    ip: Ip,
    to_ip: Ip,
    ports: u32,
}

impl Tuple {
    fn is_of(&self, family: &Family, endpoint: &Endpoint) -> bool {
        let state = State::from_u32(endpoint.state.load(Ordering::Acquire).into());
        let address = |end| family.slab.address(endpoint, end);
        matches!(state, State::Connected | State::Connecting)
            && endpoint.side.load(Ordering::Relaxed) == Side::A as u8
            && endpoint.ports.load(Ordering::Relaxed) == self.ports
            && address(End::Local) == self.ip.0
            && address(End::Remote) == self.to_ip.0
    }
}

/// What a program wants to bind.
pub(super) struct Bind(Wanted);

impl Bind {
    /// Whether something of a family's is in the way.
    pub(super) fn is_at(&self, family: &Family) -> bool {
        let Bind(wanted) = self;
        let waits = family.slab.time_waits().of(wanted.port).filter(|one| !one.is_over(now()));
        if waits.is_some_and(|one| wanted.meets(one.port, one.address, one.reuse)) {
            return true;
        }
        let mut found = false;
        family.slab.endpoints_while(|endpoint| {
            let state = State::from_u32(endpoint.state.load(Ordering::Acquire).into());
            if matches!(state, State::Connected | State::Connecting) {
                let one = TimeWait::of(endpoint, family.slab.address(endpoint, End::Local), 0, SECONDS);
                found = wanted.meets(one.port, one.address, one.reuse);
            }
            !found
        });
        found
    }
}
