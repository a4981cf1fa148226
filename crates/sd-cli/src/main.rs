//! `sd`, the command: runs programs over shared memory, and shows and checks what that does.
//!
//! Every error is one line on standard error that begins with `sd:`. Exit statuses: 0 done, 1 failed,
//! 2 wrong usage; `sd run` ends as env(1) does: with the program's own status, 125 when `sd` itself
//! failed, 126 when the program cannot be run, 127 when it is not there.
//!
//! There is no Rust runtime around `main`, because that would make SIGPIPE ignored and open standard
//! descriptors that were closed: `sd run` must hand on to the program exactly what it was given.
#![cfg_attr(not(test), no_main)]

mod absent;
mod bench;
mod demote;
mod detach;
mod doctor;
mod empty;
mod engine;
mod helper;
mod key;
mod manual;
mod monitor;
mod pump;
mod run;
mod ss;
mod starter;
mod top;
mod trace;
mod unregistered;
mod young;

use sd_cli::cli::{self, Command};
use sd_cli::failure::Failure;

/// The C library calls this with the command line, which `std` has noted by then.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    i32::from(sd_cli::failure::exit_status(dispatch()))
}

#[cfg_attr(test, allow(dead_code))]
fn dispatch() -> Result<(), Failure> {
    if let Some(role) = doctor::peer::role() {
        return doctor::peer::main(&role);
    }
    if let Some(user) = helper::user() {
        helper::main(&user);
        return Ok(());
    }
    if empty::is_asked_for() {
        empty::main();
        return Ok(());
    }
    match cli::parse()?.command {
        Command::Run(options) => run::main(&options),
        Command::Monitor(options) => monitor::main(options),
        Command::Pump(options) => pump::main(&options),
        Command::Engine(options) => engine::main(&options),
        Command::Key { what } => key::main(&what),
        Command::Ss(options) => ss::main(&options),
        Command::Top(options) => top::main(&options),
        Command::Trace(options) => trace::main(&options),
        Command::Demote(options) => demote::main(&options),
        Command::Detach(options) => detach::main(&options),
        Command::Attach(options) => detach::attach(&options.pids),
        Command::Doctor(options) => doctor::main(&options),
        Command::Bench(_) => bench::main(),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::man(dir.as_deref()),
    }
}
