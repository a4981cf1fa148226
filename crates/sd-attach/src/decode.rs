//! Instructions of x86-64: how long they are, and where they lead. No more of them is known here.
//!
//! Own code, since a decoder of a library's brings tables of hundreds of kilobytes into every program: this one asks for lengths only.
//! Nothing here is unsafe. `tests/decode.rs` compares it with what a disassembler says of whole programs.

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// In bytes.
    pub len: u8,
    /// What it does to the way that a program takes.
    pub flow: Flow,
    /// Where in it a distance from its end stands, of so many bytes: of a branch, or of an operand in memory.
    pub distance: Option<Distance>,
    /// Whether it changes rax, as far as that is seen here.
    pub sets_rax: bool,
    /// What it writes to eax, if that stands in it.
    pub number: Option<u32>,
    /// Compilers make it.
    pub is_plausible: bool,
}

/// See [`Instruction::flow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// On to the next one.
    On,
    /// `syscall`.
    Syscall,
    /// Somewhere else, or on.
    Branch,
    /// Somewhere else.
    Jump,
    /// Somewhere else, and back.
    Call,
    /// Nothing comes behind it.
    End,
}

/// See [`Instruction::distance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Distance {
    /// From the instruction's first byte.
    pub at: u8,
    /// One byte, or four.
    pub len: u8,
}

impl Instruction {
    /// Where its distance leads, the instruction being at `at` of the bytes: counted as that is, and perhaps before them.
    pub fn target(&self, at: usize, bytes: &[u8]) -> Option<isize> {
        let distance = self.distance?;
        let place = at + usize::from(distance.at);
        let value = match distance.len {
            1 => isize::from(*bytes.get(place)? as i8),
            _ => i32::from_le_bytes(*bytes.get(place..)?.first_chunk()?) as isize,
        };
        Some((at + usize::from(self.len)) as isize + value)
    }
}

/// The longest one.
const LEN_MAX: usize = 15;

/// The instruction that begins at a place. `None`: there is none, or not all of it.
pub fn decode(bytes: &[u8], at: usize) -> Option<Instruction> {
    let code = bytes.get(at..)?;
    let mut reader = Reader { code: code.get(..LEN_MAX).unwrap_or(code), at: 0 };
    let mut prefixes = Prefixes::default();
    let mut opcode = reader.byte()?;
    loop {
        match opcode {
            0x66 => prefixes.is_short = true,
            0x67 => prefixes.has_other_address = true,
            0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => {}
            _ => break,
        }
        opcode = reader.byte()?;
    }
    if opcode & 0xf0 == 0x40 {
        prefixes.rex = opcode;
        opcode = reader.byte()?;
    }
    let instruction = match opcode {
        0x0f => two_bytes(&mut reader)?,
        0xc4 | 0xc5 | 0x62 => vector(&mut reader, opcode)?,
        _ => one_byte(&mut reader, opcode, prefixes)?,
    };
    // Linkers make such a call of one by way of an address in memory, which is a byte longer.
    let is_relaxed = opcode == 0xe8;
    Some(Instruction {
        len: u8::try_from(reader.at).ok()?,
        is_plausible: instruction.is_plausible && (!prefixes.has_other_address || is_relaxed),
        ..instruction
    })
}

#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// Operands of two bytes.
    is_short: bool,
    has_other_address: bool,
    rex: u8,
}

impl Prefixes {
    fn is_long(self) -> bool {
        self.rex & 8 != 0
    }
}

struct Reader<'a> {
    code: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.code.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.code.get(self.at..self.at + len)?;
        self.at += len;
        Some(())
    }

    fn number(&self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.code.get(self.at..)?.first_chunk()?))
    }

    /// The operands that a byte of the form `mod reg rm` says: the byte, and where a distance stands.
    fn operands(&mut self) -> Option<(u8, Option<Distance>)> {
        let operands = self.byte()?;
        let (kind, memory) = (operands >> 6, operands & 7);
        if kind == 3 {
            return Some((operands, None));
        }
        let base = if memory == 4 { self.byte()? & 7 } else { memory };
        let from_here = kind == 0 && memory == 5;
        let distance = from_here.then_some(Distance { at: self.at as u8, len: 4 });
        match kind {
            0 if base == 5 => self.skip(4)?,
            1 => self.skip(1)?,
            2 => self.skip(4)?,
            _ => {}
        }
        Some((operands, distance))
    }
}

const PLAIN: Instruction =
    Instruction { len: 0, flow: Flow::On, distance: None, sets_rax: false, number: None, is_plausible: true };
const ODD: Instruction = Instruction { is_plausible: false, ..PLAIN };

fn branch(reader: &mut Reader, flow: Flow, len: u8) -> Option<Instruction> {
    let distance = Some(Distance { at: reader.at as u8, len });
    reader.skip(usize::from(len))?;
    Some(Instruction { flow, distance, sets_rax: flow == Flow::Call, ..PLAIN })
}

/// Those of one byte and operands.
#[inline(always)]
fn one_byte(reader: &mut Reader, opcode: u8, prefixes: Prefixes) -> Option<Instruction> {
    let wide = if prefixes.is_short { 2 } else { 4 };
    let plain = |reader: &mut Reader, skipped: usize| reader.skip(skipped).map(|()| PLAIN);
    match opcode {
        // Arithmetic: six forms of each.
        0x00..=0x3f => match opcode & 7 {
            0..=3 => with_operands(reader, opcode, prefixes, 0),
            4 => plain(reader, 1),
            5 => plain(reader, wide),
            _ => None,
        },
        0x50..=0x5f => Some(Instruction { sets_rax: opcode == 0x58, ..PLAIN }),
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf => with_operands(reader, opcode, prefixes, 0),
        0x68 | 0xa9 => plain(reader, wide),
        0x69 | 0x81 | 0xc7 => with_operands(reader, opcode, prefixes, wide),
        0x6a | 0xa8 | 0xb0..=0xb7 => {
            plain(reader, 1).map(|plain| Instruction { sets_rax: opcode == 0xb0, ..plain })
        }
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => with_operands(reader, opcode, prefixes, 1),
        0x70..=0x7f => branch(reader, Flow::Branch, 1),
        0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf | 0xc9 | 0xfc | 0xfd => Some(PLAIN),
        0xb8..=0xbf => {
            let number = if opcode == 0xb8 && prefixes.rex & 1 == 0 { reader.number() } else { None };
            let len = if prefixes.is_long() { 8 } else { wide };
            reader.skip(len)?;
            let number = number.filter(|_| len == 4);
            Some(Instruction { sets_rax: opcode == 0xb8, number, ..PLAIN })
        }
        0xc2 => reader.skip(2).map(|()| Instruction { flow: Flow::End, ..PLAIN }),
        0xc3 | 0xcc | 0xf4 => Some(Instruction { flow: Flow::End, ..PLAIN }),
        0xe8 => branch(reader, Flow::Call, 4),
        0xe9 => branch(reader, Flow::Jump, 4),
        0xeb => branch(reader, Flow::Jump, 1),
        0xf6 | 0xf7 => {
            let has_value = reader.code.get(reader.at)? & 0x38 < 0x10;
            let len = if opcode == 0xf6 { 1 } else { wide };
            with_operands(reader, opcode, prefixes, if has_value { len } else { 0 })
        }
        0xfe | 0xff => with_operands(reader, opcode, prefixes, 0),
        0xe0..=0xe3 => branch(reader, Flow::Branch, 1).map(odd),
        // As Go's assembler writes `int3`.
        0xcd if reader.code.get(reader.at) == Some(&3) => {
            reader.skip(1).map(|()| Instruction { flow: Flow::End, ..PLAIN })
        }
        0x6c..=0x6f | 0xca..=0xcf | 0xd7 | 0xec..=0xef | 0xf1 | 0xf5 | 0xf8..=0xfb => {
            reader.skip(match opcode {
                0xca => 2,
                0xcd => 1,
                _ => 0,
            })?;
            Some(ODD)
        }
        0xa0..=0xa3 => reader.skip(8).map(|()| ODD),
        0xc8 => reader.skip(3).map(|()| ODD),
        0xe4..=0xe7 => reader.skip(1).map(|()| ODD),
        _ => None,
    }
}

fn odd(instruction: Instruction) -> Instruction {
    Instruction { is_plausible: false, ..instruction }
}

/// One that has operands, and `value` bytes behind.
fn with_operands(reader: &mut Reader, opcode: u8, prefixes: Prefixes, value: usize) -> Option<Instruction> {
    let (operands, distance) = reader.operands()?;
    let number = if opcode == 0xc7 && operands == 0xc0 && value == 4 { reader.number() } else { None };
    reader.skip(value)?;
    let (register, is_register) = (operands >> 3 & 7, operands >> 6 == 3);
    let to_rax = match opcode {
        // To the register that `reg` says, or `rm`.
        0x03 | 0x13 | 0x1b | 0x23 | 0x2b | 0x33 | 0x63 | 0x69 | 0x6b | 0x8b | 0x8a | 0x8d => {
            register == 0 && prefixes.rex & 4 == 0
        }
        0x01 | 0x09 | 0x11 | 0x19 | 0x21 | 0x29 | 0x31 | 0x81 | 0x83 | 0x89 | 0xc7 => {
            is_register && operands & 7 == 0 && prefixes.rex & 1 == 0
        }
        _ => false,
    };
    let flow = match (opcode, register) {
        (0xff, 2 | 3) => Flow::Call,
        (0xff, 4 | 5) => Flow::Jump,
        _ => Flow::On,
    };
    let is_there = match opcode {
        0xfe => register < 2,
        0xff => register < 7,
        0x8f => register == 0,
        0xc6 | 0xc7 => register == 0,
        _ => true,
    };
    // Bytes of zero are `add %al,(%rax)`.
    let is_plausible =
        is_there && (opcode != 0 || is_register) && !matches!((opcode, register), (0xff, 3 | 5));
    Some(Instruction {
        flow,
        distance,
        sets_rax: to_rax || flow == Flow::Call,
        number: number.filter(|_| prefixes.rex & 1 == 0),
        is_plausible,
        ..PLAIN
    })
}

/// Those that begin with 0f.
#[inline(always)]
fn two_bytes(reader: &mut Reader) -> Option<Instruction> {
    let opcode = reader.byte()?;
    match opcode {
        0x05 => Some(Instruction { flow: Flow::Syscall, sets_rax: true, ..PLAIN }),
        0x0b => Some(Instruction { flow: Flow::End, ..PLAIN }),
        0x31 | 0x77 | 0xa2 | 0xc8..=0xcf => Some(PLAIN),
        0x80..=0x8f => branch(reader, Flow::Branch, 4),
        0x38 | 0x3a => {
            reader.byte()?;
            let (_, distance) = reader.operands()?;
            reader.skip(usize::from(opcode == 0x3a))?;
            Some(Instruction { distance, ..PLAIN })
        }
        0x06..=0x09 | 0x0e | 0x30 | 0x32..=0x37 | 0xa0 | 0xa1 | 0xa8..=0xaa => Some(ODD),
        0x04 | 0x0a | 0x0c | 0x0f | 0x24..=0x27 | 0x39 | 0x3b..=0x3f | 0x7a | 0x7b | 0xa6 | 0xa7 => None,
        _ => {
            let (operands, distance) = reader.operands()?;
            reader.skip(usize::from(has_value(opcode)))?;
            // movzx, movsx, cmov
            let to_register = matches!(opcode, 0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf);
            let is_plausible =
                !matches!(opcode, 0x00 | 0x02 | 0x03 | 0x20..=0x23 | 0xb2 | 0xb4 | 0xb5 | 0xff);
            let sets_rax = to_register && operands >> 3 & 7 == 0;
            Some(Instruction { distance, sets_rax, is_plausible, ..PLAIN })
        }
    }
}

/// Whether one that begins with 0f, or is of the vectors' first map, has a byte behind its operands.
fn has_value(opcode: u8) -> bool {
    matches!(opcode, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6)
}

/// Those with a prefix of two (c5), three (c4) or four (62) bytes.
fn vector(reader: &mut Reader, prefix: u8) -> Option<Instruction> {
    let first = reader.byte()?;
    let map = match prefix {
        0xc5 => 1,
        0xc4 => first & 0x1f,
        _ => first & 7,
    };
    reader.skip(match prefix {
        0xc5 => 0,
        0xc4 => 1,
        _ => 2,
    })?;
    let opcode = reader.byte()?;
    if map == 1 && opcode == 0x77 && prefix != 0x62 {
        return Some(PLAIN);
    }
    let (_, distance) = reader.operands()?;
    let value = match map {
        1 => usize::from(has_value(opcode)),
        2 | 5 | 6 => 0,
        3 => 1,
        _ => return None,
    };
    reader.skip(value)?;
    Some(Instruction { distance, ..PLAIN })
}
