//! A program that gets sockets of ours with an environment that was made anew (nginx's next binary, `env -i`).
//!
//! Servers clear the environment, so LD_PRELOAD gets lost by accident. For this one exec it is put back, with the place
//! of the monitor; the start of the library in the new image takes both away again, so that the program sees
//! the environment it was given. Who takes away LD_PRELOAD alone, or names other libraries there, means it.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

type Environment = *const *const c_char;

const NAMES: [&[u8]; 2] = [b"LD_PRELOAD", b"SD_MONITOR"];

/// Neither variable is there.
pub(super) fn is_clear(environment: Environment) -> bool {
    NAMES.iter().all(|name| crate::process::env::get(environment, name).is_none())
}

/// An environment with both variables.
pub(super) struct Completed {
    entries: Vec<*const c_char>,
    /// What the last entries point to.
    _added: [Vec<u8>; 2],
}

impl Completed {
    /// # Safety
    /// `environment` is null or a null-terminated array of C strings, which outlive this.
    pub(super) unsafe fn of(environment: Environment) -> Option<Completed> {
        let mut path = [0; 108];
        let values = [super::target::own_path()?, crate::process::env::monitor_path(&mut path)?.0];
        let [(first, library), (second, monitor)] = [(NAMES[0], values[0]), (NAMES[1], values[1])];
        let added = [[first, b"=", library, b"\0"].concat(), [second, b"=", monitor, b"\0"].concat()];
        let mut entries = Vec::new();
        let mut at = environment;
        // SAFETY: by contract.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                entries.push(*at);
                at = at.add(1);
            }
        }
        entries.extend(added.iter().map(|entry| entry.as_ptr().cast::<c_char>()));
        entries.push(core::ptr::null());
        Some(Completed { entries, _added: added })
    }

    pub(super) fn as_ptr(&self) -> Environment {
        self.entries.as_ptr()
    }
}

/// In the new image: the environment as it was given.
///
/// # Safety
/// `environment` is the null-terminated array that the kernel made, which nobody reads meanwhile.
pub(super) unsafe fn take_away(environment: Environment) {
    let mut from = environment.cast_mut();
    let mut to = from;
    // SAFETY: by contract; `to` does not overtake `from`.
    unsafe {
        while !(*from).is_null() {
            let entry = CStr::from_ptr(*from).to_bytes();
            let is_ours =
                NAMES.iter().any(|name| entry.strip_prefix(*name).is_some_and(|rest| rest.starts_with(b"=")));
            if !is_ours {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_taken_away() {
        let mut given =
            [c"A=1", c"LD_PRELOAD=x", c"LD_PRELOADS=2", c"SD_MONITOR=y", c"B=3"].map(CStr::as_ptr).to_vec();
        given.push(core::ptr::null());
        assert!(!is_clear(given.as_ptr()));
        // SAFETY: as it is wanted.
        unsafe { take_away(given.as_ptr()) };
        // SAFETY: the literals.
        let left: Vec<_> =
            given.iter().take_while(|e| !e.is_null()).map(|&e| unsafe { CStr::from_ptr(e) }).collect();
        assert_eq!(left, [c"A=1", c"LD_PRELOADS=2", c"B=3"]);
        assert!(is_clear(given.as_ptr()));
    }
}
