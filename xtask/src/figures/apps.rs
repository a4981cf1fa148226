//! The figures of §5.3 that need applications: nginx as a reverse proxy, redis, nginx.

use super::data::{Figure, Origin, bar, linear, log};
use super::{SOCKSDIRECT, TCP};
use crate::Result;
use crate::demo::measure::{self, Measurement};
use crate::lab::{Lab, Side};
use crate::nginx::{Nginx, Workers, own_user};
use std::time::Duration;

const SIZES: [usize; 6] = [64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
const SIDES: [(Side, &str); 2] = [(Side::Sd, SOCKSDIRECT), (Side::Kernel, TCP)];
const GRACE: Duration = Duration::from_secs(10);

/// Fig. 11: latency of requests through a proxy, by the size of the response.
pub(crate) fn proxy(rounds: usize, seconds: f64) -> Result<Figure> {
    let mut values = vec![vec![Vec::new(); SIZES.len()]; SIDES.len()];
    for _ in 0..rounds {
        for (index, (side, _)) in SIDES.iter().enumerate() {
            for (size, us) in proxied(*side, seconds)?.into_iter().enumerate() {
                values[index][size].push(us);
            }
        }
    }
    let title = "Fig. 11: latency of HTTP requests through nginx as reverse proxy";
    let mut figure = Figure::new("fig11", title, log("bytes of the response"), log("us"));
    for ((_, name), values) in SIDES.iter().zip(&values) {
        let points = SIZES.iter().zip(values).map(|(size, us)| (*size as f64, crate::report::median(us)));
        figure = figure.series(*name, Origin::Here, points.collect());
    }
    Ok(figure
        .note("Median latency of wrk with one kept connection; client, proxy and upstream on this host.")
        .note("The paper, with the client on another host: 1/5.5 of Linux for small, up to 1/20 for large responses."))
}

/// Median latencies in microseconds, by size.
fn proxied(side: Side, seconds: f64) -> Result<Vec<f64>> {
    let lab = Lab::new(false)?;
    let workers = Workers { count: 1, user: &own_user() };
    let back = Nginx::start(&lab, side, &workers)?;
    let front = Nginx::start_proxy(&lab, side, &workers, back.port, true)?;
    let mut latencies = Vec::with_capacity(SIZES.len());
    for size in SIZES {
        std::fs::write(back.root.join(size.to_string()), vec![b'x'; size])?;
        let duration = format!("-d{:.0}s", seconds.max(1.0));
        let url = front.url(&format!("proxy/{size}"));
        let args = ["-t1", "-c1", &duration, "--latency", &url];
        let watch = lab.watch(front.port);
        let text = lab.run(side, "wrk", &args, Duration::from_secs(60))?.text();
        lab.check(watch, side, side)?;
        latencies.push(measure::parse_wrk(&text)?.p50_us);
    }
    front.process.terminate(GRACE)?.ok()?;
    back.process.terminate(GRACE)?.ok()?;
    lab.finish()?;
    Ok(latencies)
}

/// §5.3.2 and beyond: requests per second of redis and nginx.
pub(crate) fn applications(rounds: usize, seconds: f64) -> Result<Figure> {
    let mut values: Vec<[Vec<Measurement>; 2]> = measure::ALL.iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        let lab = Lab::new(false)?;
        for (benchmark, values) in measure::ALL.iter().zip(&mut values) {
            for ((side, _), values) in SIDES.iter().zip(values) {
                values.push(benchmark.measure(&lab, *side, seconds)?);
            }
        }
        lab.finish()?;
    }
    let rate = |all: &[Measurement]| {
        crate::report::median(&all.iter().map(|m| m.requests_per_s).collect::<Vec<_>>())
    };
    let bars = measure::ALL.iter().zip(&values).map(|(benchmark, [sd, kernel])| {
        bar(benchmark.name()).here(SOCKSDIRECT, Some(rate(sd))).here(TCP, Some(rate(kernel)))
    });
    let title = "Applications: requests per second";
    Ok(Figure::new("applications", title, linear("benchmark"), linear("requests/s"))
        .bars(bars.collect())
        .note("redis-benchmark and wrk; nothing is pinned, and the kernel's side is as this system is set.")
        .note("The paper: redis GET of 8 bytes in 14.1 us instead of 38.9 us."))
}
