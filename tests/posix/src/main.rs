//! The POSIX oracle suite: small programs ("subjects") that print what the socket API does to them.
//!
//! A subject prints returns, errno names, events, bytes, order and signals, and nothing that may vary between two
//! correct runs (no time, pid, port or hidden fd number). `cargo xtask posix` runs each subject on the kernel and on
//! SocksDirect; the two transcripts must be equal.
//!
//! Guarantee: on a plain kernel a subject prints the same bytes each time, and never hangs: a watchdog prints
//! `TIMEOUT` after ten seconds. How it is tested: `cargo xtask posix --mode kernel --repeat 20`.
//!
//! A solo subject holds client and server in one process. A pair subject is two processes, each of which can be
//! started through a prefix (`SD_POSIX_SERVER_PREFIX`, `SD_POSIX_CLIENT_PREFIX`), so that either side can be
//! accelerated alone. See `driver.rs`.

#[macro_use]
mod macros;

mod bulk;
mod driver;
mod helper;
mod role;
mod setup;
mod subjects;
mod sys;
mod table;

use std::process::ExitCode;

const USAGE: &str = "usage: sd-posix list [--kinds] | run NAME | role NAME server|client | helper WHAT ARGS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sys::read_pace();
    match words.as_slice() {
        ["list"] => list(false),
        ["list", "--kinds"] => list(true),
        ["run", name] => driver::run(name),
        ["role", name, side] => driver::role(name, side),
        ["helper", what, rest @ ..] => helper::run(what, rest),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn list(kinds: bool) -> ExitCode {
    for subject in table::subjects() {
        match kinds {
            true => say!("{} {}", subject.name, subject.kind.word()),
            false => say!("{}", subject.name),
        }
    }
    ExitCode::SUCCESS
}
