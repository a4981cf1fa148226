//! Pairs of threads, each pair with a connection and two processors of its own, all streaming at once.

use super::link::Socket;
use super::{Options, Report, work};
use sd_cli::failure::{Failure, Result};
use std::sync::Barrier;

/// Processors stand in pairs: that of the client's thread, that of the server's.
fn cpu(options: &Options, pair: usize, side: usize) -> usize {
    match options.cpus.len() {
        0 => options.cpu,
        n => options.cpus[(2 * pair + side) % n],
    }
}

/// The sending threads; messages per second of all.
pub(crate) fn call(links: Vec<Socket>, options: &Options) -> Result<Report> {
    let start = Barrier::new(links.len());
    let values = on_threads(links, |pair, mut link| {
        super::pin(cpu(options, pair, 0))?;
        start.wait();
        work::pump(&mut link, options.size, options.duration()).map(|report| report.value)
    })?;
    Ok(Report { value: values.iter().sum(), ..Report::default() })
}

/// The receiving threads.
pub(crate) fn serve(links: Vec<Socket>, options: &Options) -> Result<()> {
    on_threads(links, |pair, mut link| {
        super::pin(cpu(options, pair, 1))?;
        work::drain(&mut link, options.size)
    })
    .map(drop)
}

/// A thread for each link.
fn on_threads<T: Send>(
    links: Vec<Socket>,
    work: impl Fn(usize, Socket) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |(pair, link)| scope.spawn(move || work(pair, link));
        let threads: Vec<_> = links.into_iter().enumerate().map(start).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
        };
        threads.into_iter().map(end).collect()
    })
}
