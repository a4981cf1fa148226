//! netperf, which Debian keeps in its non-free section: a server that forks for each test.

use super::Scenario;
use super::rates;
use super::table::{Load, Row};
use harness::lab::{Lab, Side};
use harness::process::free_port;
use harness::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("netperf-tests", &["netperf", "netserver"], tests).limit_s(120).extra()];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "netperf, request and response",
        version: &["netperf", "-V"],
        scenarios: "netperf-",
        features: "control and data connections, a server that forks; streams either way, requests, new connections",
        load: Some(Load { unit: "TCP_RR of 1 byte/s", rate: |lab, side| rate(lab, side, "TCP_RR") }),
    },
    Row {
        application: "netperf, stream",
        version: &["netperf", "-V"],
        scenarios: "netperf-",
        features: "as above",
        load: Some(Load { unit: "TCP_STREAM Mbit/s", rate: |lab, side| rate(lab, side, "TCP_STREAM") }),
    },
];

const LIMIT: Duration = Duration::from_secs(30);

/// The last figure of a test's line.
fn run(lab: &Lab, side: Side, port: u16, test: &str) -> Result<f64> {
    let text = port.to_string();
    let args = ["-H", "127.0.0.1", "-p", &text, "-l", "1", "-P", "0", "-v", "0", "-t", test];
    let said = lab.run(side, "netperf", &args, LIMIT)?.text();
    let figure = rates::number(&said).map_err(|error| format!("netperf {test}: {error}"))?;
    if figure <= 0.0 {
        fail!("netperf {test}: {said:?}");
    }
    Ok(figure)
}

fn tests(lab: &mut Lab) -> Result<()> {
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let port = free_port()?;
        let process =
            lab.serve(server, port, "netserver", &["-D", "-L", "127.0.0.1", "-p", &port.to_string()])?;
        let watch = lab.watch(port);
        for test in ["TCP_STREAM", "TCP_MAERTS", "TCP_SENDFILE", "TCP_RR", "TCP_CRR", "TCP_CC"] {
            run(lab, client, port, test)?;
        }
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

fn rate(lab: &Lab, side: Side, test: &str) -> Result<f64> {
    let port = free_port()?;
    let process = lab.serve(side, port, "netserver", &["-D", "-L", "127.0.0.1", "-p", &port.to_string()])?;
    let rate = run(lab, side, port, test)?;
    process.terminate(LIMIT)?;
    Ok(rate)
}
