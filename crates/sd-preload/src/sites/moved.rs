//! What a window (`sd_attach::windows`) becomes, in bytes.
//!
//! ```text
//! text     jmp island                 over the window's first five bytes
//! island   what was before it         at another place: its distances are changed
//!          lea after(%rip),%rcx       the instruction would change rcx, too
//!          jmp *entry
//! thread:  syscall                    for what begins a thread
//!          test %eax,%eax; jne back
//!          mov block(%rip),%rcx; wrgsbase %rcx      of a thread that has none
//!          jmp back
//! after:   syscall                    for calls that are the kernel's; others go on behind it
//! back:    what was behind it
//!          jmp text                   behind the window
//! ```
//!
//! Where the instruction stays in the text, behind the window, that is all, as for Go's (`island`):
//!
//! ```text
//! text     jmp island                 over `mov $number,%eax`
//!          syscall                    for calls that are the kernel's; others go on behind it
//! island   mov $number,%eax
//!          lea text(%rip),%rcx
//!          jmp *entry
//! ```
//!
//! Nothing here is unsafe. Tested by `tests/moved.rs`, which runs some.

use super::island::{Code, JUMP_LEN, jump};
use sd_attach::decode::{Flow, decode};
use sd_attach::windows::{WINDOW_MAX, Window};
use sd_sys::arch::THREAD_LEN;

/// Of one window, at most.
pub(super) const PLACE_LEN: usize = 80;
/// The words that all islands of a program share stand before them: the entry, the block of a thread that has none, and the entry for what is Go's.
pub(super) type Words = [usize; 3];
pub(super) const WORDS_LEN: usize = size_of::<Words>();
const _: () = assert!(PLACE_LEN >= WINDOW_MAX + 4 + 13 + THREAD_LEN as usize + JUMP_LEN);

/// The island of a window whose text begins at `text`, which will be at `island`, where `words` are: where the instruction is, in the island or in the text.
/// `None` if they are too far apart. `is_gos`: a goroutine makes the call.
pub(super) fn build(
    place: &mut [u8; PLACE_LEN],
    island: usize,
    window: Window,
    (text, bytes): (usize, &[u8]),
    words: usize,
    is_gos: bool,
) -> Option<usize> {
    let start = window.at as usize;
    let instruction = start + usize::from(window.instruction_at);
    let end = start + usize::from(window.len);
    let mut code = Code::new(place);
    move_all(&mut code, island, (text, bytes), start..instruction)?;
    let entry = if is_gos { words + 2 * size_of::<usize>() } else { words };
    if instruction == end {
        // lea text(%rip),%rcx; jmp *entry(%rip)
        code.put(&[0x48, 0x8d, 0x0d])?;
        put_distance(&mut code, island, text + instruction)?;
        code.put(&[0xff, 0x25])?;
        return put_distance(&mut code, island, entry).map(|()| text + instruction);
    }
    // lea (6 + THREAD_LEN)(%rip),%rcx; jmp *entry(%rip)
    code.put(&[0x48, 0x8d, 0x0d])?;
    code.put(&(6 + THREAD_LEN).to_le_bytes())?;
    code.put(&[0xff, 0x25])?;
    put_distance(&mut code, island, entry)?;
    // syscall; test %eax,%eax; jne back
    code.put(&[0x0f, 0x05, 0x85, 0xc0, 0x75, 16])?;
    code.put(&[0x48, 0x8b, 0x0d])?;
    put_distance(&mut code, island, words + size_of::<usize>())?;
    // wrgsbase %rcx; jmp back; syscall
    code.put(&[0xf3, 0x48, 0x0f, 0xae, 0xd9, 0xeb, 2, 0x0f, 0x05])?;
    let place = island + code.len() - 2;
    move_all(&mut code, island, (text, bytes), instruction + 2..end)?;
    code.put(&jump(island + code.len(), text + end)?).map(|()| place)
}

/// The instructions of a part of the text.
fn move_all(
    code: &mut Code,
    island: usize,
    (text, bytes): (usize, &[u8]),
    part: core::ops::Range<usize>,
) -> Option<()> {
    let mut at = part.start;
    while at < part.end {
        let found = decode(bytes, at)?;
        let own = bytes.get(at..at + usize::from(found.len))?;
        match found.distance {
            None => code.put(own)?,
            Some(distance) => {
                let to = text.checked_add_signed(found.target(at, bytes)?)?;
                let before = own.get(..usize::from(distance.at))?;
                match *before {
                    [.., 0x0f, condition @ 0x80..=0x8f] => code.put(&[0x0f, condition])?,
                    [.., condition @ 0x70..=0x7f] => code.put(&[0x0f, condition + 0x10])?,
                    [.., 0xeb] => code.put(&[0xe9])?,
                    [.., opcode @ (0xe8 | 0xe9)] => code.put(&[opcode])?,
                    // An operand in memory, and perhaps a value behind: the distance is from the instruction's end.
                    _ => {
                        let behind = own.get(usize::from(distance.at) + 4..)?;
                        code.put(before)?;
                        let next = island + code.len() + 4 + behind.len();
                        code.put(&i32::try_from(to as i64 - next as i64).ok()?.to_le_bytes())?;
                        code.put(behind)?;
                        at += usize::from(found.len);
                        continue;
                    }
                }
                put_distance(code, island, to)?;
            }
        }
        let is_last = at + usize::from(found.len) == part.end;
        (found.flow == Flow::On || is_last).then_some(())?;
        at += usize::from(found.len);
    }
    (at == part.end).then_some(())
}

/// Four bytes: how far it is from behind them.
fn put_distance(code: &mut Code, island: usize, to: usize) -> Option<()> {
    let next = island + code.len() + 4;
    code.put(&i32::try_from(to as i64 - next as i64).ok()?.to_le_bytes())
}
