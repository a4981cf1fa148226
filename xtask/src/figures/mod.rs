//! `cargo xtask figures`: the paper's tables and figures on this machine, beside the paper's own numbers.
//!
//! Each figure becomes a JSON file with every value, an SVG, and a part of one HTML page, in `target/figures`. Within a
//! host: Tables 2 and 4, Figs. 7, 9, 10, 11 and 12, connections by number and by rate, tokens, waking up, idling. Between two hosts
//! (`between`, for root): Fig. 8, what the thesis says of many connections and of a transport on the processor, and vSocket's evaluation.
//! Everything is measured by `sd bench`, in turn with Linux and the raw limits, or by real applications; kernel TCP
//! sockets of `sd bench` are set to one congestion control, which is named.
//!
//! Beside raw verbs, counted in instructions in an emulated guest, `rdma.json` (`cargo xtask rdma`).
//!
//! `--quick` shows that every series is there and sound; its numbers mean nothing.

mod apps;
mod between;
mod build;
mod chart;
mod data;
mod page;
mod paper;
mod roads;
mod source;

use crate::demo::machine;
use crate::instructions::lines::{self, Writes};
use build::Sources;
use data::Figure;
use harness::report::Count;
use harness::report::Progress;
use harness::{Result, fail, install, product};
use serde_json::{Value, json};
use source::Rows;
use std::path::{Path, PathBuf};

pub(crate) const SOCKSDIRECT: &str = "SocksDirect";
pub(crate) const TCP: &str = "Linux TCP";
pub(crate) const SOCKMAP: &str = "TCP, BPF sockmap";
pub(crate) const UNIX: &str = "Unix socket";
pub(crate) const PIPE: &str = "pipe";
pub(crate) const RING: &str = "bare ring";
pub(crate) const ALWAYS: &str = "SocksDirect, always by the engine";
pub(crate) const TWO_COPIES: &str = "two copies";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those between two hosts
    #[arg(long)]
    two_hosts: bool,
    /// Short rounds, to see that every figure is made: at most three minutes
    #[arg(long)]
    quick: bool,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
    /// Use the programs that are there; install nothing
    #[arg(long)]
    no_install: bool,
    /// Where to write, instead of target/figures
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The runs of `sd bench`, with the most that a quick run goes up to.
const BENCHES: &[(&str, &[&str], Option<&str>)] = &[
    ("machine", &[], None),
    ("latency", &["--all"], None),
    ("rate", &[], None),
    ("bandwidth", &["--all"], None),
    ("wake", &[], None),
    ("cost", &[], None),
    ("connect", &[], None),
    ("tokens", &[], None),
    ("scale", &[], None),
    ("processes", &[], Some("4")),
    ("pipeline", &[], Some("2")),
    ("connections", &[], Some("1000")),
];

/// A system of `sd bench` as figures name it.
pub(crate) fn system_name(system: &str) -> String {
    static_name(system).to_owned()
}

pub(crate) fn static_name(system: &str) -> &'static str {
    match system {
        "socksdirect" => SOCKSDIRECT,
        "tcp" => TCP,
        "sockmap" => SOCKMAP,
        "unix" => UNIX,
        "pipe" => PIPE,
        "ring" => RING,
        "ring-doorbell" => "bare ring, asking whether the peer sleeps",
        "cacheline" => "bare cache line",
        "futex" => "bare futex",
        "memory" => TWO_COPIES,
        _ => "another system",
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.no_install {
        install::run(&install::missing())?;
    }
    if !options.no_build {
        product::build()?;
    }
    let mut made = Made::default();
    if !options.two_hosts {
        within_a_host(options.quick, &mut made);
    }
    // Networks are root's to make.
    if options.two_hosts || nix::unistd::geteuid().is_root() {
        match between::figures(options.quick, &mut made.faults) {
            Ok(figures) => made.figures.extend(figures),
            Err(error) => made.faults.push(format!("two hosts: {error}")),
        }
    }
    let folder = options.out.clone().unwrap_or_else(|| product::target().join("figures"));
    store(&folder, &Sources(&made.rows), &made.figures, options.quick)?;
    // `test` shows that it works.
    if !options.quick && !options.two_hosts {
        match crate::rdma::counted() {
            Ok(None) => {}
            Ok(Some(rows)) => std::fs::write(folder.join("rdma.json"), format!("{:#}\n", json!(rows)))?,
            Err(error) => made.faults.push(format!("rdma: {error}")),
        }
    }
    verdict(&folder, &made.figures, made.faults)
}

#[derive(Default)]
struct Made {
    rows: Vec<(&'static str, Rows)>,
    figures: Vec<Figure>,
    faults: Vec<String>,
}

fn within_a_host(is_quick: bool, made: &mut Made) {
    let mut bar = Progress::new(BENCHES.len() + 3);
    for (name, arguments, most) in BENCHES {
        bar.step(&format!("sd bench {name}"));
        let mut arguments = [&[*name], *arguments].concat();
        arguments.extend(most.filter(|_| is_quick).into_iter().flat_map(|most| ["--most", most]));
        match source::bench(&arguments, is_quick) {
            Ok(rows) => made.rows.push((name, rows)),
            Err(error) => made.faults.push(error.to_string()),
        }
    }
    let sources = Sources(&made.rows);
    let mut figures = build::figures(&sources);
    let without_sockmap = build::unavailable(&sources, "sockmap");
    let (rounds, seconds) = if is_quick { (1, 0.3) } else { (3, 2.0) };
    let plan = apps::Plan { rounds, seconds, has_sockmap: without_sockmap.is_none() };
    type Make = fn(&apps::Plan) -> Result<Figure>;
    for (name, make) in [("nginx as proxy", apps::proxy as Make), ("applications", apps::applications)] {
        bar.step(name);
        match make(&plan) {
            Ok(figure) => figures.push(figure),
            Err(error) => made.faults.push(format!("{name}: {error}")),
        }
    }
    bar.step("cache lines");
    match contention() {
        Ok(notes) => {
            figures.iter_mut().filter(|f| f.id == "fig9").for_each(|f| f.notes.extend(notes.clone()))
        }
        Err(error) => made.faults.push(format!("cache lines: {error}")),
    }
    bar.finish();
    if let Some(why) = without_sockmap {
        let note = format!("{SOCKMAP} is not measured: {why}");
        figures.iter_mut().for_each(|figure| figure.notes.push(note.clone()));
    }
    made.figures = figures;
}

/// What decides whether pairs scale, whatever number of processors this machine has.
fn contention() -> Result<Vec<String>> {
    if !install::is_there("valgrind") {
        return Ok(vec!["Cache lines were not counted: valgrind is not installed.".to_owned()]);
    }
    let note = |writes: &Writes| {
        format!(
            "Counted by valgrind: each {} makes {:.2} stores to memory that processes share, to {:.2} cache lines; lines \
             that one of two pairs writes and the other touches, of all memory: {}.",
            writes.operation, writes.stores, writes.lines, writes.contended
        )
    };
    Ok(lines::measure()?.iter().map(note).collect())
}

fn store(folder: &Path, sources: &Sources, figures: &[Figure], is_quick: bool) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let machine = machine::describe();
    let congestion =
        build::congestion(sources).unwrap_or_else(|| "the system's congestion control".to_owned());
    let mut description = machine.json();
    description["measured_congestion_control"] = json!(congestion);
    description["is_quick"] = json!(is_quick);
    for figure in figures {
        let path = |extension: &str| folder.join(figure.id).with_extension(extension);
        std::fs::write(path("json"), serde_json::to_string_pretty(&figure.json(&description))? + "\n")?;
        chart::draw(figure, &path("svg"))?;
    }
    std::fs::write(folder.join("rows.json"), serde_json::to_string(&build::raw(sources))? + "\n")?;
    let quick = if is_quick { " A quick run: the numbers mean nothing." } else { "" };
    let heading = format!(
        "Medians; systems in turn, round by round; sd bench pins its sides to processors. Kernel TCP in it uses \
         {congestion}. Hollow marks and bars are the paper's own numbers, from its machine.{quick}"
    );
    std::fs::write(folder.join("index.html"), page::html(&text(&description), &heading, figures))?;
    Ok(())
}

fn text(machine: &Value) -> String {
    let field = |name: &str| machine[name].as_str().unwrap_or("unknown").to_owned();
    format!(
        "{}, {} processors, {} GiB; {}, Linux {}",
        field("processor"),
        machine["cores"],
        machine["memory_gib"],
        field("system"),
        field("kernel")
    )
}

/// Every figure is a check: all its series, all values finite.
fn verdict(folder: &Path, figures: &[Figure], mut faults: Vec<String>) -> Result<()> {
    let mut count = Count { failed: faults.len(), ..Count::default() };
    for figure in figures {
        let found = figure.faults();
        count.add(Count::one(found.is_empty()));
        faults.extend(found.iter().map(|fault| format!("{}: {fault}", figure.id)));
    }
    for fault in &faults {
        println!("figures: {fault}");
    }
    println!("{}", folder.join("index.html").display());
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("not every figure is whole");
    }
    Ok(())
}
