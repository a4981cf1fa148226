//! Everything one measurement needs: two processors, a directory, a monitor, and how peers are started.

use crate::peer::{self, Report, Work};
use clap::ValueEnum;
use sd_cli::cli::{LoopbackPump, System};
use sd_cli::failure::{Context, Failure, Result};
use sd_cli::process::Peer;
use sd_cli::scratch::{PrivateMonitor, Scratch};
use sd_cli::{library, program, status};
use std::cell::Cell;
use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The congestion control that every TCP figure uses, where the kernel has it.
const CONGESTION: &str = "cubic";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// For how long memory of idle connections is kept: what they need is measured soon after.
const IDLE_SECONDS: &str = "1";
/// Addresses between the first ones that two clients connect to.
const ADDRESSES: u32 = 1024;

/// One thing that two sides do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) size: usize,
    pub(crate) millis: u64,
    pub(crate) count: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) client: Report,
    /// From the server, where it measures too.
    pub(crate) server: Option<Report>,
    /// The monitor's processor time for each of what was done, where it was looked at.
    pub(crate) monitor_ns: Option<f64>,
}

/// The two programs of a measurement, connected, before the word is given.
pub(crate) struct Connected {
    pub(crate) client: Peer,
    pub(crate) server: Option<Peer>,
}

/// See the module.
pub(crate) struct Stage {
    pub(crate) cpus: [usize; 2],
    /// All that we may use.
    pub(crate) all_cpus: Vec<usize>,
    /// The congestion control that TCP sockets are given; `None` leaves the system's.
    pub(crate) congestion: Option<String>,
    /// This one, of which the peers are made.
    program: PathBuf,
    library: Option<PathBuf>,
    /// Connections of System::Socksdirect go through a pump.
    pub(crate) pump: Option<LoopbackPump>,
    sockmap: Option<Shortcut>,
    // The monitor ends before its directory goes.
    monitor: Option<PrivateMonitor>,
    scratch: Scratch,
    /// Numbers sockets, and varies loopback addresses.
    turn: Cell<u32>,
}

impl Stage {
    /// For everything but the accelerated path.
    pub(crate) fn new() -> Result<Stage> {
        let all_cpus = allowed_cpus();
        let first = all_cpus.first().copied().unwrap_or(0);
        Ok(Stage {
            cpus: [first, all_cpus.get(1).copied().unwrap_or(first)],
            all_cpus,
            congestion: can_pin_congestion().then(|| CONGESTION.to_owned()),
            program: std::env::current_exe().context("the path of sd-bench itself")?,
            library: None,
            pump: None,
            sockmap: None,
            monitor: None,
            scratch: Scratch::new("bench")?,
            turn: Cell::new(std::process::id()),
        })
    }

    /// Finds the library, starts a monitor, and sees that a connection goes over shared memory.
    pub(crate) fn prepare_socksdirect(&mut self) -> Result<()> {
        self.library = Some(library::find().map_err(Failure::new)?);
        let pump = self.pump.and_then(|pump| pump.to_possible_value());
        let args = pump.map(|pump| ["--loopback-pump".to_owned(), pump.get_name().to_owned()]);
        let (program, args) = (program::beside("sd")?, args.iter().flatten().cloned().collect::<Vec<_>>());
        self.monitor = Some(PrivateMonitor::start_with(&program, self.scratch.path(), &args)?);
        let probe = Job { work: Work::Latency, size: 8, millis: 1, count: 1 };
        self.measure(System::Socksdirect, &probe).map(drop)
    }

    /// Loads the programs of System::Sockmap, and sees that data takes their way.
    pub(crate) fn prepare_sockmap(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args([peer::NAME, "sockmap"]).env_remove("LD_PRELOAD");
        let mut holder = Peer::start(&mut command, "sockmap")?;
        let path = holder.expect("ready", TIMEOUT)?;
        let procs = CString::new(format!("{path}/cgroup.procs")).context("cgroup")?;
        self.sockmap = Some(Shortcut { holder: Some(holder), procs });
        let probe = Job { work: Work::Latency, size: 8, millis: 1, count: 1 };
        self.measure(System::Sockmap, &probe).map(drop)
    }

    /// Of the connections of System::Socksdirect.
    pub(crate) fn path(&self) -> &'static str {
        if self.pump.is_some() { "engine" } else { "shm" }
    }

    pub(crate) fn monitor_pid(&self) -> Option<u32> {
        self.monitor.as_ref().map(PrivateMonitor::pid)
    }

    /// Does the job once.
    pub(crate) fn measure(&self, system: System, job: &Job) -> Result<Outcome> {
        let Connected { mut client, server } = self.connect_anew(system, job)?;
        self.go(system, &mut client)?;
        let limit = Duration::from_millis(job.millis) * 3 + TIMEOUT;
        let mut outcome = Outcome { client: result_of(&mut client, limit)?, ..Outcome::default() };
        client.finish(TIMEOUT)?;
        if let Some(mut server) = server {
            if matches!(job.work, Work::Calls | Work::CallsShared) {
                outcome.server = Some(result_of(&mut server, TIMEOUT)?);
            }
            server.finish(TIMEOUT)?;
        }
        Ok(outcome)
    }

    /// Gives the word, after a look at the path of an accelerated client's connections.
    pub(crate) fn go(&self, system: System, client: &mut Peer) -> Result<()> {
        if system == System::Socksdirect {
            let Some(monitor) = &self.monitor else { return Err(Failure::new("no monitor")) };
            status::require_path(self.path(), monitor.socket(), client.pid())?;
        }
        client.say("go")
    }

    /// As `connect`, to another address than the last time where closed connections may keep it.
    pub(crate) fn connect_anew(&self, system: System, job: &Job) -> Result<Connected> {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.connect(system, job)
    }

    /// Starts both sides, up to the point where they wait for the word.
    pub(crate) fn connect(&self, system: System, job: &Job) -> Result<Connected> {
        if !has_sockets(system) {
            return self.pair(system, job, self.cpus);
        }
        let (server, mut address) = self.server(system, job, self.cpus[1])?;
        if matches!(job.work, Work::Churn | Work::ChurnBatches) {
            // Closed connections keep their address and port for a while; each round has its own.
            address = address.replace("127.0.0.1:", &format!("127.0.0.{}:", 2 + self.turn.get() % 250));
        }
        let client = self.client(system, job, &address)?;
        Ok(Connected { client, server: Some(server) })
    }

    /// Both sides in one program, on these processors.
    pub(crate) fn pair(&self, system: System, job: &Job, cpus: [usize; 2]) -> Result<Connected> {
        let mut command = self.command(system, "pair", job, cpus[0]);
        let mut client = Peer::start(command.args(["--cpu-other", &cpus[1].to_string()]), system.name())?;
        client.expect("connected", TIMEOUT)?;
        Ok(Connected { client, server: None })
    }

    /// A server and its address.
    pub(crate) fn server(&self, system: System, job: &Job, cpu: usize) -> Result<(Peer, String)> {
        let mut command = self.command(system, "server", job, cpu);
        if system == System::Unix {
            command.arg("--address").arg(self.fresh_path());
        }
        let mut server = Peer::start(&mut command, format!("{} server", system.name()))?;
        let address = server.expect("ready", TIMEOUT)?;
        Ok((server, address))
    }

    /// A client that is connected to the address, or to several.
    pub(crate) fn client(&self, system: System, job: &Job, address: &str) -> Result<Peer> {
        let limit = TIMEOUT + Duration::from_millis(5 * job.count.min(100_000) as u64);
        let mut command = self.command(system, "client", job, self.cpus[0]);
        command.args(["--cpu-other", &self.cpus[1].to_string(), "--address", address]);
        self.turn.set(self.turn.get().wrapping_add(1));
        command.args(["--place", &self.turn.get().wrapping_mul(ADDRESSES).to_string()]);
        let mut client = Peer::start(&mut command, format!("{} client", system.name()))?;
        client.expect("connected", limit)?;
        Ok(client)
    }

    /// A program that connects to the address, exchanges a byte and ends.
    pub(crate) fn visit(&self, system: System, address: &str) -> Command {
        let job = Job { work: Work::Churn, size: 1, millis: 0, count: 1 };
        let mut command = self.command(system, "visitor", &job, self.cpus[0]);
        command.args(["--address", address]);
        command
    }

    /// A process that hands packets on to the address, and its own address.
    pub(crate) fn function(
        &self,
        system: System,
        job: &Job,
        cpu: usize,
        next: &str,
    ) -> Result<(Peer, String)> {
        let mut command = self.command(system, "function", job, cpu);
        command.args(["--address", next]);
        if system == System::Unix {
            command.arg("--own-address").arg(self.fresh_path());
        }
        let mut function = Peer::start(&mut command, format!("{} function", system.name()))?;
        let address = function.expect("ready", TIMEOUT)?;
        Ok((function, address))
    }

    fn fresh_path(&self) -> PathBuf {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.scratch.path().join(format!("{}.sock", self.turn.get()))
    }

    /// A peer's command line and environment.
    fn command(&self, system: System, role: &str, job: &Job, cpu: usize) -> Command {
        let mut command = self.launch(system, &self.program);
        command.args([peer::NAME, role, "--system", &system.name()]);
        command.args(["--work", &job.work.name()]);
        command.args(["--size", &job.size.to_string(), "--millis", &job.millis.to_string()]);
        command.args(["--count", &job.count.to_string(), "--cpu", &cpu.to_string()]);
        let cpus: Vec<String> = self.all_cpus.iter().map(usize::to_string).collect();
        command.args(["--cpus", &cpus.join(",")]);
        if let (System::Tcp | System::Sockmap, Some(name)) = (system, &self.congestion) {
            command.args(["--congestion", name]);
        }
        command
    }

    /// Any program, with the library and the private monitor, or with neither.
    pub(crate) fn launch(&self, system: System, program: &Path) -> Command {
        let existing = std::env::var_os("LD_PRELOAD");
        match (&self.library, &self.monitor) {
            (Some(library), Some(monitor)) if system == System::Socksdirect => {
                let preload = library::preload(library, existing.as_deref()).unwrap_or_default();
                let mut command = Command::new(program);
                command.env("LD_PRELOAD", preload).env("SD_MONITOR", monitor.socket());
                command.env("SD_IDLE_SECONDS", IDLE_SECONDS);
                command
            }
            _ => {
                let mut command = Command::new(program);
                if let (System::Sockmap, Some(shortcut)) = (system, &self.sockmap) {
                    join_cgroup(&mut command, shortcut.procs.clone());
                }
                command.env_remove("LD_PRELOAD").env_remove("SD_MONITOR");
                if let Some(others) = existing.and_then(|value| library::preload_without_ours(&value)) {
                    command.env("LD_PRELOAD", others);
                }
                command
            }
        }
    }
}

/// Who holds the cgroup of System::Sockmap, and its cgroup.procs.
struct Shortcut {
    holder: Option<Peer>,
    procs: CString,
}

impl Drop for Shortcut {
    fn drop(&mut self) {
        // It takes the cgroup away; if it cannot, an empty directory stays.
        let _ = self.holder.take().map(|holder| holder.finish(TIMEOUT));
    }
}

/// The program is in this cgroup from its start.
fn join_cgroup(command: &mut Command, procs: CString) {
    let join = move || {
        // SAFETY: plain system calls between fork and exec; "0" is the caller.
        let done = unsafe {
            let fd = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(fd, c"0".as_ptr().cast(), 1)
        };
        if done == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(join) };
}

/// What a peer has found.
pub(crate) fn result_of(peer: &mut Peer, limit: Duration) -> Result<Report> {
    let json = peer.expect("result", limit)?;
    serde_json::from_str(&json).context("result of a peer")
}

/// Whether the sides are programs of their own, connected by sockets.
pub(crate) fn has_sockets(system: System) -> bool {
    matches!(system, System::Socksdirect | System::Tcp | System::Sockmap | System::Unix)
}

/// The processors that we may use.
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is valid, the kernel fills it, and CPU_ISSET stays within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Whether this user may choose cubic.
fn can_pin_congestion() -> bool {
    let Ok(fd) = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) else {
        return false;
    };
    let (name, len) = (CONGESTION.as_ptr().cast(), CONGESTION.len() as u32);
    // SAFETY: the kernel reads `len` bytes.
    unsafe { libc::setsockopt(fd.raw(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, len) == 0 }
}
