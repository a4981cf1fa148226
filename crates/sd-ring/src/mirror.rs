//! Copying a ring: what a sender has published is found message by message, and written at the same places of another ring.
//!
//! ```text
//!  sender --> ring here    take()         put()    ring there --> receiver
//!               |  header, payload  ----------------> ^  payload, zero behind it, header
//! ```
//! Both rings have the same geometry. So positions mean the same in both: what the receiver there has consumed is a credit here,
//! and whatever a correct sender publishes has room there. Who copies holds nothing back and needs no buffer.
//!
//! *Guarantees*: a header that no correct sender writes is [`Corrupt`]; the payload of a [`Piece`] lies within its region. *Not
//! guaranteed*: that the sender had the credit. A receiver believes the copy no more than it would believe the sender.
//! Tested here against cursors of both kinds.

use crate::header::{self, Kind, SIZE, padded};
use crate::lap::Lap;
use crate::receive::RxCursor;
use crate::ring::{Corrupt, Geometry, Region, RingMem, check_message, is_word};

/// Something that was published, whole.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    region: u32,
    at: u32,
    word: u64,
    kind: Kind,
    len: u32,
}

impl RxCursor {
    /// Where it will be looked for: region and offset.
    pub fn next_at(&self) -> (u32, u32) {
        self.place()
    }

    /// What was published next; the cursor passes over it, but for the end of the stream.
    pub fn take<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Result<Option<Piece>, Corrupt> {
        let (region, at) = self.place();
        if !is_word(at, g.size(region)) {
            return Err(Corrupt);
        }
        let word = mem.load(region, at);
        if word == 0 {
            return Ok(None);
        }
        let (kind, len) = header::decode(word).ok_or(Corrupt)?;
        match kind {
            Kind::Fin | Kind::Marker => {}
            Kind::Data | Kind::Urgent => {
                check_message(at, len, g.size(region))?;
                if kind == Kind::Urgent && len != 1 {
                    return Err(Corrupt);
                }
                self.consumed = self.consumed.wrapping_add(u64::from(SIZE + padded(len)));
            }
            Kind::ToSmall | Kind::ToLarge => {
                if len < SIZE || len > g.size(region) || !len.is_multiple_of(SIZE) {
                    return Err(Corrupt);
                }
                let to = if kind == Kind::ToLarge { Region::Large } else { Region::Small };
                self.lap = Lap::new(self.consumed.wrapping_add(u64::from(len)), to as u32);
                self.consumed = self.lap.start();
            }
        }
        Ok(Some(Piece { region, at, word, kind, len }))
    }
}

impl Piece {
    /// Where its payload lies: region, offset, and bytes in whole words. None of a jump, or of the end.
    pub fn payload(&self) -> Option<(u32, u32, u32)> {
        let has_payload = matches!(self.kind, Kind::Data | Kind::Urgent);
        has_payload.then(|| (self.region, self.at + SIZE, padded(self.len)))
    }

    /// Bytes of its payload.
    pub fn payload_bytes(&self) -> u32 {
        if self.payload().is_some() { self.len } else { 0 }
    }

    /// Its byte was sent as urgent.
    pub fn is_urgent(&self) -> bool {
        self.kind == Kind::Urgent
    }

    /// The sender will send no more here.
    pub fn is_end(&self) -> bool {
        matches!(self.kind, Kind::Fin | Kind::Marker)
    }

    /// Where it stands in the large region, if the next stands in the small one.
    pub fn leaves_large_at(&self) -> Option<u32> {
        (self.region == Region::Large as u32 && self.kind == Kind::ToSmall).then_some(self.at)
    }

    /// Whether putting it writes into the small region, and whether into the large one.
    pub fn touches(&self) -> [bool; 2] {
        let is_large = self.region == Region::Large as u32;
        [!is_large || self.kind == Kind::ToSmall, is_large || self.kind == Kind::ToLarge]
    }

    /// Ring bytes that it uses.
    pub fn used(&self) -> u32 {
        match self.kind {
            Kind::Fin | Kind::Marker => 0,
            Kind::Data | Kind::Urgent => SIZE + padded(self.len),
            Kind::ToSmall | Kind::ToLarge => self.len,
        }
    }

    /// Publishes it in another ring, where its payload is already. `stamp`: when, if it does not say itself; or zero.
    pub fn put<M: RingMem>(&self, to: &M, stamp: u32) {
        let word = if header::stamp(self.word) == 0 {
            header::encode(self.kind, self.len, stamp)
        } else {
            self.word
        };
        match self.kind {
            Kind::Fin | Kind::Marker => to.publish(self.region, self.at, word),
            Kind::Data | Kind::Urgent => to.complete(self.region, self.at, SIZE + padded(self.len), word),
            // Jumps bear no time.
            Kind::ToSmall | Kind::ToLarge => {
                to.store((self.kind == Kind::ToLarge).into(), 0, 0);
                to.publish(self.region, self.at, self.word);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::{Effort, Next, TxCursor};
    use std::cell::RefCell;

    const G: Geometry = Geometry { small: 128, large_first: 256, large: 1024 };

    struct Mem([RefCell<Vec<u64>>; 2]);

    impl Mem {
        /// Old bytes lie everywhere but in front.
        fn new() -> Mem {
            let region = |size: u32| {
                let mut words = vec![0x0000_0001_0000_0008; size as usize / 8];
                words[0] = 0;
                RefCell::new(words)
            };
            Mem([region(G.small), region(G.large)])
        }
        fn write(&self, region: u32, off: u32, word: u64) {
            self.0[region as usize].borrow_mut()[off as usize / 8] = word;
        }
    }

    impl RingMem for Mem {
        fn load(&self, region: u32, off: u32) -> u64 {
            self.0[region as usize].borrow()[off as usize / 8]
        }
        fn publish(&self, region: u32, off: u32, word: u64) {
            self.write(region, off, word);
        }
        fn store(&self, region: u32, off: u32, word: u64) {
            self.write(region, off, word);
        }
    }

    fn copy(from: &Mem, to: &Mem, cursor: &mut RxCursor) -> usize {
        let mut count = 0;
        while let Some(piece) = cursor.take(&G, from).unwrap() {
            if let Some((region, off, len)) = piece.payload() {
                (off..off + len).step_by(8).for_each(|off| to.write(region, off, from.load(region, off)));
            }
            piece.put(to, 0);
            count += 1;
            if piece.is_end() {
                break;
            }
        }
        count
    }

    #[test]
    fn a_copied_stream_is_the_stream() {
        let (here, there) = (Mem::new(), Mem::new());
        let (mut tx, mut mid, mut rx) = (TxCursor::new(&G), RxCursor::new(), RxCursor::new());
        let (mut sent, mut got) = (0u64, 0u64);
        for round in 0..5000u64 {
            let want = (round * 7 % 9 + 1) as u32 * 8;
            if let Some(grant) = tx.reserve(&G, &here, want, Effort::Grow) {
                let words = grant.len / 8;
                for i in 0..words {
                    here.write(grant.region, grant.off + i * 8, sent + 1);
                    sent += 1;
                }
                tx.commit(&here, words * 8, 0);
            }
            if round % 3 == 0 {
                copy(&here, &there, &mut mid);
            }
            if round % 5 == 0 {
                while let Next::Data { region, off, len } = rx.next(&G, &there).unwrap() {
                    for at in (off..off + len).step_by(8) {
                        got += 1;
                        assert_eq!(there.load(region, at), got);
                    }
                    rx.advance(len);
                }
                tx.credit(rx.position()).unwrap();
            }
        }
        tx.finish(&here, 0);
        copy(&here, &there, &mut mid);
        assert!(sent > 5000, "{sent}");
        assert_eq!(mid.position(), tx.position());
        while let Ok(Next::Data { len, .. }) = rx.next(&G, &there) {
            got += u64::from(len) / 8;
            rx.advance(len);
        }
        assert_eq!((got, rx.next(&G, &there)), (sent, Ok(Next::Fin)));
    }

    #[test]
    fn the_end_is_found_as_often_as_it_is_looked_for() {
        let (here, there) = (Mem::new(), Mem::new());
        TxCursor::new(&G).finish(&here, 0);
        let mut cursor = RxCursor::new();
        assert_eq!((copy(&here, &there, &mut cursor), copy(&here, &there, &mut cursor)), (1, 1));
        assert_eq!(RxCursor::new().next(&G, &there), Ok(Next::Fin));
    }

    #[test]
    fn what_no_sender_writes_is_corrupt() {
        for word in [
            7 << 32 | 8,
            1 << 32,
            1 << 32 | 120,
            5 << 32 | 2,
            2 << 32 | 4,
            3 << 32 | 12,
            3 << 32 | 4096,
            u64::MAX,
        ] {
            let mem = Mem::new();
            mem.write(0, 0, word);
            assert!(RxCursor::new().take(&G, &mem).is_err(), "{word:x}");
        }
    }

    #[test]
    fn a_time_is_added_where_none_was_said() {
        let (here, there) = (Mem::new(), Mem::new());
        let mut tx = TxCursor::new(&G);
        tx.reserve(&G, &here, 8, Effort::Cached).unwrap();
        tx.commit(&here, 8, 0);
        RxCursor::new().take(&G, &here).unwrap().unwrap().put(&there, 5);
        let mut rx = RxCursor::new();
        rx.next(&G, &there).unwrap();
        assert_eq!(rx.stamp(&there), 5);
    }
}
