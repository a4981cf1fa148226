//! The client's end: what is measured, over which road, in which order.
//!
//! Rounds take turns: in each one every case is measured over every road, another road first each time, so that what else the machine
//! does hits all of them alike. A figure is a line for the lab; medians are made there.

mod failures;
mod moves;
mod placing;
mod programs;

use super::agent::{Agent, Server, start, start_engine};
use super::inside::{DEVICE, End, PATIENCE, gid_index, say};
use super::rows::{Case, Figure, Road, What};
use harness::host::{Host, PLAIN, by_key};
use harness::lab::Side;
use harness::process::Proc;
use harness::ss::Connection;
use harness::{Result, fail, product, until};
use serde_json::Value;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ChildStdin;

/// Servers get a port each, so that none waits for one that was closed.
const PORTS: u16 = 7100;

struct Driver {
    host: Host,
    agent: Agent,
    /// The numbers of the GIDs of both ends.
    gids: [u32; 2],
    server: Ipv4Addr,
    port: u16,
    millis: u64,
    /// One processor, and nobody spins.
    is_counting: bool,
    /// What measures the carrier.
    example: PathBuf,
    /// The network device below the verbs'.
    below: &'static str,
}

/// As programs of tests say it.
const PASSED: &str = "test result: ok. 1 passed; 0 failed; 0 ignored";
/// As `sd ss` names carriers.
const RDMA: &str = "rdma";

/// All goes to the other engine by RDMA, or by something else.
fn until_rdma(host: &Host, is_wanted: bool) -> Result<()> {
    let is_it = || carrier(host).is_ok_and(|name| !name.is_empty() && (name == RDMA) == is_wanted);
    let what = if is_wanted { "all goes by RDMA" } else { "nothing goes by RDMA" };
    until(what, PATIENCE, is_it).map_err(|error| {
        let seen = host.engine_seen().map(|mut seen| seen["peers"][0].take().to_string());
        let said = host.lab.last_said();
        format!("{error}; the other engine: {seen:?}; the monitor and its engine: {said:?}").into()
    })
}

/// A connection with this port goes by RDMA, while the program that has it runs.
fn until_moved(host: &Host, port: u16, mut is_running: impl FnMut() -> bool) -> Result<()> {
    let mut seen = Ok(Vec::new());
    let mut is_moved = || {
        let told = |it: &Connection| (it.path.clone(), it.awaits.clone(), it.moved.clone());
        seen = host.lab.snapshot().map(|seen| seen.of_port(port).into_iter().map(told).collect());
        seen.as_ref().is_ok_and(|roads| roads.iter().any(|(path, ..)| path == RDMA))
    };
    let mut is_over = false;
    let waited = until("connections go by RDMA", PATIENCE, || {
        is_over = !is_running();
        is_over || is_moved()
    });
    match waited {
        Ok(()) if !is_over => Ok(()),
        Ok(()) => fail!("the program has ended; its connections: {seen:?}"),
        Err(error) => fail!("{error}: {seen:?}"),
    }
}

/// What connections with this port have carried.
fn bytes(host: &Host, port: u16) -> Result<u64> {
    Ok(host.lab.snapshot()?.of_port(port).iter().flat_map(|it| it.bytes).sum())
}

/// Bytes that this engine has had placed in rings of the other host.
fn placed(host: &Host) -> Result<u64> {
    Ok(host.engine_seen()?["peers"][0]["placed_sent"].as_u64().unwrap_or_default())
}

/// By what all goes to the other engine.
fn carrier(host: &Host) -> Result<String> {
    Ok(host.engine_seen()?["peers"][0]["carrier"].as_str().unwrap_or_default().to_owned())
}

pub(super) fn run(end: End, server: Ipv4Addr, mut agent: Agent, options: &super::Options) -> Result<()> {
    let mut host = Host::bare(end.network, end.address)?;
    let key = host.make_key("engine.key")?;
    let trust = |key: &str| if options.plain { PLAIN.to_owned() } else { by_key(key) };
    let other = agent.meet(end.address, &trust(&key))?;
    start_engine(&mut host, (server, trust(&other)))?;
    host.wait_for_other_engine(&server.to_string())?;
    until_rdma(&host, true)?;
    // In two guests both ends have the one GID of their own device at the same place.
    let own = gid_index(end.address)?;
    let gids = [own, gid_index(server).unwrap_or(own)];
    let millis = options.millis();
    let mut driver = Driver {
        host,
        agent,
        gids,
        server,
        port: PORTS,
        millis,
        is_counting: options.icount,
        example: options.example(),
        below: end.below,
    };
    for round in 0..options.rounds() {
        for case in options.cases() {
            let mut roads = case.roads(options.one, options.icount);
            let first = round % roads.len();
            roads.rotate_left(first);
            for road in roads {
                let value = driver
                    .measured(case, road)
                    .map_err(|error| format!("{}, over {}: {error}", case.name(), road.name()))?;
                say(&Figure { case: *case, road, value }.line())?;
            }
        }
    }
    if !options.icount {
        driver.programs(options.quick)?;
        driver.outage()?;
        if !options.quick {
            driver.engine_killed()?;
        }
        driver.by_ipv6()?;
        if options.within_one {
            moves::between_hosts(driver.below)?;
        }
        if !options.one {
            driver.machine_killed()?;
        }
    }
    let Driver { host, agent, .. } = driver;
    drop(agent);
    host.finish()
}

impl Driver {
    /// On a machine where guests stand still now and then perftest may divide by a time of zero, and a connection may be over before
    /// it was moved: then once more, for longer.
    fn measured(&mut self, case: &Case, road: Road) -> Result<f64> {
        let mut last = self.measure(case, road, 1);
        for times in [2, 4] {
            match last {
                Ok(value) if value.is_finite() && value > 0.0 => return Ok(value),
                Ok(_) => {}
                Err(error) => eprintln!("once more: {}, over {}: {error}", case.name(), road.name()),
            }
            last = self.measure(case, road, times);
        }
        last
    }

    fn measure(&mut self, case: &Case, road: Road, times: usize) -> Result<f64> {
        self.port += 1;
        let more = Case { count: case.count * times, ..*case };
        let millis = self.millis * times as u64;
        match road {
            Road::Write | Road::Send => self.perftest(&more, road),
            Road::Carrier => self.carrier(&more),
            Road::Kernel => self.bench(case, Side::Kernel, millis),
            Road::Ours => self.bench(case, Side::Sd, millis),
        }
    }

    /// perftest, whose two programs find each other by TCP.
    fn perftest(&mut self, case: &Case, road: Road) -> Result<f64> {
        let program = match (case.what, road) {
            (What::RoundTrip, Road::Write) => "ib_write_lat",
            (What::RoundTrip, _) => "ib_send_lat",
            (_, Road::Write) => "ib_write_bw",
            (..) => "ib_send_bw",
        };
        let (size, count, port) = (case.size.to_string(), case.count.to_string(), self.port.to_string());
        let [own, servers] = self.gids.map(|gid| gid.to_string());
        let sleeps = if self.is_counting { &["-e"][..] } else { &[] };
        let args = |gid| {
            [&["-d", DEVICE, "-F", "-s", &size, "-n", &count, "-p", &port, "-x", gid][..], sleeps].concat()
        };
        let server = args(servers.as_str());
        self.agent.serve(&Server { side: None, program, args: &server, says: None, port: self.port })?;
        let at = self.server.to_string();
        let client = [&args(own.as_str())[..], &[at.as_str()]].concat();
        let said = start(&self.host, None, program, &client)?.wait(PATIENCE * 2)?.ok()?.text();
        self.agent.end()?;
        let value = perftest_said(&said, case);
        value.ok_or_else(|| format!("{program} printed {said:?}").into())
    }

    /// Both ends of the carrier are one program, an example of `sd-carrier`.
    fn carrier(&mut self, case: &Case) -> Result<f64> {
        let program = self.example.display().to_string();
        let what = match case.what {
            What::RoundTrip => "round-trip",
            What::Messages => "messages",
            What::Bytes => "bytes",
        };
        let (size, count) = (case.size.to_string(), case.count.to_string());
        let args = [what, &size, &count, if self.is_counting { "sleep" } else { "yield" }];
        let said = start(&self.host, None, &program, &args)?.wait(PATIENCE * 2)?.ok()?.text();
        Ok(said.trim().parse()?)
    }

    /// `sd bench`'s two sides, with the library or without: the client, which works for so long, and what it reads.
    fn start_bench(&mut self, case: &Case, side: Side, millis: u64) -> Result<(Proc, ChildStdin)> {
        let program = product::sd_bench().display().to_string();
        let work = if case.what == What::RoundTrip { "latency" } else { "stream" };
        let (size, millis) = (case.size.to_string(), millis.to_string());
        let address = format!("{}:{}", self.server, self.port);
        let args = |role, cpu| {
            let args = ["peer", role, "--system", "tcp", "--work", work, "--size", &size, "--count", "1"];
            [&args[..], &["--millis", &millis, "--cpu", cpu, "--address", &address]].concat()
        };
        let server = args("server", if self.is_counting { "0" } else { "1" });
        let says = Some("ready");
        self.agent.serve(&Server { side: Some(side), program: &program, args: &server, says, port: 0 })?;
        let mut client = start(&self.host, Some(side), &program, &args("client", "0"))?;
        client.wait_for_text("connected\n", PATIENCE)?;
        let mut input = client.stdin()?;
        input.write_all(b"go\n")?;
        Ok((client, input))
    }

    fn bench(&mut self, case: &Case, side: Side, millis: u64) -> Result<f64> {
        let before = self.host.lab.snapshot()?.promotions;
        let (mut client, input) = self.start_bench(case, side, millis)?;
        client.wait_for_text("}\n", PATIENCE * 2)?;
        let said = client.stdout_so_far();
        drop(input);
        client.wait(PATIENCE)?.ok()?;
        self.agent.end()?;
        if side == Side::Sd && self.host.lab.snapshot()?.promotions == before {
            fail!("no connection was moved to the engines");
        }
        if side == Side::Sd && carrier(&self.host)? != RDMA {
            fail!("it went by another carrier");
        }
        let json = said.lines().find_map(|line| line.strip_prefix("result ")).unwrap_or_default();
        let report: Value = serde_json::from_str(json)?;
        let value = report["value"].as_f64().ok_or_else(|| format!("the client said {said:?}"))?;
        Ok(match case.what {
            // Nanoseconds.
            What::RoundTrip => value / 1e3,
            // Messages a second.
            What::Messages => value,
            What::Bytes => value * case.size as f64 / 1e6,
        })
    }
}

/// The line of figures below that of their names, which begins with `#bytes`.
///
/// ```text
///  #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%       of a way: half a round trip, in us
///  #bytes #iterations BW peak BW average MsgRate                         MB/s of 2^20 bytes, millions a second
/// ```
fn perftest_said(text: &str, case: &Case) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let cells: Vec<f64> = lines.nth(1)?.split_whitespace().map_while(|cell| cell.parse().ok()).collect();
    match case.what {
        What::RoundTrip => Some(cells.get(4)? * 2.0),
        What::Messages => Some(cells.get(4)? * 1e6),
        What::Bytes => Some(cells.get(3)? * 1.048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perftest_prints() {
        let case = |what| Case { what, size: 8, count: 1000 };
        let latency = " #bytes #iterations    t_min[usec]\n 8       1000          6.00           80.00        10.50  \t       11.00 \t0.6   17.21  68.77 \n---\n";
        assert_eq!(perftest_said(latency, &case(What::RoundTrip)), Some(21.0));
        let rate = " #bytes     #iterations    BW peak[MB/sec]\n 8        500           6.24               5.00 \t\t   0.600000\n";
        assert_eq!(perftest_said(rate, &case(What::Messages)), Some(600_000.0));
        assert_eq!(perftest_said(rate, &case(What::Bytes)), Some(5.0 * 1.048_576));
        assert_eq!(perftest_said("nothing", &case(What::Bytes)), None);
    }
}
