//! The one way in which a command fails: a sentence and an exit status.

use std::fmt::Display;
use std::io::Write;

/// Result of anything that can end a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why the command ends, in one line.
#[derive(Debug)]
pub struct Failure {
    pub text: String,
    pub status: u8,
}

impl Failure {
    /// A failure with status 1.
    pub fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), status: 1 }
    }

    /// The same with another exit status.
    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    /// Prints the line. A reader of standard output who has gone away needs no explanation.
    pub fn report(&self) {
        if !self.text.is_empty() {
            warn(&self.text);
        }
    }
}

/// The exit status of a command that ended so, after its line has been printed.
pub fn exit_status(outcome: Result<()>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            failure.report();
            failure.status
        }
    }
}

/// Prints one line on standard error, whatever the text contains.
pub fn warn(text: &str) {
    let line = printable(text);
    // Nothing can be done when standard error is closed.
    let _ = writeln!(std::io::stderr(), "sd: {}", line.trim_end());
}

/// Replaces control characters, so that a name chosen by somebody else cannot steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Adds what was being done to an error.
pub trait Context<T> {
    /// `what: error`.
    fn context(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Failure::new(format!("{what}: {error}")))
    }
}

/// The calling thread's errno as an error.
pub fn last_os_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// A raw call's error in words.
pub fn os_error(error: sd_sys::Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.0)
}

/// Writes all of `text` to standard output; a closed pipe ends the command quietly.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::new("")),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc"), "a [31mb c");
    }
}
