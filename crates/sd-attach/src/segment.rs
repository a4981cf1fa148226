//! Whether a program uses the register GS, which would be the library's in it: emulators of other processors do (QEMU's for single programs).
//!
//! | what | bytes |
//! |---|---|
//! | arch_prctl(2) with ARCH_SET_GS, by libc's function | `mov $0x1001,%edi`, and soon a call of a function that begins with the call of the kernel |
//! | by syscall(2) | `mov $0x1001,%esi` beside `mov $158,%edi` |
//! | `wrgsbase` | `f3 0f ae`, with or without a prefix between, and a register |
//!
//! What is not found so, and calls arch_prctl(2), gets EPERM (`sd-preload`'s `sites/enter.rs`). Nothing here is unsafe.

use crate::decode::{Flow, decode};
use crate::sites::next_of;

/// ARCH_SET_GS, and as it stands behind the first byte of an instruction.
pub const ARCH_SET_GS: u32 = 0x1001;
const NUMBER: [u8; 4] = ARCH_SET_GS.to_le_bytes();
const ARCH_PRCTL: u8 = libc::SYS_arch_prctl as u8;
/// `mov $158,%edi`
const TO_SYSCALL: [u8; 5] = [0xbf, ARCH_PRCTL, 0, 0, 0];
/// `mov $158,%eax; syscall`, perhaps behind `endbr64`.
const CALLS_KERNEL: [u8; 7] = [0xb8, ARCH_PRCTL, 0, 0, 0, 0x0f, 0x05];
const BEGINS: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Of `wrgsbase`.
const OPCODE: [u8; 2] = [0x0f, 0xae];
/// A function's other argument is set between, and one that is set before.
const NEAR: usize = 24;

/// Where that is in a text, if it is.
pub(crate) fn takes_gs(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = next_of([[NUMBER[0], NUMBER[1]], OPCODE], text, from)?;
        from = at + 1;
        let before = text.get(at.saturating_sub(2)..at)?;
        let is_it = match text.get(at..at + NUMBER.len())? {
            bytes if bytes == NUMBER => match before {
                [.., 0xbf] => calls_function(text, at + NUMBER.len()),
                [.., 0xbe] => near(text, at).windows(TO_SYSCALL.len()).any(|bytes| bytes == TO_SYSCALL),
                _ => false,
            },
            [0x0f, 0xae, 0xd8..=0xdf, _] => matches!(before, [.., 0xf3] | [0xf3, 0x40..=0x4f]),
            _ => false,
        };
        if is_it {
            return Some(at);
        }
    }
}

fn near(text: &[u8], at: usize) -> &[u8] {
    text.get(at.saturating_sub(NEAR)..text.len().min(at + NEAR)).unwrap_or(&[])
}

/// Whether the first call from a place on is one of that function.
fn calls_function(text: &[u8], from: usize) -> bool {
    let mut at = from;
    while at < from + NEAR {
        let Some(found) = decode(text, at) else { return false };
        match (found.flow, found.target(at, text)) {
            (Flow::On, _) => at += usize::from(found.len),
            (Flow::Call | Flow::Jump, Some(to)) => {
                let function = usize::try_from(to).ok().and_then(|to| text.get(to..)).unwrap_or(&[]);
                return function.strip_prefix(&BEGINS).unwrap_or(function).starts_with(&CALLS_KERNEL);
            }
            _ => return false,
        }
    }
    false
}
