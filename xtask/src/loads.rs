//! Servers and clients of what is measured between two places: how each is started, and what it says at its end.

use crate::demo::measure::{self, Measurement};
use harness::lab::{Lab, Side};
use harness::network::Network;
use harness::process::Proc;
use harness::{Result, postgres, retry};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

pub(crate) const PORT: u16 = 7000;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const SCRIPT: &str = include_str!("loads.py");

/// Where one end runs.
pub(crate) struct Place<'a> {
    /// Its monitor.
    pub(crate) lab: &'a Lab,
    /// Another network than the lab's.
    pub(crate) network: Option<&'a Network>,
}

impl Place<'_> {
    pub(crate) fn command(&self, side: Side, program: &str, args: &[&str]) -> Result<Command> {
        let mut command = self.lab.command(side, program, args)?;
        self.host(&mut command)?;
        Ok(command)
    }

    fn host(&self, command: &mut Command) -> Result<()> {
        self.network.map_or(Ok(()), |network| network.host(command))
    }

    pub(crate) fn start(&self, side: Side, program: &str, args: &[&str]) -> Result<Proc> {
        Proc::start(&mut self.command(side, program, args)?, program, self.lab.path())
    }

    /// Does something in its network, in a thread of its own.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self.network.or(self.lab.network()) {
            Some(network) => network.inside(act),
            None => act(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
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
    pub(crate) fn lasts(self) -> bool {
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

/// Starts the server of a load at this address, and waits until it listens.
pub(crate) fn serve(place: &Place<'_>, load: Load, side: Side, address: &str) -> Result<Proc> {
    let server = start(place, load, side, address)?;
    let at = (address.to_owned(), PORT);
    retry(PATIENCE, || place.inside(|| Ok(TcpStream::connect((at.0.as_str(), at.1)).map(drop)?)))
        .map_err(|error| format!("{}: {error}", server.last_words()))?;
    Ok(server)
}

fn start(place: &Place<'_>, load: Load, side: Side, address: &str) -> Result<Proc> {
    let (lab, port) = (place.lab, PORT.to_string());
    let folder = lab.path().display().to_string();
    let config = format!("{folder}/across.conf");
    let (program, args) = match load {
        Load::Redis | Load::Memcached => server_without_files(load, address, &port),
        Load::Postgres => {
            let data = postgres::cluster(lab, side.name())?;
            let mut command = postgres::server(lab, side, (address, PORT), &data)?;
            place.host(&mut command)?;
            let server = Proc::start(&mut command, "postgres", lab.path())?;
            return postgres::wait_ready(&server, 1).map(|()| server);
        }
        Load::First | Load::Sparse => ("python3", vec!["-c", SCRIPT, "serve", address, &port]),
        Load::Nginx | Load::File | Load::Close => {
            std::fs::write(lab.path().join("x"), [b'x'; 64])?;
            let answer = match load {
                Load::File => format!("root {folder};"),
                _ => format!("return 200 {};", "x".repeat(64)),
            };
            std::fs::write(&config, nginx_config(&folder, &format!("{address}:{port}"), &answer))?;
            ("nginx", vec!["-p", &folder, "-c", &config])
        }
    };
    place.start(side, program, &args)
}

/// memcached or redis, which need none.
pub(crate) fn server_without_files<'a>(
    load: Load,
    address: &'a str,
    port: &'a str,
) -> (&'static str, Vec<&'a str>) {
    match load {
        Load::Memcached => ("memcached", vec!["-l", address, "-p", port, "-U", "0", "-u", "root"]),
        _ => {
            let args = vec!["--port", port, "--bind", address, "--protected-mode", "no", "--save", ""];
            ("redis-server", args)
        }
    }
}

/// One worker in the foreground, which answers so.
pub(crate) fn nginx_config(folder: &str, listen: &str, answer: &str) -> String {
    format!(
        "daemon off; worker_processes 1; user root; pid {folder}/nginx.pid; error_log /dev/null;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000;\n\
         server {{ listen {listen}; location / {{ {answer} }} }} }}\n"
    )
}

/// What is asked of a client.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) load: Load,
    pub(crate) connections: u64,
    pub(crate) seconds: u64,
    /// Requests that are made in a second, about: redis-benchmark and memcslap count them, not time.
    pub(crate) a_second: u64,
}

/// The program that asks, which says what came of it.
pub(crate) fn client(ask: &Ask, (host, port): (&str, u16)) -> (&'static str, Vec<String>) {
    let Ask { load, connections, seconds, a_second } = *ask;
    let (port, count) = (port.to_string(), connections.to_string());
    if let Some(name) = load.name_in_script() {
        let args = ["-c", SCRIPT, name, host, &port, &seconds.to_string()];
        return ("python3", args.map(str::to_owned).to_vec());
    }
    match load {
        Load::Redis => {
            let requests = (a_second * seconds).to_string();
            let args = ["-h", host, "-p", &port, "-t", "get", "-c", &count, "-n", &requests, "--csv"];
            ("redis-benchmark", args.map(str::to_owned).to_vec())
        }
        Load::Memcached => {
            let (servers, threads) = (format!("--servers={host}:{port}"), format!("--concurrency={count}"));
            let each = (seconds * a_second / connections).max(100);
            let each = format!("--execute-number={each}");
            let args: [&str; 5] = [&servers, "--test=get", &threads, &each, "--initial-load=1000"];
            ("memcslap", args.map(str::to_owned).to_vec())
        }
        Load::Postgres => {
            let seconds = seconds.to_string();
            let args = ["-h", host, "-p", &port, "-U", "postgres", "-c", &count, "-T", &seconds];
            let args = args.iter().chain(&["-n", "-S", "-M", "prepared", "postgres"]);
            ("pgbench", args.map(|word| (*word).to_owned()).collect())
        }
        _ => {
            let (seconds, url) = (format!("{seconds}s"), format!("http://{host}:{port}/x"));
            let mut args = vec!["-t", "1", "-c", &count, "-d", &seconds, "--latency"];
            if load == Load::Close {
                args.extend(["-H", "Connection: close"]);
            }
            args.push(&url);
            ("wrk", args.into_iter().map(str::to_owned).collect())
        }
    }
}

/// What the client printed at its end.
pub(crate) fn said(text: &str, ask: &Ask) -> Result<Measurement> {
    match ask.load {
        Load::Redis => return measure::parse_redis(text),
        Load::Memcached | Load::Postgres | Load::First | Load::Sparse => {}
        _ => return measure::parse_wrk(text),
    }
    let word =
        |line: &str, at: usize| text.lines().find(|found| found.contains(line))?.split_whitespace().nth(at);
    let number = |line: &str, at: usize| word(line, at)?.parse::<f64>().ok();
    let rate = match ask.load {
        // Time to get 160000 keys by   8 threads: 1.234 seconds.
        Load::Memcached => {
            number("keys by", 3).zip(number("keys by", 8)).map(|(keys, seconds)| keys / seconds)
        }
        Load::Postgres => number("tps = ", 2),
        _ => number("Requests/sec", 1),
    };
    // They report no median; this is the mean.
    let with_mean = |rate| Measurement { requests_per_s: rate, p50_us: ask.connections as f64 / rate * 1e6 };
    rate.map(with_mean).ok_or_else(|| format!("the client printed {text:?}").into())
}
