//! The figures of §5.3 that need applications: nginx as a reverse proxy, redis, nginx; beside Linux, and beside what BPF
//! can do for programs that are not touched, where it can be loaded.

use super::data::{Figure, Origin, bar, linear, log};
use super::{SOCKMAP, SOCKSDIRECT, TCP};
use crate::demo::measure::{self, Benchmark, Measurement};
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::Proc;
use harness::report::median;
use harness::scratch::Scratch;
use harness::{Result, product};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const SIZES: [usize; 6] = [64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) has_sockmap: bool,
}

impl Plan {
    fn systems(&self) -> &'static [&'static str] {
        if self.has_sockmap { &[SOCKSDIRECT, TCP, SOCKMAP] } else { &[SOCKSDIRECT, TCP] }
    }

    fn side(system: &str) -> Side {
        if system == SOCKSDIRECT { Side::Sd } else { Side::Kernel }
    }

    /// A lab in which programs of the kernel's side are run by this system.
    fn lab(&self, system: &str) -> Result<(Lab, Option<Shortcut>)> {
        let mut lab = Lab::new(false)?;
        let shortcut = if system == SOCKMAP { Some(Shortcut::start()?) } else { None };
        lab.set_cgroup(shortcut.as_ref().map(|shortcut| shortcut.cgroup.as_path()));
        Ok((lab, shortcut))
    }
}

/// `sd-bench peer sockmap`: a cgroup whose TCP connections are short-cut.
struct Shortcut {
    holder: Proc,
    cgroup: PathBuf,
    _scratch: Scratch,
}

impl Shortcut {
    fn start() -> Result<Shortcut> {
        let scratch = Scratch::new("sockmap")?;
        let mut command = Command::new(product::sd_bench());
        command.args(["peer", "sockmap"]).stdin(Stdio::piped());
        let mut holder = Proc::start(&mut command, "sockmap", scratch.path())?;
        holder.wait_for_text("\n", GRACE)?;
        let said = holder.stdout_so_far();
        let cgroup = said.trim().strip_prefix("ready ").ok_or("sockmap: no word from it")?;
        Ok(Shortcut { cgroup: PathBuf::from(cgroup), holder, _scratch: scratch })
    }

    /// Everything in it has ended.
    fn stop(mut self) -> Result<()> {
        drop(self.holder.stdin()?);
        self.holder.wait(GRACE)?.ok().map(drop)
    }
}

/// Fig. 11: latency of requests through a proxy, by the size of the response.
pub(crate) fn proxy(plan: &Plan) -> Result<Figure> {
    let systems = plan.systems();
    let mut values = vec![vec![Vec::new(); SIZES.len()]; systems.len()];
    for _ in 0..plan.rounds {
        for (system, values) in systems.iter().zip(&mut values) {
            for (values, us) in values.iter_mut().zip(proxied(plan, system)?) {
                values.push(us);
            }
        }
    }
    let title = "Fig. 11: latency of HTTP requests through nginx as reverse proxy";
    let mut figure = Figure::new("fig11", title, log("bytes of the response"), log("us"));
    for (system, values) in systems.iter().zip(&values) {
        let points = SIZES.iter().zip(values).map(|(size, us)| (*size as f64, median(us)));
        figure = figure.series(*system, Origin::Here, points.collect());
    }
    Ok(figure
        .note("Median latency of wrk with one kept connection; client, proxy and upstream on this host.")
        .note("The paper, with the client on another host: 1/5.5 of Linux for small, up to 1/20 for large responses."))
}

/// Median latencies in microseconds, by size.
fn proxied(plan: &Plan, system: &str) -> Result<Vec<f64>> {
    let (lab, shortcut) = plan.lab(system)?;
    let side = Plan::side(system);
    let workers = Workers { count: 1, user: &own_user() };
    let back = Nginx::start(&lab, side, &workers)?;
    let front = Nginx::start_proxy(&lab, side, &workers, back.port, true)?;
    let mut latencies = Vec::with_capacity(SIZES.len());
    for size in SIZES {
        std::fs::write(back.root.join(size.to_string()), vec![b'x'; size])?;
        let duration = format!("-d{:.0}s", plan.seconds.max(1.0));
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
    shortcut.map_or(Ok(()), Shortcut::stop)?;
    Ok(latencies)
}

/// §5.3.2 and beyond: requests per second of redis, nginx and memcached.
pub(crate) fn applications(plan: &Plan) -> Result<Figure> {
    let systems = plan.systems();
    let benchmarks = [&measure::ALL[..], &measure::MEMCACHED].concat();
    let mut values = vec![vec![Vec::new(); systems.len()]; benchmarks.len()];
    for _ in 0..plan.rounds {
        for (benchmark, values) in benchmarks.iter().zip(&mut values) {
            for (system, values) in systems.iter().zip(values) {
                let (lab, shortcut) = plan.lab(system)?;
                let Measurement { requests_per_s, .. } =
                    benchmark.measure(&lab, Plan::side(system), plan.seconds)?;
                values.push(requests_per_s);
                lab.finish()?;
                shortcut.map_or(Ok(()), Shortcut::stop)?;
            }
        }
    }
    let bars = benchmarks.iter().zip(&values).map(|(benchmark, values)| {
        let columns = systems.iter().zip(values);
        columns.fold(bar(benchmark.name()), |bar, (system, rates)| bar.here(system, Some(median(rates))))
    });
    let title = "Applications: requests per second";
    let mut figure = Figure::new("applications", title, linear("benchmark"), linear("requests/s"))
        .bars(bars.collect())
        .note("redis-benchmark, wrk, memcslap; nothing is pinned, and the kernel's side is as this system is set.")
        .note("The paper: redis GET of 8 bytes in 14.1 us instead of 38.9 us.");
    for (at, system) in systems.iter().enumerate().skip(1) {
        let beside = |(benchmark, values): (&Benchmark, &Vec<Vec<f64>>)| {
            let ratios: Vec<f64> =
                values[0].iter().zip(&values[at]).map(|(ours, other)| ours / other).collect();
            format!("{} {:.2}", benchmark.name(), median(&ratios))
        };
        let ratios: Vec<String> = benchmarks.iter().zip(&values).map(beside).collect();
        figure = figure
            .note(format!("{SOCKSDIRECT} beside {system}, median of the rounds: {}.", ratios.join("; ")));
    }
    Ok(figure)
}
