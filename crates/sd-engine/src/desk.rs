//! All connections, and the channels with local processes: where the links with other engines read and write.

use crate::connection::{Connection, Look};
use crate::connections::Connections;
use crate::placing::{Lender, Wanted};
use crate::policy::{Crowd, Wakes};
use crate::seat::{Seat, Seats, Slot};
use crate::words::{self, Question};
use crate::worth::Worth;
use sd_carrier::{Lending, Placing, VerbsEnd};
use sd_link::{Connection as Number, Ends, Link, News, Way};
use sd_pump::control::Control;
use sd_ring::doorbell::{RX_EVENT, TX_EVENT};
use sd_shm::channel::{FLAG_DEAD, SlotState};
use sd_shm::promotion::Advice;
use std::collections::{HashMap, VecDeque};

/// Bytes of all connections of one peer that wait for others before them, with what each piece costs: more than that no sender has on its way
/// (`sd_link::congestion`).
pub(crate) const EARLY_MAX: usize = 64 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) connections: Connections,
    pub(crate) seats: Seats,
    /// Connections that are to be looked at again and again, although nobody rings: see [`Connection::wants_looks`].
    pub(crate) hot: VecDeque<u64>,
    /// Slots by seat that were announced, and how many of them are looked at together.
    pub(crate) events: VecDeque<(usize, usize)>,
    pub(crate) part: usize,
    /// Something has come for these.
    touched: Vec<u64>,
    /// Questions of other engines, and answers to our own: how far the two ends count apart ([`words::answer`]).
    pub(crate) asked: Vec<(usize, Number, u32, Option<Question>)>,
    pub(crate) opened: Vec<(u64, u32)>,
    /// Ends for RDMA that other engines offer ([`crate::rdma`]).
    pub(crate) ends: Vec<(usize, Number, VerbsEnd)>,
    /// Questions that were lost with their session.
    pub(crate) unanswered: Vec<(u64, Question)>,
    /// Connections whose local process has still to show the ticket, by seat and ticket.
    pub(crate) tickets: HashMap<(usize, u64), u64>,
    /// Slots, by seat, that show a ticket which nobody knows yet.
    pub(crate) strange: Vec<(usize, usize)>,
    /// Of channels some are over.
    has_dead: bool,
    /// What waits early, by peer.
    early: Vec<usize>,
    /// By peer.
    pub(crate) crowds: Vec<Crowd>,
    /// Of all processes for which few messages come.
    pub(crate) wakes: Wakes,
    pub(crate) worth: Worth,
    /// One of the two engines has just sent some connections back.
    pub(crate) has_advised: bool,
    /// Bytes that have come.
    pub(crate) carried: u64,
    /// Rings that are lent to devices.
    pub(crate) lender: Lender,
}

/// The ends of one link.
pub(crate) struct View<'a> {
    pub(crate) desk: &'a mut Desk,
    pub(crate) peer: usize,
    /// What comes has come by RDMA.
    pub(crate) by_rdma: bool,
    /// Of the carrier for which a packet is made, if that places.
    pub(crate) placing: Option<&'a mut Placing>,
}

impl<'a> View<'a> {
    pub(crate) fn of(desk: &'a mut Desk, peer: usize) -> View<'a> {
        View { desk, peer, by_rdma: false, placing: None }
    }
}

impl Ends for View<'_> {
    fn soon(&mut self, end: u64) {
        self.desk.connections.soon(end);
    }

    fn read(&mut self, end: u64, position: u64, out: &mut [u8]) {
        match self.with_seat(end) {
            Some((connection, seat)) => connection.read(seat, position, out),
            None => out.fill(0),
        }
    }

    fn write(&mut self, end: u64, position: u64, bytes: &[u8]) {
        let by_rdma = self.by_rdma;
        self.come(end, bytes.len(), |connection, seat| {
            connection.has_come(by_rdma);
            connection.write(seat, position, bytes);
        });
        if by_rdma && self.connection(end).is_some_and(Connection::wants_window) {
            self.desk.wants(self.peer, end, Lending::ToBeWritten);
        }
    }

    fn place(&mut self, end: u64, position: u64, len: usize) -> Way {
        let connection = self.desk.connections.get(end).filter(|connection| connection.peer == self.peer);
        let (Some(connection), Some(placing)) = (connection, &mut self.placing) else {
            return Way::Copied(len);
        };
        if connection.wants_source(position, len) {
            self.desk.wants(self.peer, end, Lending::ToSend);
            return Way::Copied(len);
        }
        connection.place(position, len, placing)
    }

    fn placed(&mut self, end: u64, position: u64, len: usize) {
        self.come(end, len, |connection, seat| connection.placed(seat, position, len));
    }

    fn told(&mut self, number: Number, end: u64, news: News<'_>) {
        let is_lost = matches!(news, News::Lost | News::Reset(crate::leave::LET_GO));
        match news {
            News::Offered { words, .. } if let Some(end) = words::offered(words) => {
                self.desk.ends.push((self.peer, number, end));
                return;
            }
            News::Offered { words, tenant } => {
                self.desk.asked.push((self.peer, number, tenant, Question::decode(words)));
                return;
            }
            News::Opened(words) => {
                if let Some(connection) = self.connection(end) {
                    connection.question = None;
                    self.desk.opened.push((end, words::answered(words)));
                }
            }
            News::Lost if self.connection(end).is_some() && self.desk.asks_again(number, end) => return,
            News::Consumed(to) => {
                if let Some((connection, seat)) = self.with_seat(end) {
                    connection.credit(seat, to);
                }
            }
            News::Said(words) => {
                if let Some(connection) = self.connection(end) {
                    connection.hear(words);
                }
            }
            News::Refused(_) | News::Reset(_) | News::Closed | News::Lost => {
                tracing::debug!(connection = end, ?news, "engine: a connection is over");
                if let Some(connection) = self.connection(end)
                    && connection.number == Some(number)
                {
                    (connection.number, connection.is_lost) = (None, is_lost);
                }
            }
            News::Arrived(_) | News::Fin | News::Urgent(..) | News::Stopped => return,
        }
        self.desk.touch(end);
    }
}

impl View<'_> {
    /// Bytes have come for a connection, which takes them.
    fn come(&mut self, end: u64, len: usize, take: impl FnOnce(&mut Connection, &Seat)) {
        self.desk.carried += len as u64;
        let mut early = [0; 2];
        if let Some((connection, seat)) = self.with_seat(end) {
            early[0] = connection.early_bytes();
            take(connection, seat);
            early[1] = connection.early_bytes();
        }
        if early[0] != early[1] && self.desk.is_too_early(self.peer, early) {
            self.connection(end).into_iter().for_each(|connection| connection.is_broken = true);
        }
        self.desk.touch(end);
    }

    /// Numbers of two links are alike, so another peer's connection may have the one that this peer speaks of.
    fn connection(&mut self, end: u64) -> Option<&mut Connection> {
        self.desk.connections.get(end).filter(|connection| connection.peer == self.peer)
    }

    fn with_seat(&mut self, end: u64) -> Option<(&mut Connection, &mut Seat)> {
        self.connection(end)?;
        self.desk.with_seat(end)
    }
}

impl Desk {
    pub(crate) fn with_seat(&mut self, id: u64) -> Option<(&mut Connection, &mut Seat)> {
        let connection = self.connections.get(id)?;
        let seat = self.seats.get(connection.promise?.0)?;
        Some((connection, seat))
    }

    /// The other engine was started anew before it has answered.
    fn asks_again(&mut self, number: Number, id: u64) -> bool {
        let connection = self.connections.get(id).filter(|it| it.number == Some(number));
        let Some(connection) = connection else { return false };
        let Some(question) = connection.question.take() else { return false };
        connection.number = None;
        self.unanswered.push((id, question));
        true
    }

    /// Numbers of the session with this peer name nothing any more, and will name others in the next. The link tells that of
    /// connections that were accepted; of those that were only asked about it knows no end.
    pub(crate) fn session_is_over(&mut self, peer: usize) {
        self.asked.retain(|(of, ..)| *of != peer);
        self.ends.retain(|(of, ..)| *of != peer);
        for id in self.connections.ids() {
            let connection = self.connections.get(id).filter(|it| it.peer == peer && it.number.is_some());
            if let Some(connection) = connection {
                (connection.number, connection.is_lost) = (None, true);
                self.touch(id);
            }
        }
    }

    /// What waits early of one of the peer's connections was so much, and is; whether it is more than all of them may have.
    pub(crate) fn is_too_early(&mut self, peer: usize, [before, now]: [usize; 2]) -> bool {
        if self.early.len() <= peer {
            self.early.resize(peer + 1, 0);
        }
        let all = &mut self.early[peer];
        *all = *all + now - before;
        now > before && *all > EARLY_MAX
    }

    fn wants(&mut self, peer: usize, id: u64, to: Lending) {
        self.lender.wanted.push(Wanted { peer, id, to });
    }

    pub(crate) fn touch(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(id)
            && !std::mem::replace(&mut connection.is_touched, true)
        {
            self.touched.push(id);
        }
    }

    /// The monitor has promised this connection a slot of this channel.
    pub(crate) fn promised(&mut self, id: u64, channel: u64, ticket: u64) {
        let Some(seat) = self.seats.of(channel) else { return };
        if let Some(connection) = self.connections.get(id) {
            connection.promise = Some((seat, ticket));
            if connection.is_opener {
                self.tickets.insert((seat, ticket), id);
            }
        }
    }

    /// What has come by the links is done at the local ends.
    pub(crate) fn settle(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        let touched = std::mem::take(&mut self.touched);
        let is_any = !touched.is_empty();
        for id in touched {
            self.settle_one(id, links, control);
        }
        is_any
    }

    fn settle_one(&mut self, id: u64, links: &mut [Link], control: &mut Control) {
        let Some(connection) = self.connections.get(id) else { return };
        connection.is_touched = false;
        if connection.asks() {
            self.seat_it(id, links, control);
        }
        let Some(connection) = self.connections.get(id) else { return };
        if connection.at.is_none() {
            let link = &mut links[connection.peer];
            connection.hear_the_end(link);
            if connection.number.is_none() {
                self.forget(id);
            }
            return;
        }
        if let Some((connection, seat)) = self.with_seat(id) {
            let is_advised = connection.settle(seat, control);
            let (owes, waits) = (connection.owes_granting(), connection.waits_for_device());
            let is_much = connection.rings() & TX_EVENT != 0;
            if let Some(at) = connection.at.filter(|_| is_much) {
                seat.arm(at.slot, TX_EVENT);
            }
            let wants_visit = connection.owes_word() || is_much || owes;
            self.has_advised |= is_advised;
            self.lender.waiting.extend(waits.then_some(id));
            if wants_visit {
                self.visit(id, links, control, false);
            }
        }
        self.look_out(id, links, control);
        self.heat(id);
    }

    /// The other end's process waits: the local one gets a slot, with the ticket that it knows.
    fn seat_it(&mut self, id: u64, links: &mut [Link], control: &mut Control) {
        let Some((connection, seat)) = self.with_seat(id) else { return };
        let Some((_, ticket)) = connection.promise else { return };
        match seat.show(id, ticket) {
            Some(at) => {
                connection.at = Some(at);
                seat.arm(at.slot, RX_EVENT);
                seat.request(at, control);
            }
            None => connection.end(FLAG_DEAD, &mut links[connection.peer]),
        }
    }

    /// Ends what is broken, or has lost its link.
    pub(crate) fn look_out(&mut self, id: u64, links: &mut [Link], control: &mut Control) {
        let Some((connection, seat)) = self.with_seat(id) else { return };
        if std::mem::take(&mut connection.is_broken)
            && let Some(number) = connection.number
        {
            let _ = links[connection.peer].reset(number, 1, true);
            // Until the other engine knows it may write into the ring, which is nobody else's so long.
            if connection.has_window() {
                connection.let_go(seat, control);
            } else {
                connection.number = None;
            }
        }
        if connection.number.is_some() {
            return;
        }
        if !connection.is_closed() {
            if connection.until_ns != u64::MAX {
                connection.until_ns = u64::MAX;
                connection.reset(seat, control);
            }
            if !connection.is_left(seat, control) {
                return;
            }
        }
        self.forget(id);
    }

    /// A connection is over.
    pub(crate) fn forget(&mut self, id: u64) {
        let Some(mut connection) = self.connections.remove(id) else { return };
        if connection.early_bytes() > 0 {
            self.is_too_early(connection.peer, [connection.early_bytes(), 0]);
        }
        if let Some((seat, ticket)) = connection.promise {
            self.tickets.remove(&(seat, ticket));
            if let (Some(at), Some(seat)) = (connection.at, self.seats.get(seat)) {
                connection.take_back_rings(seat);
                seat.leave(at, connection.has_large());
            }
        }
    }

    /// A ticket was shown of which the monitor may have said more by now.
    pub(crate) fn has_strange(&self) -> bool {
        !self.strange.is_empty()
    }

    /// All that the monitor has said before is known: who shows a ticket that is still strange is refused.
    pub(crate) fn take_strange(&mut self, links: &mut [Link], control: &mut Control) {
        for (at, slot) in std::mem::take(&mut self.strange) {
            let shown = self.seats.get(at).filter(|seat| seat.slots[slot].is_none());
            if let Some(shown) = shown.and_then(|seat| seat.shown(slot)) {
                self.attach(at, shown, links, control);
            }
        }
    }

    pub(crate) fn attach(
        &mut self,
        at: usize,
        shown: (Slot, u64),
        links: &mut [Link],
        control: &mut Control,
    ) {
        let (place, ticket) = shown;
        let Some(seat) = self.seats.get(at) else { return };
        let found = self.tickets.remove(&(at, ticket));
        let connection = found.and_then(|id| self.connections.get(id));
        match (found, connection) {
            (Some(id), Some(connection)) if connection.number.is_some() => {
                connection.at = Some(place);
                seat.slots[place.slot] = Some(id);
                seat.arm(place.slot, RX_EVENT);
                self.visit(id, links, control, false);
                self.heat(id);
            }
            _ => _ = seat.answer(place, SlotState::Refused, control),
        }
    }

    /// A local process is gone: what it had said goes to the other end.
    pub(crate) fn gone(&mut self, channel: u64, links: &mut [Link], control: &mut Control) {
        let Some(at) = self.seats.of(channel) else { return };
        let Some(seat) = self.seats.get(at) else { return };
        seat.is_dead = true;
        self.has_dead = true;
        let ids: Vec<u64> = seat.slots.iter().flatten().copied().collect();
        for id in ids {
            let mut looks = 0;
            while self.visit(id, links, control, true) != Look::Nothing && looks < 2048 {
                looks += 1;
            }
            // The other engine gets what was announced when its turn comes, so the slot is needed until then.
            if let Some(connection) = self.connections.get(id) {
                connection.end(FLAG_DEAD, &mut links[connection.peer]);
                self.heat(id);
            }
        }
        for id in self.connections.ids() {
            let waits = |it: &&mut Connection| it.at.is_none() && it.promise.is_some_and(|it| it.0 == at);
            if self.connections.get(id).filter(waits).is_some() {
                self.give_up(id, links);
            }
        }
    }

    /// Lets go of channels that are over.
    pub(crate) fn leave_dead_seats(&mut self, control: &mut Control) {
        if std::mem::take(&mut self.has_dead) {
            self.has_dead = self.seats.leave_dead(control);
        }
    }

    /// Rings all processes for which something was announced.
    pub(crate) fn ring(&mut self, control: &mut Control) {
        self.seats.all().for_each(|(_, seat)| seat.end.ring_owed(control));
    }

    /// The connection is better left to the kernel.
    pub(crate) fn advise(&mut self, id: u64, advice: Advice, links: &mut [Link], control: &mut Control) {
        if let Some((connection, seat)) = self.with_seat(id) {
            connection.advise(advice, seat, control);
            self.visit(id, links, control, false);
        }
    }

    /// The local process is gone whose connections were to be found elsewhere, or one of these is (zero: all).
    pub(crate) fn unsought(&mut self, (client, offer): (u64, u64), links: &mut [Link]) {
        for id in self.connections.ids() {
            let is_it = |it: &Connection| it.offer.0 == client && (offer == 0 || it.offer.1 == offer);
            let waits = |it: &Connection| it.is_opener && it.at.is_none() && is_it(it);
            if self.connections.get(id).is_some_and(|it| waits(it)) {
                self.give_up(id, links);
            }
        }
    }

    /// Nobody promises anything any more.
    pub(crate) fn give_up_unseated(&mut self, links: &mut [Link]) {
        for id in self.connections.ids() {
            if self.connections.get(id).is_some_and(|it| it.at.is_none()) {
                self.give_up(id, links);
            }
        }
    }

    /// A connection that has no slot is given up.
    pub(crate) fn give_up(&mut self, id: u64, links: &mut [Link]) {
        let Some(connection) = self.connections.get(id) else { return };
        if let Some(number) = connection.number.take() {
            let _ = links[connection.peer].reset(number, 2, true);
        }
        self.forget(id);
    }
}
