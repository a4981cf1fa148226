//! Whether the system calls of a Go program come to the library: they are its own, and not libc's (ADR 108).

use super::Check;
use std::os::unix::fs::FileExt;

/// `None` for a program that is not Go's, or whose memory may not be read.
pub(super) fn led(root: &str, maps: &[u8]) -> Option<Check> {
    let name = "system calls";
    Some(match own(&text(root, maps)?)? {
        false => Check::ok(name, "those of Go come to the library"),
        true => Check::warn(
            name,
            "those of Go do not come to the library, so its sockets are the kernel's",
            "build it by Go 1.19 or later; code must be allowed to change before it runs (MemoryDenyWriteExecute, SELinux)",
        ),
    })
}

/// The text of the program, piece by piece.
fn text(root: &str, maps: &[u8]) -> Option<Vec<u8>> {
    const LEN_MAX: usize = 1 << 30;
    let program = std::fs::read_link(format!("{root}/exe")).ok()?;
    let memory = std::fs::File::open(format!("{root}/mem")).ok()?;
    let mut text = Vec::new();
    for line in String::from_utf8_lossy(maps).lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp")) = (words.next(), words.next()) else { continue };
        if words.nth(3).map(std::path::Path::new) != Some(&program) {
            continue;
        }
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).ok());
        let len = end?.checked_sub(start?)?;
        let from = text.len();
        if len > LEN_MAX - from {
            return None;
        }
        text.resize(from + len, 0);
        memory.read_exact_at(&mut text[from..], start? as u64).ok()?;
    }
    Some(text)
}

/// Whether the one instruction for all calls (`Syscall6`) still is the program's; `None` if there is none.
fn own(text: &[u8]) -> Option<bool> {
    const LEN: usize = 8;
    const OWN: [u8; LEN] = [0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05];
    const JUMP: u8 = 0xe9;
    /// `cmp $0xfffffffffffff001,%rax; jbe +21; neg %rax`
    const BEHIND: [u8; 11] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x15, 0x48, 0xf7, 0xd8];
    text.windows(LEN + BEHIND.len()).find_map(|window| {
        let (instruction, behind) = window.split_at(LEN);
        // Over the first five bytes; or, in a program that has a libc in it, over the last ones.
        let is_led =
            matches!(instruction, [JUMP, _, _, _, _, 0xdf, 0x0f, 0x05] | [0x48, 0x89, 0xce, JUMP, ..]);
        let is_one = behind == BEHIND && (instruction == OWN || is_led);
        is_one.then_some(instruction == OWN)
    })
}

#[cfg(test)]
mod tests {
    use super::own;

    #[test]
    fn a_jump_in_its_place_is_seen() {
        let behind = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x15, 0x48, 0xf7, 0xd8];
        let text = |instruction: &[u8]| [&[0xcc; 7][..], instruction, &behind, &[0xcc; 3]].concat();
        assert_eq!(own(&text(&[0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05])), Some(true));
        assert_eq!(own(&text(&[0xe9, 1, 2, 3, 4, 0xdf, 0x0f, 0x05])), Some(false));
        assert_eq!(own(&text(&[0x48, 0x89, 0xce, 0xe9, 1, 2, 3, 4])), Some(false));
        assert_eq!(own(&text(&[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05])), None);
        assert_eq!(own(&behind), None);
    }
}
