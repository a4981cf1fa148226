//! `cargo xtask apps`: real programs, unmodified, with and without SocksDirect on either side.
//!
//! Each scenario runs in a process of its own with a monitor of its own and a hard time limit. It checks contents,
//! checks in `sd ss` which path was taken, and at its end that nothing is left: no process, no descriptor in the
//! monitor, no file in /dev/shm. With `--kernel` the same scenarios run without SocksDirect, which shows that what
//! they expect is what Linux does.

mod appservers;
mod brokers;
mod busybox;
mod carriers;
mod cost;
mod crash;
mod engines;
mod engines_advice;
mod engines_alive;
mod engines_end;
mod engines_ipv6;
mod engines_nat;
mod engines_ready;
mod engines_reload;
mod engines_replaced;
mod engines_tenants;
mod fallback;
mod files;
mod ftp;
mod go;
mod go_messages;
mod go_servers;
mod haproxy;
mod hosts;
mod http;
mod httpd;
mod loads;
mod mail;
mod many;
mod mariadb;
mod memcached;
mod mixed;
mod mixed_tools;
mod monitor;
mod musl_root;
mod netperf;
mod no_ptrace;
mod own_calls;
mod peers;
mod postgres;
mod proxy;
mod python;
mod rabbitmq;
mod rates;
mod redis;
mod redis_store;
mod relays;
mod runtimes;
mod soak;
mod spawners;
mod ssh;
mod statics;
mod table;
mod tls;
mod tools;
mod transfer;
mod web;

use clap::Parser;
use harness::again::{Outcome, Tally};
use harness::lab::Lab;
use harness::process::{Proc, tail};
use harness::scratch::{Scratch, end_descendants};
use harness::{Result, fail, install, procfs, product, retry};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Programs, or files by their whole path, that it needs besides us.
    pub(crate) programs: &'static [&'static str],
    pub(crate) limit_s: u64,
    /// Left out by `test --fast`.
    pub(crate) is_slow: bool,
    /// Part of `--all` only, or of a choice by name.
    pub(crate) is_extra: bool,
    /// Meaningless without SocksDirect: left out by `--kernel`.
    pub(crate) is_ours: bool,
    /// About connections that are on shared memory from their first byte: its monitors promote nothing.
    pub(crate) is_from_first_byte: bool,
    /// Its hosts have monitors of their own, which are the same in each form: once is enough.
    pub(crate) is_between_hosts: bool,
    pub(crate) run: fn(&mut Lab) -> Result<()>,
}

impl Scenario {
    pub(crate) const fn new(
        name: &'static str,
        programs: &'static [&'static str],
        run: fn(&mut Lab) -> Result<()>,
    ) -> Scenario {
        Scenario {
            name,
            programs,
            limit_s: 60,
            is_slow: false,
            is_extra: false,
            is_ours: false,
            is_from_first_byte: false,
            is_between_hosts: false,
            run,
        }
    }

    pub(crate) const fn between_hosts(
        name: &'static str,
        programs: &'static [&'static str],
        run: fn(&mut Lab) -> Result<()>,
    ) -> Scenario {
        Scenario { is_between_hosts: true, ..Scenario::new(name, programs, run) }
    }

    /// Whether monitors that promote nothing make another scenario of it.
    fn has_first_byte_form(&self) -> bool {
        !self.is_from_first_byte && !self.is_between_hosts
    }

    pub(crate) const fn limit_s(mut self, limit_s: u64) -> Scenario {
        self.limit_s = limit_s;
        self
    }

    pub(crate) const fn slow(mut self) -> Scenario {
        self.is_slow = true;
        self
    }

    pub(crate) const fn extra(mut self) -> Scenario {
        self.is_extra = true;
        self
    }

    pub(crate) const fn ours(mut self) -> Scenario {
        self.is_ours = true;
        self
    }

    pub(crate) const fn at_first_byte(mut self) -> Scenario {
        self.is_from_first_byte = true;
        self
    }
}

const SCENARIOS: &[&[Scenario]] = &[
    redis::SCENARIOS,
    redis_store::SCENARIOS,
    postgres::SCENARIOS,
    mariadb::SCENARIOS,
    ssh::SCENARIOS,
    transfer::SCENARIOS,
    ftp::SCENARIOS,
    mail::SCENARIOS,
    brokers::SCENARIOS,
    rabbitmq::SCENARIOS,
    spawners::SCENARIOS,
    relays::SCENARIOS,
    netperf::SCENARIOS,
    memcached::SCENARIOS,
    web::SCENARIOS,
    proxy::SCENARIOS,
    haproxy::SCENARIOS,
    httpd::SCENARIOS,
    appservers::SCENARIOS,
    runtimes::SCENARIOS,
    go::SCENARIOS,
    go_messages::SCENARIOS,
    go_servers::SCENARIOS,
    busybox::SCENARIOS,
    musl_root::SCENARIOS,
    loads::SCENARIOS,
    python::SCENARIOS,
    tools::SCENARIOS,
    fallback::SCENARIOS,
    hosts::SCENARIOS,
    carriers::SCENARIOS,
    engines::SCENARIOS,
    engines_advice::SCENARIOS,
    engines_ipv6::SCENARIOS,
    engines_ready::SCENARIOS,
    engines_alive::SCENARIOS,
    engines_end::SCENARIOS,
    engines_nat::SCENARIOS,
    engines_reload::SCENARIOS,
    engines_replaced::SCENARIOS,
    engines_tenants::SCENARIOS,
    many::SCENARIOS,
    soak::SCENARIOS,
    crash::SCENARIOS,
    monitor::SCENARIOS,
    cost::SCENARIOS,
    mixed::SCENARIOS,
    mixed_tools::SCENARIOS,
    own_calls::SCENARIOS,
    no_ptrace::SCENARIOS,
    statics::SCENARIOS,
];

/// Rows of docs/APPLICATIONS.md.
const ROWS: &[&[table::Row]] = &[
    web::ROWS,
    redis_store::ROWS,
    postgres::ROWS,
    mariadb::ROWS,
    ssh::ROWS,
    transfer::ROWS,
    ftp::ROWS,
    mail::ROWS,
    brokers::ROWS,
    rabbitmq::ROWS,
    spawners::ROWS,
    relays::ROWS,
    netperf::ROWS,
    memcached::ROWS,
    loads::ROWS,
    tools::ROWS,
    python::ROWS,
    proxy::ROWS,
    haproxy::ROWS,
    httpd::ROWS,
    appservers::ROWS,
    cost::ROWS,
    runtimes::ROWS,
    go::ROWS,
    go_messages::ROWS,
    go_servers::ROWS,
    busybox::ROWS,
    statics::ROWS,
    musl_root::ROWS,
];

#[derive(Parser)]
#[command(
    name = "sd-apps",
    bin_name = "cargo xtask apps",
    about = "Run real applications and compare what they say and the path they took"
)]
struct Options {
    /// Run the whole matrix, not only the usual scenarios
    #[arg(long)]
    all: bool,
    /// Run only the scenarios whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the names of the scenarios
    #[arg(long)]
    list: bool,
    /// Run everything without SocksDirect: shows that Linux passes the scenarios
    #[arg(long)]
    kernel: bool,
    /// Connections are on shared memory from their first byte: monitors promote nothing; scenarios that are so always are left out
    #[arg(long)]
    first_byte: bool,
    /// Leave out the slow scenarios
    #[arg(long)]
    fast: bool,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
    /// Use the programs that are there; install nothing
    #[arg(long)]
    no_install: bool,
    /// Measure the applications, now and here, and write the table of docs/APPLICATIONS.md
    #[arg(long)]
    table: bool,
    /// Run one scenario in this very process
    #[arg(long, hide = true, value_name = "NAME")]
    inside: Option<String>,
}

impl Options {
    fn names(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// What `needs` of the chosen scenarios are not there is installed; everything of ours is built.
    fn prepare(&self, needs: &[&str]) -> Result<()> {
        let missing = install::missing_of(needs);
        if !self.no_install && !missing.is_empty() {
            install::run(&missing)?;
        }
        if !self.no_build && !self.kernel {
            product::build()?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    harness::command("apps", || run(&options))
}

fn run(options: &Options) -> Result<()> {
    let all = SCENARIOS.iter().flat_map(|group| group.iter());
    if let Some(name) = &options.inside {
        let Some(scenario) = all.into_iter().find(|s| s.name == name) else { fail!("no scenario {name}") };
        return run_inside(scenario, options);
    }
    if options.table {
        let all: Vec<&Scenario> = all.collect();
        options.prepare(&all.iter().flat_map(|s| s.programs.iter().copied()).collect::<Vec<_>>())?;
        let rows: Vec<_> = ROWS.iter().copied().flatten().filter(|r| options.names(r.scenarios)).collect();
        return table::run(&rows, &all, options.only.is_empty());
    }
    let chosen: Vec<&Scenario> = all
        .filter(|s| options.names(s.name))
        .filter(|s| options.all || !s.is_extra || !options.only.is_empty())
        .filter(|s| !(options.fast && s.is_slow || options.kernel && s.is_ours))
        .filter(|s| !options.first_byte || !options.only.is_empty() || s.has_first_byte_form())
        .collect();
    if options.list {
        chosen.iter().for_each(|s| println!("{}", s.name));
        return Ok(());
    }
    if chosen.is_empty() {
        fail!("no scenario is named like that; see cargo xtask apps --all --list");
    }
    options.prepare(&chosen.iter().flat_map(|s| s.programs.iter().copied()).collect::<Vec<_>>())?;
    let mut tally = Tally::default();
    for scenario in chosen {
        run_one(scenario, options, &mut tally)?;
    }
    tally.finish(&format!("scenarios, whose logs are in {}", logs().display()))
}

fn logs() -> std::path::PathBuf {
    product::target().join("apps")
}

/// Runs a scenario and prints its line.
fn run_one(scenario: &Scenario, options: &Options, tally: &mut Tally) -> Result<()> {
    let name = scenario.name;
    if let Some(program) = scenario.programs.iter().find(|program| !install::is_there(program)) {
        println!("skip {name:<34}         {program} is not installed");
        tally.count.skipped += 1;
        return Ok(());
    }
    let outcome = tally.run(name, options.only.is_empty(), || {
        run_apart(scenario, options).map_err(|error| error.to_string().replace('\n', " | ").into())
    });
    std::fs::create_dir_all(logs())?;
    let log = match &outcome {
        Outcome::Passed(_) => "ok",
        Outcome::Unsteady(error) | Outcome::Failed(error) => error,
    };
    Ok(std::fs::write(logs().join(format!("{name}.log")), format!("{log}\n"))?)
}

/// Runs a scenario in a process of its own; nothing of it is left.
fn run_apart(scenario: &Scenario, options: &Options) -> Result<String> {
    let scratch = Scratch::new("scenario")?;
    let mut command = Command::new(std::env::current_exe()?);
    // Its directories are inside ours, so that they go even if it is killed.
    command.args(["--inside", scenario.name]).stdin(Stdio::null()).env("TMPDIR", scratch.path());
    command.args(options.kernel.then_some("--kernel"));
    command.args(options.first_byte.then_some("--first-byte"));
    let files_before = procfs::shm_files();
    let outcome = Proc::start(&mut command, scenario.name, scratch.path())
        .and_then(|process| process.wait(Duration::from_secs(scenario.limit_s)));
    end_descendants(Duration::from_secs(1));
    let files: Vec<String> = procfs::shm_files().difference(&files_before).cloned().collect();
    match outcome {
        Ok(output) if !output.status.success() => {
            let said = tail(&output.stderr, 2000);
            fail!("{}", said.trim_start_matches("apps: "))
        }
        Err(error) => fail!("time limit: {error}"),
        Ok(_) if !files.is_empty() => fail!("left in /dev/shm: {}", files.join(" ")),
        Ok(_) => Ok(String::new()),
    }
}

/// The scenario itself, and what must hold at the end of any.
fn run_inside(scenario: &Scenario, options: &Options) -> Result<()> {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).and_then(|(_, hard)| {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard)
    })?;
    let mut lab = match options.first_byte || scenario.is_from_first_byte {
        true => Lab::from_the_first_byte(options.kernel)?,
        false => Lab::new(options.kernel)?,
    };
    (scenario.run)(&mut lab)?;
    let monitor = lab.monitor_pid();
    retry(Duration::from_secs(10), || {
        let mut strangers = procfs::descendants(std::process::id());
        strangers.retain(|process| Some(process.pid) != monitor);
        if !strangers.is_empty() {
            let names: Vec<String> = strangers.iter().map(|p| format!("{} ({})", p.comm, p.pid)).collect();
            fail!("still running: {}", names.join(" "));
        }
        Ok(())
    })?;
    lab.finish()
}
