//! Figures for the table that no load generator of others gives.

use super::python;
use harness::lab::{Lab, Side};
use harness::{Result, fail};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_millis(1500);
const TIMES_MIN: u32 = 3;

/// How often a second something can be done, one time after the other.
pub(crate) fn per_second(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut count = 0;
    while count < TIMES_MIN || start.elapsed() < WINDOW {
        once()?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Echoes of 64 bytes a second over twenty connections, or with a connection for each.
pub(crate) fn echoes(lab: &Lab, side: Side, port: u16, kind: &str) -> Result<f64> {
    number(&python::run(lab, side, "rate.py", &[port.to_string(), kind.to_owned()], LIMIT)?)
}

/// A program that prints nothing but a number.
pub(crate) fn number(text: &str) -> Result<f64> {
    match text.trim().parse() {
        Ok(number) => Ok(number),
        Err(_) => fail!("{text:?} is no number"),
    }
}

/// The number behind a mark in a report.
pub(crate) fn behind(text: &str, mark: &str) -> Result<f64> {
    let found = text.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    found.ok_or_else(|| format!("no number behind {mark:?} in {text:?}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        assert_eq!(number(" 12.5\n").unwrap(), 12.5);
        number("none").unwrap_err();
        assert_eq!(behind("a b: avg-latency=7.25 (x)", "avg-latency=").unwrap(), 7.25);
        behind("a", "b").unwrap_err();
    }
}
