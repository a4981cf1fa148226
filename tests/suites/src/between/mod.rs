//! Suites with their server on one host and their clients on another, each with an engine.
//!
//! ```text
//!  tests, 10.77.0.1 ──── 10.77.0.2, server          the kernel's turn: the same two networks, without the library
//! ```
//! Monitors promote all connections after their first message; those that end before stay the kernel's. At the end nothing may be left in
//! the monitors, and as many connections as the item says must have been moved, with bytes both ways between the engines.

mod memcached;
mod nginx;
mod postgres;

use super::compare::{CRASH, HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item, redis, sources};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::process::Proc;
use harness::{Result, fail, product};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PORT: u16 = 7000;
/// For a unit, or a file.
const LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(10);

/// Units of redis' tests that say something of a server they have not started.
const UNITS: [&str; 8] = [
    "unit/protocol",
    "unit/pubsub",
    "unit/multi",
    "unit/expire",
    "unit/auth",
    "unit/type/list",
    "unit/type/string",
    "unit/querybuf",
];

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let needs = &["redis-server", "redis-cli", "tclsh"];
    let source = Some((|| sources::source("redis")) as fn() -> _);
    let name = "between-hosts";
    let redis = Item { suite: "redis", name, needs, is_fast: false, source, run: redis_tests };
    [redis, memcached::item(name), nginx::item(name), postgres::item(name)].into_iter()
}

/// Two hosts and the side of the programs there.
struct Pair {
    hosts: [Host; 2],
    side: Side,
}

impl Pair {
    fn new(stage: &Stage) -> Result<Pair> {
        if stage.is_oracle() {
            return Ok(Pair { hosts: host::two(true)?, side: Side::Kernel });
        }
        let hosts = host::two_with_engines_told(Faults::default(), 1, &["--promote=all"])?;
        Ok(Pair { hosts, side: Side::Sd })
    }

    /// Of the server's host.
    fn address(&self) -> String {
        self.hosts[1].address.to_string()
    }

    fn serve(&self, program: &str, args: &[&str]) -> Result<Proc> {
        self.hosts[1].lab.serve(self.side, PORT, program, args)
    }

    /// Words of a shell that run a program on the server's host, for tests that start their server themselves.
    fn there(&self, program: &str) -> Result<String> {
        let there = &self.hosts[1].lab;
        let Some(network) = there.network() else { fail!("the server's host has no network") };
        let run = match self.side {
            Side::Kernel => String::new(),
            Side::Sd => format!(
                "env SD_MONITOR={} SD_IDLE_SECONDS=1 {} run -- ",
                there.socket().display(),
                product::sd().display()
            ),
        };
        let network = network.path();
        Ok(format!("env -u LD_PRELOAD -u SD_MONITOR nsenter --net={} {run}{program}", network.display()))
    }

    /// A script of the tests' host.
    fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.hosts[0].lab.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// A program of the tests, in a folder.
    fn command(&self, folder: &Path, program: &str, args: &[&str]) -> Result<Command> {
        let mut command = self.hosts[0].lab.command(self.side, program, args)?;
        command.current_dir(folder).env("TMPDIR", self.hosts[0].lab.path());
        Ok(command)
    }

    /// Runs a program of the tests: what became of it, and its words.
    fn test(&self, command: &mut Command, name: &str, limit: Duration) -> Result<(String, String)> {
        let mut process = Proc::start(command, name, self.hosts[0].lab.path())?;
        let is_over = harness::until("the tests end", limit, || !process.is_running()).is_ok();
        let text = process.stdout_so_far() + &process.stderr_so_far();
        let word = match process.status().filter(|_| is_over).map(|status| status.code()) {
            None => HANG,
            Some(Some(0)) => "pass",
            Some(Some(_)) => "fail",
            Some(None) => CRASH,
        };
        Ok((word.to_owned(), text))
    }

    /// Nothing is left, and so many connections at least were moved to the engines. In a repetition of a few tests there may be fewer.
    fn finish(self, item: &Item, choice: &Choice, least: u64) -> Result<()> {
        if self.side == Side::Sd {
            // Where the tests run nobody listens: what was promoted there goes to the other host.
            let moved = self.hosts[0].lab.snapshot()?.promotions;
            let least = if choice.only.is_some() { 0 } else { least };
            if moved < least {
                fail!("{moved} connections were moved to the engines, not {least}");
            }
            let bytes = harness::retry(SOON, || {
                self.carried()
                    .filter(|[sent, came]| moved == 0 || *sent > 0 && *came > 0)
                    .ok_or_else(|| "nothing went through the engines".into())
            })?;
            println!(
                "     {}: {moved} connections went through the engines, {} bytes to the server's host, {} back",
                item.title(),
                bytes[0],
                bytes[1]
            );
        }
        self.hosts.into_iter().try_for_each(Host::finish)
    }

    /// Bytes that the engines have exchanged, there and back.
    fn carried(&self) -> Option<[u64; 2]> {
        let seen = self.hosts[0].engine_seen().ok()?;
        let count = |name: &str| seen["peers"][0][name].as_u64();
        Some([count("bytes_sent")?, count("bytes_received")?])
    }
}

/// As [`redis`], against a server on the other host.
fn redis_tests(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::source("redis")?;
    redis::link_programs(&tree)?;
    let pair = Pair::new(stage)?;
    let (address, port) = (pair.address(), PORT.to_string());
    let args = ["--port", &port, "--bind", &address, "--protected-mode", "no", "--save", ""];
    let server = pair.serve("redis-server", &[&args[..], &["--enable-debug-command", "yes"]].concat())?;
    let mut outcomes = Outcomes::new();
    for unit in UNITS {
        let script = ["tests/test_helper.tcl", "--clients", "1", "--host", &address, "--port", &port];
        let args = [&script[..], &["--singledb", "--single", unit]].concat();
        let (word, text) = pair.test(&mut pair.command(&tree, "tclsh", &args)?, "tclsh", LIMIT)?;
        stage.write_log(unit, &text, word.clone())?;
        text.lines().for_each(|line| redis::add(line, &mut outcomes));
        outcomes.insert(format!("({unit})"), word);
    }
    outcomes.retain(|test, _| choice.has(test));
    server.terminate(SOON)?;
    pair.finish(item, choice, 20)?;
    Ok(outcomes)
}
