//! `cargo xtask across`: redis, nginx, memcached and PostgreSQL between two network namespaces, over the kernel and promoted to shared memory, in turn.
//!
//! Networks, programs and connections are made anew for each measurement. Of each that lasts `sd ss` must show both ends promoted while it is
//! measured; those that nginx closes after one answer are too short, and cost what is shown. Nor are the first messages of connections
//! promoted, and those of connections on which little is sent: how fast they are answered is shown (`loads.py`). Figures are medians of the rounds.

use crate::loads::{self, Ask, Load, PATIENCE, PORT, Place};
use crate::sharing::across::{Joint, Networks, PUBLISHED, SERVER};
use crate::sharing::promote::is_promoted;
use harness::lab::{Lab, Side};
use harness::report::{Progress, median, table, thousands};
use harness::{Result, fail, retry};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Each is measured so often
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of one measurement, about
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Only those whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    joint: Joint,
    load: Load,
    connections: u64,
}

const CASES: [Case; 16] = {
    use {Joint::*, Load::*};
    const fn case(name: &'static str, joint: Joint, load: Load, connections: u64) -> Case {
        Case { name, joint, load, connections }
    }
    [
        case("bridge-redis-1", Bridge, Redis, 1),
        case("bridge-redis-50", Bridge, Redis, 50),
        case("bridge-nginx-1", Bridge, Nginx, 1),
        case("bridge-nginx-50", Bridge, Nginx, 50),
        case("bridge-file-1", Bridge, File, 1),
        case("bridge-file-50", Bridge, File, 50),
        case("bridge-memcached-8", Bridge, Memcached, 8),
        case("bridge-postgres-8", Bridge, Postgres, 8),
        case("bridge-close-1", Bridge, Close, 1),
        case("bridge-close-50", Bridge, Close, 50),
        case("bridge-first", Bridge, First, 1),
        case("bridge-sparse", Bridge, Sparse, 50),
        case("published-redis-1", Published, Redis, 1),
        case("published-redis-50", Published, Redis, 50),
        case("published-nginx-1", Published, Nginx, 1),
        case("published-nginx-50", Published, Nginx, 50),
    ]
};

pub(crate) fn run(options: &Options) -> Result<()> {
    let cases: Vec<Case> = CASES.into_iter().filter(|case| case.name.contains(&options.only)).collect();
    let mut found = vec![[Vec::new(), Vec::new()]; cases.len()];
    let mut progress = Progress::new(options.rounds * cases.len() * 2);
    for round in 0..options.rounds {
        let lab = Lab::new(false)?;
        for (case, rates) in cases.iter().zip(&mut found) {
            let mut turns = [(Side::Kernel, 0), (Side::Sd, 1)];
            turns.rotate_left(round % 2);
            for (side, at) in turns {
                progress.step(&format!("round {}: {} over {}", round + 1, case.name, side.name()));
                rates[at].push(measure(&lab, case, side, options.seconds)?);
            }
        }
        lab.finish()?;
    }
    progress.finish();
    let rows = cases.iter().zip(&found).map(|(case, [kernel, sd])| {
        let (kernel, sd) = (median(kernel), median(sd));
        vec![case.name.to_owned(), thousands(kernel), thousands(sd), format!("{:.2}", sd / kernel)]
    });
    println!("{}", table(&["requests_per_s", "kernel", "promoted", "times"], &rows.collect::<Vec<_>>()));
    Ok(())
}

/// Requests per second.
fn measure(lab: &Lab, case: &Case, side: Side, seconds: u64) -> Result<f64> {
    let networks = Networks::new(case.joint)?;
    if matches!(case.load, Load::Close | Load::First) {
        // Which end closes first depends on who is faster, and the client's ports would soon all be in TIME-WAIT.
        let settings =
            [("net/ipv4/tcp_max_tw_buckets", "100"), ("net/ipv4/ip_local_port_range", "1024 65000")];
        networks.client.set(&settings)?;
        networks.server.set(&settings)?;
    }
    let [served, asking] =
        [&networks.server, &networks.client].map(|network| Place { lab, network: Some(network) });
    let server = loads::serve(&served, case.load, side, SERVER)?;
    let (host, port) = match case.joint {
        Joint::Published => {
            networks.publish(&PORT.to_string())?;
            ("10.8.0.1", PUBLISHED)
        }
        _ => (SERVER, PORT),
    };
    if case.load == Load::Postgres {
        let args = ["-h", host, "-p", &port.to_string(), "-U", "postgres", "-i", "-q", "postgres"];
        asking.start(Side::Kernel, "pgbench", &args)?.wait(PATIENCE)?.ok()?;
    }
    let Case { load, connections, .. } = *case;
    let ask = Ask { load, connections, seconds, a_second: a_second(case, side) };
    let (program, args) = loads::client(&ask, (host, port));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let client = asking.start(side, program, &args)?;
    if side == Side::Sd && case.load.lasts() {
        retry(PATIENCE, || match is_promoted(lab, port)? && is_promoted(lab, PORT)? {
            true => Ok(()),
            false => fail!("{}: not all are promoted", case.name),
        })?;
    }
    let output = client.wait(PATIENCE)?.ok()?;
    // Workers of nginx would outlive a master that is killed.
    server.terminate(PATIENCE)?;
    match loads::said(&output.text(), &ask) {
        Ok(said) => Ok(said.requests_per_s),
        Err(error) => fail!("{}: {error}", case.name),
    }
}

/// See [`Ask::a_second`].
fn a_second(case: &Case, side: Side) -> u64 {
    match (case.load, side, case.connections) {
        (Load::Memcached, Side::Kernel, connections) => 5_000 * connections,
        (Load::Memcached, Side::Sd, connections) => 20_000 * connections,
        (_, Side::Kernel, 1) => 15_000,
        (_, Side::Kernel, _) => 100_000,
        (_, Side::Sd, 1) => 400_000,
        (_, Side::Sd, _) => 800_000,
    }
}
