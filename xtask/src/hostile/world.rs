//! One monitor of root's, and users that share it.

use harness::monitor::{Monitor, from_the_first_byte};
use harness::network::Network;
use harness::process::{Output, Proc};
use harness::scratch::Scratch;
use harness::{Result, fail, procfs, product, until};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Users, by numbers that nobody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Root = 0,
    Alice = 61_001,
    Bob = 61_002,
    Mallory = 61_003,
}

/// With the library, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum With {
    Sd,
    Kernel,
}

/// So long a person waits for a program to start and connect, on a busy machine, before they call it hung.
pub(super) const TIMEOUT: Duration = Duration::from_secs(6);

pub(super) struct World {
    // Ended before the directory goes.
    monitor: Option<Monitor>,
    own_network: std::fs::File,
    scratch: Scratch,
    fds: usize,
    rss: u64,
    shm: usize,
}

/// The programs, where they are built.
pub(super) fn program() -> PathBuf {
    product::target().join("release/sd-hostile")
}

impl World {
    /// Everything that users run is copied to where they can reach it.
    pub(super) fn new(sd: &Path) -> Result<World> {
        let scratch = Scratch::new("hostile")?;
        let library = sd.with_file_name("libsd.so");
        for (from, name) in [(sd, "sd"), (library.as_path(), "libsd.so"), (program().as_path(), "sd-hostile")]
        {
            std::fs::copy(from, scratch.path().join(name))?;
        }
        let shm = dev_shm();
        let mut world = World {
            monitor: None,
            own_network: std::fs::File::open("/proc/self/ns/net")?,
            scratch,
            fds: 0,
            rss: 0,
            shm,
        };
        world.start_monitor(&[])?;
        Ok(world)
    }

    pub(super) fn path(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path().join("run/monitor.sock")
    }

    pub(super) fn monitor_pid(&self) -> u32 {
        self.monitor.as_ref().map_or(0, Monitor::pid)
    }

    /// Starts it (again), and waits until it answers.
    pub(super) fn start_monitor(&mut self, args: &[&str]) -> Result<()> {
        if let Some(monitor) = self.monitor.take() {
            monitor.terminate()?;
        }
        std::fs::create_dir_all(self.path().join("run"))?;
        let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        args.extend(from_the_first_byte(&args));
        let monitor = Monitor::start(&self.path().join("sd"), &self.socket(), &args, self.path())?;
        let is_heard = || self.answers(Duration::from_secs(2));
        until("the monitor answers a stranger", Duration::from_secs(10), is_heard)?;
        // The descriptor of the question itself is closed a moment after the answer.
        std::thread::sleep(Duration::from_millis(50));
        (self.fds, self.rss) = (procfs::fd_count(monitor.pid()), rss(monitor.pid()));
        self.monitor = Some(monitor);
        Ok(())
    }

    /// Starts it again with rules.
    pub(super) fn set_policy(&mut self, rules: &str) -> Result<()> {
        let path = self.path().join("policy");
        std::fs::write(&path, rules)?;
        self.start_monitor(&["--policy", &path.to_string_lossy()])
    }

    /// Everything that is started from now on is in a network namespace of its own, with these settings.
    pub(super) fn leave_network(&self, settings: &[(&str, &str)]) -> Result<()> {
        let network = Network::new()?;
        network.set(settings)?;
        network.enter()
    }

    /// Whether it says what it knows to a stranger.
    pub(super) fn answers(&self, limit: Duration) -> bool {
        let Ok(mut command) = self.command(User::Alice, With::Kernel, &["ss"]) else { return false };
        let asked = Proc::start(&mut command, "ss", self.path()).and_then(|proc| proc.wait(limit)?.ok());
        asked.is_ok()
    }

    /// A command of a user's: `sd` itself (`ss`), or a program of `tests/hostile`.
    pub(super) fn command(&self, user: User, with: With, args: &[&str]) -> Result<Command> {
        let name = if args.first() == Some(&"ss") { "sd" } else { "sd-hostile" };
        let program = self.path().join(name);
        let mut command = if with == With::Sd {
            let mut command = Command::new(self.path().join("sd"));
            command.args(["run", "--no-start", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(args).current_dir("/").stdin(Stdio::null());
        command.env("SD_MONITOR", self.socket()).env("SD_IDLE_SECONDS", "1");
        command.env_remove("LD_PRELOAD").env_remove("XDG_RUNTIME_DIR");
        if user != User::Root {
            // It clears the supplementary groups too.
            command.uid(user as u32).gid(user as u32);
        }
        Ok(command)
    }

    pub(super) fn start(&self, user: User, with: With, args: &[&str]) -> Result<Proc> {
        Proc::start(&mut self.command(user, with, args)?, args[0], self.path())
    }

    /// To its end, which must be good.
    pub(super) fn run(&self, user: User, with: With, args: &[&str], limit: Duration) -> Result<Output> {
        self.start(user, with, args)?.wait(limit)?.ok()
    }

    /// A server of `bob`'s, as soon as it listens.
    pub(super) fn serve(&self, with: With, port: u16, style: &str) -> Result<Proc> {
        let mut server = self.start(User::Bob, with, &["serve", &port.to_string(), "bob", style])?;
        server.wait_for_text("listening", TIMEOUT)?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(server)
    }

    /// An attack of mallory's, as soon as it stands.
    pub(super) fn attack(&self, args: &[&str]) -> Result<Proc> {
        let mut attack = self.start(User::Mallory, With::Kernel, args)?;
        attack.wait_for_text("ready", Duration::from_secs(30))?;
        Ok(attack)
    }

    /// Checks what is left when all users have gone, says it, and ends the monitor.
    pub(super) fn finish(mut self) -> Result<String> {
        let Some(mut monitor) = self.monitor.take() else { return Ok(String::new()) };
        if !monitor.process().is_running() {
            fail!("the monitor is gone: {}", monitor.process().last_words());
        }
        let left: Vec<String> = self.left(monitor.pid())?;
        if let [first, ..] = left.as_slice() {
            fail!("every user is gone, and there is left: {first}");
        }
        let (fds, rss) = (procfs::fd_count(monitor.pid()), rss(monitor.pid()));
        monitor.terminate()?;
        if dev_shm() > self.shm {
            fail!("/dev/shm had {} files and has {}", self.shm, dev_shm());
        }
        let more = rss.saturating_sub(self.rss);
        Ok(format!("left: {fds} descriptors, {more} KiB more"))
    }

    /// Descriptors of the monitor, and processes; waits a while for them to go.
    fn left(&self, monitor: u32) -> Result<Vec<String>> {
        let end = Instant::now() + Duration::from_secs(8);
        loop {
            let mut left: Vec<String> = procfs::descendants(std::process::id())
                .into_iter()
                .filter(|process| process.pid != monitor && process.parent != monitor)
                .map(|process| format!("{} ({})", process.comm, process.pid))
                .collect();
            if procfs::fd_count(monitor) > self.fds {
                let mut targets = procfs::fd_targets(monitor);
                targets.dedup();
                let shown = targets.join(" ");
                left.push(format!("{} descriptors, not {}: {shown}", procfs::fd_count(monitor), self.fds));
            }
            if left.is_empty() || Instant::now() > end {
                return Ok(left);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = nix::sched::setns(&self.own_network, nix::sched::CloneFlags::CLONE_NEWNET);
    }
}

/// KiB in memory.
pub(super) fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

fn dev_shm() -> usize {
    std::fs::read_dir("/dev/shm").map_or(0, Iterator::count)
}
