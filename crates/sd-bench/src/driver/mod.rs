//! `sd bench`: every figure beside the kernel's and beside the raw limit, from the same run.
//!
//! # How
//! Both sides of each measurement are programs of their own (`crate::peer`), bound to two processors. The systems
//! take turns, round by round, because a virtual machine's cores move: what is compared was measured within
//! the same second. A figure is the median over the rounds, a ratio the median of each round's ratio.
//! SocksDirect is measured through the preload library and a monitor of the benchmark's own.
//!
//! # Not here
//! Nothing is asserted about time. The command fails only when something could not be measured, or when what
//! should have gone over shared memory did not.

mod connections;
mod contacts;
mod cost;
mod crowds;
mod exec;
mod machine;
mod report;
mod rounds;
mod stage;
mod tokens;

use crate::peer::Work;
use clap::ValueEnum;
use sd_cli::cli::{BenchOptions, System, What};
use sd_cli::failure::{Failure, Result, warn};
use sd_cli::process;
pub(crate) use stage::{Job, Stage};

/// How often each system has its turn, and how long a turn is.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) millis: u64,
}

/// A table of figures to be.
struct Case {
    bench: What,
    job: Job,
    systems: Vec<System>,
}

/// Measures and prints.
pub(crate) fn main(options: &BenchOptions) -> Result<()> {
    process::note_signals();
    let mut stage = Stage::new()?;
    stage.pump = options.loopback_pump;
    if stage.cpus[0] == stage.cpus[1] {
        warn("warning: only one processor may be used; both sides share it");
    }
    let mut systems: Vec<System> = System::value_variants().to_vec();
    systems.retain(|system| options.systems.is_empty() || options.systems.contains(system));
    let mut failures = Vec::new();
    if systems.contains(&System::Socksdirect)
        && let Err(failure) = stage.prepare_socksdirect()
    {
        process::check_interrupt()?;
        failures.push(format!("socksdirect was not measured: {}", failure.text));
        systems.retain(|system| *system != System::Socksdirect);
    }
    if systems.contains(&System::Sockmap)
        && has_sockmap(options.what)
        && let Err(failure) = stage.prepare_sockmap()
    {
        process::check_interrupt()?;
        systems.retain(|system| *system != System::Sockmap);
        report::unavailable(options, System::Sockmap, &failure.text)?;
    }
    let plan = plan(options);
    let mut rows = Vec::new();
    match options.what {
        What::Connect => rows = contacts::measure(&stage, plan, &systems, &mut failures)?,
        What::Cost => rows = cost::measure(&stage, plan, options.quick, &systems, &mut failures)?,
        What::Exec => rows = exec::measure(&stage, plan, options.quick, &systems, &mut failures)?,
        What::Tokens => rows = tokens::measure(&stage, plan, &systems, &mut failures)?,
        What::Machine | What::Queues => rows = machine::measure(&stage, plan, options.what, options.most)?,
        What::Connections => {
            let most = options.most.or(options.quick.then_some(connections::MOST_QUICK));
            rows = connections::measure(&stage, plan, most, &systems, &mut failures)?;
        }
        What::Scale | What::Processes | What::Pipeline => {
            rows = crowds::measure(&stage, plan, options.what, options.most, &systems, &mut failures)?;
        }
        _ => {}
    }
    for mut case in cases(options, plan) {
        case.systems.retain(|system| systems.contains(system));
        let series = rounds::measure(&stage, &case.job, &case.systems, plan.rounds)?;
        failures.extend(series.iter().filter_map(rounds::Series::failure));
        rows.extend(report::rows(case.bench, case.job.size, &series));
    }
    rows.iter_mut().filter(|row| row.path.is_some()).for_each(|row| row.path = Some(stage.path()));
    report::print_all(&stage, options.json, plan, &rows)?;
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(failures.join("; "))),
    }
}

/// What is also measured over TCP with a map of sockets.
fn has_sockmap(what: What) -> bool {
    !matches!(what, What::Cost | What::Exec | What::Tokens | What::Machine | What::Queues)
}

fn plan(options: &BenchOptions) -> Plan {
    let (rounds, millis) = match (options.what, options.quick) {
        (What::Latency, false) => (15, 60),
        (What::Connect, false) => (9, 200),
        (What::Connections | What::Pipeline | What::Processes | What::Machine | What::Queues, true) => {
            (3, 20)
        }
        (What::Machine | What::Queues, false) => (5, 300),
        (What::Connections | What::Pipeline | What::Processes, false) => (5, 100),
        (_, false) => (9, 100),
        (What::Connect, true) => (5, 40),
        (_, true) => (5, 15),
    };
    Plan { rounds: options.rounds.unwrap_or(rounds), millis }
}

fn cases(options: &BenchOptions, plan: Plan) -> Vec<Case> {
    use System::*;
    let mut all: Vec<System> = System::value_variants().to_vec();
    all.retain(|system| !matches!(system, Futex | Memory | Machine));
    let (work, sizes, systems) = match options.what {
        What::Wake => (Work::Wake, vec![8], vec![Socksdirect, Tcp, Sockmap, Unix, Pipe, Futex]),
        What::Latency if options.all => {
            (Work::Latency, vec![8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20], all)
        }
        What::Latency => (Work::Latency, vec![8], all),
        What::Bandwidth if options.all => {
            let sizes = vec![8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
            (Work::Stream, sizes, vec![Socksdirect, Tcp, Sockmap, Unix, Pipe, Ring, Memory])
        }
        What::Rate => {
            (Work::Stream, vec![8], vec![Socksdirect, Tcp, Sockmap, Unix, Pipe, Ring, RingDoorbell])
        }
        What::Bandwidth => (
            Work::Stream,
            vec![4 << 10, 64 << 10, 1 << 20],
            vec![Socksdirect, Tcp, Sockmap, Unix, Ring, RingDoorbell, Memory],
        ),
        _ => return Vec::new(),
    };
    let own_size = options.size.map(|size| vec![size as usize]);
    let case = |size: usize| Case {
        bench: options.what,
        job: Job { work, size, millis: plan.millis, count: 1 },
        // The cache line carries eight bytes.
        systems: systems.iter().copied().filter(|s| *s != Cacheline || size == 8).collect(),
    };
    own_size.unwrap_or(sizes).into_iter().map(case).collect()
}
