//! The ends of connections of one engine: they know what each byte must be, and check every call of the link.

use sd_link::{Connection, Ends, News, Way};
use std::collections::BTreeMap;

/// Both directions of connection `id` have a length and bytes that follow from it.
pub(crate) fn total(id: u64, is_opener: bool) -> u64 {
    let x = (id * 2 + u64::from(is_opener)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    match x % 16 {
        0 => 0,
        1 => 20_000 + x % 60_000,
        2..5 => x % 3000,
        _ => 1 + x % 300,
    }
}

pub(crate) fn byte(id: u64, is_opener: bool, position: u64) -> u8 {
    let x = id.wrapping_mul(0x1f3) ^ position.wrapping_mul(0x6d) ^ position >> 8;
    x as u8 ^ u8::from(is_opener)
}

/// What is said when it is accepted; nothing for one of five.
pub(crate) fn answer(id: u64) -> Vec<u8> {
    id.to_be_bytes().into_iter().skip(4).cycle().take(id as usize % 5 * 4).collect()
}

pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) is_opener: bool,
    pub(crate) is_open: bool,
    pub(crate) window: u32,
    pub(crate) announced: u64,
    pub(crate) has_fin: bool,
    peer_consumed: u64,
    pub(crate) whole: u64,
    pub(crate) consumed: u64,
    written: Vec<bool>,
    pub(crate) got_fin: bool,
    pub(crate) was_reset: bool,
    /// How often words were said, and which of the other engine's were heard last.
    pub(crate) said: u64,
    pub(crate) heard: u64,
    /// Its program reads nothing.
    pub(crate) is_stalled: bool,
}

impl End {
    fn has_come(&mut self, id: u64, position: u64, len: u64) {
        let limit = self.consumed + u64::from(self.window);
        assert!(position >= self.whole, "{id}: the reader may be reading this");
        assert!(position + len <= limit, "{id}: this overwrites what was not consumed");
        self.written[position as usize..(position + len) as usize].fill(true);
    }
}

#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) ends: BTreeMap<u64, End>,
    pub(crate) offered: Vec<(Connection, u64)>,
    pub(crate) lost: u64,
    pub(crate) closed: u64,
    pub(crate) bytes: u64,
    pub(crate) placed: u64,
}

impl Desk {
    pub(crate) fn add(&mut self, id: u64, connection: Connection, is_opener: bool, window: u32) {
        let end = End {
            connection,
            is_opener,
            is_open: !is_opener,
            window,
            announced: 0,
            has_fin: false,
            peer_consumed: 0,
            whole: 0,
            consumed: 0,
            written: vec![false; total(id, !is_opener) as usize],
            got_fin: false,
            was_reset: false,
            said: 0,
            heard: 0,
            is_stalled: false,
        };
        self.ends.insert(id, end);
    }
}

impl Ends for Desk {
    fn read(&mut self, id: u64, position: u64, out: &mut [u8]) {
        let end = &self.ends[&id];
        assert!(position >= end.peer_consumed, "{id}: what was consumed is not there any more");
        assert!(position + out.len() as u64 <= end.announced, "{id}: nobody has written this yet");
        for (at, place) in out.iter_mut().enumerate() {
            *place = byte(id, end.is_opener, position + at as u64);
        }
    }

    fn place(&mut self, id: u64, position: u64, len: usize) -> Way {
        let end = &self.ends[&id];
        assert!(position + len as u64 <= end.announced, "{id}: nobody has written this yet");
        match (id + position) % 3 {
            0 => Way::Copied(len),
            1 => Way::Copied(len.div_ceil(2)),
            _ => Way::Placed(len.div_ceil(2)),
        }
    }

    fn placed(&mut self, id: u64, position: u64, len: usize) {
        let end = self.ends.get_mut(&id).unwrap();
        self.placed += len as u64;
        end.has_come(id, position, len as u64);
    }

    fn write(&mut self, id: u64, position: u64, bytes: &[u8]) {
        let end = self.ends.get_mut(&id).unwrap();
        for (at, value) in bytes.iter().enumerate() {
            let at = position + at as u64;
            assert_eq!(*value, byte(id, !end.is_opener, at), "{id}: byte {at}");
        }
        end.has_come(id, position, bytes.len() as u64);
    }

    fn told(&mut self, connection: Connection, id: u64, news: News<'_>) {
        if let News::Offered { words, .. } = news {
            let id = u64::from_le_bytes(words.try_into().unwrap());
            self.offered.push((connection, id));
            return;
        }
        let Some(end) = self.ends.get_mut(&id).filter(|end| end.connection == connection) else {
            self.offered.retain(|offered| offered.0 != connection);
            return;
        };
        match news {
            News::Offered { .. } => {}
            News::Opened(words) => {
                assert_eq!(words, answer(id), "{id}: accepted with other words");
                end.is_open = true;
            }
            News::Arrived(to) => {
                let new = &end.written[end.whole as usize..to as usize];
                assert!(
                    !new.is_empty() && new.iter().all(|is_written| *is_written),
                    "{id}: bytes are missing"
                );
                self.bytes += new.len() as u64;
                end.whole = to;
            }
            News::Consumed(to) => {
                assert!(to > end.peer_consumed && to <= end.announced);
                end.peer_consumed = to;
            }
            News::Fin => {
                assert!(!end.got_fin, "{id}: ended twice");
                assert_eq!(end.whole, total(id, !end.is_opener), "{id}: ended early");
                end.got_fin = true;
            }
            News::Urgent(at, value) => assert_eq!(value, byte(id, !end.is_opener, at)),
            News::Stopped => {}
            News::Said(words) => {
                let count = u64::from_le_bytes(words.try_into().unwrap());
                assert!(count > end.heard, "{id}: {count} was said before {}", end.heard);
                end.heard = count;
            }
            News::Closed => {
                assert!(end.was_reset || (end.got_fin && end.has_fin), "{id}: closed early");
                self.closed += 1;
                self.ends.remove(&id);
            }
            News::Refused(_) | News::Reset(_) => {
                self.closed += 1;
                self.ends.remove(&id);
            }
            News::Lost => {
                self.lost += 1;
                self.ends.remove(&id);
            }
        }
    }
}
