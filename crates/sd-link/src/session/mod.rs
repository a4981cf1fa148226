//! The connections between two engines: what they owe each other, and what each is told.
//!
//! | file | holds |
//! |---|---|
//! | `calls` | what the caller asks for |
//! | `take` | a record that came |
//! | `write` | records into a packet; what became of those that were sent |
//! | `turns` | whose bytes are next |
//! | `table`, `gaps` | connections by number; bytes that came early |

mod calls;
mod gaps;
mod table;
mod take;
mod turns;
mod write;

use crate::Nanos;
use crate::path::Item;
use crate::wire::RecordKind;
use alloc::collections::VecDeque;
pub use table::{CONNECTIONS_MAX, Connection};
use table::{List, Stage, Table};
pub use turns::Limits;
use turns::Turns;
pub(crate) use write::Writer;

/// Most bytes that engines can say to each other when a connection is opened, and when it is accepted.
pub const WORDS_MAX: usize = 256;
/// The code of a refusal where the tenant is unknown.
pub const NO_TENANT: u8 = 255;

/// What a link tells its caller of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// The other engine has opened it: to be accepted or refused. `end` is 0.
    Offered { tenant: u32, words: &'a [u8] },
    /// It was accepted there, with these words.
    Opened(&'a [u8]),
    /// It was refused there; it is gone.
    Refused(u8),
    /// All bytes before this position have come.
    Arrived(u64),
    /// The peer has consumed so many bytes.
    Consumed(u64),
    /// Nothing comes behind what has arrived.
    Fin,
    /// The peer has reset it, behind what has arrived; it is gone.
    Reset(u8),
    /// The byte before this position is urgent.
    Urgent(u64, u8),
    /// The peer reads no more.
    Stopped,
    /// The other engine has said this of it, by [`crate::Link::say`]. What it said before, and was lost, does not come any more.
    Said(&'a [u8]),
    /// Both ends know that all is delivered; it is gone.
    Closed,
    /// The session has ended; it is gone. What was consumed, the caller knows; the rest is to be sent in another way.
    Lost,
}

/// The end of a connection that was offered and neither accepted nor refused: the caller has given it no name yet.
pub const NOBODY: u64 = u64::MAX;

/// The local ends of connections: where their bytes lie, and who is told.
pub trait Ends {
    /// Something will be done for this end in a moment: what is needed for that may be fetched into a cache.
    fn soon(&mut self, _end: u64) {}
    /// Copies bytes that were announced and not consumed, from `position` on.
    fn read(&mut self, end: u64, position: u64, out: &mut [u8]);
    /// Of `len` bytes that [`Ends::read`] could give: how many of the first are to be copied, or are placed at the peer by the carrier of the packet
    /// that is being made, ahead of it. At least one. Asked where that carrier places ([`crate::PathConfig::places`]).
    fn place(&mut self, _end: u64, _position: u64, len: usize) -> Way {
        Way::Copied(len)
    }
    /// The peer has placed bytes at their position: the same as [`Ends::write`], but that they are there.
    fn placed(&mut self, _end: u64, _position: u64, _len: usize) {}
    /// Puts bytes at their position. They have arrived when [`News::Arrived`] says so; what is before them may be missing.
    fn write(&mut self, end: u64, position: u64, bytes: &[u8]);
    /// Something happened to a connection, which the caller knows as `end`, or as [`NOBODY`].
    fn told(&mut self, connection: Connection, end: u64, news: News<'_>);
}

/// How bytes come to the other engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In a record.
    Copied(usize),
    /// The carrier places them; the record says that it has.
    Placed(usize),
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The connection is gone, or not so far.
    NotNow,
    /// The number of connections, of tenants, or a length is beyond its bound.
    TooMany,
    UnknownTenant,
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The other engine has broken the rules.
    Violation,
    /// There is no memory for it now; it counts as lost.
    Shortage,
}

/// All connections with one other engine.
#[derive(Debug)]
pub(crate) struct Session {
    table: Table,
    turns: Turns,
    /// Connections of which something other than bytes is to be said.
    talking: List<1>,
    /// Bytes that are to be said again.
    again: VecDeque<Item>,
    connections: u32,
    /// Records about connections that are gone.
    pub(crate) stale: u64,
    /// Bytes that were placed: sent, and taken.
    pub(crate) placed: [u64; 2],
}

const TALKING: u8 = 1;

const fn bit(kind: RecordKind) -> u16 {
    1 << kind as u8
}

impl Session {
    pub(crate) fn new(connections_max: u32) -> Session {
        Session {
            table: Table::new(connections_max),
            turns: Turns::default(),
            talking: List::default(),
            again: VecDeque::new(),
            connections: 0,
            stale: 0,
            placed: [0; 2],
        }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// A record of this connection will be taken in a moment.
    pub(crate) fn soon(&mut self, connection: u32, ends: &mut (impl Ends + ?Sized)) {
        if let Some(key) = self.table.find(table::flip(connection)) {
            ends.soon(self.table.at(key).end);
        }
    }

    pub(crate) fn next_time(&self) -> Option<Nanos> {
        self.turns.next_time()
    }

    /// Time has passed: who had used up his part may go on.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.turns.tick(now);
    }

    /// The session is over: every connection is told.
    pub(crate) fn clear(&mut self, max: u32, ends: &mut (impl Ends + ?Sized)) {
        let keys: alloc::vec::Vec<u32> = self.table.keys().collect();
        for key in keys {
            let connection = Connection(self.table.number(key));
            let end = self.table.at(key).end;
            ends.told(connection, end, News::Lost);
        }
        self.table = Table::new(max);
        self.turns.clear();
        self.talking = List::default();
        self.again.clear();
        self.connections = 0;
    }

    /// Something is to be said of a connection.
    fn say(&mut self, key: u32, kind: RecordKind) {
        let conn = self.table.at(key);
        conn.due |= bit(kind);
        if conn.links[1].on == 0 {
            self.talking.push(&mut self.table, key, TALKING);
        }
    }

    /// Whether the other engine surely has the connection: until then nothing else is said of it, which would find nobody.
    fn is_known_there(&mut self, key: u32) -> bool {
        key & table::THEIRS != 0 || self.table.at(key).known & bit(RecordKind::Open) != 0
    }

    /// The other engine has what opens a connection.
    fn is_confirmed(&mut self, key: u32) {
        let conn = self.table.at(key);
        conn.known |= bit(RecordKind::Open);
        conn.due &= !bit(RecordKind::Open);
        if conn.due != 0 && conn.links[1].on == 0 {
            self.talking.push(&mut self.table, key, TALKING);
        }
    }

    /// A connection is gone.
    fn release(&mut self, key: u32) {
        let conn = self.table.at(key);
        // So that it leaves the list that it may be in.
        conn.announced = conn.taken;
        let is_talking = conn.links[1].on != 0;
        self.turns.update(&mut self.table, key);
        if is_talking {
            self.talking.remove(&mut self.table, key);
        }
        self.table.release(key);
        self.connections -= 1;
    }

    /// Releases and tells.
    fn finish(&mut self, key: u32, news: News<'_>, ends: &mut (impl Ends + ?Sized)) {
        let connection = Connection(self.table.number(key));
        let end = self.table.at(key).end;
        self.release(key);
        ends.told(connection, end, news);
    }

    /// Ends a connection of which both ends know all.
    fn finish_if_done(&mut self, key: u32, ends: &mut (impl Ends + ?Sized)) {
        let conn = self.table.at(key);
        let is_known = |kind| conn.known & bit(kind) != 0;
        let is_done = match conn.stage {
            Stage::Open => {
                let is_opened = key & table::THEIRS == 0 || is_known(RecordKind::Opened);
                let is_sent = conn.taken == conn.announced && conn.unsettled == 0;
                is_opened && is_sent && is_known(RecordKind::Fin) && conn.peer_fin == Some(conn.whole)
            }
            Stage::Resetting => is_known(RecordKind::Reset) && conn.unsettled == 0,
            Stage::Refusing => is_known(RecordKind::Refused),
            _ => false,
        };
        if is_done {
            self.finish(key, News::Closed, ends);
        }
    }
}
