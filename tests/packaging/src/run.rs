//! Tools that say what is wanted, or fail.

use harness::{Result, fail};
use std::process::{Command, Stdio};

/// What a command says; it must end well.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        fail!("{:?} failed: {} {}", command.get_program(), said.trim(), errors.trim());
    }
    Ok(said)
}
