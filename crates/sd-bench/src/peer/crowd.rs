//! One process that keeps a message under way to each of many others, which share a processor.

use super::clock::{Clock, ticks};
use super::link::{Link, Socket};
use super::work::{histogram, in_nanoseconds};
use super::{Options, Report};
use sd_cli::failure::{Context, Failure, Result};

/// Asks everybody at once, and again whoever has answered; the time from a question to its answer.
pub(crate) fn call(mut links: Vec<Socket>, options: &Options) -> Result<Report> {
    let question = vec![7u8; options.size];
    let mut times = histogram();
    let mut asked = Vec::with_capacity(links.len());
    for link in &mut links {
        asked.push(ticks());
        link.send_all(&question).context("send")?;
    }
    let warm_up = Clock::start(options.duration() / 5);
    let clock = Clock::start(options.duration() + options.duration() / 5);
    let mut waiting = links.len();
    while waiting > 0 {
        for (link, asked) in links.iter_mut().zip(&mut asked) {
            let Some(ended) = answer(link, options.size)? else { continue };
            if warm_up.is_over(ended) {
                times.saturating_record(ended - *asked);
            }
            if clock.is_over(ended) {
                waiting -= 1;
                continue;
            }
            *asked = ticks();
            link.send_all(&question).context("send")?;
        }
    }
    let scale = clock.ns_per_tick();
    links.iter_mut().try_for_each(|link| link.finish().context("end"))?;
    Ok(in_nanoseconds(&times, scale))
}

/// When the answer came, if it has.
fn answer(link: &mut Socket, size: usize) -> Result<Option<u64>> {
    let mut first = [0u8; 64];
    let Some(n) = link.recv_now(&mut first[..size.min(64)]).context("recv")? else { return Ok(None) };
    let ended = ticks();
    let is_whole = n > 0 && (n == size || link.recv_all(&mut vec![0; size - n]).context("recv")?);
    if is_whole { Ok(Some(ended)) } else { Err(Failure::new("the peer is gone")) }
}
