//! `cargo xtask demo --two-hosts`: redis, nginx, memcached and PostgreSQL between two hosts, over the kernel and over the engines, in turn.
//!
//! ```text
//!  client  eth0 10.77.0.1 ───────────── 10.77.0.2 eth0  server        a network namespace each, with a monitor and an engine
//! ```
//! Hosts, programs and connections are made anew for each measurement. What road the connections took `sd ss` says on both hosts: they begin as
//! the kernel's, and those that would not gain stay there, or go back (`kernel(back)`).

use super::measure::Measurement;
use super::{COLUMNS, Options, chart, json_of, machine, middle};
use crate::loads::{self, Ask, Load, PATIENCE, PORT, Place};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::report::{Progress, table};
use harness::{Result, product};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// The default of hosts files.
const LEAST: usize = 32;
/// A look takes tens of milliseconds of a processor on our side, where each connection has a process, and next to nothing on the kernel's.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Case {
    label: &'static str,
    load: Load,
    connections: u64,
}

const CASES: [Case; 9] = [
    Case { label: "redis GET", load: Load::Redis, connections: 1 },
    Case { label: "redis GET", load: Load::Redis, connections: 50 },
    Case { label: "nginx 64 B keep-alive", load: Load::Nginx, connections: 1 },
    Case { label: "nginx 64 B keep-alive", load: Load::Nginx, connections: 50 },
    Case { label: "memcached get", load: Load::Memcached, connections: 8 },
    Case { label: "memcached get", load: Load::Memcached, connections: 50 },
    Case { label: "PostgreSQL select", load: Load::Postgres, connections: 1 },
    Case { label: "PostgreSQL select", load: Load::Postgres, connections: 8 },
    Case { label: "PostgreSQL select", load: Load::Postgres, connections: 50 },
];

/// What was measured of a case on one side, and the roads that were seen on our side.
#[derive(Clone, Default)]
struct Found {
    measured: [Vec<Measurement>; 2],
    roads: BTreeSet<String>,
}

struct Row {
    case: Case,
    sides: [Measurement; 2],
    roads: String,
}

pub(super) fn run(options: &Options, rounds: usize, seconds: f64) -> Result<()> {
    let faults = options.bad.faults();
    let seconds = seconds.max(1.0) as u64;
    let mut found = vec![Found::default(); CASES.len()];
    let mut progress = Progress::new(rounds * CASES.len() * 2);
    for round in 0..rounds {
        for (case, found) in CASES.iter().zip(&mut found) {
            let mut turns = [Side::Kernel, Side::Sd];
            turns.rotate_left(round % 2);
            for side in turns {
                let Case { label, connections, .. } = case;
                progress.step(&format!("round {}: {label}, {connections}, over {}", round + 1, side.name()));
                let measured = measure(case, side, seconds, faults, &mut found.roads)?;
                found.measured[usize::from(side == Side::Sd)].push(measured);
            }
        }
    }
    progress.finish();
    let rows: Vec<Row> = CASES.iter().zip(&found).map(|(case, found)| row(*case, found)).collect();
    show(options, &rows, (rounds, seconds), faults)
}

fn row(case: Case, found: &Found) -> Row {
    let sides = found.measured.each_ref().map(|all| middle(all));
    let roads = found.roads.iter().cloned().collect::<Vec<_>>().join(" ");
    Row { case, sides, roads }
}

fn measure(
    case: &Case,
    side: Side,
    seconds: u64,
    faults: Faults,
    roads: &mut BTreeSet<String>,
) -> Result<Measurement> {
    // Its client's time begins before its connections are there.
    let seconds = if case.load == Load::Postgres { seconds.max(3) } else { seconds };
    let hosts = host::two_with_engines(faults, LEAST)?;
    let [asking, serving] = hosts.each_ref().map(|host| Place { lab: &host.lab, network: None });
    let address = hosts[1].address.to_string();
    let server = loads::serve(&serving, case.load, side, &address)?;
    let at = (address.as_str(), PORT);
    if case.load == Load::Postgres {
        let port = PORT.to_string();
        let args = ["-h", &address, "-p", &port, "-U", "postgres", "-i", "-q", "postgres"];
        asking.start(Side::Kernel, "pgbench", &args)?.wait(PATIENCE)?.ok()?;
    }
    // Those that count requests: short runs tell how many there are in a second. Much of the first is before the connections are moved.
    let mut ask = Ask { load: case.load, connections: case.connections, seconds: 1, a_second: 4_000 };
    if matches!(case.load, Load::Redis | Load::Memcached) {
        for _ in 0..2 {
            ask.a_second = asked(&asking, side, &ask, at)?.requests_per_s as u64;
        }
    }
    ask.seconds = seconds;
    let watches = hosts.each_ref().map(|host| host.lab.watch_every(PORT, LOOKS_EVERY));
    let measured = asked(&asking, side, &ask, at)?;
    for watch in watches.into_iter().flatten() {
        let seen = watch.finish()?;
        let road = |seen: &harness::ss::Connection| match &seen.carrier {
            Some(carrier) => format!("{}/{carrier}", seen.path),
            None if seen.path == "kernel" && seen.moved.is_some() => "kernel(back)".to_owned(),
            None => seen.path.clone(),
        };
        roads.extend(seen.iter().filter(|_| side == Side::Sd).map(road));
    }
    server.terminate(PATIENCE)?;
    hosts.into_iter().try_for_each(Host::finish)?;
    Ok(measured)
}

fn asked(asking: &Place<'_>, side: Side, ask: &Ask, at: (&str, u16)) -> Result<Measurement> {
    let (program, args) = loads::client(ask, at);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = asking.start(side, program, &args)?.wait(PATIENCE * 3)?.ok()?;
    loads::said(&output.text(), ask)
}

fn show(options: &Options, rows: &[Row], (rounds, seconds): (usize, u64), faults: Faults) -> Result<()> {
    let folder = product::target().join("demo");
    std::fs::create_dir_all(&folder)?;
    let picture = folder.join("two-hosts.svg");
    let bars: Vec<chart::Bars<'_>> = rows
        .iter()
        .map(|row| chart::Bars {
            label: row.case.label,
            connections: row.case.connections as usize,
            rates: row.sides.map(|side| side.requests_per_s),
        })
        .collect();
    let title = "Unmodified programs on two hosts: requests per second";
    std::fs::write(&picture, chart::svg(title, &bars, "cargo xtask demo --two-hosts"))?;
    let machine = machine::describe();
    if options.json {
        let document = json!({
            "machine": machine.json(), "rounds": rounds, "seconds": seconds,
            "lost_ppm": faults.lost_ppm, "delay_us": faults.delay.as_micros() as u64,
            "rows": rows.iter().map(as_json).collect::<Vec<_>>(), "chart": picture.display().to_string(),
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(());
    }
    println!("{}", machine.text());
    println!("two hosts on this machine; median of {rounds} interleaved rounds, {seconds} s each\n");
    let header: Vec<&str> = COLUMNS.into_iter().chain(["roads_seen"]).collect();
    let of_row = |row: &Row| {
        let mut all =
            super::cells(row.case.label, row.case.connections as usize, &row.sides[0], &row.sides[1]);
        all.push(row.roads.clone());
        all
    };
    println!("{}", table(&header, &rows.iter().map(of_row).collect::<Vec<_>>()));
    println!("The clients of memcached and PostgreSQL report a mean in the place of the median.");
    println!("Chart: {}", picture.display());
    Ok(())
}

fn as_json(row: &Row) -> serde_json::Value {
    json_of(row.case.label, row.case.connections as usize, &row.roads, row.sides.each_ref())
}
