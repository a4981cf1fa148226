//! `sd bench`: becomes `sd-bench`, which stands beside this program.

use sd_cli::failure::{Failure, Result};
use sd_cli::program;
use std::ffi::OsString;

const PROGRAM: &str = "sd-bench";

/// Becomes the benchmark, with the arguments after `bench`; returns only when that failed.
pub(crate) fn main() -> Result<()> {
    let program = program::beside(PROGRAM)?;
    if !program.is_file() {
        return Err(Failure::new(format!(
            "sd bench is a program of its own, and there is no {}; install it there",
            program.display()
        )));
    }
    let arguments = std::env::args_os().skip(2);
    let command: Vec<OsString> = std::iter::once(program.into_os_string()).chain(arguments).collect();
    match program::become_program(&command, None)? {}
}
