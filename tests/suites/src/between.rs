//! Suites with their server on one host and their clients on another, each with an engine.
//!
//! ```text
//!  tests, 10.77.0.1 ──── 10.77.0.2, server          the kernel's turn: the same two networks, without the library
//! ```
//! Monitors promote all connections after their first message. At the end nothing may be left in them.

use super::compare::{CRASH, HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item, redis, sources};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::process::Proc;
use harness::{Result, fail};
use std::path::Path;
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
    let redis =
        Item { suite: "redis", name: "between-hosts", needs, is_fast: false, source, run: redis_tests };
    [redis].into_iter()
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

    fn address(&self) -> String {
        self.hosts[1].address.to_string()
    }

    fn serve(&self, program: &str, args: &[&str]) -> Result<Proc> {
        self.hosts[1].lab.serve(self.side, PORT, program, args)
    }

    /// Runs a program of the tests in a folder: its status, none where it had to be killed or a signal did it, and its words.
    fn test(&self, folder: &Path, program: &str, args: &[&str]) -> Result<(String, String)> {
        let mut command = self.hosts[0].lab.command(self.side, program, args)?;
        command.current_dir(folder);
        let mut process = Proc::start(&mut command, program, self.hosts[0].lab.path())?;
        let is_over = harness::until("the tests end", LIMIT, || !process.is_running()).is_ok();
        let text = process.stdout_so_far() + &process.stderr_so_far();
        let word = match process.status().filter(|_| is_over).map(|status| status.code()) {
            None => HANG,
            Some(Some(0)) => "pass",
            Some(Some(_)) => "fail",
            Some(None) => CRASH,
        };
        Ok((word.to_owned(), text))
    }

    /// Some of it went through the engines, and nothing is left.
    fn finish(self) -> Result<()> {
        for host in self.hosts.iter().filter(|_| self.side == Side::Sd) {
            harness::retry(SOON, || {
                let carried = host.engine_seen()?["peers"][0]["bytes_sent"].as_u64().unwrap_or(0);
                if carried == 0 { fail!("nothing went through the engines") } else { Ok(()) }
            })?;
        }
        self.hosts.into_iter().try_for_each(Host::finish)
    }
}

/// As [`redis`], against a server on the other host.
fn redis_tests(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
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
        let (word, text) = pair.test(&tree, "tclsh", &args)?;
        stage.write_log(unit, &text, word.clone())?;
        text.lines().for_each(|line| redis::add(line, &mut outcomes));
        outcomes.insert(format!("({unit})"), word);
    }
    outcomes.retain(|test, _| choice.has(test));
    server.terminate(SOON)?;
    pair.finish()?;
    Ok(outcomes)
}
