//! Both sides in one program that forks: pipes, the bare ring, a bare cache line.

use super::copy::Copies;
use super::futex::Futex;
use super::line::Line;
use super::link::{Link, Pipes};
use super::ring::Ring;
use super::{Options, Report, Work, work};
use sd_cli::cli::System;
use sd_cli::failure::{Context, Failure, Result, os_error};
use sd_shm::channel::{Mapping, Side};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Both sides share one processor, so that spinning must give it up.
static SHARED_PROCESSOR: AtomicBool = AtomicBool::new(false);

/// Waiting for memory that the peer has not yet written.
#[derive(Default)]
pub(crate) struct Wait {
    looks: u32,
}

/// So many looks take some tens of microseconds: the peer does not run, or its processor is busy.
const LOOKS_BEFORE_YIELD: u32 = 1 << 15;

impl Wait {
    /// Between two looks.
    #[inline(always)]
    pub(crate) fn relax(&mut self) {
        self.looks += 1;
        if self.looks >= LOOKS_BEFORE_YIELD || SHARED_PROCESSOR.load(Ordering::Relaxed) {
            self.looks = 0;
            sd_sys::time::yield_now();
        }
    }
}

/// Runs both sides and reports.
pub(crate) fn run(options: &Options) -> Result<()> {
    SHARED_PROCESSOR.store(options.cpu == options.cpu_other, Ordering::Relaxed);
    let report = match options.system {
        System::Pipe if options.work == Work::Pipeline => super::pipeline::over_pipes(options),
        System::Machine => {
            super::wait_for_go()?;
            if options.work == Work::Queues {
                super::queues::run(options)
            } else {
                super::machine::run(options)
            }
        }
        System::Memory => {
            let [here, there] = Copies::ends().map_err(os_error).context("shared memory")?;
            both(options, here, there)
        }
        System::Pipe => {
            let [here, there] = pipes().context("pipe")?;
            both(options, here, there)
        }
        System::Ring => {
            let segment = segment()?;
            both(options, Ring::<false>::new(segment, Side::A), Ring::<false>::new(segment, Side::B))
        }
        System::RingDoorbell => {
            let segment = segment()?;
            both(options, Ring::<true>::new(segment, Side::A), Ring::<true>::new(segment, Side::B))
        }
        System::Cacheline => {
            let [here, there] = Line::ends().map_err(os_error).context("shared memory")?;
            both(options, here, there)
        }
        System::Futex => {
            let [here, there] = Futex::ends().map_err(os_error).context("shared memory")?;
            both(options, here, there)
        }
        other => Err(Failure::new(format!("{other:?} is no pair"))),
    }?;
    super::tell(&report)
}

/// Forks; the child is the other side. It dies with the parent, even if it spins.
fn both<L: Link>(options: &Options, mut here: L, mut there: L) -> Result<Report> {
    // SAFETY: the process has one thread.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(sd_cli::failure::last_os_error()).context("fork");
    }
    if child == 0 {
        // SAFETY: integer arguments only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        drop(here);
        let done = super::pin(options.cpu_other).and_then(|()| match options.work {
            Work::Latency | Work::Wake => work::echo(&mut there, options.size),
            _ => work::drain(&mut there, options.size),
        });
        // SAFETY: ends the child without running the parent's clean-up.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    drop(there);
    super::pin(options.cpu)?;
    super::wait_for_go()?;
    let report = match options.work {
        Work::Latency => work::ping(&mut here, options.size, options.duration()),
        Work::Wake => work::wake(&mut here, options.size, options.duration()),
        Work::Stream => work::pump(&mut here, options.size, options.duration()),
        other => Err(Failure::new(format!("{other:?} is not for a pair"))),
    }?;
    drop(here);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if status == 0 { Ok(report) } else { Err(Failure::new("the other side failed")) }
}

/// A channel of no monitor.
pub(super) fn segment() -> Result<Mapping> {
    Mapping::create(1, 0, 0).map(|(_, segment)| segment).map_err(os_error).context("shared memory")
}

fn pipes() -> std::io::Result<[Pipes; 2]> {
    let (input, far_output) = std::io::pipe()?;
    let (far_input, output) = std::io::pipe()?;
    let end = |input: OwnedFd, output: OwnedFd| Pipes { input, output: Some(output) };
    Ok([end(input.into(), output.into()), end(far_input.into(), far_output.into())])
}
