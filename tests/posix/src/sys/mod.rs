//! Thin safe wrappers of libc's calls, and the printing of their results.
//!
//! Each wrapper makes exactly one libc call through the dynamic symbol table, so that a preloaded hook sees it, and
//! returns the raw value with the errno of that call. Nothing is retried and nothing is hidden.

mod addr;
mod descriptor;
pub(crate) mod glibc;
mod io;
mod lacking;
mod names;
pub(crate) mod old_calls;
mod process;
mod ready;
mod rest;
mod socket;

pub(crate) use addr::*;
pub(crate) use descriptor::*;
pub(crate) use io::*;
pub(crate) use lacking::*;
pub(crate) use names::*;
pub(crate) use process::*;
pub(crate) use ready::*;
pub(crate) use rest::*;
pub(crate) use socket::*;

use std::fmt;

/// What a call returned, and errno if it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ret {
    pub(crate) value: i64,
    pub(crate) errno: i32,
}

impl Ret {
    pub(crate) fn of(value: i64) -> Ret {
        Ret { value, errno: if value == -1 { errno() } else { 0 } }
    }

    pub(crate) fn ok(self) -> bool {
        self.value >= 0
    }

    pub(crate) fn fd(self) -> i32 {
        self.value as i32
    }

    /// The number of bytes moved; zero for an error.
    pub(crate) fn count(self) -> usize {
        usize::try_from(self.value).unwrap_or(0)
    }
}

impl fmt::Display for Ret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            -1 => write!(f, "-1 {}", errno_name(self.errno)),
            value => write!(f, "{value}"),
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Writes one line to standard output in one call; usable in a signal handler.
pub(crate) fn out(line: &str) {
    let mut bytes = [0u8; 4096];
    let length = line.len().min(bytes.len() - 1);
    bytes[..length].copy_from_slice(&line.as_bytes()[..length]);
    bytes[length] = b'\n';
    let _ = write(1, &bytes[..=length]);
}

/// Prints `label = result`.
pub(crate) fn show(label: &str, result: Ret) -> Ret {
    say!("{label} = {result}");
    result
}

/// Prints `label = fd` for a new descriptor, whose number is nobody's business, or the error.
pub(crate) fn show_fd(label: &str, result: Ret) -> i32 {
    match result.ok() {
        true => say!("{label} = fd"),
        false => say!("{label} = {result}"),
    }
    result.fd()
}

/// Prints the number of bytes that a call put in `buffer`, and those bytes.
pub(crate) fn show_bytes(label: &str, result: Ret, buffer: &[u8]) -> Ret {
    match result.value > 0 {
        true => say!("{label} = {result} {}", text(&buffer[..result.count().min(buffer.len())])),
        false => say!("{label} = {result}"),
    }
    result
}

/// Bytes as a quoted string, cut after 60.
pub(crate) fn text(bytes: &[u8]) -> String {
    match bytes.len() > 60 {
        true => format!("\"{}...\"", bytes[..60].escape_ascii()),
        false => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// Ends the subject because it could not be set up.
pub(crate) fn give_up(why: &str) -> ! {
    say!("GIVE UP: {why}");
    exit_now(3)
}
