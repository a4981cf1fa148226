//! Where one item runs on one side: a laboratory with or without a monitor, and a watch over progress.

use super::{Item, network};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::scratch::end_descendants_but;
use harness::{Result, product};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) struct Stage {
    lab: Lab,
    log: PathBuf,
}

/// How a watched program ended, and what it had said on both outputs.
pub(crate) struct Ended {
    /// The exit status; none after a signal or when it had to be killed.
    pub(crate) code: Option<i32>,
    pub(crate) is_hung: bool,
    pub(crate) text: String,
}

pub(crate) fn logs() -> PathBuf {
    product::target().join("suites/logs")
}

impl Stage {
    pub(crate) fn new(item: &Item, is_oracle: bool, round: usize) -> Result<Stage> {
        let side = if is_oracle { "kernel" } else { "here" };
        let name = format!("{}-{}.{side}.{round}.log", item.suite, item.name.replace('/', "-"));
        let log = logs().join(name);
        let _ = std::fs::remove_file(&log);
        if let Err(reason) = network::enter() {
            println!("note {}: not in a network of its own: {reason}", item.title());
        }
        Ok(Stage { lab: Lab::new(is_oracle)?, log })
    }

    pub(crate) fn is_oracle(&self) -> bool {
        self.lab.is_oracle()
    }

    /// A private directory.
    pub(crate) fn path(&self) -> &Path {
        self.lab.path()
    }

    /// A command on this side, with temporary files in the private directory.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Result<Command> {
        let side = if self.lab.is_oracle() { Side::Kernel } else { Side::Sd };
        let mut command = self.lab.command(side, program, args)?;
        command.env("TMPDIR", self.path());
        Ok(command)
    }

    /// Runs a command to its end. It is killed, with all it has started, when neither its output nor the file
    /// `progress` has grown for `stall_timeout`.
    pub(crate) fn watch(
        &self,
        command: &mut Command,
        name: &str,
        progress: Option<&Path>,
        stall_timeout: Duration,
    ) -> Result<Ended> {
        let mut process = Proc::start(command, "suite", self.path())?;
        let size = |process: &Proc| {
            let file = progress.and_then(|path| path.metadata().ok()).map_or(0, |meta| meta.len());
            file + process.output_len()
        };
        let (mut seen, mut since) = (size(&process), Instant::now());
        let mut is_hung = false;
        while process.is_running() {
            std::thread::sleep(Duration::from_millis(5));
            let now = size(&process);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > stall_timeout {
                is_hung = true;
                // CPython says on this signal where its threads are.
                process.signal(Signal::SIGABRT);
                std::thread::sleep(Duration::from_millis(500));
                break;
            }
        }
        let text = process.stdout_so_far() + &process.stderr_so_far();
        let status = process.status();
        drop(process);
        // What a test has left running would disturb the next.
        end_descendants_but(self.lab.monitor_pid(), Duration::from_secs(1));
        let code = if is_hung { None } else { status.and_then(|status| status.code()) };
        self.write_log(name, &text, if is_hung { "hung".to_owned() } else { format!("{status:?}") })?;
        Ok(Ended { code, is_hung, text })
    }

    pub(crate) fn write_log(&self, name: &str, text: &str, end: String) -> Result<()> {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(file, "==> {name}\n{}\n==> {name}: {end}", text.trim_end())?;
        Ok(())
    }

    /// Ends the monitor, after a check that nothing is left in it.
    pub(crate) fn finish(self) -> Result<()> {
        self.lab.finish()
    }
}
