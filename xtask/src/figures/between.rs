//! Figures between two hosts: Fig. 8 of the paper, what the thesis says of many connections and of a transport on the processor, and the
//! evaluation of vSocket, each beside kernel TCP over the same two networks, round by round.
//!
//! Both hosts are network namespaces of this machine, joined by a pair of veth devices: no NIC, no RDMA, no virtual machine, and the
//! programs and the engines of both hosts share this machine's processors.

use super::data::{Axis, Figure, Origin, bar, linear, log};
use super::paper;
use super::roads::{Redis, Road, Roads};
use harness::Result;
use harness::report::{Progress, median};

/// What is gone through in a full run, and in a quick one.
struct Steps {
    sizes: &'static [u64],
    connections: &'static [u64],
    together: &'static [u64],
    redis_connections: &'static [u64],
    redis_bytes: &'static [u64],
    rounds: usize,
    millis: u64,
}

const FULL: Steps = Steps {
    sizes: &[1, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20],
    connections: &[1, 4, 16, 64, 256, 1024, 4096],
    together: &[10, 50, 1000],
    redis_connections: &[1, 4, 7, 16, 64, 256, 650, 1300, 4000],
    redis_bytes: &[4, 64, 1024, 16 << 10],
    rounds: 3,
    millis: 1000,
};
/// Shows that each is made.
const QUICK: Steps = Steps {
    sizes: &[8],
    connections: &[64],
    together: &[50],
    redis_connections: &[40],
    redis_bytes: &[64],
    rounds: 1,
    millis: 200,
};

const WHERE: &str = "Two network namespaces of this machine and a pair of veth devices: no NIC, no RDMA, no virtual machine. The programs and \
    the engines of both hosts share this machine's processors.";
const ROADS: &str = "SocksDirect is as a hosts file has it by default: fewer than 32 busy connections stay the kernel's. \
    Always by the engine: `least 1` and `--promote=all`.";

type Made<'a> = Box<dyn Fn(&Roads, Road) -> Result<f64> + 'a>;

/// A place on the x axis, and what is measured there.
struct Point<'a> {
    x: f64,
    measure: Made<'a>,
}

/// Round trips by connections.
fn counts(work: &'static str, size: u64, counts: &[u64]) -> Vec<Point<'static>> {
    let point = |count: &u64| {
        let count = *count;
        let measure = move |roads: &Roads, road| roads.bench(road, work, size, count);
        Point { x: count as f64, measure: Box::new(measure) }
    };
    counts.iter().map(point).collect()
}

/// All of them, but for those that are faulty.
pub(super) fn figures(is_quick: bool, faults: &mut Vec<String>) -> Result<Vec<Figure>> {
    let steps = if is_quick { &QUICK } else { &FULL };
    let roads = Roads::new(steps.millis)?;
    let maker = Maker { roads, steps };
    let made = [
        Maker::latency,
        Maker::throughput,
        Maker::connections,
        Maker::together,
        Maker::set_up,
        Maker::redis_connections,
        Maker::redis_bytes,
        Maker::redis_latency,
    ];
    let mut bar = Progress::new(made.len());
    let mut figures = Vec::new();
    for make in made {
        bar.step("between two hosts");
        match make(&maker) {
            Ok(figure) => figures.push(figure),
            Err(error) => faults.push(format!("two hosts: {error}")),
        }
    }
    bar.finish();
    maker.roads.finish()?;
    Ok(figures)
}

struct Maker {
    roads: Roads,
    steps: &'static Steps,
}

/// A figure of what redis-benchmark has said.
type Of = fn(super::roads::Said) -> f64;

impl Maker {
    /// Medians at each point, the roads in turn.
    fn measured(&self, points: &[Point<'_>]) -> Result<[Vec<(f64, f64)>; 3]> {
        let mut all: [Vec<(f64, f64)>; 3] = Default::default();
        for point in points {
            let mut values: [Vec<f64>; 3] = Default::default();
            for round in 0..self.steps.rounds {
                let mut turns = Road::ALL.into_iter().enumerate().collect::<Vec<_>>();
                turns.rotate_left(round % 3);
                for (at, road) in turns {
                    values[at].push((point.measure)(&self.roads, road)?);
                }
            }
            for (all, values) in all.iter_mut().zip(&values) {
                all.push((point.x, median(values)));
            }
        }
        Ok(all)
    }

    fn figure(
        &self,
        id: &'static str,
        title: &'static str,
        axes: (Axis, Axis),
        points: &[Point<'_>],
    ) -> Result<Figure> {
        let mut figure = Figure::new(id, title, axes.0, axes.1);
        for (road, points) in Road::ALL.into_iter().zip(self.measured(points)?) {
            figure = figure.series(road.name(), Origin::Here, points);
        }
        figure.needed.push(super::ALWAYS);
        Ok(figure.note(WHERE).note(ROADS))
    }

    fn sizes(&self, work: &'static str, scale: fn(f64, f64) -> f64) -> Vec<Point<'static>> {
        let point = |size: &u64| {
            let size = *size;
            let measure =
                move |roads: &Roads, road| Ok(scale(size as f64, roads.bench(road, work, size, 1)?));
            Point { x: size as f64, measure: Box::new(measure) }
        };
        self.steps.sizes.iter().map(point).collect()
    }

    fn latency(&self) -> Result<Figure> {
        let points = self.sizes("latency", |_, ns| ns);
        let title = "Fig. 8, vSocket Fig. 6: round trip between two hosts by message size";
        let figure = self.figure("hosts-latency", title, (log("bytes"), log("ns")), &points)?;
        let (socksdirect, linux) = paper::RTT_HOSTS_NS;
        let (vsocket, ovs) = paper::VSOCKET_RTT_NS;
        Ok(figure
            .series("SocksDirect, RDMA", Origin::Paper, vec![(8.0, socksdirect)])
            .series("Linux", Origin::Paper, vec![(8.0, linux)])
            .series("vSocket, RDMA", Origin::Paper, vec![(1.0, vsocket)])
            .series("VM, kernel and OVS", Origin::Paper, vec![(1.0, ovs)]))
    }

    fn throughput(&self) -> Result<Figure> {
        // Of a stream the client says how many messages there were in a second.
        let points = self.sizes("stream", |size, rate| rate * size * 8.0 / 1e9);
        let title =
            "Fig. 8, vSocket Fig. 7: one-way throughput of a connection between two hosts by message size";
        let figure = self.figure("hosts-throughput", title, (log("bytes"), log("Gbit/s")), &points)?;
        let gbits = |rate: f64| vec![(8.0, rate * 64.0 / 1e9)];
        let (socksdirect, linux) = paper::RATE_8_HOSTS;
        Ok(figure
            .series("SocksDirect, RDMA", Origin::Paper, gbits(socksdirect))
            .series("Linux", Origin::Paper, gbits(linux))
            .series("transport on the processor (calculated)", Origin::Paper, gbits(paper::CPU_TRANSPORT))
            .series("vSocket, RDMA", Origin::Paper, vec![(1048576.0, paper::VSOCKET_GBITS)])
            .note("The thesis' transport on the processor: 10.8 M small messages a second, which it calculates from two measured parts."))
    }

    fn connections(&self) -> Result<Figure> {
        let points = counts("many", 8, self.steps.connections);
        let title = "Thesis: round trips per second between two hosts by connections, in turn through epoll";
        let figure =
            self.figure("hosts-connections", title, (log("connections"), linear("round trips/s")), &points)?;
        Ok(figure
            .note("16 messages of 8 bytes are under way at a time; a run uses each connection once at least.")
            .note("The thesis' curves are only drawn there: flat for its own, falling for RDMA (from 512 connections on), LibVMA and Linux."))
    }

    fn together(&self) -> Result<Figure> {
        let points = counts("together", 64, self.steps.together);
        let title = "Ping-pong of 64 bytes between two hosts by connections, all of them at a time";
        let figure =
            self.figure("hosts-together", title, (log("connections"), linear("round trips/s")), &points)?;
        Ok(figure.note("A message is under way on each connection. Connections begin as the kernel's: the time in which they move is measured, too."))
    }

    fn set_up(&self) -> Result<Figure> {
        let measure = |roads: &Roads, road| Ok(1e6 / roads.bench(road, "churn", 1, 100)?);
        let values = self.measured(&[Point { x: 0.0, measure: Box::new(measure) }])?;
        let (first, later, tcp) = paper::VSOCKET_SET_UP_US;
        let mut own = bar("one connection after the other");
        for (road, points) in Road::ALL.into_iter().zip(&values) {
            own = own.here(road.name(), points.first().map(|point| point.1));
        }
        let bars = vec![
            own,
            bar("vSocket: the first connection").paper("vSocket", Some(first)),
            bar("vSocket: others").paper("vSocket", Some(later)).paper("kernel TCP", Some(tcp)),
        ];
        let title = "vSocket Fig. 8: making a connection between two hosts";
        let mut figure = Figure::new("hosts-set-up", title, linear("what"), log("us")).bars(bars);
        figure.needed.push(super::ALWAYS);
        Ok(figure
            .note("Up to 100 connections, each: connect, accept, a byte each way, close. vSocket's is the set-up alone.")
            .note("Nobody waits for a move to the engines: a connection carries data over the kernel's until then. So these short ones stay there.")
            .note(WHERE)
            .note(ROADS))
    }

    fn redis_points(&self, asks: impl Iterator<Item = (f64, Redis)>) -> Vec<Point<'static>> {
        let point = |(x, ask)| {
            let measure = move |roads: &Roads, road| Ok(roads.redis(road, ask)?.requests_per_s);
            Point { x, measure: Box::new(measure) }
        };
        asks.map(point).collect()
    }

    fn redis_connections(&self) -> Result<Figure> {
        let counts = self.steps.redis_connections.iter();
        let asks = counts.map(|count| (*count as f64, Redis { connections: *count, bytes: 64, clients: 1 }));
        let title = "vSocket Fig. 13: redis between two hosts by connections, SET of 64 bytes";
        let axes = (log("connections"), linear("requests/s"));
        let figure = self.figure("hosts-redis-connections", title, axes, &self.redis_points(asks))?;
        Ok(figure.note("vSocket's curve goes to 1,300 connections and is only drawn there: high throughout, above LibVMA from 7 on."))
    }

    fn redis_bytes(&self) -> Result<Figure> {
        let asks = self
            .steps
            .redis_bytes
            .iter()
            .map(|bytes| (*bytes as f64, Redis { connections: 20, bytes: *bytes, clients: 4 }));
        let title = "vSocket Fig. 11: redis between two hosts by size of the value, SET, 80 connections of four clients";
        let axes = (log("bytes"), linear("requests/s"));
        let figure = self.figure("hosts-redis-bytes", title, axes, &self.redis_points(asks))?;
        Ok(figure.note("vSocket: 3.6 times a virtual machine with the kernel's Open vSwitch, 3.5 with DPDK's, 4.8 with SR-IOV and the kernel, 1.6 with LibVMA."))
    }

    fn redis_latency(&self) -> Result<Figure> {
        let mut bars = Vec::new();
        for connections in [1, 10] {
            let ask = Redis { connections, bytes: 4, clients: 1 };
            let wanted: [(&str, Of); 2] =
                [("median", |said| said.p50_us), ("99th percentile", |said| said.p99_us)];
            for (name, of) in wanted {
                let measure = move |roads: &Roads, road| Ok(of(roads.redis(road, ask)?));
                let values = self.measured(&[Point { x: 0.0, measure: Box::new(measure) }])?;
                let mut bar = bar(format!("{name}, {connections}"));
                for (road, points) in Road::ALL.into_iter().zip(&values) {
                    bar = bar.here(road.name(), points.first().map(|point| point.1));
                }
                bars.push(bar);
            }
        }
        let title = "vSocket Figs. 9 and 10: time to redis' answer between two hosts, SET of 4 bytes, 1 and 10 connections";
        let mut figure =
            Figure::new("hosts-redis-latency", title, linear("connections"), log("us")).bars(bars);
        figure.needed.push(super::ALWAYS);
        Ok(figure.note(WHERE).note(ROADS).note("redis-benchmark counts in steps of 8 us."))
    }
}
