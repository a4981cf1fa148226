//! Names of files below /proc, and what some of them say (proc(5)), without allocation.

/// The digits of a number.
pub fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        (number, at) = (number / 10, at - 1);
        if number == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or(&[])
}

/// A path with a number in it, and at least one zero byte behind. All of it fits, as callers know.
pub fn path<const LEN: usize>(before: &[u8], number: u32, behind: &[u8]) -> [u8; LEN] {
    let (mut path, mut digits) = ([0; LEN], [0; 10]);
    let parts = [before, decimal(number, &mut digits), behind];
    debug_assert!(parts.iter().map(|part| part.len()).sum::<usize>() < LEN);
    let bytes = parts.into_iter().flatten();
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    path
}

/// The name of what is open at a number.
pub fn of_fd(number: i32) -> [u8; 32] {
    path(b"/proc/self/fd/", number.unsigned_abs(), b"")
}

/// A file of a process, such as `/status`.
pub fn of_process(pid: i32, file: &[u8]) -> [u8; 48] {
    path(b"/proc/", pid.unsigned_abs(), file)
}

/// What `/proc/PID/status` says in the line of that name; what was cut off is not there.
pub fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = |line: &'a [u8]| line.strip_prefix(name)?.strip_prefix(b":\t");
    let found = status.split(|byte| *byte == b'\n').find_map(value)?;
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (number, text) in [(0, "0"), (7, "7"), (10, "10"), (4_294_967_295, "4294967295")] {
            assert_eq!(decimal(number, &mut [0; 10]), text.as_bytes());
        }
        assert_eq!(of_fd(1022).strip_suffix(&[0; 14]), Some(&b"/proc/self/fd/1022"[..]));
        assert!(of_process(i32::MAX, b"/ns/user").starts_with(b"/proc/2147483647/ns/user\0"));
    }

    #[test]
    fn fields() {
        let status = b"Name:\tx\nTracerPid:\t12\nSeccomp:\t0\nSeccomp_filters:\t3";
        assert_eq!(field(status, b"TracerPid"), Some(&b"12"[..]));
        assert_eq!(field(status, b"Seccomp"), Some(&b"0"[..]));
        assert_eq!(field(status, b"Pid"), None);
        assert_eq!(field(b"Name:\tx\nSeccomp:\t", b"Seccomp"), None, "cut off");
    }
}
