//! What the kernel runs at a probe: a BPF program that writes down who came there, when, and with what in the registers.
//!
//! Fifty instructions, written here one by one: a compiler for BPF, and a crate that loads what it makes, would be a hundred times as
//! much. The kernel checks the program before it takes it. Its helpers and their numbers: bpf-helpers(7), linux/bpf.h.

use sd_sys::arch::{ARGUMENT_OFFSETS, RESULT_OFFSET};

/// A program writes these words: time, process and thread, cookie of the place, whether the call returns, six registers, and
/// what the second of them points to, where the cookie says so.
pub(super) const RECORD_WORDS: usize = 10 + ADDRESS_WORDS;
/// Room for a sockaddr_in6.
pub(super) const ADDRESS_WORDS: usize = 4;
/// In a cookie: the second argument is an address, which is to be read.
pub(super) const HAS_ADDRESS: u64 = 1 << 16;

const MAP_LOOKUP_ELEM: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const GET_CURRENT_PID_TGID: i32 = 14;
const PROBE_READ_USER: i32 = 112;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const GET_ATTACH_COOKIE: i32 = 174;

/// Eight bytes: operation, two registers, an offset, a number.
fn instruction(operation: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    u64::from(operation)
        | u64::from(to) << 8
        | u64::from(from) << 12
        | u64::from(offset as u16) << 16
        | u64::from(number as u32) << 32
}

/// `to = from`.
fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = number`.
fn set(to: u8, number: i32) -> u64 {
    instruction(0xb7, to, 0, 0, number)
}

/// `to += number`.
fn add(to: u8, number: i32) -> u64 {
    instruction(0x07, to, 0, 0, number)
}

/// `to &= number`.
fn and(to: u8, number: i32) -> u64 {
    instruction(0x57, to, 0, 0, number)
}

/// `to = *(u64 *)(from + offset)`.
fn load(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x79, to, from, offset, 0)
}

/// `*(u64 *)(to + offset) = from`.
fn store(to: u8, offset: i16, from: u8) -> u64 {
    instruction(0x7b, to, from, offset, 0)
}

/// A helper: its arguments are in r1 to r5, its result is in r0.
fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

/// Skips so many instructions if r0 is zero.
fn skip_if_zero(count: i16) -> u64 {
    instruction(0x15, 0, 0, count, 0)
}

/// `to` = the map behind a descriptor: two instructions.
fn map(to: u8, fd: i32) -> [u64; 2] {
    [instruction(0x18, to, 1, 0, fd), 0]
}

const EXIT: u64 = 0x95;

/// The program for where calls begin, or return. `ring` takes the records; `lost` has one word, which counts those without room.
pub(super) fn probe(ring: i32, lost: i32, is_end: bool) -> Vec<u64> {
    let mut text = vec![copy(6, 1)];
    text.extend(map(1, ring));
    text.extend([set(2, RECORD_WORDS as i32 * 8), set(3, 0), call(RINGBUF_RESERVE)]);
    let mut body =
        vec![copy(7, 0), call(KTIME_GET_NS), store(7, 0, 0), call(GET_CURRENT_PID_TGID), store(7, 8, 0)];
    body.extend([
        copy(1, 6),
        call(GET_ATTACH_COOKIE),
        store(7, 16, 0),
        copy(8, 0),
        set(1, i32::from(is_end)),
        store(7, 24, 1),
    ]);
    for (place, offset) in ARGUMENT_OFFSETS.iter().enumerate() {
        let from = if is_end { RESULT_OFFSET } else { *offset };
        body.extend([load(1, 6, from), store(7, 32 + 8 * place as i16, 1)]);
    }
    if !is_end {
        let len = ADDRESS_WORDS as i32 * 8;
        let from = load(3, 6, ARGUMENT_OFFSETS[1]);
        let read = [copy(1, 7), add(1, 80), set(2, len), from, call(PROBE_READ_USER)];
        // Skipped, unless the bit is set.
        body.extend([and(8, HAS_ADDRESS as i32), instruction(0x15, 8, 0, read.len() as i16, 0)]);
        body.extend(read);
    }
    body.extend([copy(1, 7), set(2, 0), call(RINGBUF_SUBMIT), set(0, 0), EXIT]);
    text.push(skip_if_zero(body.len() as i16));
    text.extend(body);
    // No room: the word of `lost` under key 0, which stands on the stack, is raised by one.
    text.extend([instruction(0x62, 10, 0, -4, 0), copy(2, 10), add(2, -4)]);
    text.extend(map(1, lost));
    text.extend([
        call(MAP_LOOKUP_ELEM),
        skip_if_zero(2),
        set(1, 1),
        instruction(0xdb, 0, 1, 0, 0),
        set(0, 0),
        EXIT,
    ]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions() {
        assert_eq!(copy(6, 1).to_le_bytes(), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(store(7, 8, 0).to_le_bytes(), [0x7b, 0x07, 8, 0, 0, 0, 0, 0]);
        assert_eq!(set(2, 80).to_le_bytes(), [0xb7, 0x02, 0, 0, 80, 0, 0, 0]);
        assert_eq!(map(1, 5)[0].to_le_bytes(), [0x18, 0x11, 0, 0, 5, 0, 0, 0]);
        assert_eq!(instruction(0x62, 10, 0, -4, 0).to_le_bytes(), [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0]);
    }

    /// The way without room ends as the other one does.
    #[test]
    fn a_program_ends_on_both_ways() {
        for is_end in [false, true] {
            let text = probe(3, 4, is_end);
            let skip = text.iter().position(|it| it & 0xff == 0x15).unwrap();
            let to = skip + 1 + (text[skip] >> 16) as u16 as usize;
            assert_eq!((text[to - 1], text.last()), (EXIT, Some(&EXIT)));
            assert_eq!(text[to] & 0xff, 0x62);
        }
    }
}
