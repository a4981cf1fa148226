//! `sd-bench`: what `sd bench` becomes. Every figure beside the kernel's and beside the raw limit, from the same run.
//!
//! It stands beside `sd`, which reads the same command line first. It starts its monitor with that `sd`, and finds the
//! library as that does.
//!
//! There is no Rust runtime around `main`: both sides of a measurement are this program too, and are to be what a program
//! of C would be, with SIGPIPE and the standard descriptors as they were given.
#![cfg_attr(not(test), no_main)]

mod driver;
mod peer;

use sd_cli::cli::{self, Command};
use sd_cli::failure::{Failure, Result};
use std::ffi::OsString;

/// The C library calls this with the command line, which `std` has noted by then.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    i32::from(sd_cli::failure::exit_status(dispatch()))
}

#[cfg_attr(test, allow(dead_code))]
fn dispatch() -> Result<()> {
    if let Some(arguments) = peer::arguments() {
        return peer::main(&arguments);
    }
    let arguments = ["sd", "bench"].into_iter().map(OsString::from).chain(std::env::args_os().skip(1));
    match cli::parse_from(arguments)?.command {
        Command::Bench(options) => driver::main(&options),
        _ => Err(Failure::new("only sd bench is here").with_status(2)),
    }
}
