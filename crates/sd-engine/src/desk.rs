//! All connections, and the channels with local processes: where the links with other engines read and write.

use crate::connection::{Connection, Look};
use crate::seat::{Seat, Seats, Slot};
use crate::words::Question;
use sd_link::{Connection as Number, Ends, Link, News};
use sd_pump::control::Control;
use sd_shm::channel::{FLAG_DEAD, SlotState};
use std::collections::{HashMap, VecDeque};

/// Looks without news before somebody has to ring again.
const QUIET_LOOKS: u32 = 100;

/// Connections by number; a number is not given twice soon.
#[derive(Default)]
pub(crate) struct Connections {
    places: Vec<(u32, Option<Box<Connection>>)>,
    free: Vec<u32>,
    pub(crate) count: usize,
}

impl Connections {
    pub(crate) fn add(&mut self, connection: Connection) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        self.count += 1;
        let place = &mut self.places[at as usize];
        place.1 = Some(Box::new(connection));
        u64::from(place.0) << 32 | u64::from(at)
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Connection> {
        let (serial, connection) = self.places.get_mut(id as u32 as usize)?;
        if u64::from(*serial) == id >> 32 { connection.as_deref_mut() } else { None }
    }

    fn ids(&self) -> Vec<u64> {
        let all = self.places.iter().enumerate().filter(|(_, place)| place.1.is_some());
        all.map(|(at, place)| u64::from(place.0) << 32 | at as u64).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Box<Connection>> {
        self.get(id)?;
        let place = &mut self.places[id as u32 as usize];
        place.0 = place.0.wrapping_add(1);
        self.free.push(id as u32);
        self.count -= 1;
        place.1.take()
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) connections: Connections,
    pub(crate) seats: Seats,
    /// Connections that are to be looked at again and again.
    hot: VecDeque<u64>,
    /// Kept so that each look need not make it.
    events: Vec<(usize, usize)>,
    /// Something has come for these.
    touched: Vec<u64>,
    /// Questions of other engines, and answers to our own.
    pub(crate) asked: Vec<(usize, Number, Option<Question>)>,
    pub(crate) opened: Vec<u64>,
    /// Questions that were lost with their session.
    pub(crate) unanswered: Vec<(u64, Question)>,
    /// Connections whose local process has still to show the ticket, by seat and ticket.
    tickets: HashMap<(usize, u64), u64>,
    /// Of channels some are over.
    has_dead: bool,
    /// Bytes that have come.
    pub(crate) carried: u64,
}

/// The ends of one link.
pub(crate) struct View<'a> {
    pub(crate) desk: &'a mut Desk,
    pub(crate) peer: usize,
}

impl Ends for View<'_> {
    fn read(&mut self, end: u64, position: u64, out: &mut [u8]) {
        match self.desk.with_seat(end) {
            Some((connection, seat)) => connection.read(seat, position, out),
            None => out.fill(0),
        }
    }

    fn write(&mut self, end: u64, position: u64, bytes: &[u8]) {
        self.desk.carried += bytes.len() as u64;
        if let Some((connection, seat)) = self.desk.with_seat(end) {
            connection.write(seat, position, bytes);
        }
        self.desk.touch(end);
    }

    fn told(&mut self, number: Number, end: u64, news: News<'_>) {
        let is_lost = matches!(news, News::Lost);
        match news {
            News::Offered { words, .. } => {
                self.desk.asked.push((self.peer, number, Question::decode(words)));
                return;
            }
            News::Opened => {
                if let Some(connection) = self.desk.connections.get(end) {
                    connection.question = None;
                }
                self.desk.opened.push(end);
            }
            News::Lost if self.desk.asks_again(number, end) => return,
            News::Consumed(to) => {
                if let Some((connection, seat)) = self.desk.with_seat(end) {
                    connection.credit(seat, to);
                }
            }
            News::Said(words) => {
                if let Some(connection) = self.desk.connections.get(end) {
                    connection.hear(words);
                }
            }
            News::Refused(_) | News::Reset(_) | News::Closed | News::Lost => {
                if let Some(connection) = self.desk.connections.get(end)
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

impl Desk {
    fn with_seat(&mut self, id: u64) -> Option<(&mut Connection, &mut Seat)> {
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
        for id in self.connections.ids() {
            let connection = self.connections.get(id).filter(|it| it.peer == peer && it.number.is_some());
            if let Some(connection) = connection {
                (connection.number, connection.is_lost) = (None, true);
                self.touch(id);
            }
        }
    }

    fn touch(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(id)
            && !std::mem::replace(&mut connection.is_touched, true)
        {
            self.touched.push(id);
        }
    }

    fn heat(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(id) {
            connection.quiet = 0;
            if !std::mem::replace(&mut connection.is_hot, true) {
                self.hot.push_back(id);
            }
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
            connection.settle(seat, control);
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
                seat.request(at, control);
            }
            None => connection.end(FLAG_DEAD, &mut links[connection.peer]),
        }
    }

    /// Ends what is broken, or has lost its link.
    fn look_out(&mut self, id: u64, links: &mut [Link], control: &mut Control) {
        let Some((connection, seat)) = self.with_seat(id) else { return };
        if std::mem::take(&mut connection.is_broken)
            && let Some(number) = connection.number.take()
        {
            let _ = links[connection.peer].reset(number, 1, true);
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
        let Some(connection) = self.connections.remove(id) else { return };
        if let Some((seat, ticket)) = connection.promise {
            self.tickets.remove(&(seat, ticket));
            if let (Some(at), Some(seat)) = (connection.at, self.seats.get(seat)) {
                seat.leave(at, connection.has_large());
            }
        }
    }

    /// Slots that were announced.
    pub(crate) fn take_events(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        let mut events = std::mem::take(&mut self.events);
        for (at, seat) in self.seats.all() {
            let set = seat.end.map.events(seat.end.ours);
            if !set.is_empty() {
                set.take(|slot| events.push((at, slot)));
            }
        }
        let is_any = !events.is_empty();
        for (seat, slot) in events.drain(..) {
            self.event(seat, slot, links, control);
        }
        self.events = events;
        is_any
    }

    fn event(&mut self, at: usize, slot: usize, links: &mut [Link], control: &mut Control) {
        let Some(seat) = self.seats.get(at) else { return };
        let slot = slot % sd_shm::channel::SLOTS;
        if let Some(id) = seat.slots[slot] {
            self.visit(id, links, control);
            self.heat(id);
        }
        let Some(seat) = self.seats.get(at) else { return };
        if seat.slots[slot].is_some() {
            return;
        }
        let Some((place, ticket)) = seat.shown(slot) else { return };
        let found = self.tickets.remove(&(at, ticket));
        let connection = found.and_then(|id| self.connections.get(id));
        match (found, connection) {
            (Some(id), Some(connection)) if connection.number.is_some() => {
                connection.at = Some(place);
                seat.slots[slot] = Some(id);
                self.visit(id, links, control);
                self.heat(id);
            }
            _ => _ = seat.answer(place, SlotState::Refused, control),
        }
    }

    /// Looks at one connection.
    fn visit(&mut self, id: u64, links: &mut [Link], control: &mut Control) -> Look {
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
        let found = connection.look(seat, link);
        connection.is_broken |= found.is_err();
        let found = found.unwrap_or(Look::News);
        if connection.is_broken || connection.number.is_none() {
            self.look_out(id, links, control);
        }
        found
    }

    /// A look at all that is hot: whether something was found.
    pub(crate) fn visit_hot(&mut self, links: &mut [Link], control: &mut Control) -> bool {
        let mut news = false;
        for _ in 0..self.hot.len() {
            let Some(id) = self.hot.pop_front() else { break };
            let mut found = self.visit(id, links, control) != Look::Nothing;
            let Some((connection, seat)) = self.with_seat(id) else { continue };
            connection.quiet = if found { 0 } else { connection.quiet + 1 };
            let Some(at) = connection.at else {
                connection.is_hot = false;
                news |= found;
                continue;
            };
            if connection.quiet >= QUIET_LOOKS {
                seat.arm(at);
                found = self.visit(id, links, control) != Look::Nothing;
                let Some(connection) = self.connections.get(id) else { continue };
                if !found {
                    connection.is_hot = false;
                    continue;
                }
                connection.quiet = 0;
            }
            news |= found;
            self.hot.push_back(id);
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
        self.visit_hot(links, control)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.hot.is_empty()
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
            while self.visit(id, links, control) != Look::Nothing && looks < 2048 {
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

    /// The local process is gone whose connections were to be found elsewhere.
    pub(crate) fn unsought(&mut self, client: u64, links: &mut [Link]) {
        for id in self.connections.ids() {
            let waits = |it: &Connection| it.is_opener && it.at.is_none() && it.offer.0 == client;
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
