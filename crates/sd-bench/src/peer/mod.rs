//! `sd-bench peer`, hidden: one side of a measurement.
//!
//! The driver (`crate::driver`) starts these as separate programs, with the preload library or without;
//! the code is the same, and its socket calls are libc's, so that the library's hooks are what is measured.
//!
//! ```text
//! server --ready ADDRESS--> driver                 one line on standard output each
//! client --connected--> driver --go--> client
//! client, server --result JSON--> driver
//! ```

mod calls;
mod churn;
mod clock;
mod copy;
mod count;
mod crowd;
mod futex;
mod idle;
mod line;
mod lines;
mod link;
mod machine;
mod many;
mod pair;
mod pipeline;
mod queues;
mod ring;
mod scale;
mod socket;
mod sockmap;
mod take;
mod work;

use clap::{Args, Parser, Subcommand, ValueEnum};
pub(crate) use many::{PER_TURN, raise_limit};
use sd_cli::cli::System;
use sd_cli::failure::{Context, Failure, Result, print};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

/// The first argument of such a program.
pub(crate) const NAME: &str = "peer";

/// What the two sides do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Ping-pong.
    Latency,
    /// Ping-pong with a side that sleeps before each question.
    Wake,
    /// One way.
    Stream,
    /// Many short connections.
    Churn,
    /// Many short connections, many of them at a time.
    ChurnBatches,
    /// Many short connections, each to another address.
    ChurnStrangers,
    /// Single calls.
    Calls,
    /// Single calls of processes with a second thread, which sleeps.
    CallsShared,
    /// Threads in pairs, each pair with its connection: one way.
    Scale,
    /// Ping-pong of one process with many at once.
    Crowd,
    /// Ping-pong over very many connections, on a few of them at a time.
    Many,
    /// Ping-pong over many connections, on all of them at a time.
    Together,
    /// A chain of processes that pass packets on.
    Pipeline,
    /// Single operations without sockets.
    Machine,
    /// Very many connections without sockets, with a ring each and with one for all.
    Queues,
    /// Two threads send in turn.
    TakeThreads,
    /// Two processes send in turn.
    TakeProcesses,
    /// A thread sends after another one that has become the token's holder.
    HolderThreads,
    /// A process sends after another one that has become the token's holder.
    HolderProcesses,
    /// Many connections on which nothing happens.
    Idle,
}

impl Work {
    /// As on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What one side found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Nanoseconds, or events per second.
    pub(crate) value: f64,
    /// 99th percentile, where `value` is a median.
    pub(crate) p99: Option<f64>,
    /// Cost of fcntl(F_GETFL) in nanoseconds, by `Work::Calls`.
    pub(crate) fcntl_ns: Option<f64>,
    /// Packets, by `Work::Pipeline`; connections.
    #[serde(default)]
    pub(crate) count: Option<u64>,
    /// Nanoseconds by operation, by `Work::Machine` and `Work::Queues`.
    #[serde(default)]
    pub(crate) items: BTreeMap<String, f64>,
    /// Congestion control in force, for TCP.
    pub(crate) congestion: Option<String>,
}

#[derive(Parser)]
#[command(name = "sd-bench peer")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Listens
    Server(Options),
    /// Connects
    Client(Options),
    /// Connects, exchanges a byte and ends
    Visitor(Options),
    /// Forks, and is both sides
    Pair(Options),
    /// Stands between a client and a server, and hands packets on
    Function(Options),
    /// Single operations, for callgrind
    Count,
    /// Single operations of two pairs, for lackey
    Lines,
    /// Holds a cgroup whose connections BPF short-cuts
    Sockmap,
}

#[derive(Args)]
struct Options {
    #[arg(long, value_enum)]
    system: System,
    #[arg(long, value_enum)]
    work: Work,
    #[arg(long, default_value_t = 8)]
    size: usize,
    /// How long to measure
    #[arg(long, default_value_t = 100)]
    millis: u64,
    /// At most so many connections
    #[arg(long, default_value_t = usize::MAX)]
    count: usize,
    /// The processor for this side
    #[arg(long)]
    cpu: usize,
    /// The processor for the other side of a pair
    #[arg(long, default_value_t = 0)]
    cpu_other: usize,
    /// All processors for this measurement
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// host:port, or the path of a Unix socket; several with commas between
    #[arg(long, default_value = "")]
    address: String,
    /// The first of the addresses of this host's that are connected to, where there are several
    #[arg(long, default_value_t = 0)]
    place: u32,
    /// Where a process that also connects listens
    #[arg(long, default_value = "127.0.0.1:0")]
    own_address: String,
    /// Congestion control for TCP
    #[arg(long)]
    congestion: Option<String>,
}

impl Options {
    fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

/// The command line, when it is one for us.
pub(crate) fn arguments() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os();
    arguments.next();
    (arguments.next()? == NAME).then(|| std::iter::once("sd-bench".into()).chain(arguments).collect())
}

/// Does one side's work.
pub(crate) fn main(arguments: &[OsString]) -> Result<()> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| Failure::new(error.to_string()))?;
    match cli.role {
        Role::Server(options) => {
            pin(options.cpu)?;
            socket::serve(&options)
        }
        Role::Client(options) => {
            pin(options.cpu)?;
            socket::call(&options)
        }
        Role::Visitor(options) => {
            pin(options.cpu)?;
            churn::visit(&socket::Address::parse(&options.address)?)
        }
        Role::Pair(options) => pair::run(&options),
        Role::Function(options) => {
            pin(options.cpu)?;
            socket::function(&options)
        }
        Role::Count => count::run(),
        Role::Lines => lines::run(),
        Role::Sockmap => sockmap::hold(),
    }
}

/// Binds the calling thread to one processor.
fn pin(cpu: usize) -> Result<()> {
    // SAFETY: an all-zero set is valid; CPU_SET ignores numbers that do not fit.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 { Ok(()) } else { Err(sd_cli::failure::last_os_error()).context(format!("CPU {cpu}")) }
}

/// Tells the driver that both sides are there, and waits for its word.
fn wait_for_go() -> Result<()> {
    print("connected\n")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("standard input")?;
    if line == "go\n" { Ok(()) } else { Err(Failure::new("the driver is gone")) }
}

/// Waits until the driver closes standard input.
fn wait_for_end() {
    while std::io::stdin().read_line(&mut String::new()).is_ok_and(|n| n > 0) {}
}

/// Tells the driver what was found.
fn tell(report: &Report) -> Result<()> {
    let json = serde_json::to_string(report).context("result")?;
    print(&format!("result {json}\n"))
}
