//! The command line: the one definition from which help, errors, man pages and completions come.

use crate::failure::{Failure, Result, print};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use sd_monitor::MetricsPlace;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

mod roads;

pub use roads::{AttachOptions, DemoteOptions, Demoted, DetachOptions};

/// Sockets of unmodified programs over shared memory
#[derive(Parser)]
#[command(name = "sd", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a program with its TCP connections over shared memory
    ///
    /// The program gets the process id of sd, and its exit status is sd's. Connections whose both ends were
    /// started this way go over shared memory; everything else goes to the kernel as always. The exit status of
    /// sd itself is 125 when it failed, 126 when the program cannot be run, 127 when it was not found.
    Run(RunOptions),
    /// Run the monitor in the foreground
    ///
    /// `sd run` starts one when there is none, so this is for service managers and for debugging. SIGHUP reads
    /// the policy and the hosts file again. SIGTERM ends it; connections that exist go on. A listening socket that a service manager
    /// hands over (LISTEN_FDS) is served instead of one of its own.
    Monitor(MonitorOptions),
    /// Carry all connections of a monitor that was told so
    #[command(hide = true)]
    Pump(PumpOptions),
    /// Carry promoted connections to other hosts, for a monitor that was started with --hosts
    #[command(hide = true)]
    Engine(EngineOptions),
    /// Make or show the keys by which engines of hosts know each other
    ///
    /// What `new` prints is the public key, which goes into the hosts files of others (`key=`). A file of keys is its owner's alone (mode 0600), or is refused.
    Key {
        #[command(subcommand)]
        what: KeyCommand,
    },
    /// List connections: which path each one takes, and why
    ///
    /// Path is `shm` or `kernel`; Reason says why it is the kernel. Of a connection that the kernel has made Since says how long it
    /// takes its path, Moves how often that has changed, and Reason also why it did, or what a move to shared memory waits for. Recv-Q and Send-Q of a listener are the
    /// connections that wait for accept, and how many may.
    Ss(SsOptions),
    /// Show which connections are busy, again and again, in the manner of top(1)
    ///
    /// Rates are bytes of payload per second over shared memory, each way; those of connections on the kernel path are not
    /// known. Messages are not counted there, as each would pay for that; Msg/s is of connections on the kernel path that may be moved to
    /// shared memory, whose calls are counted. CPU is the whole of a process; Spins and
    /// Sleeps are its waits per second that ended while it looked, and that it slept through.
    /// Keys: `q` quit, `s` or `<` `>` sort by another column, `r` the other way round, `p` processes or connections, space
    /// stop and go on, arrows and Page Up, Page Down move, `+` `-` slower or faster.
    Top(TopOptions),
    /// Show the socket calls of a process that runs, and the roads that its connections take
    ///
    /// One line for each call, when it has returned: time of day (UTC), thread, call, arguments, result, how long it took. Lines
    /// with `--` tell of a connection's road, as often as it changes; the monitor is asked ten times a second, and says when a connection
    /// moved to shared memory or back. It takes root: the kernel
    /// puts probes at the library's functions. Nobody else pays for that; the traced process does, with microseconds for each
    /// call. errno of a call that failed is not known, and neither are calls that do not return.
    Trace(TraceOptions),
    /// Move connections that were promoted back to the kernel's
    ///
    /// Each goes on where it is, at the byte that is next, and neither program notices. It may be promoted again later. Users have their own
    /// connections moved, root all of them.
    #[command(hide = true)]
    Demote(DemoteOptions),
    /// Have processes let go of all that they share, so that they can be checkpointed
    ///
    /// CRIU's action pre-dump. Ends when it is done; else it says what stands in the way. A process that is restored comes back by itself.
    #[command(hide = true)]
    Detach(DetachOptions),
    /// Tell processes that were detached, and have not been restored, that they may go on
    #[command(hide = true)]
    Attach(AttachOptions),
    /// Check what works on this host, and say why not
    ///
    /// Ends with two programs that exchange a few bytes over shared memory. The exit status is 1 when a
    /// check failed; a warning is no failure. In a container, run it inside; or with --pid outside of it.
    Doctor(DoctorOptions),
    /// Measure SocksDirect beside loopback TCP, Unix sockets, pipes and the bare ring
    ///
    /// Two processes, each on a processor of its own, blocking sockets, TCP_NODELAY, plain send and recv. The
    /// systems take turns, round by round, so that each ratio compares what was measured within the same
    /// second. Figures are medians over the rounds; ratios are medians of each round's ratio.
    Bench(BenchOptions),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page of sd, or write those of all commands into a directory
    Man {
        /// Where to write the pages
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct RunOptions {
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub monitor: Option<PathBuf>,
    /// Do not start a monitor when none answers
    #[arg(long)]
    pub no_start: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct MonitorOptions {
    /// Where to listen, instead of SD_MONITOR or the user's own place
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Who may use shared memory: a file of allow and deny rules
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Serve metrics for Prometheus there: unix:PATH, which is for this user alone, or ADDRESS:PORT, for whoever reaches it
    ///
    /// `GET /metrics` answers with OpenMetrics text: connections by road and user, requests by kind and how long they took,
    /// refusals, channels, memory, quotas, other hosts' engines.
    #[arg(long, value_name = "WHERE")]
    pub metrics: Option<MetricsPlace>,
    /// Let all connections go through a process in between, to test that
    #[arg(long, hide = true, value_enum, value_name = "HOW")]
    pub loopback_pump: Option<LoopbackPump>,
    /// Move connections to other hosts too, through an engine on each: FILE says where these are
    ///
    /// `listen ADDRESS:PORT` is where this host's engine is reached, `key FILE` its key (`sd key new FILE`), and each line `host NETWORK ADDRESS:PORT key=BASE64`
    /// a network of other hosts (nobody else is spoken to), their engine, and its key; or `shared` (with `shared-key FILE`): one key for all, or `plain`: everybody may
    /// read. NAME:PORT is looked up (`resolve SECONDS`, 30); with `each` all that it has in NETWORK are engines. Fewer connections than `least NUMBER` (32) stay the
    /// kernel's, and those that are slower by the engine go back (`trial on|off`). `carrier trunk|datagram|rdma`: TCP, UDP, or RDMA where both have it; else what is better. `rekey SECONDS` (3600): new keys. SIGHUP to the monitor reads FILE again.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Move connections that the kernel has made to shared memory, once they have shown that they last
    ///
    /// Between network namespaces of this host too, through bridges and published ports; also what was connected before the
    /// monitor was there, and the first few connections of a program. Those that are short, or idle, stay. `stay` rules of the
    /// policy keep others. With `off` all connections within a network namespace are on shared memory from their first byte, and
    /// all others stay.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "earned")]
    pub promote: Promote,
    /// Move what was moved back after a while, at a byte that chance chooses, half of it at once where SEED is odd, to test that
    #[arg(long, hide = true, value_name = "SEED", num_args = 0..=1, default_missing_value = "1")]
    pub demote: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Promote {
    /// None
    Off,
    /// Those that last and are busy
    Earned,
    /// All connections begin as the kernel's, and each is moved soon, to test that
    #[value(hide = true)]
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LoopbackPump {
    /// What was sent is at the other end when the call is over
    Prompt,
    /// A moment later
    Late,
}

#[derive(Args)]
pub struct PumpOptions {
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Write a new key, to a file that is not there yet
    New {
        /// One key for all hosts, instead of a pair of this one's own
        #[arg(long)]
        shared: bool,
        file: PathBuf,
    },
    /// Print the public key of a file
    Show { file: PathBuf },
}

#[derive(Args)]
pub struct EngineOptions {
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The file that names the other hosts
    #[arg(long, value_name = "FILE")]
    pub hosts: PathBuf,
}

#[derive(Args)]
pub struct SsOptions {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Show who holds how much memory instead
    #[arg(long, conflicts_with = "json")]
    pub memory: bool,
    /// The monitor's socket, instead of SD_MONITOR, the host's or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Args)]
pub struct TopOptions {
    /// Print tables one after the other instead of using the whole terminal; so where standard output is no terminal
    #[arg(long)]
    pub batch: bool,
    /// Print one JSON document per line
    #[arg(long)]
    pub json: bool,
    /// Processes instead of connections
    #[arg(long)]
    pub processes: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// End after so many; without it only a key or a signal does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// By which column
    #[arg(long, value_enum, default_value = "rate")]
    pub sort: Column,
    /// The monitor's socket, instead of SD_MONITOR or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// What lists can be sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Column {
    /// Bytes per second, both ways
    Rate,
    /// Bytes per second received
    Received,
    /// Bytes per second sent
    Sent,
    /// Bytes that wait, both ways
    Queue,
    /// The process's share of processors
    Cpu,
    /// Process
    Process,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number from 0.05 to 3600".to_owned()),
    }
}

#[derive(Args)]
pub struct TraceOptions {
    /// The process
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// End after so long; without it with the process, or by a signal
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub seconds: Option<Duration>,
    /// The monitor's socket, instead of SD_MONITOR or the user's own
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorOptions {
    /// A process that runs already: why its connections are the kernel's
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchOptions {
    /// What to measure
    #[arg(value_enum)]
    pub what: What,
    /// Print one JSON object per result and line
    #[arg(long)]
    pub json: bool,
    /// How many times each system has its turn
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,
    /// Bytes per message instead of the usual ones
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=(64 << 20)))]
    pub size: Option<u32>,
    /// latency, bandwidth: at eight sizes from 8 B to 1 MiB
    #[arg(long)]
    pub all: bool,
    /// At most so many pairs, processes or connections; of these, more than a million only when asked for so
    #[arg(long, value_name = "N", value_parser = most)]
    pub most: Option<usize>,
    /// Short rounds: to see that it works, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Only these systems
    #[arg(long, value_delimiter = ',', value_enum)]
    pub systems: Vec<System>,
    /// SocksDirect through a process in between, to see what that costs
    #[arg(long, hide = true, value_enum, value_name = "HOW")]
    pub loopback_pump: Option<LoopbackPump>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum What {
    /// Round-trip time of a ping-pong
    Latency,
    /// One-way messages of 8 bytes per second, one call each way per message
    Rate,
    /// Bytes per second of a one-way stream
    Bandwidth,
    /// Connections per second: connect, accept, one byte each way, close
    Connect,
    /// Round-trip time when the other side has gone to sleep
    Wake,
    /// Cost of single calls, of idle connections and of starting a program
    Cost,
    /// What programs cost that live for milliseconds: without a socket, and with one connection
    Exec,
    /// Sending by turns from two threads or processes, and what sharing costs who does not share
    Tokens,
    /// One-way messages per second of pairs of threads, each pair on two processors, by their number
    Scale,
    /// Time to an answer of processes that share one processor, by their number
    Processes,
    /// Round trips per second through epoll in turn over open connections, and their memory, by their number
    Connections,
    /// Packets per second through a chain of processes, by its length
    Pipeline,
    /// Single operations of the machine and its kernel, without sockets
    Machine,
    /// Round trips over very many connections without sockets: a ring for each, and one ring for all
    Queues,
}

/// What is measured side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// TCP sockets with the preload library
    Socksdirect,
    /// Loopback TCP
    Tcp,
    /// Loopback TCP whose data BPF hands from socket to socket, where that can be loaded
    Sockmap,
    /// Unix stream sockets
    Unix,
    /// Two pipes
    Pipe,
    /// The bare ring, no calls, no sleeping
    Ring,
    /// The bare ring, asking after each publication whether the peer sleeps
    RingDoorbell,
    /// One cache line each way
    Cacheline,
    /// A word in shared memory, and a futex for the side that sleeps
    Futex,
    /// One copy into shared memory and one out of it
    Memory,
    /// The machine and its kernel, without sockets
    Machine,
}

impl System {
    /// As in `--systems` and in JSON.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

fn most(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=100_000_000) => Ok(number),
        _ => Err("must be a number from 1 to 100000000".to_owned()),
    }
}

/// Reads the command line. Help and version are printed here and end the process.
pub fn parse() -> Result<Cli> {
    parse_from(std::env::args_os())
}

/// Reads one that begins with the program's name.
pub fn parse_from(arguments: impl Iterator<Item = OsString>) -> Result<Cli> {
    let arguments: Vec<OsString> = arguments.collect();
    Cli::try_parse_from(&arguments).map_err(|error| one_line(&error, command_of(&arguments).as_deref()))
}

/// The definition, for man pages and completions.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// The command that is meant, `bench` of `sd bench nonsense`.
fn command_of(arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1)?.to_str()?;
    Cli::command().find_subcommand(command).map(|_| command.to_owned())
}

/// Turns clap's paragraph into one line; help and version are printed as they are.
fn one_line(error: &clap::Error, command: Option<&str>) -> Failure {
    use clap::error::ErrorKind;
    let rendered = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match print(&rendered) {
            Ok(()) => std::process::exit(0),
            Err(failure) => failure,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Failure::new("a command is missing (see sd --help)").with_status(2)
        }
        _ => {
            let words: Vec<&str> = rendered
                .lines()
                .take_while(|line| !line.is_empty())
                .flat_map(str::split_whitespace)
                .collect();
            let text = words.join(" ");
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Failure::new(format!("{text} (see {})", help_of(&rendered, command))).with_status(2)
        }
    }
}

/// `sd run --help` when the mistake was made in `sd run`. Not each of clap's paragraphs has the usage.
fn help_of(rendered: &str, command: Option<&str>) -> String {
    let Some(usage) = rendered.lines().find_map(|line| line.strip_prefix("Usage: ")) else {
        return command.map_or("sd --help".to_owned(), |command| format!("sd {command} --help"));
    };
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
    let command: Vec<&str> = usage.split_whitespace().take_while(is_word).collect();
    format!("{} --help", command.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(arguments: &[&str]) -> String {
        match parse_from(arguments.iter().map(OsString::from)) {
            Ok(_) => panic!("{arguments:?} was understood"),
            Err(failure) => failure.text,
        }
    }

    #[test]
    fn definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn mistakes_are_one_line_with_a_way_on() {
        for arguments in
            [&["sd", "run"][..], &["sd", "ss", "--no"], &["sd", "no"], &["sd", "bench", "x"], &["sd"]]
        {
            let text = failure(arguments);
            assert!(!text.contains('\n') && text.contains("--help"), "{text}");
        }
        assert!(failure(&["sd", "ss", "--no"]).ends_with("(see sd ss --help)"));
        let benchmarks = failure(&["sd", "bench", "nonsense"]);
        assert!(benchmarks.contains("latency, rate") && benchmarks.ends_with("(see sd bench --help)"));
    }

    #[test]
    fn the_programs_own_flags_are_its_own() {
        let Ok(Cli { command: Command::Run(options) }) =
            Cli::try_parse_from(["sd", "run", "--no-start", "ls", "--monitor", "-l"])
        else {
            panic!("not understood");
        };
        assert_eq!(options.command, ["ls", "--monitor", "-l"]);
        assert!(options.monitor.is_none() && options.no_start);
    }
}
