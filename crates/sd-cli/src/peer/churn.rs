//! Connections that carry one byte each way and are closed.

use super::Report;
use super::clock::{Clock, ticks};
use super::link::{Link, Socket};
use super::socket::{Address, accept, connect_to, stream_socket};
use crate::failure::{Context, Failure, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

const MORE: u8 = b'+';
const LAST: u8 = b'.';

/// Connects for a while, at most `count` times; connections per second. The first connection stays open
/// until the driver has seen which path it takes.
pub(crate) fn call(address: &Address, duration: Duration, count: usize) -> Result<Report> {
    let shown = open(address, MORE)?;
    super::wait_for_go()?;
    drop(shown);
    for _ in 0..10 {
        once(address, MORE)?;
    }
    let clock = Clock::start(duration);
    let mut done = 0usize;
    // At least one, also where this process did not run for so long.
    while done == 0 || (done < count && !clock.is_over(ticks())) {
        once(address, MORE)?;
        done += 1;
    }
    let elapsed_s = clock.elapsed_ns() / 1e9;
    once(address, LAST)?;
    Ok(Report { value: done as f64 / elapsed_s, ..Report::default() })
}

#[inline(always)]
fn once(address: &Address, byte: u8) -> Result<()> {
    open(address, byte).map(drop)
}

/// Connects and exchanges the byte.
#[inline(always)]
fn open(address: &Address, byte: u8) -> Result<Socket> {
    let mut link = connect_to(stream_socket(address).context("socket")?, address).context("connect")?;
    link.send(&[byte]).context("send")?;
    let mut answer = [0u8];
    match link.recv(&mut answer).context("recv")? {
        1 if answer == [byte] => Ok(link),
        _ => Err(Failure::new("the peer is gone")),
    }
}

/// Answers until the last one.
pub(crate) fn serve(listener: &OwnedFd) -> Result<()> {
    loop {
        let mut link: Socket = accept(listener)?;
        let mut byte = [0u8];
        if link.recv(&mut byte).context("recv")? == 1 {
            link.send(&byte).context("send")?;
        }
        if byte == [LAST] {
            return Ok(());
        }
    }
}
