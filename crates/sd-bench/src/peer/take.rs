//! Two senders of one connection that take its token from each other: threads, or a process and its child.
//!
//! ```text
//! other: send x prior --turn--> self: one send, timed --turn--> other ...
//! ```
//! In turn (`prior` = 1) neither becomes the token's holder. With a longer run before it, the other has become the
//! holder, and the timed send has to revoke it while the holder does not call us. Only one send is timed, so
//! nothing of the turn itself is in the figure. The server sleeps meanwhile, as in `calls`.

use super::clock::{Clock, ticks};
use super::link::{Link, Socket};
use super::pair::Wait;
use super::work::{histogram, in_nanoseconds};
use super::{Options, Report, Work, calls};
use hdrhistogram::Histogram;
use sd_cli::failure::{Context, Failure, Result, last_os_error, os_error};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sends of the other in a row that make it the holder, whatever happened to a fresh token before.
const RUN: u32 = 24;
const WARM_UP_BURSTS: u32 = 4;
/// The turn that ends the other.
const END: u64 = u64::MAX;

/// Who else sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharer {
    Thread,
    Child,
}

/// The sharer and how often it sends before its turn is over, when the work is to take tokens.
pub(crate) fn kind(work: Work) -> Option<(Sharer, u32)> {
    match work {
        Work::TakeThreads => Some((Sharer::Thread, 1)),
        Work::TakeProcesses => Some((Sharer::Child, 1)),
        Work::HolderThreads => Some((Sharer::Thread, RUN)),
        Work::HolderProcesses => Some((Sharer::Child, RUN)),
        _ => None,
    }
}

/// Connections that carry data: each token is revoked once, because a revoked holder is given it more slowly.
pub(crate) fn links(options: &Options) -> usize {
    match kind(options.work) {
        Some((_, RUN)) => options.count,
        _ => 1,
    }
}

/// The sending side; nanoseconds per send that takes the token.
pub(crate) fn call(links: Vec<Socket>, mut control: Socket, options: &Options) -> Result<Report> {
    let Some((sharer, prior)) = kind(options.work) else { return Err(Failure::new("no such work")) };
    let turn = Turn::new()?;
    let links: &'static [Socket] = links.leak();
    let end = other(links, sharer, prior, turn, options.cpu_other)?;
    let clock = Clock::start(options.duration());
    let mut times = histogram();
    let done = match prior {
        1 => in_turn(&links[0], turn, &mut control, &clock, &mut times),
        _ => links.iter().enumerate().try_for_each(|(index, link)| {
            let ticks = turn.take(index as u64, link)?;
            times.saturating_record(ticks);
            Ok(())
        }),
    };
    turn.0.store(END, Ordering::Release);
    end.wait()?;
    done?;
    Ok(in_nanoseconds(&times, clock.ns_per_tick()))
}

/// The receiving side: drains what was sent in turn, or waits for the end.
pub(crate) fn serve(mut links: Vec<Socket>, mut control: Socket, work: Work) -> Result<()> {
    if matches!(kind(work), Some((_, 1))) {
        return calls::serve(links.remove(0), control).map(drop);
    }
    while control.recv(&mut [0]).context("recv")? != 0 {}
    Ok(())
}

fn in_turn(
    link: &Socket,
    turn: Turn,
    control: &mut Socket,
    clock: &Clock,
    times: &mut Histogram<u64>,
) -> Result<()> {
    let mut turns = 0;
    for burst in 0.. {
        for _ in 0..calls::BURST / 2 {
            let ticks = turn.take(turns, link)?;
            turns += 1;
            if burst >= WARM_UP_BURSTS {
                times.saturating_record(ticks);
            }
        }
        calls::pass_on(control)?;
        if burst > WARM_UP_BURSTS && clock.is_over(ticks()) {
            break;
        }
    }
    Ok(())
}

/// Whose turn it is: even numbers are the other's.
#[derive(Clone, Copy)]
struct Turn(&'static AtomicU64);

impl Turn {
    /// In memory that a child shares.
    fn new() -> Result<Turn> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-bench", 4096).map_err(os_error).context("shared memory")?;
        let page = sd_sys::mem::map_shared(fd.raw(), 4096, true).map_err(os_error);
        // SAFETY: the word lies in a page-aligned mapping that is never unmapped.
        Ok(Turn(unsafe { AtomicU64::from_ptr(page.context("shared memory")?.cast()) }))
    }

    /// False at the end.
    fn wait_for(self, value: u64) -> bool {
        let mut pause = Wait::default();
        loop {
            match self.0.load(Ordering::Acquire) {
                END => return false,
                now if now >= value => return true,
                _ => pause.relax(),
            }
        }
    }

    /// Lets the other have its turn with this number, then sends: ticks of that.
    fn take(self, number: u64, link: &Socket) -> Result<u64> {
        self.0.store(2 * number + 1, Ordering::Release);
        if !self.wait_for(2 * number + 2) {
            return Err(Failure::new("the other sender failed"));
        }
        let began = ticks();
        send(link)?;
        Ok(ticks() - began)
    }
}

#[inline(always)]
fn send(link: &Socket) -> Result<()> {
    link.send_shared(&[7; 8]).map(drop).context("send")
}

/// The other sender's turns, until the end.
fn turns(links: &[Socket], prior: u32, turn: Turn, cpu: usize) -> Result<()> {
    super::pin(cpu)?;
    let mut number = 0;
    while turn.wait_for(2 * number + 1) {
        let link = links.get(number as usize).unwrap_or(&links[0]);
        for _ in 0..prior {
            send(link)?;
        }
        number += 1;
        turn.0.store(2 * number, Ordering::Release);
    }
    Ok(())
}

/// How to wait for the other sender's end.
enum Other {
    Thread(std::thread::JoinHandle<Result<()>>),
    Child(i32),
}

fn other(links: &'static [Socket], sharer: Sharer, prior: u32, turn: Turn, cpu: usize) -> Result<Other> {
    let run = move || {
        let done = turns(links, prior, turn, cpu);
        turn.0.store(END, Ordering::Release);
        done
    };
    if sharer == Sharer::Thread {
        return Ok(Other::Thread(std::thread::spawn(run)));
    }
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(last_os_error()).context("fork"),
        0 => {
            // SAFETY: integer arguments only; ends the child without running the parent's clean-up.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::_exit(i32::from(run().is_err()))
            }
        }
        child => Ok(Other::Child(child)),
    }
}

impl Other {
    fn wait(self) -> Result<()> {
        match self {
            Other::Thread(thread) => thread.join().unwrap_or_else(|_| Err(Failure::new("it panicked"))),
            Other::Child(child) => {
                let mut status = 0;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child, &mut status, 0) };
                if status == 0 { Ok(()) } else { Err(Failure::new("the other sender failed")) }
            }
        }
    }
}
