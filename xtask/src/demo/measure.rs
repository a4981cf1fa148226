//! One measurement: a server and a client on the same side, and what the client reports.

use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::free_port;
use harness::ss::Watch;
use harness::{Result, fail};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    RedisGet,
    RedisSet,
    Nginx,
    Memcached,
}

#[derive(Clone, Copy)]
pub(crate) struct Benchmark {
    pub(crate) kind: Kind,
    pub(crate) label: &'static str,
    pub(crate) connections: usize,
}

/// What redis-benchmark or wrk said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: f64,
}

pub(crate) const ALL: [Benchmark; 6] = [
    Benchmark { kind: Kind::RedisGet, label: "redis GET", connections: 1 },
    Benchmark { kind: Kind::RedisGet, label: "redis GET", connections: 50 },
    Benchmark { kind: Kind::RedisSet, label: "redis SET", connections: 1 },
    Benchmark { kind: Kind::RedisSet, label: "redis SET", connections: 50 },
    Benchmark { kind: Kind::Nginx, label: "nginx 64 B keep-alive", connections: 1 },
    Benchmark { kind: Kind::Nginx, label: "nginx 64 B keep-alive", connections: 50 },
];

/// A thread for each connection, in the client.
pub(crate) const MEMCACHED: [Benchmark; 2] = [
    Benchmark { kind: Kind::Memcached, label: "memcached get", connections: 1 },
    Benchmark { kind: Kind::Memcached, label: "memcached get", connections: 50 },
];

impl Benchmark {
    pub(crate) fn name(&self) -> String {
        format!("{}, {} connections", self.label, self.connections).replace(" 1 connections", " 1 connection")
    }

    pub(crate) fn measure(&self, lab: &Lab, side: Side, seconds: f64) -> Result<Measurement> {
        let measured = match self.kind {
            Kind::RedisGet => self.redis(lab, side, seconds, "get"),
            Kind::RedisSet => self.redis(lab, side, seconds, "set"),
            Kind::Nginx => self.nginx(lab, side, seconds),
            Kind::Memcached => self.memcached(lab, side, seconds),
        };
        measured.map_err(|error| format!("{} over {}: {error}", self.name(), side.name()).into())
    }

    fn redis(&self, lab: &Lab, side: Side, seconds: f64, test: &str) -> Result<Measurement> {
        let port = free_port()?;
        let port_text = port.to_string();
        let args = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let server = lab.serve(side, port, "redis-server", &args)?;
        // The program wants a number of requests, not a time: shorter runs tell how many fill it. Of the first one, much may be
        // before the connections are moved.
        let first = self.redis_client(lab, port, test, 5_000.0, (side, seconds))?;
        let more = (first.requests_per_s * seconds / 4.0).max(5_000.0);
        let second = self.redis_client(lab, port, test, more, (side, seconds))?;
        let requests = (second.requests_per_s * seconds).max(1_000.0);
        let measured = watched((lab, side), port, seconds, |times| {
            self.redis_client(lab, port, test, requests * times, (side, seconds * times))
        })?;
        server.terminate(Duration::from_secs(5))?.ok()?;
        Ok(measured)
    }

    fn redis_client(
        &self,
        lab: &Lab,
        port: u16,
        test: &str,
        requests: f64,
        (side, seconds): (Side, f64),
    ) -> Result<Measurement> {
        let (port_text, requests) = (port.to_string(), format!("{requests:.0}"));
        let connections = self.connections.to_string();
        let args =
            ["-h", "127.0.0.1", "-p", &port_text, "-t", test, "-n", &requests, "-c", &connections, "--csv"];
        parse_redis(&lab.run(side, "redis-benchmark", &args, limit(seconds))?.text())
    }

    fn memcached(&self, lab: &Lab, side: Side, seconds: f64) -> Result<Measurement> {
        let port = free_port()?;
        let (port_text, user) = (port.to_string(), own_user());
        let args = ["-t", "4", "-l", "127.0.0.1", "-p", &port_text, "-U", "0", "-u", &user, "-m", "64"];
        let server = lab.serve(side, port, "memcached", &args)?;
        // It too wants a number of requests.
        let first = self.memcslap(lab, port, 5_000.0, (side, seconds))?;
        let requests_per_s = watched((lab, side), port, seconds, |times| {
            self.memcslap(lab, port, first * seconds * times, (side, seconds * times))
        })?;
        server.terminate(Duration::from_secs(5))?.ok()?;
        // It reports no median; this is the mean.
        Ok(Measurement { requests_per_s, p50_us: self.connections as f64 / requests_per_s * 1e6 })
    }

    fn memcslap(&self, lab: &Lab, port: u16, requests: f64, (side, seconds): (Side, f64)) -> Result<f64> {
        let each = (requests / self.connections as f64).max(100.0) as usize;
        let servers = format!("--servers=127.0.0.1:{port}");
        let (concurrency, count) =
            (format!("--concurrency={}", self.connections), format!("--execute-number={each}"));
        let args = [&servers, "--test=get", &concurrency, &count, "--initial-load=1000"];
        let said = lab.run(side, "memcslap", &args, limit(seconds))?.text();
        let took = parse_memcslap(&said, self.connections)?;
        Ok((each * self.connections) as f64 / took)
    }

    fn nginx(&self, lab: &Lab, side: Side, seconds: f64) -> Result<Measurement> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let server = Nginx::start(lab, side, &Workers { count: cores.min(4), user: &own_user() })?;
        let threads = if self.connections == 1 { "-t1" } else { "-t2" };
        let connections = format!("-c{}", self.connections);
        let text = watched((lab, side), server.port, seconds, |times| {
            // wrk counts in whole seconds.
            let duration = format!("-d{:.0}s", seconds.max(1.0) * times);
            let args = [threads, &connections, &duration, "--latency", &server.url("64")];
            Ok(lab.run(side, "wrk", &args, limit(seconds * times))?.text())
        })?;
        server.process.terminate(Duration::from_secs(5))?.ok()?;
        parse_wrk(&text)
    }
}

/// Looks, seldom, at the path that the connections take; on both sides, so that it costs both the same.
fn watch(lab: &Lab, port: u16, seconds: f64) -> Option<Watch> {
    lab.watch_every(port, Duration::from_secs_f64((seconds / 6.0).min(0.25)))
}

/// So many times a load is made longer.
const LONGER: u32 = 4;

/// A load whose connections are looked at, and checked. On a busy machine it may be over before `sd ss` has looked: then it is run once
/// more, and takes twice as long; `load` is told how many times its usual length that is.
fn watched<T>(
    (lab, side): (&Lab, Side),
    port: u16,
    seconds: f64,
    load: impl Fn(f64) -> Result<T>,
) -> Result<T> {
    let mut times = 1.0;
    for _ in 0..LONGER {
        let watch = watch(lab, port, seconds);
        let measured = load(times)?;
        // Over the kernel alone there is nothing to be seen.
        if side == Side::Kernel || watch.as_ref().is_none_or(Watch::has_seen) {
            return lab.check(watch, side, side).map(|()| measured);
        }
        lab.check_if_seen(watch, side, side)?;
        times *= 2.0;
    }
    let watch = watch(lab, port, seconds);
    let measured = load(times)?;
    lab.check(watch, side, side).map(|()| measured)
}

fn limit(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * 20.0 + 30.0)
}

/// Seconds: `Time to get 1000 keys by   16 threads:  0.123`, in columns.
fn parse_memcslap(text: &str, threads: usize) -> Result<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let threads = threads.to_string();
    let is_mark = |at: &usize| words[*at] == threads && words[*at + 1].starts_with("threads:");
    let at = (0..words.len().saturating_sub(2)).rev().find(is_mark);
    match at.and_then(|at| words[at + 2].parse().ok()) {
        Some(seconds) if seconds > 0.0 => Ok(seconds),
        _ => fail!("memcslap printed {text:?}"),
    }
}

/// The last line of `redis-benchmark --csv`: name, requests/s, then average, min, p50, ... in ms.
pub(crate) fn parse_redis(text: &str) -> Result<Measurement> {
    let cells: Vec<f64> = text
        .lines()
        .last()
        .unwrap_or_default()
        .split(',')
        .skip(1)
        .map(|cell| cell.trim_matches('"').parse().unwrap_or(f64::NAN))
        .collect();
    match cells[..] {
        [requests_per_s, _, _, p50_ms, ..] if requests_per_s > 0.0 && p50_ms >= 0.0 => {
            // Zero is below the resolution of the program: half a step.
            let p50_us = if p50_ms == 0.0 { 0.5 } else { p50_ms * 1000.0 };
            Ok(Measurement { requests_per_s, p50_us })
        }
        _ => fail!("redis-benchmark printed {text:?}"),
    }
}

/// `Requests/sec:` and the `50%` line of `wrk --latency`; errors that wrk counts are errors here.
pub(crate) fn parse_wrk(text: &str) -> Result<Measurement> {
    let after = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)).map(str::trim);
    if let Some(errors) = after("Socket errors:").or(after("Non-2xx or 3xx responses:")) {
        fail!("wrk met errors: {errors}");
    }
    let requests = after("Requests/sec:").and_then(|cell| cell.parse().ok());
    match (requests, after("50%").and_then(parse_duration_us)) {
        (Some(requests_per_s), Some(p50_us)) if requests_per_s > 0.0 => {
            Ok(Measurement { requests_per_s, p50_us })
        }
        _ => fail!("wrk printed {text:?}"),
    }
}

/// `19.00us`, `1.20ms`, `1.20s` in microseconds.
fn parse_duration_us(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.iter().find_map(|(unit, us)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_csv() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min\",\"p50\"\n\
                    \"GET\",\"18639.33\",\"0.051\",\"0.016\",\"0.055\",\"0.063\",\"0.079\",\"1.551\"\n";
        assert_eq!(parse_redis(text).unwrap(), Measurement { requests_per_s: 18639.33, p50_us: 55.0 });
        parse_redis("Could not connect").unwrap_err();
    }

    #[test]
    fn memcslap_report() {
        let text = "\tThreads connecting to servers 16\n\tTook 0.270 seconds to load data\n\
                    Time to get  32000 of 1000 keys by   16 threads:        0.148 seconds.\n";
        assert_eq!(parse_memcslap(text, 16).unwrap(), 0.148);
        parse_memcslap("Could not connect", 16).unwrap_err();
    }

    #[test]
    fn wrk_report() {
        let text =
            "  Latency Distribution\n     50%   19.00us\n     75%   20.00us\nRequests/sec:  52000.10\n";
        assert_eq!(parse_wrk(text).unwrap(), Measurement { requests_per_s: 52000.1, p50_us: 19.0 });
        parse_wrk(&format!("{text}  Socket errors: connect 0, read 5, write 0, timeout 0\n")).unwrap_err();
    }

    #[test]
    fn units() {
        assert_eq!(parse_duration_us("1.25ms"), Some(1250.0));
        assert_eq!(parse_duration_us("2.00s"), Some(2e6));
        assert_eq!(parse_duration_us("x"), None);
    }
}
