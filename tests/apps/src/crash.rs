//! `kill -9` of clients and servers: the other end sees what Linux shows, and goes on.

use super::Scenario;
use super::peers::{Act, Play, Who, compare};
use super::redis::Redis;
use Act::{Go, Kill, Pause, Said};
use Who::{Client, Server};
use harness::lab::{Lab, Side};
use harness::ss::Watch;
use harness::{Result, fail, retry};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("killed-peer-as-on-linux", &["python3"], |lab| compare(lab, PLAYS)).at_first_byte(),
    Scenario::new("closed-peer-as-on-linux", &["python3"], |lab| compare(lab, CLOSES)).at_first_byte(),
    Scenario::new("redis-clients-killed-under-load", REDIS, clients_killed).at_first_byte(),
    Scenario::new("redis-server-killed-under-load", REDIS, server_killed).at_first_byte(),
];

/// So many in a row are not all over before somebody has looked.
const BENCHMARKS_MAX: usize = 20;

const REDIS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];

const PLAYS: &[Play] = &[
    Play {
        name: "client killed, all read",
        server: &["recv:100000", "end", "push"],
        client: &["send:100000", "ask"],
        acts: &[Said(Server, "recv:100000"), Said(Client, "sent"), Pause, Kill(Client)],
    },
    Play {
        name: "client killed, data queued",
        server: &["ask", "recv:50000", "end"],
        client: &["send:50000", "ask"],
        acts: &[Said(Client, "sent"), Kill(Client), Pause, Go(Server)],
    },
    Play {
        name: "client killed with unread data",
        server: &["send:1000", "ask", "end", "push"],
        client: &["ask"],
        acts: &[Said(Server, "sent"), Said(Client, "open"), Pause, Kill(Client), Pause, Go(Server)],
    },
    Play {
        name: "client killed, poll",
        server: &["recv:10", "ask", "poll", "option", "end"],
        client: &["send:10", "ask"],
        acts: &[Said(Server, "recv:10"), Said(Client, "sent"), Pause, Kill(Client), Pause, Go(Server)],
    },
    Play {
        name: "client killed while the server polls",
        server: &["recv:10", "poll", "end"],
        client: &["send:10", "ask"],
        acts: &[Said(Server, "recv:10"), Said(Client, "sent"), Pause, Kill(Client)],
    },
    Play {
        name: "client killed with unread data, poll",
        server: &["send:10", "ask", "poll", "option", "end"],
        client: &["ask"],
        acts: &[Said(Server, "sent"), Said(Client, "open"), Pause, Kill(Client), Pause, Go(Server)],
    },
    Play {
        name: "server killed, all read",
        server: &["recv:1000", "ask"],
        client: &["send:1000", "end", "push", "again"],
        acts: &[Said(Server, "recv:1000"), Said(Client, "sent"), Pause, Kill(Server)],
    },
    Play {
        name: "server killed with unread data",
        server: &["ask"],
        client: &["send:1000", "ask", "poll", "end", "push", "option"],
        acts: &[Said(Client, "sent"), Said(Server, "open"), Pause, Kill(Server), Pause, Go(Client)],
    },
    Play {
        name: "server killed while the client is blocked in send",
        server: &["recv:1", "ask"],
        client: &["send:1", "fill"],
        acts: &[Said(Server, "recv:1"), Pause, Pause, Kill(Server)],
    },
    Play {
        name: "client killed in the middle of a long send",
        server: &["recv:1", "ask", "recv:100000"],
        client: &["send:1", "send:90000000"],
        acts: &[Said(Server, "recv:1"), Pause, Kill(Client), Pause, Go(Server)],
    },
];

const CLOSES: &[Play] = &[
    Play {
        name: "closed, all read",
        server: &["recv:10", "close", "again"],
        client: &["send:10", "end", "poll", "push"],
        acts: &[],
    },
    Play {
        name: "closed with unread data",
        server: &["ask", "close"],
        client: &["send:10", "ask", "poll", "end", "push"],
        acts: &[Said(Client, "sent"), Pause, Go(Server), Said(Server, "done"), Pause, Go(Client)],
    },
    Play {
        name: "half-closed, answered",
        server: &["recv:10", "end", "send:300000", "close"],
        client: &["send:10", "shut", "recv:300000", "end", "push"],
        acts: &[],
    },
    Play {
        name: "half-closed, poll",
        server: &["ask", "poll", "end"],
        client: &["shut", "ask", "poll"],
        acts: &[Said(Client, "shut"), Pause, Go(Server), Said(Server, "done"), Pause, Go(Client)],
    },
    Play {
        name: "data, then end",
        server: &["send:70000", "close"],
        client: &["ask", "recv:70000", "end"],
        acts: &[Said(Server, "done"), Pause, Go(Client)],
    },
];

/// Benchmarks die in mid-traffic; the server forgets them and serves the next.
fn clients_killed(lab: &mut Lab) -> Result<()> {
    let redis = Redis::start(lab, Side::Sd)?;
    let watch = lab.watch(redis.port());
    for connections in ["1", "50", "50", "200"] {
        let args = ["-t", "get,set", "-c", connections, "-n", "100000000", "-d", "3000", "-P", "4"];
        let benchmark = redis.start_benchmark(lab, Side::Sd, &args)?;
        std::thread::sleep(Duration::from_millis(700));
        benchmark.kill();
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    retry(Duration::from_secs(5), || {
        let info = redis.cli(lab, Side::Sd, &["INFO", "clients"])?;
        if !info.lines().any(|line| line.trim() == "connected_clients:1") {
            fail!("the server still has killed clients: {info:?}");
        }
        Ok(())
    })?;
    redis.benchmark(lab, Side::Sd, 1, &["-t", "get", "-c", "50", "-n", "20000"])?;
    redis.stop()
}

/// The server dies in mid-traffic; every client notices at once, and a new server on the port serves new ones.
fn server_killed(lab: &mut Lab) -> Result<()> {
    let redis = Redis::start(lab, Side::Sd)?;
    let port = redis.port();
    let args = ["-t", "get", "-c", "50", "-n", "100000000"];
    let benchmark = redis.start_benchmark(lab, Side::Sd, &args)?;
    std::thread::sleep(Duration::from_millis(700));
    redis.server.kill();
    let output = benchmark.wait(Duration::from_secs(5))?;
    if output.status.success() {
        fail!("redis-benchmark ended well although its server was killed: {:?}", output.text());
    }
    let redis = Redis::start_on(lab, Side::Sd, port)?;
    let watch = lab.watch(port);
    // One may be over before `sd ss` has looked.
    for _ in 0..BENCHMARKS_MAX {
        redis.benchmark(lab, Side::Sd, 1, &["-t", "get", "-c", "50", "-n", "60000"])?;
        if watch.as_ref().is_none_or(Watch::has_seen) {
            break;
        }
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    redis.stop()
}
