//! Connections that carry one byte each way and are closed: one after the other, many at a time, or each to an address
//! that this process has not connected to before.

use super::Report;
use super::clock::{Clock, ticks};
use super::link::{Link, Socket};
use super::socket::{Address, accept, connect_to, stream_socket};
use sd_cli::failure::{Context, Failure, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

const MORE: u8 = b'+';
const LAST: u8 = b'.';

/// Connections that are open at a time.
const BATCH: usize = 64;

/// Connects for a while, at most `count` times; connections per second. The first connection stays open
/// until the driver has seen which path it takes.
pub(crate) fn call(address: &Address, duration: Duration, count: usize) -> Result<Report> {
    measure(address, duration, count, 1, |_| once(address, MORE))
}

/// One connection, at once.
pub(crate) fn visit(address: &Address) -> Result<()> {
    once(address, MORE)
}

/// As [`call`], with batches: all are made and send their byte before the first answer is read.
pub(crate) fn call_batches(address: &Address, duration: Duration, count: usize) -> Result<Report> {
    let mut links = Vec::with_capacity(BATCH);
    measure(address, duration, count, BATCH, |_| {
        for _ in 0..BATCH {
            links.push(begin(address, MORE)?);
        }
        links.drain(..).try_for_each(|link| end(link, MORE).map(drop))
    })
}

/// As [`call`], each time to another loopback address.
pub(crate) fn call_strangers(address: &Address, duration: Duration, count: usize) -> Result<Report> {
    measure(address, duration, count, 1, |number| once(&address.neighbour(number), MORE))
}

fn measure(
    address: &Address,
    duration: Duration,
    count: usize,
    batch: usize,
    mut operation: impl FnMut(u32) -> Result<()>,
) -> Result<Report> {
    let shown = open(address, MORE)?;
    super::wait_for_go()?;
    drop(shown);
    let mut number = 0u32;
    for _ in 0..10 {
        number += 1;
        operation(number)?;
    }
    let clock = Clock::start(duration);
    let mut done = 0usize;
    // At least one, also where this process did not run for so long.
    while done == 0 || (done < count && !clock.is_over(ticks())) {
        number += 1;
        operation(number)?;
        done += batch;
    }
    let elapsed_s = clock.elapsed_ns() / 1e9;
    once(address, LAST)?;
    Ok(Report { value: done as f64 / elapsed_s, count: Some(done as u64), ..Report::default() })
}

#[inline(always)]
fn once(address: &Address, byte: u8) -> Result<()> {
    open(address, byte).map(drop)
}

/// Connects and exchanges the byte.
#[inline(always)]
fn open(address: &Address, byte: u8) -> Result<Socket> {
    end(begin(address, byte)?, byte)
}

/// Connects and sends the byte.
#[inline(always)]
fn begin(address: &Address, byte: u8) -> Result<Socket> {
    let mut link = connect_to(stream_socket(address).context("socket")?, address).context("connect")?;
    link.send(&[byte]).context("send")?;
    Ok(link)
}

/// Receives it again.
#[inline(always)]
fn end(mut link: Socket, byte: u8) -> Result<Socket> {
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
