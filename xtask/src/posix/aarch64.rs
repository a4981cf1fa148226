//! The subjects as a program for aarch64, with the library for it (`cargo xtask posix --aarch64`): run by qemu's emulator of a user's programs, over
//! this machine's kernel and beside this machine's monitor.
//!
//! It shows that the port runs. It says nothing of weak memory, as the emulator gives programs the order of the processor below it; and nothing
//! of what the emulator does not pass on (sock_diag, io_uring, ptrace, exec of a program of its kind).

use super::suite::Suite;
use crate::port;
use harness::Result;

/// The program; `None` where it cannot be built or run.
pub(super) fn build() -> Result<Option<Suite>> {
    let Some(folder) = port::build_for_emulator(&["sd-preload", "sd-posix"])? else { return Ok(None) };
    let emulator = port::EMULATOR.map(str::to_owned).to_vec();
    let library = format!("LD_PRELOAD={}", folder.join("libsd.so").display());
    let accelerated = emulator.iter().cloned().chain(["-E".to_owned(), library]).collect();
    Ok(Some(Suite::emulated(folder.join("sd-posix"), emulator, accelerated)))
}
