//! Scripts: a file that begins with `#!` is executed as the interpreter that its first line names (execve(2)).

const MARK: &[u8] = b"#!";
/// So much of a file the kernel reads for it.
pub const LEN: usize = 256;
/// So many files are looked at, scripts and at last a program; the kernel follows no more.
pub const NESTED_MAX: usize = 5;

/// Whether a file that begins so is one.
pub fn is_script(start: &[u8]) -> bool {
    start.starts_with(MARK)
}

/// The path of a script's interpreter, shorter than [`LEN`]. `None`: the line names none.
pub fn interpreter(start: &[u8]) -> Option<&[u8]> {
    let line = start.get(..LEN).unwrap_or(start).strip_prefix(MARK)?.split(|&byte| byte == b'\n').next()?;
    line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_the_first_line() {
        assert_eq!(interpreter(b"#!/bin/sh\n/bin/true"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#! \t/usr/bin/env sh -x\n"), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter(b"#!/bin/sh"), Some(&b"/bin/sh"[..]));
        assert_eq!((interpreter(b"#!\n/bin/sh"), interpreter(b"/bin/sh\n")), (None, None));
        let long = [b"#!", &[b'x'; 2 * LEN][..]].concat();
        assert_eq!(interpreter(&long).map(<[u8]>::len), Some(LEN - 2));
    }
}
