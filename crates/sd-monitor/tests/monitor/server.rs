//! The monitor under test: a child process with a directory of its own.

use harness::scratch::Scratch;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module. Ended, and checked to have left nothing, when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    directory: Scratch,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// One test at a time: a process that one forks would inherit the other's control sockets.
static ALONE: Mutex<()> = Mutex::new(());

/// The test harness has a thread beside the monitor's, which must not take its signals.
pub(crate) fn keep_signals_from_threads(command: &mut Command) {
    // SAFETY: between fork and exec only sigprocmask(2) is called.
    unsafe {
        command.pre_exec(|| {
            let mut set = SigSet::empty();
            [Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
            Ok(set.thread_block()?)
        });
    }
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with_policy(None)
    }

    pub(crate) fn start_with_policy(policy: Option<&str>) -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(policy) = policy {
            server.write_policy(policy);
        }
        server.restart();
        server
    }

    /// A monitor whose helpers are this shell script.
    pub(crate) fn start_with_helper(script: &str) -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        let program = server.directory().join("helper");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        server.restart_with(|command| {
            command.env("SD_TEST_HELPER", &program);
        });
        server
    }

    /// A monitor that was told to use a pump.
    pub(crate) fn start_with_pump() -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        server.restart_with(|command| {
            command.env("SD_TEST_PUMP", "1");
        });
        server
    }

    /// A monitor that promotes connections of the kernel's.
    pub(crate) fn start_with_promotion(policy: &str) -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        server.write_policy(policy);
        server.restart_with(|command| {
            command.env("SD_TEST_PROMOTE", "1");
        });
        server
    }

    /// A monitor that serves metrics where `place` says.
    pub(crate) fn start_with_metrics(place: impl FnOnce(&Server) -> String) -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        let place = place(&server);
        server.restart_with(|command| {
            command.env("SD_TEST_METRICS", place);
        });
        server
    }

    /// A monitor that was told of an engine, and serves metrics in its directory.
    pub(crate) fn start_with_engine() -> Server {
        let mut server = Server::prepare();
        server._alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        let place = format!("unix:{}", server.directory().join("metrics.sock").display());
        let hosts = server.directory().join("hosts");
        server.restart_with(|command| {
            command.env("SD_TEST_HOSTS", hosts).env("SD_TEST_METRICS", place);
        });
        server
    }

    /// Another monitor at a place of its own.
    pub(crate) fn start_another(&self) -> Server {
        let mut server = Server::prepare();
        server.restart();
        server
    }

    fn prepare() -> Server {
        Server { child: None, directory: Scratch::new("monitor").unwrap(), _alone: None }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory().join("monitor.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn policy(&self) -> PathBuf {
        self.directory().join("policy")
    }

    pub(crate) fn write_policy(&self, policy: &str) {
        fs::write(self.policy(), policy).unwrap();
    }

    /// The command that starts a monitor.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["monitor_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("SD_TEST_SOCKET", self.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        keep_signals_from_threads(&mut command);
        if self.policy().exists() {
            command.env("SD_TEST_POLICY", self.policy());
        }
        command
    }

    /// Starts the monitor, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        self.restart_with(|_| {});
    }

    /// The same, with a change to how it is started.
    pub(crate) fn restart_with(&mut self, change: impl FnOnce(&mut Command)) {
        let mut command = self.command();
        change(&mut command);
        command.stderr(Stdio::inherit());
        if std::env::var_os("SD_LOG").is_none() {
            command.env("SD_LOG", "error");
        }
        self.child = Some(command.spawn().unwrap());
        let path = self.socket();
        let connects = || sd_sys::msg::connect_unix(path.as_os_str().as_encoded_bytes(), 10_000).is_ok();
        until("the monitor listens", connects);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id() as i32
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and its exit status.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.take().unwrap().wait().unwrap()
    }

    /// Open descriptors of the monitor.
    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// The lowest descriptor that it does not use.
    pub(crate) fn first_free(&self) -> u64 {
        let used = |number: &u64| fs::symlink_metadata(format!("/proc/{}/fd/{number}", self.pid())).is_ok();
        (0..).find(|number| !used(number)).unwrap()
    }

    /// Mappings of the monitor.
    fn mappings(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.lines().filter(|line| line.contains("/memfd:sd-")).count()
    }

    /// Descriptors and mappings, once they no longer change: the monitor closes things after it has
    /// answered.
    pub(crate) fn holdings(&self) -> (usize, usize) {
        let mut before = None;
        loop {
            let now = (self.descriptors(), self.mappings());
            if before == Some(now) {
                return now;
            }
            before = Some(now);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How often the monitor has gone to sleep.
    pub(crate) fn sleeps(&self) -> u64 {
        let mut text = String::new();
        let path = format!("/proc/{}/status", self.pid());
        fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            let status = self.end();
            let left: Vec<_> =
                fs::read_dir(self.directory()).unwrap().map(|e| e.unwrap().file_name()).collect();
            if !std::thread::panicking() {
                assert!(status.success(), "the monitor ended with {status}");
                assert!(
                    left.iter().all(|name| name == "policy" || name == "helper"),
                    "left behind: {left:?}"
                );
            }
        }
    }
}

/// Waits until something holds, for up to ten seconds.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    harness::until(what, Duration::from_secs(10), holds).unwrap();
}
