//! A private place to run servers and clients in: a temporary directory, a monitor of its own, ports of 127.0.0.1.

use crate::monitor::{Monitor, from_the_first_byte};
use crate::network::Network;
use crate::process::{Output, Proc, find_program};
use crate::scratch::Scratch;
use crate::ss::{self, Snapshot, Watch};
use crate::{Result, fail, procfs, product, retry};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether a program is run with SocksDirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Sd,
    Kernel,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Sd => "sd",
            Side::Kernel => "kernel",
        }
    }
}

/// Runs a check with every combination of sides, server first; an error says with which it came.
pub fn each(mut check: impl FnMut(Side, Side) -> Result<()>) -> Result<()> {
    for server in [Side::Sd, Side::Kernel] {
        for client in [Side::Sd, Side::Kernel] {
            check(server, client)
                .map_err(|error| format!("{} server, {} client: {error}", server.name(), client.name()))?;
        }
    }
    Ok(())
}

pub struct Lab {
    // Ended before the directory goes.
    monitor: Option<Monitor>,
    monitor_fds: usize,
    scratch: Scratch,
    /// cgroup.procs of a cgroup that programs of the kernel's side are started in.
    cgroup: Option<PathBuf>,
    /// Of the monitors that are started.
    policy: Option<PathBuf>,
    /// Their connections go through a pump of this kind.
    pump: Option<&'static str>,
    /// Connections are on shared memory from their first byte, unless a test says otherwise.
    promotes_nothing: bool,
    /// Where everything runs, if not in the network of this process.
    network: Option<Network>,
    /// Everything runs over the kernel, to show what Linux does in the same scenario.
    is_oracle: bool,
}

impl Lab {
    /// Its monitor is as users have it.
    pub fn new(is_oracle: bool) -> Result<Lab> {
        Lab::at(None, is_oracle, false)
    }

    /// For what is about connections that are on shared memory from their first byte: monitors promote nothing, unless they are told to.
    pub fn from_the_first_byte(is_oracle: bool) -> Result<Lab> {
        Lab::at(None, is_oracle, true)
    }

    /// A lab whose monitor and programs are in this network.
    pub fn on(network: Network, is_oracle: bool) -> Result<Lab> {
        Lab::at(Some(network), is_oracle, false)
    }

    /// The same; its monitor is started later, with arguments.
    pub fn on_without_monitor(network: Network) -> Result<Lab> {
        Lab::bare(Some(network), false, false)
    }

    fn at(network: Option<Network>, is_oracle: bool, promotes_nothing: bool) -> Result<Lab> {
        let mut lab = Lab::bare(network, is_oracle, promotes_nothing)?;
        if !is_oracle {
            lab.start_monitor()?;
        }
        Ok(lab)
    }

    fn bare(network: Option<Network>, is_oracle: bool, promotes_nothing: bool) -> Result<Lab> {
        let scratch = Scratch::new("lab")?;
        Ok(Lab {
            monitor: None,
            monitor_fds: 0,
            scratch,
            cgroup: None,
            policy: None,
            pump: None,
            promotes_nothing,
            network,
            is_oracle,
        })
    }

    /// Starts the programs of the kernel's side in this cgroup from now on, or in none.
    pub fn set_cgroup(&mut self, cgroup: Option<&Path>) {
        self.cgroup = cgroup.map(|path| path.join("cgroup.procs"));
    }

    /// The policy of monitors that are started from now on.
    pub fn set_policy(&mut self, text: &str) -> Result<()> {
        let path = self.path().join("policy");
        std::fs::write(&path, text)?;
        self.policy = Some(path);
        Ok(())
    }

    /// Lets the connections of monitors that are started from now on go through a pump: `prompt`, or `late`.
    pub fn set_pump(&mut self, kind: &'static str) {
        self.pump = Some(kind);
    }

    /// The pump that the monitor has started last.
    pub fn pump_pid(&self) -> Option<u32> {
        let all = procfs::children(self.monitor_pid()?);
        all.iter().filter(|process| process.state != 'Z').map(|process| process.pid).max()
    }

    /// Waits until the monitor has a pump.
    pub fn wait_for_pump(&self) -> Result<u32> {
        retry(Duration::from_secs(10), || {
            let known = ss::memory(&product::sd(), &self.socket())?;
            match self.pump_pid().filter(|pid| known.contains_key(&u64::from(*pid))) {
                Some(pid) => Ok(pid),
                None => fail!("the monitor has no pump"),
            }
        })
    }

    pub fn is_oracle(&self) -> bool {
        self.is_oracle
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Where everything runs, if not in the network of this process.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("monitor.sock")
    }

    pub fn monitor_pid(&self) -> Option<u32> {
        self.monitor.as_ref().map(Monitor::pid)
    }

    /// Whether the monitor that runs has logged this.
    pub fn monitor_said(&self, text: &str) -> bool {
        self.monitor.as_ref().is_some_and(|monitor| monitor.log().contains(text))
    }

    /// The end of what the monitor that runs has logged.
    pub fn last_said(&self) -> String {
        let log = self.monitor.as_ref().map(Monitor::log).unwrap_or_default();
        crate::process::tail(&log, 2_000).to_owned()
    }

    /// Starts the monitor, and waits until it answers.
    pub fn start_monitor(&mut self) -> Result<()> {
        self.start_monitor_of(&product::sd())
    }

    /// The same, with another command than ours.
    pub fn start_monitor_of(&mut self, sd: &Path) -> Result<()> {
        self.start_one(sd, &[])
    }

    /// The same, with another command than ours, and these arguments.
    pub fn start_monitor_of_with(&mut self, sd: &Path, args: &[&str]) -> Result<()> {
        self.start_one(sd, args)
    }

    /// The same, with these arguments.
    pub fn start_monitor_with(&mut self, args: &[&str]) -> Result<()> {
        self.start_one(&product::sd(), args)
    }

    fn start_one(&mut self, sd: &Path, args: &[&str]) -> Result<()> {
        let policy = self.policy.iter().flat_map(|path| [OsStr::new("--policy"), path.as_os_str()]);
        let pump = self.pump.iter().flat_map(|kind| [OsStr::new("--loopback-pump"), OsStr::new(kind)]);
        let mut args: Vec<&OsStr> = policy.chain(pump).chain(args.iter().map(OsStr::new)).collect();
        if self.promotes_nothing {
            args.extend(from_the_first_byte(&args));
        }
        let network = self.network.as_ref();
        let monitor = Monitor::start_on(network, sd, &self.socket(), &args, self.path())?;
        let pid = monitor.pid();
        self.monitor = Some(monitor);
        if self.pump.is_some() {
            self.wait_for_pump()?;
        }
        self.monitor_fds = procfs::fd_count(pid);
        Ok(())
    }

    /// `kill -9` of the monitor.
    pub fn kill_monitor(&mut self) {
        if let Some(monitor) = self.monitor.take() {
            monitor.kill();
        }
    }

    /// A program of the accelerated side, with another command and library than ours.
    pub fn command_of(&self, sd: &Path, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(sd);
        command.args(["run", "--no-start", "--"]).arg(program).args(args).env("SD_MONITOR", self.socket());
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// A command on a side; the program is looked up, and its absence is an error with its name.
    pub fn command(&self, side: Side, program: &str, args: &[&str]) -> Result<Command> {
        let Some(path) = locate(program) else { fail!("{program} is not installed") };
        let mut command = if side == Side::Sd && !self.is_oracle {
            let mut command = Command::new(product::sd());
            command.arg("run");
            if self.monitor.is_none() {
                // It was killed on purpose; `sd run` would bring one back.
                command.arg("--no-start");
            }
            command.arg("--").arg(path).env("SD_MONITOR", self.socket()).env("SD_IDLE_SECONDS", "1");
            command
        } else {
            // A shell joins the cgroup and becomes the program.
            let mut command = match &self.cgroup {
                Some(procs) => shell(procs, &path),
                None => Command::new(path),
            };
            command.env_remove("SD_MONITOR").env_remove("LD_PRELOAD");
            command
        };
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        if let Some(network) = &self.network {
            network.host(&mut command)?;
        }
        Ok(command)
    }

    pub fn start(&self, side: Side, program: &str, args: &[&str]) -> Result<Proc> {
        Proc::start(&mut self.command(side, program, args)?, file_name(program), self.path())
    }

    /// Starts a server, and waits until it listens.
    pub fn serve(&self, side: Side, port: u16, program: &str, args: &[&str]) -> Result<Proc> {
        let mut server = self.start(side, program, args)?;
        server.wait_listening(port)?;
        if side == Side::Sd && self.monitor.is_some() {
            self.wait_accepting(port);
        }
        Ok(server)
    }

    /// The workers of a server accept a moment after it listens; who connects before that gets the kernel. In vain where
    /// none accepts through us, which the paths of the connections will show.
    pub fn wait_accepting(&self, port: u16) {
        let suffix = format!(":{port}");
        let end = Instant::now() + Duration::from_secs(2);
        let accepts = || self.snapshot().is_ok_and(|s| s.accepting.iter().any(|a| a.ends_with(&suffix)));
        while !self.is_oracle && !accepts() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a program to its end; a status other than 0 is an error.
    pub fn run(&self, side: Side, program: &str, args: &[&str], limit: Duration) -> Result<Output> {
        self.start(side, program, args)?.wait(limit)?.ok()
    }

    /// As `run`, with a file as standard input.
    pub fn run_with_input(
        &self,
        side: Side,
        input: &Path,
        program: &str,
        args: &[&str],
        limit: Duration,
    ) -> Result<Output> {
        let mut command = self.command(side, program, args)?;
        command.stdin(std::fs::File::open(input)?);
        Proc::start(&mut command, file_name(program), self.path())?.wait(limit)?.ok()
    }

    pub fn snapshot(&self) -> Result<Snapshot> {
        ss::snapshot(&product::sd(), &self.socket())
    }

    /// Begins to watch the connections of a port.
    pub fn watch(&self, port: u16) -> Option<Watch> {
        self.watch_every(port, Duration::from_millis(30))
    }

    pub fn watch_every(&self, port: u16, interval: Duration) -> Option<Watch> {
        (!self.is_oracle).then(|| Watch::start(product::sd(), self.socket(), port, interval))
    }

    /// Fails unless all that was seen went over shared memory, or, where monitors promote, does so once it has lasted.
    pub fn require_shm(&self, seen: &[ss::Connection]) -> Result<()> {
        if self.promotes_nothing { ss::require_shm(seen) } else { ss::require_earned(seen) }
    }

    /// Ends a watch, and checks that the path was the one that these two sides must get.
    pub fn check(&self, watch: Option<Watch>, server: Side, client: Side) -> Result<()> {
        let Some(watch) = watch else { return Ok(()) };
        let seen = watch.finish()?;
        match (server, client) {
            (Side::Sd, Side::Sd) => self.require_shm(&seen),
            (Side::Kernel, Side::Kernel) if seen.is_empty() => Ok(()),
            (Side::Kernel, Side::Kernel) => fail!("sd ss shows {}", ss::describe(&seen[0])),
            // A client that has had few messages is not known to any monitor.
            (Side::Kernel, Side::Sd) if seen.is_empty() && !self.promotes_nothing => Ok(()),
            _ => ss::require_kernel(&seen),
        }
    }

    /// As `check` with both sides ours, for the connections of one program: the server has regular peers as well.
    pub fn check_program(&self, watch: Option<Watch>, program: &str) -> Result<()> {
        let Some(watch) = watch else { return Ok(()) };
        let mut seen = watch.finish()?;
        seen.retain(|c| c.comm.starts_with(program));
        if seen.is_empty() && !self.promotes_nothing {
            return Ok(());
        }
        self.require_shm(&seen).map_err(|error| format!("{program}: {error}").into())
    }

    /// As `check`, for connections that may be over before `sd ss` has looked.
    pub fn check_if_seen(&self, watch: Option<Watch>, server: Side, client: Side) -> Result<()> {
        let Some(watch) = watch else { return Ok(()) };
        let seen = watch.finish()?;
        match (server, client) {
            _ if seen.is_empty() => Ok(()),
            (Side::Sd, Side::Sd) => self.require_shm(&seen),
            _ => ss::require_kernel(&seen),
        }
    }

    /// As `check`, for servers that execute a program for each connection: a kernel socket that was accepted and
    /// inherited is nothing that the new program's library knows of, and a program that is not accelerated, or has given
    /// rights up, has a bridge.
    pub fn check_executed(&self, watch: Option<Watch>, server: Side, client: Side) -> Result<()> {
        let Some(watch) = watch else { return Ok(()) };
        let seen = watch.finish()?;
        match (server, client) {
            (Side::Sd, Side::Sd) => {
                let is_handed_on = |c: &ss::Connection| {
                    c.path == "bridged" || c.reason.as_deref().is_some_and(|why| why.starts_with("handed to"))
                };
                self.require_shm(&seen.into_iter().filter(|c| !is_handed_on(c)).collect::<Vec<_>>())
            }
            _ if seen.is_empty() => Ok(()),
            _ => ss::require_kernel(&seen),
        }
    }

    /// The monitor has another process of ours by now, which it keeps.
    pub fn has_more_descriptors(&mut self) -> Result<()> {
        let known = ss::memory(&product::sd(), &self.socket())?;
        let Some(pid) = self.monitor_pid().filter(|_| !known.is_empty()) else { fail!("it has none yet") };
        self.monitor_fds = procfs::fd_count(pid);
        Ok(())
    }

    /// Ends the monitor, after a check that its clients' end left nothing in it and that it can still answer.
    pub fn finish(mut self) -> Result<()> {
        let Some(mut monitor) = self.monitor.take() else { return Ok(()) };
        if !monitor.process().is_running() {
            fail!("the monitor is gone: {}", monitor.process().last_words());
        }
        retry(Duration::from_secs(5), || {
            if procfs::fd_count(monitor.pid()) > self.monitor_fds {
                let open = procfs::fd_targets(monitor.pid()).join(" ");
                fail!("the monitor had {} descriptors and has now: {open}", self.monitor_fds);
            }
            let left = self.snapshot()?;
            if let Some(c) = left.connections.first() {
                fail!("every client is gone, yet sd ss shows {}", ss::describe(c));
            }
            if let Some(local) = left.listeners.first() {
                fail!("every server is gone, yet sd ss shows the listener {local}");
            }
            Ok(())
        })?;
        monitor.terminate()
    }
}

fn shell(procs: &Path, program: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(procs).arg(program);
    command
}

/// Where a program is. Debian's own python is taken before others, which may be scripts that look for one.
pub fn locate(program: &str) -> Option<PathBuf> {
    let own = Path::new("/usr/bin").join(program);
    if own.exists() { Some(own) } else { find_program(program) }
}

/// Of a path; it names the files of what a program says.
fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
