//! The monitor: the control plane of SocksDirect on one host.
//!
//! ```text
//!  process --Request + descriptors--> monitor --Reply + descriptors--> process
//!                                        |
//!                                        +-- pidfds, hang-ups --> reaper --> slots, futexes, eventfds
//! ```
//! # Guarantees
//! * It introduces processes to each other and reaps the dead; it never sees a byte of data.
//! * No client can block, crash or fool it: descriptors are checked before use, messages must be
//!   exact, a queue that is full is never waited for, and shared memory is read as if written by an
//!   enemy. What a client can do is lose its own connections.
//! * With nothing to do it sleeps; there is no timer but while a restart is being recovered from, or a living client has no connection.
//! * Its death is harmless: connections go on, and its successor learns what it needs from the clients.
//!
//! # Layers
//! `core` decides and is pure; `shell` has the sockets, the mappings and the event loop.
//!
//! # Tests
//! Unit tests of `core`; `tests/` runs the monitor as a process of its own with hand-made clients.

mod core;
mod shell;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// How to run the monitor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients connect; see [`default_socket_path`]. A listening socket that a service manager hands over
    /// (`LISTEN_FDS`) goes first.
    pub socket: PathBuf,
    /// Policy file; without one everything is allowed.
    pub policy: Option<PathBuf>,
    /// A program that takes a connection over and bridges it, for a process that may start none: `PROGRAM bridge-helper UID`,
    /// with that process's end of a pair of sockets as standard input, its own control connection as standard output, and a pidfd of that
    /// process as standard error, if there is one.
    /// Without one such a process cannot pass its connections on.
    pub helper: Option<PathBuf>,
    /// Connections go through a process in between, which says that it is there; none by default. For tests.
    pub pump: Option<Pump>,
    /// There is an engine, which carries connections to other hosts: this file, which it reads, says to which.
    pub hosts: Option<PathBuf>,
    /// Where it tells a Prometheus server of itself; nowhere by default.
    pub metrics: Option<MetricsPlace>,
    /// Whether connections that the kernel has made may be moved to shared memory.
    pub promote: Promote,
    /// For tests: what is promoted goes back at a moment that chance chooses, which is made of this, and is promoted again.
    pub wander: Option<u64>,
}

/// Which connections that the kernel has made are moved to shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promote {
    /// None.
    #[default]
    Nothing,
    /// Those that have shown that they last and are busy.
    Earned,
    /// For tests: all connections begin as the kernel's, and each is moved after a few messages.
    All,
}

/// Where metrics are to be had, in OpenMetrics text over HTTP: `GET /metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsPlace {
    /// `unix:PATH`: a socket that is its owner's alone.
    Unix(PathBuf),
    /// `ADDRESS:PORT`: for whoever reaches that.
    Tcp(SocketAddr),
}

impl FromStr for MetricsPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MetricsPlace, &'static str> {
        match text.strip_prefix("unix:") {
            Some("") => Err("a path is missing"),
            Some(path) => Ok(MetricsPlace::Unix(path.into())),
            None => text.parse().map(MetricsPlace::Tcp).map_err(|_| "must be unix:PATH or ADDRESS:PORT"),
        }
    }
}

/// What connections go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pump {
    /// What was sent is at the other end when the call is over, as with the kernel's loopback.
    Prompt,
    /// A moment later, as between hosts.
    Late,
}

/// Why the monitor could not start or go on. Displayed as one line.
#[derive(Debug)]
pub enum Error {
    /// Another monitor serves this socket.
    AlreadyRunning(PathBuf),
    /// The directory of the socket cannot be trusted; the text says why.
    Directory(PathBuf, String),
    /// Something that is not a socket has the socket's name.
    InTheWay(PathBuf),
    /// The policy file has a mistake: file, line (from 1), message.
    Policy(PathBuf, usize, String),
    /// What a service manager has handed over is no socket for a monitor; the text says why.
    Handed(String),
    /// A system call failed while doing something to something.
    System(&'static str, PathBuf, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::AlreadyRunning(path) => write!(f, "a monitor is already running at {}", path.display()),
            Error::Directory(path, why) => write!(f, "{}: {why}", path.display()),
            Error::InTheWay(path) => write!(f, "{}: exists and is not a socket", path.display()),
            Error::Handed(why) => write!(f, "the socket that was handed over (LISTEN_FDS): {why}"),
            Error::Policy(path, line, message) => write!(f, "{}:{line}: {message}", path.display()),
            Error::System(what, path, error) => write!(f, "cannot {what} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System(_, _, error) => Some(error),
            _ => None,
        }
    }
}

/// Serves until SIGTERM or SIGINT. SIGHUP reads the policy again, and has the engine read the hosts file again.
///
/// Logs to standard error what `SD_LOG` asks for: `off`, `error` (the default: clients can cause most of the rest), `warn`, `info`,
/// `debug` or `trace`. Tells systemd when it is ready. The signals are blocked in the calling
/// thread, which should be the only one.
pub fn run(options: Options) -> Result<(), Error> {
    shell::run(&options)
}

/// Begins to log as [`run`] does: for a process that the monitor's starts.
pub fn start_log() {
    shell::start_log();
}

pub use shell::descriptors::std_fd;

/// Where the socket is that a service manager has handed to this process, if one has: [`run`] will serve it. To be asked before that.
pub fn handed_socket_path() -> Option<PathBuf> {
    shell::activation::handed_path()
}

/// Where a program looks for its monitor that was told of none (`SD_MONITOR`): at the host's, in `/run/socksdirect`, if that is
/// there, and else at the user's own ([`own_socket_path`]).
pub fn default_socket_path() -> PathBuf {
    shell::place::default_socket_path()
}

/// Where a monitor of this user's own listens: `socksdirect/monitor.sock` in the user's run-time directory, or in
/// `~/.local/state` where there is none, or in `/run/socksdirect/UID`.
pub fn own_socket_path() -> PathBuf {
    shell::place::own_socket_path()
}

/// What fuzzing reaches from outside.
#[doc(hidden)]
pub mod testing {
    /// Reads a policy, and asks it; false when it is none.
    pub fn policy(text: &str) -> bool {
        let uid_of = |name: &str| (name == "root").then_some(0);
        let netns_of = |name: &str| (name == "blue").then_some(7);
        let find = crate::core::policy::Find { uid: &uid_of, netns: &netns_of };
        match crate::core::policy::Policy::parse(text, &find) {
            Ok(policy) => {
                let ip = sd_proto::Ip::v4([10, 1, 2, 3]);
                let is_allowed = policy.action(1, ip, 80) == crate::core::policy::Action::Allow;
                assert!(
                    is_allowed || !policy.lets_move(1, [(ip, 80); 2], [7; 2]),
                    "a later move is no way around"
                );
                assert!(is_allowed || !policy.is_alike_for_all());
                true
            }
            Err(error) => error.to_string().is_empty(),
        }
    }
}

/// Makes a directory for a monitor's socket, for its owner only, and those on the way to it: root's can be passed by
/// others, since `/run/socksdirect` has a directory for each user.
pub fn make_socket_directory(directory: &std::path::Path) -> io::Result<()> {
    shell::place::make_directory(directory)
}
