//! Redis with what a deployment switches on: persistence by fork, replication, a cluster, scripts and blocking
//! commands, TLS, threads for input and output.

use super::redis::Redis;
use super::table::{Load, Row};
use super::{Scenario, python, tls};
use harness::lab::{Lab, Side};
use harness::process::free_port;
use harness::{Result, fail, retry};
use nix::sys::signal::Signal;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("redis-persistence", PROGRAMS, persistence).limit_s(120).extra(),
    Scenario::new("redis-replication", PROGRAMS, replication).limit_s(120).extra(),
    Scenario::new("redis-cluster", PROGRAMS, cluster).limit_s(180).extra(),
    Scenario::new("redis-scripts-and-waits", &["redis-server", "redis-cli", "python3"], waits).extra(),
    Scenario::new("redis-tls", &["redis-server", "redis-cli", "redis-benchmark", "openssl"], secure).extra(),
    Scenario::new("redis-io-threads", PROGRAMS, threads).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "Redis",
    version: &["redis-server", "--version"],
    scenarios: "redis-",
    features: "pipelining, pub/sub, forks that save (RDB, AOF), replication, cluster bus, Lua, blocking commands, TLS, I/O threads",
    load: Some(Load { unit: "GET/s, redis-benchmark, 50 connections", rate }),
}];

const PROGRAMS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];
const LIMIT: Duration = Duration::from_secs(40);
const NOT_SAVED: [&str; 4] = ["--save", "", "--appendonly", "no"];

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let redis = Redis::start(lab, side)?;
    let output =
        redis.start_benchmark(lab, side, &["-t", "get", "-c", "50", "-n", "200000"])?.wait(LIMIT)?.ok()?;
    redis.stop()?;
    let rate = output.text().lines().last().and_then(|line| line.split('"').nth(3)?.parse().ok());
    rate.ok_or_else(|| format!("redis-benchmark printed {:?}", output.text()).into())
}

/// Waits until a reply of redis-cli says what it should.
fn until(redis: &Redis, lab: &Lab, args: &[&str], is_right: impl Fn(&str) -> bool) -> Result<String> {
    retry(LIMIT, || {
        let reply = redis.cli(lab, Side::Sd, args)?;
        if !is_right(&reply) {
            fail!("redis-cli {args:?} still says {reply:?} after {LIMIT:?}");
        }
        Ok(reply)
    })
}

/// A number that is the same for the same contents.
fn digest(redis: &Redis, lab: &Lab) -> Result<String> {
    let digest = redis.cli(lab, Side::Sd, &["DEBUG", "DIGEST"])?;
    if digest.len() != 40 || digest.bytes().all(|byte| byte == b'0') {
        fail!("DEBUG DIGEST says {digest:?}");
    }
    Ok(digest)
}

fn stop_by_command(redis: Redis, lab: &Lab) -> Result<()> {
    redis.cli(lab, Side::Sd, &["SHUTDOWN"])?;
    redis.server.wait(LIMIT)?.ok()?;
    Ok(())
}

/// Snapshots and rewritten logs come from forked children while 50 clients write; restarts find everything.
fn persistence(lab: &mut Lab) -> Result<()> {
    let port = free_port()?;
    let folder = lab.path().join("store");
    std::fs::create_dir(&folder)?;
    let folder = folder.display().to_string();
    let args = ["--dir", &folder, "--appendonly", "yes", "--save", "", "--enable-debug-command", "local"];
    let mut redis = Redis::start_with(lab, Side::Sd, port, &args)?;
    let watch = lab.watch(port);
    let load = ["-t", "set,incr,lpush,hset", "-r", "20000", "-c", "50", "-n", "60000"];
    let regular = redis.start_benchmark(lab, Side::Kernel, &["-t", "zadd", "-r", "1000", "-n", "20000"])?;
    let benchmark = redis.start_benchmark(lab, Side::Sd, &load)?;
    for command in ["BGSAVE", "BGREWRITEAOF", "BGSAVE", "BGREWRITEAOF"] {
        redis.cli(lab, Side::Sd, &[command])?;
        let is_over = |info: &str| {
            info.contains("rdb_bgsave_in_progress:0")
                && info.contains("aof_rewrite_in_progress:0")
                && info.contains("aof_rewrite_scheduled:0")
        };
        let info = until(&redis, lab, &["INFO", "persistence"], is_over)?;
        if !info.contains("rdb_last_bgsave_status:ok") || !info.contains("aof_last_bgrewrite_status:ok") {
            fail!("{command} failed: {info:?}");
        }
    }
    benchmark.wait(LIMIT)?.ok()?;
    regular.wait(LIMIT)?.ok()?;
    if let Some(watch) = watch {
        let seen = watch.finish()?;
        if !seen.iter().any(|c| c.path == "shm" && c.comm.starts_with("redis-benchmark")) {
            fail!("sd ss did not show the benchmark on shared memory");
        }
    }
    let wanted = digest(&redis, lab)?;
    for is_killed in [false, true, false] {
        if is_killed {
            // Everything acknowledged has been written to the log at the end of each event loop round.
            redis.server.kill();
        } else {
            stop_by_command(redis, lab)?;
        }
        redis = Redis::start_with(lab, Side::Sd, port, &args)?;
        until(&redis, lab, &["INFO", "persistence"], |info| info.contains("\nloading:0"))?;
        let found = digest(&redis, lab)?;
        if found != wanted {
            fail!("after a restart (killed: {is_killed}) the digest is {found}, was {wanted}");
        }
    }
    redis.stop()
}

/// A replica follows through loads, a cut link, a restart, and takes over when its master is killed.
fn replication(lab: &mut Lab) -> Result<()> {
    let ports = [free_port()?, free_port()?];
    let start = |index: usize, master: Option<u16>| -> Result<Redis> {
        let folder = lab.path().join(format!("node-{index}"));
        std::fs::create_dir_all(&folder)?;
        let (folder, master) = (folder.display().to_string(), master.map(|port| format!("127.0.0.1 {port}")));
        let mut args =
            vec!["--dir", &folder, "--enable-debug-command", "local", "--repl-diskless-sync-delay", "0"];
        args.extend(NOT_SAVED);
        args.extend(master.iter().flat_map(|address| ["--replicaof", address.as_str()]));
        Redis::start_with(lab, Side::Sd, ports[index], &args)
    };
    let is_up = |info: &str| info.contains("master_link_status:up") && info.contains("sync_in_progress:0");
    let master = start(0, None)?;
    let fill = ["-t", "set,lpush", "-r", "50000", "-d", "200", "-c", "20", "-n", "30000"];
    master.benchmark(lab, Side::Sd, 2, &fill)?;
    let replica = start(1, Some(ports[0]))?;
    until(&replica, lab, &["INFO", "replication"], is_up)?;
    let watch = lab.watch(ports[0]);
    let load = master.start_benchmark(
        lab,
        Side::Sd,
        &["-t", "set,hset", "-r", "50000", "-c", "20", "-n", "60000"],
    )?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        master.cli(lab, Side::Sd, &["CLIENT", "KILL", "TYPE", "replica"])?;
        until(&replica, lab, &["INFO", "replication"], is_up)?;
    }
    load.wait(LIMIT)?.ok()?;
    same_contents(lab, &master, &replica)?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    let partial = master.cli(lab, Side::Sd, &["INFO", "stats"])?;
    if partial.contains("sync_partial_ok:0") {
        fail!("a cut link led to no partial resynchronisation: {partial:?}");
    }
    let wanted = digest(&master, lab)?;
    master.server.kill();
    until(&replica, lab, &["INFO", "replication"], |info| info.contains("master_link_status:down"))?;
    replica.expect(lab, Side::Sd, &["REPLICAOF", "NO", "ONE"], "OK")?;
    replica.expect(lab, Side::Sd, &["SET", "after", "failover"], "OK")?;
    let follower = start(0, Some(ports[1]))?;
    until(&follower, lab, &["INFO", "replication"], is_up)?;
    same_contents(lab, &replica, &follower)?;
    follower.expect(lab, Side::Sd, &["GET", "after"], "failover")?;
    follower.expect(lab, Side::Sd, &["GET", "never"], "")?;
    if digest(&follower, lab)? == wanted {
        fail!("a write after the failover changed nothing");
    }
    follower.stop()?;
    replica.stop()
}

fn same_contents(lab: &Lab, master: &Redis, replica: &Redis) -> Result<()> {
    master.expect(lab, Side::Sd, &["WAIT", "1", "20000"], "1")?;
    let (wanted, got) = (digest(master, lab)?, digest(replica, lab)?);
    if got != wanted {
        fail!("the replica's digest is {got}, its master's {wanted}");
    }
    Ok(())
}

/// Three masters that talk over their bus: slots, redirects, resharding under load, a node lost and found.
fn cluster(lab: &mut Lab) -> Result<()> {
    let ports = [free_port()?, free_port()?, free_port()?];
    let buses = [free_port()?, free_port()?, free_port()?];
    let start = |index: usize| -> Result<Redis> {
        let folder = lab.path().join(format!("node-{index}"));
        std::fs::create_dir_all(&folder)?;
        let (folder, bus) = (folder.display().to_string(), buses[index].to_string());
        let args = [
            "--dir",
            &folder,
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            "2000",
            "--appendonly",
            "yes",
            "--save",
            "",
        ];
        Redis::start_with(lab, Side::Sd, ports[index], &args)
    };
    let mut nodes = vec![start(0)?, start(1)?, start(2)?];
    let watches = buses.map(|bus| lab.watch(bus));
    let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut create = vec!["--cluster", "create"];
    create.extend(addresses.iter().map(String::as_str));
    create.push("--cluster-yes");
    let said = lab.run(Side::Sd, "redis-cli", &create, LIMIT)?.text();
    if !said.contains("[OK] All 16384 slots covered") {
        fail!("the cluster was not made: {said:?}");
    }
    let is_ok = |info: &str| info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
    for node in &nodes {
        until(node, lab, &["CLUSTER", "INFO"], is_ok)?;
    }
    redirects(lab, &nodes[0])?;
    let load = nodes[1].start_benchmark(
        lab,
        Side::Sd,
        &["--cluster", "-t", "set,get", "-c", "30", "-n", "100000"],
    )?;
    reshard(lab, &nodes, &addresses)?;
    load.wait(LIMIT)?.ok()?;
    require_found(lab, &nodes[1])?;
    for watch in watches {
        lab.check(watch, Side::Sd, Side::Sd)?;
    }
    nodes.remove(2).server.kill();
    until(&nodes[0], lab, &["CLUSTER", "INFO"], |info| info.contains("cluster_state:fail"))?;
    nodes.push(start(2)?);
    for node in &nodes {
        until(node, lab, &["CLUSTER", "INFO"], is_ok)?;
    }
    require_found(lab, &nodes[2])?;
    nodes.into_iter().try_for_each(Redis::stop)
}

const KEYS: usize = 500;

/// Keys go to the node that their slot belongs to; `redis-cli -c` follows MOVED, and without `-c` it is shown.
fn redirects(lab: &Lab, node: &Redis) -> Result<()> {
    let path = lab.path().join("sets");
    let text: String = (0..KEYS).map(|index| format!("SET key:{index} value:{index}\n")).collect();
    std::fs::write(&path, text)?;
    let port = node.port().to_string();
    let said = lab.run_with_input(Side::Sd, &path, "redis-cli", &["-c", "-p", &port], LIMIT)?.text();
    if said.matches("OK").count() != KEYS {
        fail!("not every SET through the cluster was right: {:?}", harness::process::tail(&said, 200));
    }
    let moved = (0..20).filter_map(|i| node.cli(lab, Side::Kernel, &["GET", &format!("key:{i}")]).ok());
    if !moved.into_iter().any(|reply| reply.starts_with("MOVED ")) {
        fail!("no key of twenty is redirected");
    }
    Ok(())
}

fn require_found(lab: &Lab, node: &Redis) -> Result<()> {
    let path = lab.path().join("gets");
    let text: String = (0..KEYS).map(|index| format!("GET key:{index}\n")).collect();
    std::fs::write(&path, text)?;
    let port = node.port().to_string();
    let said = lab.run_with_input(Side::Sd, &path, "redis-cli", &["-c", "-p", &port], LIMIT)?.text();
    let got: Vec<&str> = said.lines().filter_map(|line| line.trim().strip_prefix("value:")).collect();
    let wanted: Vec<String> = (0..KEYS).map(|index| index.to_string()).collect();
    if got != wanted {
        fail!("{} of {KEYS} keys are right: {:?}", got.len(), harness::process::tail(&said, 200));
    }
    Ok(())
}

/// A thousand slots move from the first node to the second while clients use them.
fn reshard(lab: &Lab, nodes: &[Redis], addresses: &[String; 3]) -> Result<()> {
    let ids = [
        nodes[0].cli(lab, Side::Sd, &["CLUSTER", "MYID"])?,
        nodes[1].cli(lab, Side::Sd, &["CLUSTER", "MYID"])?,
    ];
    let args = [
        "--cluster",
        "reshard",
        &addresses[0],
        "--cluster-from",
        &ids[0],
        "--cluster-to",
        &ids[1],
        "--cluster-slots",
        "1000",
        "--cluster-yes",
    ];
    lab.run(Side::Sd, "redis-cli", &args, LIMIT)?;
    // The third node learns of the move by gossip.
    retry(LIMIT, || {
        let check = ["--cluster", "check", &addresses[2]];
        let said = lab.start(Side::Sd, "redis-cli", &check)?.wait(LIMIT)?.text();
        if !said.contains("[OK] All nodes agree about slots configuration") {
            fail!("the nodes do not agree: {said:?}");
        }
        Ok(())
    })?;
    let slots = nodes[1].cli(lab, Side::Sd, &["--cluster", "info", &addresses[0]])?;
    if !slots.contains(" 6461 slots") && !slots.contains(" 6462 slots") {
        fail!("the second node has not got a thousand slots more: {slots:?}");
    }
    Ok(())
}

/// Lua, transactions, blocking pops, streams, killed and idle clients; each half on either side.
fn waits(lab: &mut Lab) -> Result<()> {
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let mut args = NOT_SAVED.to_vec();
        args.extend(["--timeout", "2", "--lua-time-limit", "100"]);
        let redis = Redis::start_with(lab, server, free_port()?, &args)?;
        let watch = lab.watch(redis.port());
        let said = python::run(lab, client, "redis_client.py", &[redis.port().to_string()], LIMIT)?;
        if !said.ends_with("all right\n") {
            fail!("redis_client.py printed {said:?}");
        }
        lab.check(watch, server, client)?;
        redis.stop()?;
    }
    Ok(())
}

fn secure(lab: &mut Lab) -> Result<()> {
    let pair = tls::certificate(lab)?;
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let (plain, port) = (free_port()?, free_port()?);
        let text = port.to_string();
        let mut args = NOT_SAVED.to_vec();
        args.extend(["--tls-port", &text, "--tls-auth-clients", "no"]);
        args.extend(["--tls-cert-file", &pair.certificate, "--tls-key-file", &pair.key]);
        args.extend(["--tls-ca-cert-file", &pair.certificate]);
        let redis = Redis::start_with(lab, server, plain, &args)?;
        let watch = lab.watch(port);
        let own = ["-p", &text, "--tls", "--cacert", &pair.certificate];
        let mut load = own.to_vec();
        load.extend(["-t", "set,get", "-c", "20", "-n", "20000", "-d", "3000", "-r", "100", "--csv"]);
        let said = lab.run(client, "redis-benchmark", &load, LIMIT)?.text();
        if said.lines().count() != 3 || said.contains("rror") {
            fail!("redis-benchmark --tls printed {said:?}");
        }
        let value = "x".repeat(300_000);
        let path = lab.path().join("value");
        std::fs::write(&path, &value)?;
        let set: Vec<&str> = own.iter().copied().chain(["-x", "SET", "large"]).collect();
        lab.run_with_input(client, &path, "redis-cli", &set, LIMIT)?;
        let get: Vec<&str> = own.iter().copied().chain(["GET", "large"]).collect();
        if lab.run(client, "redis-cli", &get, LIMIT)?.text().trim_end() != value {
            fail!("a large value came back changed");
        }
        lab.check(watch, server, client)?;
        redis.expect(lab, client, &["STRLEN", "large"], "300000")?;
        redis.stop()?;
    }
    Ok(())
}

fn threads(lab: &mut Lab) -> Result<()> {
    let mut args = NOT_SAVED.to_vec();
    args.extend(["--io-threads", "2", "--io-threads-do-reads", "yes"]);
    for client in [Side::Sd, Side::Kernel] {
        let redis = Redis::start_with(lab, Side::Sd, free_port()?, &args)?;
        let watch = lab.watch(redis.port());
        redis.benchmark(lab, client, 2, &["-t", "set,get", "-c", "64", "-n", "20000", "--threads", "2"])?;
        redis.benchmark(lab, client, 2, &["-t", "set,get", "-c", "64", "-P", "32", "-n", "100000"])?;
        redis.benchmark(lab, client, 2, &["-t", "set,get", "-c", "32", "-d", "100000", "-n", "2000"])?;
        lab.check(watch, Side::Sd, client)?;
        redis.server.signal(Signal::SIGINT);
        redis.server.wait(LIMIT)?.ok()?;
    }
    Ok(())
}
