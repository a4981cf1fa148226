//! Where branches lead that are near a `syscall` instruction: nothing may lead into what is replaced with it ([`crate::windows`]).
//!
//! Long ones, over a distance of four bytes, are searched in the whole text, for all places at once; short ones in what is around.
//! What only looks like a branch counts as one. Nothing here is unsafe.

use crate::decode::{Flow, Instruction, decode};

/// Bytes before the instruction that may be replaced, and as many behind.
pub(crate) const NEAR: usize = 32;
/// So far from a place a short branch to its neighbours may be.
const REACH: usize = NEAR + 130;
/// A branch over a distance of one byte.
const SHORT_LEN: u8 = 2;

/// Where branches lead that are near a place.
#[derive(Clone, Copy)]
pub(crate) struct Targets {
    /// The place.
    pub(crate) at: usize,
    /// Bit n: a branch leads to `at - NEAR + n`.
    bits: u64,
}

impl Targets {
    pub(crate) fn new(at: usize) -> Targets {
        Targets { at, bits: 0 }
    }

    pub(crate) fn note(&mut self, bytes: &[u8], from: usize, instruction: &Instruction) {
        if let (Flow::Branch | Flow::Jump, Some(to)) = (instruction.flow, instruction.target(from, bytes)) {
            self.add(to);
        }
    }

    /// Short branches, wherever bytes may be one.
    pub(crate) fn note_possible(&mut self, bytes: &[u8]) {
        let mut now = self.at.saturating_sub(REACH);
        let end = bytes.len().min(self.at + REACH);
        let mut note = |now: usize| {
            if let Some([0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance]) =
                bytes.get(now..).and_then(<[u8]>::first_chunk)
            {
                self.add((now + usize::from(SHORT_LEN)) as isize + isize::from(*distance as i8));
            }
        };
        while let Some(block) = bytes.get(now..end).and_then(<[u8]>::first_chunk) {
            let mut begin = sd_sys::arch::short_branches(block);
            while begin != 0 {
                note(now + begin.trailing_zeros() as usize);
                begin &= begin - 1;
            }
            now += block.len();
        }
        (now..end).for_each(note);
    }

    /// Short branches, by the instructions around: those of a chain up to the place, which have been noted, and what is behind. Where it is not
    /// known what is an instruction, wherever bytes may be one.
    pub(crate) fn note_near(&mut self, bytes: &[u8], chain_from: usize, of_chain: &Targets) {
        self.bits |= of_chain.bits;
        let note_all = |targets: &mut Targets, from: usize, to: usize| {
            for now in from..to {
                let branch = decode(bytes, now).filter(|found| found.len == SHORT_LEN);
                branch.iter().for_each(|found| targets.note(bytes, now, found));
            }
        };
        note_all(self, self.at.saturating_sub(REACH), chain_from);
        let mut now = self.at;
        while now < self.at + REACH {
            let Some(found) = decode(bytes, now).filter(|found| found.is_plausible) else { break };
            self.note(bytes, now, &found);
            now += usize::from(found.len);
        }
        note_all(self, now, self.at + REACH);
    }

    fn add(&mut self, place: isize) {
        if let Ok(bit @ 0..64) = usize::try_from(place + NEAR as isize - self.at as isize) {
            self.bits |= 1 << bit;
        }
    }

    pub(crate) fn has(&self, place: usize) -> bool {
        (place + NEAR).checked_sub(self.at).is_some_and(|bit| bit < 64 && self.bits & 1 << bit != 0)
    }
}

/// Notes where far branches, or what looks like one, lead near these places, which are in order.
pub(crate) fn note_far(bytes: &[u8], places: &mut [Targets]) {
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return };
    let range = first.at.saturating_sub(NEAR)..last.at + NEAR;
    let blocks = Blocks::around(places);
    let mut note = |to: usize| {
        if !(range.contains(&to) & blocks.may_have(to)) {
            return;
        }
        let near = places.partition_point(|place| place.at + NEAR <= to);
        let near = places.get_mut(near..).unwrap_or(&mut []).iter_mut();
        near.take_while(|place| place.at <= to + NEAR).for_each(|place| place.add(to as isize));
    };
    let mut found = Found::default();
    let mut at = 0;
    while let Some([block @ .., _, _, _, _, _, _, _]) =
        bytes.get(at..).and_then(<[u8]>::first_chunk::<{ BLOCK + WORD }>)
    {
        found.add(at, sd_sys::arch::long_branches(block));
        if found.is_nearly_full() {
            found.take(bytes, &mut note);
        }
        at += BLOCK;
    }
    found.take(bytes, &mut note);
    (at..bytes.len()).filter_map(|at| far_target(bytes, at)).for_each(note);
}

/// So many bytes are looked at at once, and so many hold a branch.
const BLOCK: usize = 16;
const WORD: usize = size_of::<u64>();

/// Where branches were found. They are looked at many at once: one in four blocks has some, which no processor foresees.
struct Found {
    places: [usize; Self::MAX],
    count: usize,
}

impl Default for Found {
    fn default() -> Found {
        Found { places: [0; Self::MAX], count: 0 }
    }
}

impl Found {
    const MAX: usize = 64;

    /// Those of a block, as bits. There is room.
    #[inline(always)]
    fn add(&mut self, block: usize, mut begin: u32) {
        // No condition for the first one, or none: it is written in any case.
        self.put(block + begin.trailing_zeros() as usize);
        self.count += usize::from(begin != 0);
        begin &= begin.wrapping_sub(1);
        while begin != 0 {
            self.put(block + begin.trailing_zeros() as usize);
            self.count += 1;
            begin &= begin - 1;
        }
    }

    #[inline(always)]
    fn put(&mut self, at: usize) {
        self.places.get_mut(self.count).into_iter().for_each(|place| *place = at);
    }

    fn is_nearly_full(&self) -> bool {
        self.count > Self::MAX - BLOCK
    }

    /// Where each of them leads. None is left.
    #[inline(always)]
    fn take(&mut self, bytes: &[u8], note: &mut impl FnMut(usize)) {
        for at in self.places.iter().take(self.count) {
            let Some(word) = bytes.get(*at..).and_then(<[u8]>::first_chunk) else { break };
            let word = u64::from_le_bytes(*word);
            // No condition for which of the two kinds it is, either.
            let opcode = 1 + usize::from(word as u8 != JUMP);
            let distance = (word >> (opcode * 8)) as i32;
            note((at + opcode + 4).wrapping_add_signed(distance as isize));
        }
        self.count = 0;
    }
}

/// Which parts of a text may be near a place: most are not. Parts share bits.
struct Blocks([u64; 128]);

impl Blocks {
    const LEN: usize = 64;

    fn around(places: &[Targets]) -> Blocks {
        let mut blocks = Blocks([0; 128]);
        for place in places {
            let parts = place.at.saturating_sub(NEAR) / Self::LEN..=(place.at + NEAR) / Self::LEN;
            parts.for_each(|part| {
                blocks.0.get_mut(part / 64 % 128).into_iter().for_each(|word| *word |= 1 << (part % 64));
            });
        }
        blocks
    }

    fn may_have(&self, at: usize) -> bool {
        let part = at / Self::LEN;
        self.0.get(part / 64 % 128).is_some_and(|word| word >> (part % 64) & 1 != 0)
    }
}

/// `jmp rel32`. Others over a distance of four bytes have two bytes, of which the first is 0f.
const JUMP: u8 = 0xe9;

/// Where the branch over a distance of four bytes leads that begins at a place, if one does.
fn far_target(bytes: &[u8], at: usize) -> Option<usize> {
    let end = match (*bytes.get(at)?, bytes.get(at + 1)?) {
        (JUMP, _) => at + 5,
        (0x0f, 0x80..=0x8f) => at + 6,
        _ => return None,
    };
    let distance = i32::from_le_bytes(*bytes.get(end - 4..)?.first_chunk()?);
    end.checked_add_signed(distance as isize)
}
