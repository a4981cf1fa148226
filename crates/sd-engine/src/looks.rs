//! Which connections are looked at: those whose process has announced something, and those that are hot, for which nobody rings.

use crate::connection::Look;
use crate::desk::Desk;
use crate::seat::Slot;
use sd_link::Link;
use sd_pump::control::Control;
use sd_ring::doorbell::{RX_EVENT, TX_EVENT};

/// Looks without news before somebody has to ring for all that happens.
const QUIET_LOOKS: u32 = 4;
/// After so many looks in vain the other hot ones wait for the next time: of a thousand connections each would be looked at twice for each message.
const VAIN_LOOKS: usize = 32;

/// Events that are looked at together: at least, and at most. What they say is sent before the next are looked at, so that the other host has work
/// meanwhile; a host that sends all at once waits until all are answered.
const PARTS: (usize, usize) = (24, 64);

/// What is to be done is foreseen so many connections ahead, in two steps.
const AHEAD: usize = 4;

impl Desk {
    /// Slots that were announced, or a part of them: whether there were any. The others are for the next call: half of them, and 24 to 64.
    pub(crate) fn take_events(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        if self.events.is_empty() {
            for (at, seat) in self.seats.all() {
                let set = seat.end.map.events(seat.end.ours);
                if !set.is_empty() {
                    set.take(|slot| self.events.push_back((at, slot)));
                }
            }
            self.part = (self.events.len() / 2).clamp(PARTS.0, PARTS.1);
        }
        let count = self.part.min(self.events.len());
        (0..2 * AHEAD).for_each(|ahead| self.foresee(ahead));
        for _ in 0..count {
            self.foresee(2 * AHEAD);
            let Some((seat, slot)) = self.events.pop_front() else { break };
            self.event(seat, slot, links, control);
        }
        count != 0
    }

    /// Of a thousand connections hardly anything is in a cache when its turn comes; so it is fetched while those before it have theirs.
    fn foresee(&mut self, ahead: usize) {
        if let Some((seat, slot)) = self.events.get(ahead)
            && let Some((seat, slot, id)) = self.seats.at_slot(*seat, *slot)
        {
            sd_sys::mem::prefetch(seat.end.theirs(slot));
            sd_sys::mem::prefetch(seat.end.own(slot));
            self.connections.soon(id);
        }
        if let Some((seat, slot)) = ahead.checked_sub(AHEAD).and_then(|ahead| self.events.get(ahead))
            && let Some((seat, _, id)) = self.seats.at_slot(*seat, *slot)
            && let Some(connection) = self.connections.get(id)
        {
            connection.foresee(seat);
        }
    }

    /// A part of the events was left.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn event(&mut self, at: usize, slot: usize, links: &mut [Link], control: &mut Control) {
        let Some(seat) = self.seats.get(at) else { return };
        let slot = slot % sd_shm::channel::SLOTS;
        if let Some(id) = seat.slots[slot] {
            let rings = self.connections.get(id).map_or(0, |connection| connection.rings());
            seat.arm(slot, rings);
            self.visit(id, links, control, false);
            self.heat(id);
        }
        let Some(seat) = self.seats.get(at) else { return };
        if seat.slots[slot].is_some() {
            return;
        }
        match seat.shown(slot) {
            Some((_, ticket)) if !self.tickets.contains_key(&(at, ticket)) => self.strange.push((at, slot)),
            Some(shown) => self.attach(at, shown, links, control),
            None => {}
        }
    }

    pub(crate) fn heat(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(id)
            && connection.wants_looks()
        {
            connection.quiet = 0;
            if !std::mem::replace(&mut connection.is_hot, true) {
                self.hot.push_back(id);
            }
        }
    }

    /// Looks at one connection.
    pub(crate) fn visit(
        &mut self,
        id: u64,
        links: &mut [Link],
        control: &mut Control,
        says_all: bool,
    ) -> Look {
        let Some((connection, seat)) = self.with_seat(id) else { return Look::Nothing };
        let link = &mut links[connection.peer];
        if let Some(Slot { slot, .. }) = connection.at.filter(|at| seat.is_reused(*at)) {
            connection.end(0, link);
            // It has read its ring to its end, and nothing that it has written since both closed it is needed.
            (connection.at, seat.slots[slot]) = (None, None);
            if connection.number.is_none() {
                self.forget(id);
            }
            return Look::News;
        }
        let found = connection.look(seat, link, says_all);
        connection.is_broken |= found.is_err();
        let found = found.unwrap_or(Look::News);
        if connection.is_broken || connection.number.is_none() {
            self.look_out(id, links, control);
        }
        found
    }

    /// A look at what is hot: whether something was found.
    pub(crate) fn visit_hot(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        self.visit_hot_until(VAIN_LOOKS, links, control)
    }

    fn visit_hot_until(&mut self, vain_max: usize, links: &mut [Link], control: &mut Control) -> bool {
        let (mut news, mut vain) = (false, 0);
        for _ in 0..self.hot.len() {
            if vain >= vain_max {
                break;
            }
            let Some(id) = self.hot.pop_front() else { break };
            let mut found = self.visit(id, links, control, false) != Look::Nothing;
            let Some((connection, seat)) = self.with_seat(id) else { continue };
            connection.quiet = if found { 0 } else { connection.quiet + 1 };
            if let Some(at) = connection.at.filter(|_| connection.quiet >= QUIET_LOOKS) {
                seat.arm(at.slot, RX_EVENT | TX_EVENT);
                found = self.visit(id, links, control, true) != Look::Nothing;
            }
            let Some(connection) = self.connections.get(id) else { continue };
            news |= found;
            vain += usize::from(!found);
            connection.is_hot = connection.wants_looks() && (found || connection.quiet < QUIET_LOOKS);
            if connection.is_hot {
                self.hot.push_back(id);
            }
        }
        news
    }

    /// Nothing stays hot: whether something was found meanwhile.
    pub(crate) fn cool(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        for id in &self.hot {
            if let Some(connection) = self.connections.get(*id) {
                connection.quiet = QUIET_LOOKS;
            }
        }
        self.visit_hot_until(usize::MAX, links, control)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.hot.is_empty()
    }
}
