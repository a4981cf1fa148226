//! `cargo xtask across`: redis, nginx, memcached and PostgreSQL between two network namespaces, over the kernel and promoted to shared memory, in turn.
//!
//! Networks, programs and connections are made anew for each measurement. Of each that lasts `sd ss` must show both ends promoted while it is
//! measured; those that nginx closes after one answer are too short, and cost what is shown. Nor are the first messages of connections
//! promoted, and those of connections on which little is sent: how fast they are answered is shown (`across.py`). Figures are medians of the rounds.

use crate::sharing::across::{Joint, Networks, PUBLISHED, SERVER};
use crate::sharing::promote::is_promoted;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::report::{Progress, median, table, thousands};
use harness::{Result, fail, postgres, retry};
use std::net::TcpStream;
use std::time::Duration;

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

const PORT: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq)]
enum Load {
    Redis,
    /// 64 bytes, which it has in memory.
    Nginx,
    /// 64 bytes, for which it opens, asks about, reads and closes a file each time.
    File,
    /// memcached's gets, by a thread for each connection.
    Memcached,
    /// Prepared selects of PostgreSQL's pgbench.
    Postgres,
    /// nginx, a connection for each request.
    Close,
    /// The first message of each connection.
    First,
    /// Connections that send once a second.
    Sparse,
}

impl Load {
    fn lasts(self) -> bool {
        !matches!(self, Load::Close | Load::First | Load::Sparse)
    }

    fn name_in_script(self) -> Option<&'static str> {
        match self {
            Load::First => Some("first"),
            Load::Sparse => Some("sparse"),
            _ => None,
        }
    }
}

const SCRIPT: &str = include_str!("across.py");

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
    let server = serve(lab, &networks, case.load, side)?;
    retry(PATIENCE, || networks.server.inside(|| Ok(TcpStream::connect((SERVER, PORT)).map(drop)?)))
        .map_err(|error| format!("{}: {error}", server.last_words()))?;
    let (host, port) = match case.joint {
        Joint::Published => {
            networks.publish(&PORT.to_string())?;
            ("10.8.0.1", PUBLISHED)
        }
        _ => (SERVER, PORT),
    };
    if case.load == Load::Postgres {
        let args = ["-h", host, "-p", &port.to_string(), "-U", "postgres", "-i", "-q", "postgres"];
        let mut command = lab.command(Side::Kernel, "pgbench", &args)?;
        networks.client.host(&mut command)?;
        Proc::start(&mut command, "pgbench", lab.path())?.wait(PATIENCE)?.ok()?;
    }
    let (program, args) = client(case, side, (host, port), seconds);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = lab.command(side, program, &args)?;
    networks.client.host(&mut command)?;
    let client = Proc::start(&mut command, program, lab.path())?;
    if side == Side::Sd && case.load.lasts() {
        retry(PATIENCE, || match is_promoted(lab, port)? && is_promoted(lab, PORT)? {
            true => Ok(()),
            false => fail!("{}: not all are promoted", case.name),
        })?;
    }
    let output = client.wait(PATIENCE)?.ok()?;
    // Workers of nginx would outlive a master that is killed.
    server.terminate(PATIENCE)?;
    match rate(&output.text(), case.load) {
        Some(rate) => Ok(rate),
        None => fail!("{}: {}", case.name, output.text()),
    }
}

fn serve(lab: &Lab, networks: &Networks, load: Load, side: Side) -> Result<Proc> {
    let port = PORT.to_string();
    let folder = lab.path().display().to_string();
    let config = format!("{folder}/across.conf");
    let (program, args) = match load {
        Load::Redis => (
            "redis-server",
            ["--port", &port, "--bind", SERVER, "--protected-mode", "no", "--save", ""].to_vec(),
        ),
        Load::Postgres => {
            let data = postgres::cluster(lab, side.name())?;
            let mut command = postgres::server(lab, side, (SERVER, PORT), &data)?;
            networks.server.host(&mut command)?;
            let server = Proc::start(&mut command, "postgres", lab.path())?;
            return postgres::wait_ready(&server, 1).map(|()| server);
        }
        Load::Memcached => ("memcached", vec!["-l", SERVER, "-p", &port, "-U", "0", "-u", "root"]),
        Load::First | Load::Sparse => ("python3", vec!["-c", SCRIPT, "serve", SERVER, &port]),
        Load::Nginx | Load::File | Load::Close => {
            std::fs::write(lab.path().join("x"), [b'x'; 64])?;
            let answer = match load {
                Load::File => format!("root {folder};"),
                _ => format!("return 200 {};", "x".repeat(64)),
            };
            std::fs::write(
                &config,
                format!(
                    "daemon off; worker_processes 1; user root; pid {folder}/nginx.pid; error_log /dev/null;\n\
                     events {{ worker_connections 1024; }}\n\
                     http {{ access_log off; keepalive_requests 1000000000;\n\
                     server {{ listen {SERVER}:{port}; location / {{ {answer} }} }} }}\n"
                ),
            )?;
            ("nginx", vec!["-p", &folder, "-c", &config])
        }
    };
    let mut command = lab.command(side, program, &args)?;
    networks.server.host(&mut command)?;
    Proc::start(&mut command, program, lab.path())
}

/// The program that asks, which says what came of it.
fn client(case: &Case, side: Side, (host, port): (&str, u16), seconds: u64) -> (&'static str, Vec<String>) {
    let (port, connections) = (port.to_string(), case.connections.to_string());
    if let Some(name) = case.load.name_in_script() {
        let args = ["-c", SCRIPT, name, host, &port, &seconds.to_string()];
        return ("python3", args.map(str::to_owned).to_vec());
    }
    match case.load {
        Load::Redis => {
            // It counts requests, not time.
            let a_second = match (side, case.connections) {
                (Side::Kernel, 1) => 15_000,
                (Side::Kernel, _) => 100_000,
                (Side::Sd, 1) => 400_000,
                (Side::Sd, _) => 800_000,
            };
            let count = (a_second * seconds).to_string();
            let args = ["-h", host, "-p", &port, "-t", "get", "-c", &connections, "-n", &count, "--csv"];
            ("redis-benchmark", args.map(str::to_owned).to_vec())
        }
        Load::Memcached => {
            let (servers, threads) =
                (format!("--servers={host}:{port}"), format!("--concurrency={connections}"));
            let each = seconds * if side == Side::Sd { 20_000 } else { 5_000 };
            let each = format!("--execute-number={each}");
            let args: [&str; 5] = [&servers, "--test=get", &threads, &each, "--initial-load=1000"];
            ("memcslap", args.map(str::to_owned).to_vec())
        }
        Load::Postgres => {
            let seconds = seconds.to_string();
            let args = ["-h", host, "-p", &port, "-U", "postgres", "-c", &connections, "-T", &seconds];
            let args = args.iter().chain(&["-n", "-S", "-M", "prepared", "postgres"]);
            ("pgbench", args.map(|word| (*word).to_owned()).collect())
        }
        _ => {
            let (seconds, url) = (format!("{seconds}s"), format!("http://{host}:{port}/x"));
            let mut args = vec!["-t", "1", "-c", &connections, "-d", &seconds];
            if case.load == Load::Close {
                args.extend(["-H", "Connection: close"]);
            }
            args.push(&url);
            ("wrk", args.into_iter().map(str::to_owned).collect())
        }
    }
}

fn rate(text: &str, load: Load) -> Option<f64> {
    let word =
        |line: &str, at: usize| text.lines().find(|found| found.contains(line))?.split_whitespace().nth(at);
    let word = match load {
        Load::Redis => {
            text.lines().find(|line| line.starts_with("\"GET\""))?.split(',').nth(1)?.trim_matches('"')
        }
        // Time to get 160000 keys by   8 threads: 1.234 seconds.
        Load::Memcached => {
            let [keys, seconds]: [f64; 2] =
                [word("keys by", 3)?.parse().ok()?, word("keys by", 8)?.parse().ok()?];
            return Some(keys / seconds);
        }
        Load::Postgres => word("tps = ", 2)?,
        _ => word("Requests/sec", 1)?,
    };
    word.parse().ok()
}
