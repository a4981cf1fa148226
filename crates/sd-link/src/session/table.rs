//! The connections of a session, by number, and lists of them.

use super::gaps::Gaps;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A connection, for the caller. One that has ended names nothing, also when its number is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection(pub(crate) u32);

/// In a connection's number: who opened it. On the wire it is set if the receiver did.
pub(super) const THEIRS: u32 = 1 << 31;
const GENERATION_SHIFT: u32 = 20;
const GENERATIONS: u32 = 1 << 11;
/// At most this many connections are opened by one side.
pub const CONNECTIONS_MAX: u32 = 1 << GENERATION_SHIFT;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Free,
    /// Opened here; the other engine has not answered.
    Opening,
    /// Opened there; the caller has not answered.
    Offered,
    Open,
    /// Refused here; the other engine may not know.
    Refusing,
    /// Reset here; the other engine may not know.
    Resetting,
}

/// Where a connection stands in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
    pub(super) on: u8,
}

const UNLINKED: Links = Links { previous: NONE, next: NONE, on: 0 };

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) generation: u16,
    pub(super) stage: Stage,
    pub(super) tenant: u16,
    /// The caller's number.
    pub(super) end: u64,
    /// First byte that was never sent; what there is to send; what the peer has consumed, and may have beyond that.
    pub(super) taken: u64,
    pub(super) announced: u64,
    pub(super) peer_consumed: u64,
    pub(super) peer_window: u32,
    /// Records with bytes that are under way or to be sent again.
    pub(super) unsettled: u32,
    /// What is to be said: a bit for each kind of record; and what the other engine surely knows.
    pub(super) due: u16,
    pub(super) known: u16,
    pub(super) code: u8,
    pub(super) reset_at: u64,
    pub(super) urgent: (u64, u8),
    /// All bytes before this have come; others are in `gaps`.
    pub(super) whole: u64,
    pub(super) window: u32,
    pub(super) consumed: u64,
    pub(super) peer_fin: Option<u64>,
    pub(super) peer_reset: Option<(u64, u8)>,
    pub(super) peer_urgent: u64,
    pub(super) peer_stopped: bool,
    pub(super) gaps: Option<Box<Gaps>>,
    pub(super) words: Option<Box<[u8]>>,
    /// What was said last, how often, and how often the peer has.
    pub(super) said: Option<Box<[u8]>>,
    pub(super) said_count: u64,
    pub(super) peer_said: u64,
    /// Bytes of its turn that are left.
    pub(super) turn: u32,
    pub(super) links: [Links; 2],
}

impl Conn {
    fn new(generation: u16) -> Conn {
        Conn {
            generation,
            stage: Stage::Free,
            tenant: 0,
            end: super::NOBODY,
            taken: 0,
            announced: 0,
            peer_consumed: 0,
            peer_window: 0,
            unsettled: 0,
            due: 0,
            known: 0,
            code: 0,
            reset_at: 0,
            urgent: (0, 0),
            whole: 0,
            window: 0,
            consumed: 0,
            peer_fin: None,
            peer_reset: None,
            peer_urgent: 0,
            peer_stopped: false,
            gaps: None,
            words: None,
            said: None,
            said_count: 0,
            peer_said: 0,
            turn: 0,
            links: [UNLINKED; 2],
        }
    }

    /// Bytes that may be sent for the first time.
    pub(super) fn sendable(&self) -> u64 {
        if self.stage != Stage::Open {
            return 0;
        }
        self.announced.min(self.peer_consumed + u64::from(self.peer_window)).saturating_sub(self.taken)
    }
}

/// A queue of connections: each is in at most one of the same kind (`KIND`).
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const KIND: usize> {
    first: u32,
    last: u32,
}

impl<const KIND: usize> Default for List<KIND> {
    fn default() -> Self {
        List { first: NONE, last: NONE }
    }
}

impl<const KIND: usize> List<KIND> {
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Appends; `on` tells the lists of a kind apart and is not 0.
    pub(super) fn push(&mut self, table: &mut Table, key: u32, on: u8) {
        let last = self.last;
        table.at(key).links[KIND] = Links { previous: last, next: NONE, on };
        match last {
            NONE => self.first = key,
            last => table.at(last).links[KIND].next = key,
        }
        self.last = key;
    }

    pub(super) fn remove(&mut self, table: &mut Table, key: u32) {
        let links = core::mem::replace(&mut table.at(key).links[KIND], UNLINKED);
        match links.previous {
            NONE => self.first = links.next,
            previous => table.at(previous).links[KIND].next = links.next,
        }
        match links.next {
            NONE => self.last = links.previous,
            next => table.at(next).links[KIND].previous = links.previous,
        }
    }
}

/// Connections by their place. A key is a number without its generation.
#[derive(Debug)]
pub(super) struct Table {
    sides: [Vec<Conn>; 2],
    free: VecDeque<u32>,
    max: u32,
}

impl Table {
    pub(super) fn new(max: u32) -> Table {
        Table { sides: [Vec::new(), Vec::new()], free: VecDeque::new(), max: max.min(CONNECTIONS_MAX) }
    }

    /// The connection at a key, which the caller has from here.
    pub(super) fn at(&mut self, key: u32) -> &mut Conn {
        &mut self.sides[(key >> 31) as usize][(key & (CONNECTIONS_MAX - 1)) as usize]
    }

    pub(super) fn find(&mut self, connection: u32) -> Option<u32> {
        let side = self.sides.get((connection >> 31) as usize)?;
        let conn = side.get((connection & (CONNECTIONS_MAX - 1)) as usize)?;
        let is_it = u32::from(conn.generation) == generation(connection) && conn.stage != Stage::Free;
        is_it.then_some(connection & (THEIRS | (CONNECTIONS_MAX - 1)))
    }

    pub(super) fn number(&mut self, key: u32) -> u32 {
        key | u32::from(self.at(key).generation) << GENERATION_SHIFT
    }

    /// A place for a connection that is opened here.
    pub(super) fn take(&mut self) -> Option<u32> {
        let key = match self.free.pop_front() {
            Some(key) => key,
            None if self.sides[0].len() < self.max as usize => {
                self.sides[0].push(Conn::new((GENERATIONS - 1) as u16));
                self.sides[0].len() as u32 - 1
            }
            None => return None,
        };
        let generation = (u32::from(self.at(key).generation) + 1) % GENERATIONS;
        *self.at(key) = Conn::new(generation as u16);
        Some(key)
    }

    /// The place of a connection that the other engine opens: `Err` for a number that it must not use.
    pub(super) fn place(&mut self, connection: u32) -> Result<u32, ()> {
        let index = connection & (CONNECTIONS_MAX - 1);
        if connection & THEIRS == 0 || index >= self.max {
            return Err(());
        }
        while self.sides[1].len() <= index as usize {
            self.sides[1].push(Conn::new((GENERATIONS - 1) as u16));
        }
        Ok(THEIRS | index)
    }

    /// Whether a connection of theirs is newer than what had its place.
    pub(super) fn is_newer(&mut self, key: u32, connection: u32) -> bool {
        let distance = generation(connection).wrapping_sub(u32::from(self.at(key).generation));
        (1..GENERATIONS / 2).contains(&(distance % GENERATIONS))
    }

    pub(super) fn occupy(&mut self, key: u32, connection: u32) {
        *self.at(key) = Conn::new(generation(connection) as u16);
    }

    /// The caller has taken it off all lists.
    pub(super) fn release(&mut self, key: u32) {
        let generation = self.at(key).generation;
        *self.at(key) = Conn::new(generation);
        if key & THEIRS == 0 {
            self.free.push_back(key);
        }
    }

    /// All connections that are not free.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        let of = |side: usize| {
            let conns = self.sides[side].iter().enumerate();
            let used = conns.filter(|(_, conn)| conn.stage != Stage::Free);
            used.map(move |(index, _)| (side as u32) << 31 | index as u32)
        };
        of(0).chain(of(1))
    }
}

fn generation(connection: u32) -> u32 {
    connection >> GENERATION_SHIFT & (GENERATIONS - 1)
}

/// A number on the wire as seen from the other side.
pub(super) fn flip(connection: u32) -> u32 {
    connection ^ THEIRS
}
