//! What tests of whole programs need, once.
//!
//! | module | what |
//! |---|---|
//! | [`product`] | the workspace, what it builds, and how |
//! | [`install`] | Debian packages of the programs that tests drive |
//! | [`scratch`] | private directories; the promise that nothing is left behind |
//! | [`process`] | programs with a time limit, their output in files, and an end that is certain |
//! | [`monitor`] | a monitor of a test's own |
//! | [`lab`] | a private place to run servers and clients in, with the library or without |
//! | [`network`], [`host`] | network namespaces; hosts of ours, each with one and a monitor, joined by a cable |
//! | [`rootfs`], [`kernel`] | root directories of guests and containers; kernels of guests |
//! | [`nginx`], [`postgres`] | servers that several of them use |
//! | [`user`] | servers that refuse to be root |
//! | [`ss`], [`procfs`] | what `sd ss` and `/proc` say |
//! | [`report`] | counts, progress, tables |
//! | [`again`] | tests that fail once are asked for again |
//!
//! Used by `xtask`, `tests/apps`, `tests/packaging` and `tests/suites`. It has no opinion about what is tested.

pub mod again;
pub mod cable;
pub mod debian;
pub mod host;
pub mod install;
pub mod kernel;
pub mod lab;
pub mod monitor;
pub mod network;
pub mod nginx;
pub mod postgres;
pub mod process;
pub mod procfs;
pub mod product;
pub mod refusal;
pub mod report;
pub mod rootfs;
pub mod scratch;
pub mod ss;
pub mod user;

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Any failure, as a sentence for the person who typed the command.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

pub type Result<T> = std::result::Result<T, Error>;

/// Returns an error made from a format string.
#[macro_export]
macro_rules! fail {
    ($($arg:tt)*) => { return Err(format!($($arg)*).into()) };
}

/// The whole of a command's `main`: what it starts and makes is gone when it ends, however it does ([`scratch`]).
pub fn command(name: &str, run: impl FnOnce() -> Result<()>) -> ExitCode {
    let outcome = scratch::guard().and_then(|()| run());
    scratch::clean();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits until something holds; an error that says what, when it does not within `limit`.
pub fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
    retry(limit, || match holds() {
        true => Ok(()),
        false => fail!("waited {limit:?} in vain: {what}"),
    })
}

/// Does something again and again until it succeeds; after `limit` its last error is the error.
pub fn retry<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told() {
        let mut count = 0;
        let third = retry(Duration::from_secs(10), || {
            count += 1;
            if count < 3 { Err("too early".into()) } else { Ok(count) }
        });
        assert_eq!(third.unwrap(), 3);
        let never = until("never", Duration::from_millis(20), || false).unwrap_err();
        assert_eq!(never.to_string(), "waited 20ms in vain: never");
    }
}
