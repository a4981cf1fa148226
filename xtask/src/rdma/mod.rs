//! `cargo xtask rdma`: raw verbs, kernel TCP and us side by side, over a real RDMA stack on a machine that has none.
//!
//! ```text
//!  image   Debian's kernel, its rdma_rxe, busybox                        once, kept in the target directory
//!  boot    two guests of qemu's emulation and a virtual cable; or one    time-outs, consoles
//!  inside  this program again: device, engines, programs                 agent: the server's end, drive: the client's
//!  rows    medians, one table
//! ```
//! Guests see the machine's files, read-only, and so run its perftest and our build. An emulated processor makes all of it some twenty times
//! slower, and RDMA by the kernel's rxe is not a NIC's: only ratios of one run say something, and they say it of
//! software. [ADR 111](../../../docs/adr/0111-rdma-lab.md)

mod agent;
mod boot;
mod drive;
mod image;
mod inside;
mod rows;

use boot::{Cable, Guest, Machine};
use harness::process::output;
use harness::report::Count;
use harness::scratch::Scratch;
use harness::{Result, fail, install, product};
use image::Image;
use inside::Role;
use rows::{CASES, Case, Figure, Row, SHORT};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// One JSON object a row
    #[arg(long)]
    json: bool,
    /// One guest, in which two addresses of one device stand for two hosts
    #[arg(long)]
    one: bool,
    /// Only whether each road works, and the tests of the bindings
    #[arg(long)]
    quick: bool,
    /// Let the guest's clock count instructions: figures that repeat, whatever else the machine does. One guest of one processor
    #[arg(long, requires = "one")]
    icount: bool,
    /// Engines do not encrypt, so that large messages go from ring to ring without a copy
    #[arg(long)]
    plain: bool,
    /// Rounds, in which the roads take turns
    #[arg(long)]
    rounds: Option<usize>,
    /// Ends after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
    /// Use the programs that are there; install nothing
    #[arg(long)]
    no_install: bool,
    /// A line for the shell of the one guest, in the place of all that is measured
    #[arg(long, requires = "one", value_name = "LINE")]
    shell: Option<String>,
    /// In a guest
    #[arg(long, hide = true, value_enum)]
    inside: Option<Role>,
    /// Of each guest, two at least
    #[arg(long)]
    processors: Option<u32>,
    /// The other end is in this guest, too
    #[arg(long, hide = true)]
    within_one: bool,
    #[arg(long, hide = true)]
    device_tests: Vec<PathBuf>,
}

const NEEDS: [&str; 10] = [
    "qemu-system-x86_64",
    "busybox",
    "cpio",
    "depmod",
    "ip",
    "ib_write_lat",
    "redis-server",
    "redis-benchmark",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
];
/// So the client's end says that the server's guest is to be killed.
const KILL_SERVER: &str = "kill the server";
/// What runs over RDMA besides redis, unless it is the quick form or instructions are counted.
const PROGRAMS: [&str; 4] = ["memcached", "memcslap", "nginx", "wrk"];

impl Options {
    /// Packages that are to be installed first.
    fn missing(&self) -> Vec<&'static str> {
        let more = if self.quick || self.icount { &[][..] } else { &PROGRAMS };
        install::missing_of(&[&NEEDS[..], more].concat())
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 }).max(1)
    }

    fn millis(&self) -> u64 {
        if self.quick { 200 } else { 1000 }
    }

    fn cases(&self) -> &'static [Case] {
        if self.quick { &SHORT } else { &CASES }
    }

    /// Of what measures the carrier: where figures mean nothing it is built as tests are.
    fn profile(&self) -> &'static str {
        if self.quick { "dev" } else { "release" }
    }

    /// Where that is.
    fn example(&self) -> PathBuf {
        let folder = if self.quick { "debug" } else { "release" };
        product::target().join(folder).join("examples/verbs")
    }

    /// Several times what it takes when nothing else runs.
    fn limit(&self) -> Duration {
        let round = if self.icount { 480 } else { 300 };
        let usual = if self.quick { 600 } else { 240 + round * self.rounds() as u64 };
        Duration::from_secs(self.seconds.unwrap_or(usual))
    }

    /// What guests are told of it.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["--rounds".to_owned(), self.rounds().to_string()];
        let flags = [
            (self.quick, "--quick"),
            (self.one, "--one"),
            (self.icount, "--icount"),
            (self.plain, "--plain"),
        ];
        words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()));
        if let Some(line) = &self.shell {
            words.extend(["--shell".to_owned(), format!("'{}'", line.replace('\'', r"'\''"))]);
        }
        words
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(role) = options.inside {
        return inside::run(role, options);
    }
    if !cfg!(target_arch = "x86_64") {
        fail!("guests are of x86-64");
    }
    let missing = options.missing();
    if !missing.is_empty() {
        let installed = match options.no_install {
            true => {
                Err(format!("please install, without recommended packages: {}", missing.join(" ")).into())
            }
            false => install::run(&missing),
        };
        match installed {
            Err(error) if options.quick => {
                println!("{error}\n0 passed, 0 failed, 1 skipped");
                return Ok(());
            }
            done => done?,
        }
    }
    if !options.no_build || !product::sd().exists() {
        product::build()?;
    }
    let start = Instant::now();
    let said = hear(options)?;
    if options.shell.is_some() {
        return Ok(());
    }
    let rows = rows_of(options, &said)?;
    let mut count = Count { passed: rows.len(), ..Count::default() };
    said.iter().filter_map(|line| Count::parse(line)).for_each(|tests| count.add(tests));
    match options.json {
        true => rows.iter().for_each(|row| println!("{}", row.json())),
        false => show(options, &rows, start.elapsed(), count),
    }
    if count.failed > 0 {
        fail!("tests failed in the guest");
    }
    Ok(())
}

fn show(options: &Options, rows: &[Row], took: Duration, count: Count) {
    println!("{}", rows::text(rows));
    let place = if options.one { "one guest" } else { "two guests" };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (rounds, seconds) = (options.rounds(), took.as_secs_f64());
    println!("{place} on {processors} processors, medians of {rounds} rounds, {seconds:.0} s");
    if !options.icount && processors < 6 {
        println!(
            "Who spins in a guest wants a processor: with fewer than six these times are the machine's load."
        );
    }
    println!("{}", count.line());
}

/// For `figures`: all cases, counted in instructions, as one JSON object each. None where something is not installed.
pub(crate) fn counted() -> Result<Option<Vec<Value>>> {
    let options = Options { one: true, icount: true, rounds: Some(1), ..Options::default() };
    if !options.missing().is_empty() {
        return Ok(None);
    }
    let said = hear(&options)?;
    Ok(Some(rows_of(&options, &said)?.iter().map(Row::json).collect()))
}

/// Every case has a figure for each road and round.
fn rows_of(options: &Options, said: &[String]) -> Result<Vec<Row>> {
    let figures: Vec<Figure> = said.iter().filter_map(|line| Figure::parse(line)).collect();
    let roads = options.cases().iter().map(|case| case.roads(options.one, options.icount).len());
    let wanted = roads.sum::<usize>() * options.rounds();
    if figures.len() != wanted {
        fail!("{} figures of {wanted}: {said:?}", figures.len());
    }
    Ok(Row::all(&figures))
}

/// Builds the tests of which some want a device, and what measures the carrier: the programs of the tests.
fn device_tests(options: &Options) -> Result<Vec<PathBuf>> {
    let which =
        ["--package", "sd-verbs", "--test", "device", "--package", "sd-carrier", "--test", "conformance"];
    let args = [&["test", "--no-run", "--message-format=json"][..], &which].concat();
    let said = output(product::cargo(&args).stderr(Stdio::inherit()))?;
    let example = ["build", "--profile", options.profile(), "--package", "sd-carrier", "--example", "verbs"];
    output(product::cargo(&example).stderr(Stdio::inherit()))?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs: Vec<PathBuf> =
        messages.filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?))).collect();
    if programs.len() == 2 {
        Ok(programs)
    } else {
        fail!("cargo built {programs:?}, not two programs of tests")
    }
}

/// Boots, and waits: all that was said to the lab.
fn hear(options: &Options) -> Result<Vec<String>> {
    let (image, tests) = (Image::get()?, device_tests(options)?);
    let end = Instant::now() + options.limit();
    let shown = |line: &str| {
        if let Some(figure) = Figure::parse(line) {
            eprintln!(
                "{:>6.1} s before the limit: {}, {}: {:.1}",
                (end - Instant::now()).as_secs_f64(),
                figure.case.name(),
                figure.road.name(),
                figure.value
            );
        }
    };
    let words = |role: &str| {
        let mut words = ["--inside", role].map(str::to_owned).to_vec();
        words.extend(options.words());
        if role != "client" {
            let told = |test: &PathBuf| ["--device-tests".to_owned(), test.display().to_string()];
            words.extend(tests.iter().flat_map(told));
        }
        words
    };
    if options.one {
        let processors = if options.icount { 1 } else { options.processors.unwrap_or(4).max(2) };
        let machine = Machine { processors, memory_mib: 1536, is_counting: options.icount };
        let mut guest = Guest::start("guest", &image, machine, None, &words("one"))?;
        guest.wait_until_up()?;
        if options.shell.is_some() {
            guest.show();
        }
        return guest.wait(end, shown);
    }
    let scratch = Scratch::new("cable")?;
    let [first, second] = Cable::new(scratch.path());
    let machine =
        Machine { processors: options.processors.unwrap_or(2).max(2), memory_mib: 1024, is_counting: false };
    let mut server = Guest::start("server", &image, machine, Some(&first), &words("server"))?;
    let mut client = Guest::start("client", &image, machine, Some(&second), &words("client"))?;
    server.wait_until_up()?;
    client.wait_until_up()?;
    let mut killed = Ok(());
    let each = |line: &str| match line {
        KILL_SERVER => killed = server.kill(),
        _ => shown(line),
    };
    let said = client.wait(end, each).map_err(|error| format!("{error}\nthe server, {}", server.tail()))?;
    killed?;
    // The last of what is tried was that it is killed.
    Ok([said, server.said()].concat())
}
