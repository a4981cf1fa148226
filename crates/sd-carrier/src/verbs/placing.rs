//! Zero copy: bytes that the device takes from one ring and places in another (the paper's §4.3, RFC 5041).
//!
//! ```text
//!  ring of a program ── lent to send ── RDMA write ──> lent to be written: ring of another program
//!  batch ── RDMA write with immediate, behind it ──> landing: says what was placed
//! ```
//! Writes of one pair are done in order, so what a batch speaks of is there when the batch is. They tell nobody themselves: the completion of a batch
//! tells of all before it.

use super::{Verbs, errno_of};
use crate::{Carrier, End, Flushed, State};
use sd_verbs::{Error, Lending, Lent, Window};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

/// Writes that may be under way.
pub(super) const MOST: usize = 32;

/// A right to write into one engine's memory, which ends with that engine's end of the pair, or when it takes the memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number of the end that has given it.
    pub end: u32,
    pub window: Window,
}

/// What is under way.
#[derive(Default)]
pub(super) struct Placed {
    /// The memory of each write, which stays lent as long.
    memory: VecDeque<Arc<Lent>>,
    /// Writes: posted, of these known to be done, and to be told of.
    posted: u64,
    done: u64,
    told: u64,
    /// Empty between two calls; it keeps its room.
    next: Placing,
}

impl Placed {
    /// How many were posted: so is the next batch called.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// The next batch has to be told of: nothing else may follow that tells when the memory is free.
    pub(super) fn wants_word(&self) -> bool {
        self.posted > self.told
    }

    pub(super) fn will_be_told(&mut self) {
        self.told = self.posted;
    }

    /// The batch of this name is done.
    pub(super) fn done(&mut self, name: u64) {
        while self.done < name.min(self.posted) {
            self.memory.pop_front();
            self.done += 1;
        }
    }
}

impl Verbs {
    /// Lends memory to the device, for as long as what is returned lives. What was placed and is not known to be done keeps it, too.
    ///
    /// # Safety
    /// So many bytes are mapped there, shared, and nobody has a reference to them as long as that lives.
    pub unsafe fn lend(&self, start: NonNull<u8>, len: usize, to: Lending) -> Result<Lent, Error> {
        // SAFETY: as the caller says.
        unsafe { Lent::new(&self.domain, start, len, to) }
    }

    /// What the other engine is told of memory that is lent to be written.
    pub fn grant(&self, lent: &Lent) -> Grant {
        Grant { end: self.pair.address().number, window: lent.window() }
    }

    /// Whether it is a grant of this pair's.
    pub fn is_granted(&self, grant: &Grant) -> bool {
        self.state == State::Open && grant.end == self.other_number
    }

    /// Writes that are known to be done.
    pub fn placed(&self) -> u64 {
        self.placed.done
    }

    /// How many writes may be placed now.
    fn place_room(&mut self) -> usize {
        if self.placed.memory.len() > MOST / 2 {
            self.look();
        }
        if self.is_sending() { MOST - self.placed.memory.len() } else { 0 }
    }

    /// Has bytes of lent memory placed in the other engine's, ahead of the batch that is being made. Where that fails the carrier has ended.
    fn place(&mut self, from: (Arc<Lent>, usize, usize), grant: &Grant, at: u64) {
        if !self.is_sending() {
            return;
        }
        let (lent, offset, len) = from;
        // Its completion is told only if it fails.
        match self.pair.write_silently(self.placed.posted, (&lent, offset, len), (&grant.window, at)) {
            Ok(()) => {
                self.placed.posted += 1;
                self.placed.memory.push_back(lent);
            }
            Err(error) => self.fail(End::Broken(errno_of(&error))),
        }
    }

    /// Packets and what they speak of, as [`Carrier::send`]; `next` adds to its second argument what is to be placed ahead of its packet.
    pub fn send_placing(
        &mut self,
        next: &mut dyn FnMut(&mut [u8], &mut Placing) -> Option<usize>,
    ) -> Flushed {
        let mut placing = std::mem::take(&mut self.placed.next);
        let flushed = loop {
            placing.room = self.place_room();
            let Some(room) = self.room() else {
                match self.flush() {
                    Flushed::All => continue,
                    blocked => break blocked,
                }
            };
            let len = next(room, &mut placing);
            for Place { memory, offset, len, grant, at } in placing.places.drain(..) {
                self.place((memory, offset, len), &grant, at);
            }
            match len {
                Some(len) => self.commit(len),
                None => break self.flush(),
            }
        };
        self.placed.next = placing;
        flushed
    }
}

/// What is to be placed ahead of a packet.
#[derive(Default)]
pub struct Placing {
    places: Vec<Place>,
    room: usize,
}

struct Place {
    memory: Arc<Lent>,
    offset: usize,
    len: usize,
    grant: Grant,
    at: u64,
}

impl Placing {
    /// Whether one more may be added.
    pub fn has_room(&self) -> bool {
        self.places.len() < self.room
    }

    /// `len` bytes at `offset` of lent memory, to be placed at `at` of what was granted.
    pub fn add(&mut self, (memory, offset, len): (Arc<Lent>, usize, usize), grant: Grant, at: u64) {
        self.places.push(Place { memory, offset, len, grant, at });
    }
}
