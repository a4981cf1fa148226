//! Two hosts, and what is measured between them over each road: the kernel, the engines as a hosts file has them by default, and the engines
//! whatever the connection.
//!
//! ```text
//!  sd-bench peer client, redis-benchmark   10.77.0.1 ──── 10.77.0.2   sd-bench peer server, redis-server
//! ```

use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::process::Proc;
use harness::{Result, fail, product};
use serde_json::Value;
use std::cell::Cell;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

/// Where servers listen, each at a port of its own, so that none waits for one that was closed.
const PORTS: u16 = 7100;
const PATIENCE: Duration = Duration::from_secs(60);

/// What connections between the two hosts take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Road {
    /// No library.
    Kernel,
    /// Engines carry who gains.
    Usual,
    /// Engines carry all that lasts.
    Engine,
}

impl Road {
    pub(super) const ALL: [Road; 3] = [Road::Kernel, Road::Usual, Road::Engine];

    pub(super) fn name(self) -> &'static str {
        match self {
            Road::Kernel => super::TCP,
            Road::Usual => super::SOCKSDIRECT,
            Road::Engine => super::ALWAYS,
        }
    }

    fn side(self) -> Side {
        if self == Road::Kernel { Side::Kernel } else { Side::Sd }
    }
}

/// A pair of hosts for each road.
pub(super) struct Roads {
    usual: [Host; 2],
    engine: [Host; 2],
    millis: u64,
    served: Cell<u16>,
}

/// What redis-benchmark says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) requests_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// What is asked of redis.
#[derive(Clone, Copy)]
pub(super) struct Redis {
    pub(super) connections: u64,
    pub(super) bytes: u64,
    /// Clients at once, with as many connections each.
    pub(super) clients: u64,
}

impl Roads {
    pub(super) fn new(millis: u64) -> Result<Roads> {
        if !nix::unistd::geteuid().is_root() {
            fail!("networks are root's to make");
        }
        // The default of hosts files.
        let usual = host::two_with_engines(Faults::default(), 32)?;
        let engine = host::two_with_engines_told(Faults::default(), 1, &["--promote=all"])?;
        for host in usual.iter().chain(&engine) {
            let is_up = || host.engine_seen().is_ok_and(|seen| seen["peers"][0]["state"] == "up");
            harness::until("the engines know each other", PATIENCE, is_up)?;
        }
        Ok(Roads { usual, engine, millis, served: Cell::new(0) })
    }

    /// Nothing is left in any monitor.
    pub(super) fn finish(self) -> Result<()> {
        self.usual.into_iter().chain(self.engine).try_for_each(Host::finish)
    }

    fn hosts(&self, road: Road) -> &[Host; 2] {
        if road == Road::Engine { &self.engine } else { &self.usual }
    }

    fn port(&self) -> u16 {
        self.served.set(self.served.get() + 1);
        PORTS + self.served.get()
    }

    /// What a client of `sd bench` finds: nanoseconds, or events in a second.
    pub(super) fn bench(&self, road: Road, work: &str, size: u64, count: u64) -> Result<f64> {
        let name = format!("{work} of {size} bytes, {count}, over {}", road.name());
        self.benched(road, work, size, count).map_err(|error| format!("{name}: {error}").into())
    }

    fn benched(&self, road: Road, work: &str, size: u64, count: u64) -> Result<f64> {
        let [here, there] = self.hosts(road);
        let before = here.lab.snapshot()?.promotions;
        let (size, count, millis) = (size.to_string(), count.to_string(), self.millis.to_string());
        let start = |host: &Host, role: &str, cpu: &str, address: &str| {
            let program = product::sd_bench().display().to_string();
            let args = ["peer", role, "--system", "tcp", "--work", work, "--size", &size, "--count", &count];
            let args = [&args[..], &["--millis", &millis, "--cpu", cpu, "--address", address]].concat();
            let mut command = host.lab.command(road.side(), &program, &args)?;
            Proc::start(command.stdin(Stdio::piped()), role, host.lab.path())
        };
        let address = format!("{}:{}", there.address, self.port());
        let mut server = start(there, "server", "1", &address)?;
        server.wait_for_text("ready", PATIENCE)?;
        let mut client = start(here, "client", "0", &address)?;
        client.wait_for_text("connected\n", PATIENCE)?;
        let mut input = client.stdin()?;
        input.write_all(b"go\n")?;
        client.wait_for_text("}\n", PATIENCE)?;
        let said = client.stdout_so_far();
        drop(input);
        let json = said.lines().find_map(|line| line.strip_prefix("result ")).unwrap_or_default();
        let report: Value = serde_json::from_str(json)?;
        client.wait(PATIENCE)?.ok()?;
        server.kill();
        let moved = here.lab.snapshot()?.promotions - before;
        if road == Road::Engine && work != "churn" && moved == 0 {
            fail!("no connection was moved to the engines");
        }
        report["value"].as_f64().ok_or_else(|| format!("the client said {said:?}").into())
    }

    /// What redis answers SET requests with, as `redis-benchmark` says.
    pub(super) fn redis(&self, road: Road, ask: Redis) -> Result<Said> {
        let name =
            format!("redis, {} connections, {} bytes, over {}", ask.connections, ask.bytes, road.name());
        self.answered(road, ask).map_err(|error| format!("{name}: {error}").into())
    }

    fn answered(&self, road: Road, ask: Redis) -> Result<Said> {
        let [here, there] = self.hosts(road);
        let (address, at) = (there.address.to_string(), self.port());
        let port = at.to_string();
        let args = ["--port", &port, "--bind", &address, "--protected-mode", "no", "--save", ""];
        let server = there.lab.serve(road.side(), at, "redis-server", &args)?;
        let before = here.lab.snapshot()?.promotions;
        let first = self.asked(road, at, ask, 100 * ask.connections.clamp(20, 100))?;
        let requests = (first.requests_per_s * self.millis as f64 / 1e3) as u64 / ask.clients;
        let said = self.asked(road, at, ask, requests.max(ask.connections * 2))?;
        server.terminate(PATIENCE)?;
        if road == Road::Engine && here.lab.snapshot()?.promotions == before {
            fail!("no connection of redis was moved to the engines");
        }
        Ok(said)
    }

    fn asked(&self, road: Road, port: u16, ask: Redis, requests: u64) -> Result<Said> {
        let [here, there] = self.hosts(road);
        let words = [u64::from(port), ask.connections, requests, ask.bytes].map(|word| word.to_string());
        let address = there.address.to_string();
        let args = ["-h", &address, "-p", &words[0], "-c", &words[1], "-n", &words[2], "-d", &words[3]];
        let args = [&args[..], &["-t", "set", "--csv"]].concat();
        let clients = (0..ask.clients).map(|_| here.lab.start(road.side(), "redis-benchmark", &args));
        let clients = clients.collect::<Result<Vec<_>>>()?;
        let said = clients.into_iter().map(|client| redis_said(&client.wait(PATIENCE)?.ok()?.text()));
        let all = said.collect::<Result<Vec<_>>>()?;
        let sum = all.iter().map(|said| said.requests_per_s).sum();
        // One client's, where there are several.
        all.last().map(|last| Said { requests_per_s: sum, ..*last }).ok_or_else(|| "no client".into())
    }
}

/// The last line of `redis-benchmark --csv`: name, requests/s, then average, min, p50, p95, p99 in ms.
fn redis_said(text: &str) -> Result<Said> {
    let cells = text.lines().last().unwrap_or_default().split(',').skip(1);
    let cells: Vec<f64> = cells.filter_map(|cell| cell.trim_matches('"').parse().ok()).collect();
    match cells[..] {
        [requests_per_s, _, _, p50, _, p99, ..] if requests_per_s > 0.0 => {
            // It counts in steps of 8 us; none is half of one.
            let us = |ms: f64| (ms * 1e3).max(4.0);
            Ok(Said { requests_per_s, p50_us: us(p50), p99_us: us(p99) })
        }
        _ => fail!("redis-benchmark printed {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_redis() {
        let text = "\"test\",\"rps\"\n\"SET\",\"1000.5\",\"0.051\",\"0.016\",\"0.055\",\"0.063\",\"0.079\",\"1.551\"\n";
        let said = redis_said(text).unwrap();
        assert_eq!((said.requests_per_s, said.p50_us, said.p99_us), (1000.5, 55.0, 79.0));
        redis_said("Could not connect").unwrap_err();
    }
}
