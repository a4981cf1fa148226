//! A ring in memory that a peer writes at any time.

use super::Bytes;
use sd_ring::{Effort, Geometry, Next, RingMem, RxCursor, TxCursor};
use std::cell::RefCell;

const GEOMETRY: Geometry = Geometry { small: 64, large_first: 128, large: 1024 };

/// Looks outside are out of bounds here, and end the process.
struct Memory([RefCell<Vec<u8>>; 2]);

impl Memory {
    fn put(&self, region: u32, off: u32, bytes: &[u8]) {
        self.0[region as usize].borrow_mut()[off as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl RingMem for Memory {
    fn load(&self, region: u32, off: u32) -> u64 {
        let bytes = self.0[region as usize].borrow()[off as usize..][..8].to_vec();
        bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
    fn publish(&self, region: u32, off: u32, word: u64) {
        self.put(region, off, &word.to_le_bytes());
    }
    fn store(&self, region: u32, off: u32, word: u64) {
        self.put(region, off, &word.to_le_bytes());
    }
}

/// The bytes that a grant, or a look, is about must be there.
fn touch(mem: &Memory, region: u32, off: u32, len: u32) {
    mem.put(region, off, &vec![0x5a; len as usize]);
}

pub(super) fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let sizes = [GEOMETRY.small, GEOMETRY.large];
    let mem = Memory(sizes.map(|size| RefCell::new(vec![0; size as usize])));
    let (mut tx, mut rx) = (TxCursor::new(&GEOMETRY), RxCursor::new());
    while !bytes.is_empty() {
        let number = bytes.number();
        match number % 12 {
            0 => {
                let (place, word) = (bytes.number(), bytes.u64());
                let region = (place & 1) as u32;
                mem.publish(region, (place >> 1) as u32 % (sizes[region as usize] / 8) * 8, word);
            }
            1 | 2 => {
                // One that is wary as well, from some time on.
                if number / 12 % 16 == 15 {
                    rx.beware();
                }
                let found = match rx.next(&GEOMETRY, &mem) {
                    Ok(Next::Apart) if number % 2 == 0 => rx.next_apart(&GEOMETRY, &mem),
                    Ok(Next::Apart) => {
                        rx.join();
                        rx.next(&GEOMETRY, &mem)
                    }
                    found => found,
                };
                let len = match found {
                    Ok(Next::Data { region, off, len }) => {
                        let seen = mem.0[region as usize].borrow();
                        assert!((off as usize + len as usize) <= seen.len());
                        len
                    }
                    Ok(Next::Urgent) => {
                        rx.admit_urgent();
                        0
                    }
                    _ => 0,
                };
                let part = (number / 12) as u32;
                if len > 0 {
                    rx.advance(if part == 0 { len } else { part.min(len) });
                }
            }
            3 => drop(tx.credit(bytes.u64())),
            4 => drop(tx.credit(tx.credited().wrapping_add(bytes.number()))),
            5..=7 => {
                let effort = if number % 2 == 0 { Effort::Cached } else { Effort::Grow };
                if let Some(grant) = tx.reserve(&GEOMETRY, &mem, (bytes.number() as u32).max(1), effort) {
                    touch(&mem, grant.region, grant.off, grant.len);
                    tx.commit(&mem, grant.len, number as u32);
                }
            }
            8 => drop(rx.credit_due(&GEOMETRY).or_else(|| rx.credit_all())),
            9 => {
                rx.recover();
                let _ = tx.recover(&GEOMETRY, &mem);
            }
            10 => drop(tx.shrink(&GEOMETRY, &mem)),
            // What is kept of a receiver may be anything; of a sender it is what was kept.
            _ if number / 12 % 2 == 0 => rx = RxCursor::unparked(bytes.u64()),
            _ => {
                if let Some(word) = tx.parked(&GEOMETRY) {
                    tx.unpark(&GEOMETRY, word);
                }
            }
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let header = |kind: u64, len: u64| [&[0, 0][..], &(kind << 32 | len).to_le_bytes()].concat();
    let mut seeds: Vec<Vec<u8>> = [(1, 5), (2, 8), (3, 64), (4, 0), (5, 1)]
        .map(|(kind, len)| [header(kind, len), vec![1, 1, 8]].concat())
        .into();
    seeds.extend([vec![5, 8, 1, 4, 16], vec![5, 200, 6, 60, 9, 10], vec![11, 1, 0, 0, 0, 0, 0, 0, 0, 1]]);
    seeds
}
