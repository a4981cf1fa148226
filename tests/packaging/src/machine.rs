//! A Debian system in namespaces, with systemd as its first process.
//!
//! Its root directory is that of [`harness::debian`]; what a machine changes goes into memory.
//! The one thing that it has of the real machine is a cgroup (version 2) of its own, which systemd needs.

use harness::process::{Output, Proc};
use harness::scratch::Scratch;
use harness::{Result, debian, fail, procfs, until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const BOOT: &str = include_str!("boot.sh");
const LIMIT: Duration = Duration::from_secs(30);

/// See the module.
pub(crate) struct Machine {
    process: Option<Proc>,
    init: u32,
    cgroup: Cgroup,
    scratch: Scratch,
}

impl Machine {
    /// Boots; the package is `/package.deb` there.
    pub(crate) fn boot(package: &Path) -> Result<Machine> {
        let root = debian::root()?;
        let scratch = Scratch::new("machine")?;
        let script = scratch.path().join("boot.sh");
        let place = scratch.path().join("place");
        std::fs::create_dir(&place)?;
        std::fs::write(&script, BOOT)?;
        let cgroup = Cgroup::new()?;
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&cgroup.0);
        command.args(["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup"]);
        command.args(["--fork", "--kill-child", "sh"]);
        command.arg(&script).arg(root).arg(&place).arg(package).stdin(Stdio::null());
        let process = Proc::start(&mut command, "machine", scratch.path())?;
        let mut machine = Machine { process: Some(process), init: 0, cgroup, scratch };
        machine.wait_until_up()?;
        Ok(machine)
    }

    fn wait_until_up(&mut self) -> Result<()> {
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        let is_systemd = |found: &procfs::Process| found.comm == "systemd";
        until("systemd runs", LIMIT, || {
            let children = procfs::children(process.pid());
            self.init = children.iter().find(|child| is_systemd(child)).map_or(0, |child| child.pid);
            self.init != 0 || !process.is_running()
        })?;
        if self.init == 0 {
            fail!("the machine does not boot: {}", process.last_words());
        }
        let is_up = || {
            self.run("systemctl is-system-running")
                .is_ok_and(|said| ["running", "degraded"].contains(&said.text().trim()))
        };
        until("the machine is up", LIMIT, is_up)
    }

    /// Runs a line of shell inside, to its end.
    pub(crate) fn run(&self, line: &str) -> Result<Output> {
        self.start(line)?.wait(LIMIT)
    }

    /// The same, and it must end well: what it has said.
    pub(crate) fn done(&self, line: &str) -> Result<String> {
        let said = self.run(line)?;
        if !said.status.success() {
            fail!("`{line}` ended with {}: {} {}", said.status, said.text().trim(), said.stderr.trim());
        }
        Ok(said.text())
    }

    /// Starts a line of shell inside.
    pub(crate) fn start(&self, line: &str) -> Result<Proc> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--", "env", "-i"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", line]).stdin(Stdio::null());
        Proc::start(&mut command, "line", self.scratch.path())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // With the first process of a PID namespace all others end.
        if let Some(process) = self.process.take() {
            process.kill();
        }
        self.cgroup.remove();
    }
}

/// A cgroup of version 2, for one machine.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Cgroup> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let version_2 = |line: &&str| line.split_whitespace().nth(2) == Some("cgroup2");
        let place = mounts.lines().find(version_2).and_then(|line| line.split_whitespace().nth(1));
        let Some(place) = place else { fail!("no cgroups of version 2 are mounted") };
        let path = Path::new(place).join(format!("sd-package-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Cgroup(path))
    }

    /// It may take a moment until those in it are gone.
    fn remove(&self) {
        let _ = until("the cgroup is empty", LIMIT, || remove_all(&self.0).is_ok());
    }
}

/// Files of a cgroup go with it.
fn remove_all(cgroup: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(cgroup)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_all(&path)?;
        }
    }
    std::fs::remove_dir(cgroup)
}
