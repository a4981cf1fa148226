//! `cargo xtask demo`: redis and nginx over the kernel and over SocksDirect, in turn, on this machine.
//!
//! The two sides are interleaved and the median of the rounds is taken, since the speed of a machine drifts. While
//! the accelerated side is measured, `sd ss` must show that every connection that lasts takes the path `shm`. No setting of the
//! system is changed; the table says which congestion control the kernel's side ran with.

mod chart;
pub(crate) mod machine;
pub(crate) mod measure;
mod two_hosts;

use crate::cable::Bad;
use harness::cable::Faults;
use harness::lab::{Lab, Side};
use harness::report::{Progress, median, table, thousands};
use harness::{Result, fail, install, product};
use measure::{Benchmark, Measurement};
use serde_json::json;

const TITLE: &str = "Unmodified programs on one host: requests per second";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Use the programs that are there; install nothing
    #[arg(long)]
    no_install: bool,
    /// Between two hosts, made of network namespaces of this one, with an engine each
    #[arg(long)]
    two_hosts: bool,
    /// Of the cable between them
    #[command(flatten)]
    bad: Bad,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Length of one measurement
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// One short round: a first impression
    #[arg(long)]
    quick: bool,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number from 0.1 to 600".to_owned()),
    }
}

/// A benchmark's medians.
pub(crate) struct Row {
    pub(crate) benchmark: Benchmark,
    pub(crate) kernel: Measurement,
    pub(crate) sd: Measurement,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.no_install {
        install::command(false)?;
    }
    if !options.no_build {
        eprintln!("demo: building");
        product::build()?;
    }
    let (rounds, seconds) = if options.quick { (1, options.seconds.min(0.5)) } else { (3, options.seconds) };
    if options.two_hosts {
        return two_hosts::run(options, rounds, seconds);
    }
    if options.bad.faults() != Faults::default() {
        fail!("--loss and --delay are of the cable between --two-hosts");
    }
    let rows = measure_all(rounds, seconds)?;
    let folder = product::target().join("demo");
    std::fs::create_dir_all(&folder)?;
    let picture = folder.join("demo.svg");
    let bar = |row: &'_ Row| chart::Bars {
        label: row.benchmark.label,
        connections: row.benchmark.connections,
        rates: [row.kernel.requests_per_s, row.sd.requests_per_s],
    };
    let bars: Vec<_> = rows.iter().map(bar).collect();
    std::fs::write(&picture, chart::svg(TITLE, &bars, "cargo xtask demo"))?;
    let machine = machine::describe();
    if options.json {
        let rows: Vec<_> = rows.iter().map(as_json).collect();
        let document = json!({
            "machine": machine.json(), "rounds": rounds, "seconds": seconds, "rows": rows,
            "chart": picture.display().to_string(),
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!("{}", machine.text());
        println!(
            "median of {rounds} interleaved rounds, {seconds} s each; the kernel's side as this system is set\n"
        );
        println!("{}", text_table(&rows));
        println!(
            "redis-benchmark reports latency in steps of 8 us. Every SocksDirect connection that lasted was seen on shm."
        );
        println!("Chart: {}", picture.display());
    }
    Ok(())
}

/// Interleaves: each round measures each benchmark over the kernel, then over SocksDirect.
fn measure_all(rounds: usize, seconds: f64) -> Result<Vec<Row>> {
    let benchmarks = measure::ALL;
    let mut progress = Progress::new(rounds * benchmarks.len() * 2);
    let mut kernel = vec![Vec::new(); benchmarks.len()];
    let mut sd = vec![Vec::new(); benchmarks.len()];
    for round in 1..=rounds {
        let lab = Lab::new(false)?;
        for (index, benchmark) in benchmarks.iter().enumerate() {
            for side in [Side::Kernel, Side::Sd] {
                progress.step(&format!("round {round}: {} over {}", benchmark.name(), side.name()));
                let measured = benchmark.measure(&lab, side, seconds)?;
                let results = if side == Side::Sd { &mut sd } else { &mut kernel };
                results[index].push(measured);
            }
        }
        lab.finish()?;
    }
    progress.finish();
    let rows = benchmarks.iter().zip(kernel.iter().zip(&sd));
    Ok(rows.map(|(&benchmark, (k, s))| Row { benchmark, kernel: middle(k), sd: middle(s) }).collect())
}

fn middle(all: &[Measurement]) -> Measurement {
    let requests: Vec<f64> = all.iter().map(|m| m.requests_per_s).collect();
    let p50: Vec<f64> = all.iter().map(|m| m.p50_us).collect();
    Measurement { requests_per_s: median(&requests), p50_us: median(&p50) }
}

const COLUMNS: [&str; 8] = [
    "benchmark",
    "connections",
    "kernel_requests_per_s",
    "sd_requests_per_s",
    "gain_x",
    "kernel_p50_us",
    "sd_p50_us",
    "p50_gain_x",
];

/// What stands in these columns.
fn cells(label: &str, connections: usize, kernel: &Measurement, sd: &Measurement) -> Vec<String> {
    vec![
        label.to_owned(),
        connections.to_string(),
        thousands(kernel.requests_per_s),
        thousands(sd.requests_per_s),
        format!("{:.2}", sd.requests_per_s / kernel.requests_per_s),
        format!("{:.0}", kernel.p50_us),
        format!("{:.0}", sd.p50_us),
        format!("{:.2}", kernel.p50_us / sd.p50_us),
    ]
}

fn text_table(rows: &[Row]) -> String {
    let of_row = |row: &Row| cells(row.benchmark.label, row.benchmark.connections, &row.kernel, &row.sd);
    table(&COLUMNS, &rows.iter().map(of_row).collect::<Vec<_>>())
}

fn as_json(row: &Row) -> serde_json::Value {
    let Benchmark { label, connections, .. } = row.benchmark;
    json_of(label, connections, "shm", [&row.kernel, &row.sd])
}

fn json_of(
    label: &str,
    connections: usize,
    path: &str,
    [kernel, sd]: [&Measurement; 2],
) -> serde_json::Value {
    let side = |m: &Measurement| json!({"requests_per_s": m.requests_per_s, "p50_us": m.p50_us});
    json!({
        "benchmark": label, "connections": connections, "path": path, "kernel": side(kernel), "sd": side(sd),
        "gain_requests_x": sd.requests_per_s / kernel.requests_per_s, "gain_p50_x": kernel.p50_us / sd.p50_us,
    })
}
