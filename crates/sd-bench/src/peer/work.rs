//! Ping-pong and one-way streams over any link.

use super::Report;
use super::clock::{Clock, ticks};
use super::link::Link;
use hdrhistogram::Histogram;
use sd_cli::failure::{Context, Failure, Result};
use std::time::Duration;

/// Longest round trip that is told apart, in ticks.
const TICKS_MAX: u64 = 1 << 40;
/// Round trips before the clock starts, at least.
const WARM_UP_MIN: u32 = 20;

/// A histogram of ticks.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, TICKS_MAX, 3).expect("the bounds are valid")
}

/// Sends and waits for the answer, again and again; the round trip in nanoseconds.
pub(crate) fn ping<L: Link>(link: &mut L, size: usize, duration: Duration) -> Result<Report> {
    ping_after(link, size, duration, || ())
}

/// Before a question the other side has had so long to fall asleep.
const SLEEP: Duration = Duration::from_micros(400);

/// The same, with a pause before each question.
pub(crate) fn wake<L: Link>(link: &mut L, size: usize, duration: Duration) -> Result<Report> {
    ping_after(link, size, duration, || {
        // Not a sleep: this side's processor shall be awake.
        let clock = Clock::start(SLEEP);
        while !clock.is_over(ticks()) {
            std::hint::spin_loop();
        }
    })
}

#[inline(always)]
fn ping_after<L: Link>(link: &mut L, size: usize, duration: Duration, pause: impl Fn()) -> Result<Report> {
    let question: Vec<u8> = (0..size).map(|i| i as u8).collect();
    let mut answer = vec![0u8; size];
    let warm_up = Clock::start(duration / 5);
    for done in 0.. {
        pause();
        round_trip(link, &question, &mut answer)?;
        if done >= WARM_UP_MIN && warm_up.is_over(ticks()) {
            break;
        }
    }
    let mut times = histogram();
    let clock = Clock::start(duration);
    loop {
        pause();
        let began = ticks();
        round_trip(link, &question, &mut answer)?;
        let ended = ticks();
        times.saturating_record(ended - began);
        if clock.is_over(ended) {
            break;
        }
    }
    let scale = clock.ns_per_tick();
    link.finish().context("end")?;
    Ok(in_nanoseconds(&times, scale))
}

#[inline(always)]
fn round_trip<L: Link>(link: &mut L, question: &[u8], answer: &mut [u8]) -> Result<()> {
    link.send_all(question).context("send")?;
    if link.recv_all(answer).context("recv")? { Ok(()) } else { Err(gone()) }
}

/// Median and 99th percentile.
pub(crate) fn in_nanoseconds(times: &Histogram<u64>, ns_per_tick: f64) -> Report {
    let at = |rank| quantile(times, rank) * ns_per_tick;
    Report { value: at(0.5), p99: Some(at(0.99)), ..Report::default() }
}

/// A quantile between recorded values: some processors' counters advance in steps of 10 ns, which is too
/// coarse beside a round trip of 130. Each value stands for the middle of its ranks.
fn quantile(times: &Histogram<u64>, rank: f64) -> f64 {
    let wanted = times.len() as f64 * rank;
    let mut below = 0.0;
    let mut last: Option<(f64, f64)> = None;
    for step in times.iter_recorded() {
        let count = step.count_since_last_iteration() as f64;
        let (at, value) = (below + count / 2.0, step.value_iterated_to() as f64);
        if at >= wanted {
            let Some((last_at, last_value)) = last else { return value };
            return last_value + (value - last_value) * (wanted - last_at) / (at - last_at);
        }
        below += count;
        last = Some((at, value));
    }
    last.map_or(0.0, |(_, value)| value)
}

/// Sends everything back until the end.
pub(crate) fn echo<L: Link>(link: &mut L, size: usize) -> Result<()> {
    let mut buf = vec![0u8; size];
    while link.recv_all(&mut buf).context("recv")? {
        link.send_all(&buf).context("send")?;
    }
    Ok(())
}

/// Sends messages for a while; messages per second, counted when all have been received.
pub(crate) fn pump<L: Link>(link: &mut L, size: usize, duration: Duration) -> Result<Report> {
    let message: Vec<u8> = (0..size).map(|i| i as u8).collect();
    // Reading the clock must not be felt among small messages.
    let batch = if size <= 1024 { 64 } else { 1 };
    let warm_up = Clock::start(duration / 5);
    let mut sent = 0u64;
    while !warm_up.is_over(ticks()) {
        sent += send_batch(link, &message, batch)?;
    }
    let uncounted = sent;
    let clock = Clock::start(duration);
    // At least one, also where this process did not run for so long.
    while sent == uncounted || !clock.is_over(ticks()) {
        sent += send_batch(link, &message, batch)?;
    }
    link.finish().context("end")?;
    let mut received = [0u8; 8];
    if !link.recv_all(&mut received).context("recv")? {
        return Err(gone());
    }
    let elapsed_s = clock.elapsed_ns() / 1e9;
    if u64::from_le_bytes(received) != sent * size as u64 {
        return Err(Failure::new("bytes were lost"));
    }
    Ok(Report { value: (sent - uncounted) as f64 / elapsed_s, ..Report::default() })
}

#[inline(always)]
fn send_batch<L: Link>(link: &mut L, message: &[u8], batch: u64) -> Result<u64> {
    for _ in 0..batch {
        link.send_all(message).context("send")?;
    }
    Ok(batch)
}

/// Receives until the end, a call for each message, and then says how many bytes came.
pub(crate) fn drain<L: Link>(link: &mut L, size: usize) -> Result<()> {
    let mut buf = vec![0u8; size];
    let mut received = 0u64;
    loop {
        match link.recv(&mut buf).context("recv")? {
            0 => break,
            n => received += n as u64,
        }
    }
    link.send_all(&received.to_le_bytes()).context("send")
}

fn gone() -> Failure {
    Failure::new("the peer is gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_coarse_values() {
        let mut times = histogram();
        assert_eq!(quantile(&times, 0.5), 0.0);
        times.record_n(100, 10).unwrap();
        assert_eq!(quantile(&times, 0.5), 100.0);
        times.record_n(110, 10).unwrap();
        assert_eq!(quantile(&times, 0.5), 105.0);
        times.record_n(120, 1000).unwrap();
        assert_eq!(quantile(&times, 1.0), 120.0);
        assert!((110.0..120.0).contains(&quantile(&times, 0.4)));
    }
}
