//! What a single call costs when there is nothing to wait for.
//!
//! ```text
//! client: send x 32, timed --one byte on the control connection--> server
//! server: recv x 32, timed --one byte on the control connection--> client
//! ```
//! While one side is timed the other sleeps on the control connection, so the calls find room, or data, at
//! once, and nobody else touches their memory.

use super::Report;
use super::clock::{Clock, ticks};
use super::link::{Link, Socket};
use super::work::{histogram, in_nanoseconds};
use sd_cli::failure::{Context, Failure, Result};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Calls that are timed together: 32 messages of 8 bytes fit into the smallest buffer.
pub(crate) const BURST: u32 = 32;
const FCNTL_CALLS: u32 = 10_000;
const WARM_UP_BURSTS: u32 = 10;

/// The sending side: nanoseconds per send and per fcntl(F_GETFL).
pub(crate) fn call(mut data: Socket, mut control: Socket, duration: Duration) -> Result<Report> {
    let mut times = histogram();
    let clock = Clock::start(duration);
    for burst in 0.. {
        let began = ticks();
        for _ in 0..BURST {
            data.send(&[7; 8]).context("send")?;
        }
        let ended = ticks();
        pass_on(&mut control)?;
        if burst >= WARM_UP_BURSTS {
            times.saturating_record(ended - began);
        }
        if burst > WARM_UP_BURSTS && clock.is_over(ended) {
            break;
        }
    }
    let fcntl_ns = fcntl(&data)?;
    let report = in_nanoseconds(&times, clock.ns_per_tick() / f64::from(BURST));
    Ok(Report { fcntl_ns: Some(fcntl_ns), ..report })
}

/// Gives the turn to the other side and waits until it comes back.
pub(crate) fn pass_on(control: &mut Socket) -> Result<()> {
    control.send(&[1]).context("send")?;
    match control.recv(&mut [0]).context("recv")? {
        0 => Err(Failure::new("the peer is gone")),
        _ => Ok(()),
    }
}

fn fcntl(socket: &Socket) -> Result<f64> {
    let clock = Clock::start(Duration::ZERO);
    for _ in 0..FCNTL_CALLS {
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(socket.0.as_raw_fd(), libc::F_GETFL) };
        if std::hint::black_box(flags) < 0 {
            return Err(sd_cli::failure::last_os_error()).context("fcntl");
        }
    }
    Ok(clock.elapsed_ns() / f64::from(FCNTL_CALLS))
}

/// The receiving side: nanoseconds per recv.
pub(crate) fn serve(mut data: Socket, mut control: Socket) -> Result<Report> {
    let mut times = histogram();
    let clock = Clock::start(Duration::ZERO);
    let mut burst = 0;
    while control.recv(&mut [0]).context("recv")? != 0 {
        let began = ticks();
        for _ in 0..BURST {
            let mut message = [0u8; 8];
            if data.recv(&mut message).context("recv")? != 8 || message != [7; 8] {
                return Err(Failure::new("not what was sent"));
            }
        }
        let ended = ticks();
        if burst >= WARM_UP_BURSTS {
            times.saturating_record(ended - began);
        }
        burst += 1;
        control.send(&[1]).context("send")?;
    }
    Ok(in_nanoseconds(&times, clock.ns_per_tick() / f64::from(BURST)))
}
