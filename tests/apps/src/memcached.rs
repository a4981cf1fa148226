//! memcached with four threads, a checking client in python and memcslap.

use super::table::{Load, Row};
use super::{Scenario, python, rates};
use harness::lab::{Lab, Side, each};
use harness::process::free_port;
use harness::{Result, fail, nginx};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("memcached-values", &["memcached", "python3"], values),
    Scenario::new("memcached-memcslap", &["memcached", "memcslap"], slap),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "memcached",
    version: &["memcached", "-V"],
    scenarios: "memcached-",
    features: "four threads, values of many sizes, sets and gets of one and of many keys",
    load: Some(Load { unit: "gets/s, memcslap, 16 connections", rate }),
}];

const LIMIT: Duration = Duration::from_secs(30);

fn serve(lab: &Lab, side: Side) -> Result<(harness::process::Proc, u16)> {
    let port = free_port()?;
    let (text, user) = (port.to_string(), nginx::own_user());
    let args = ["-t", "4", "-l", "127.0.0.1", "-p", &text, "-U", "0", "-u", &user, "-m", "256", "-I", "8m"];
    Ok((lab.serve(side, port, "memcached", &args)?, port))
}

/// Eight client threads write and read values of many sizes, in each combination of sides.
fn values(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let (process, port) = serve(lab, server)?;
        let watch = lab.watch(port);
        let args = [&port.to_string(), "8", "300"].map(str::to_owned);
        let said = python::run(lab, client, "memcached_client.py", &args, LIMIT)?;
        if said.trim() != "2400 values" {
            fail!("memcached_client.py printed {said:?}");
        }
        lab.check(watch, server, client)?;
        process.terminate(Duration::from_secs(5))?.ok()?;
        Ok(())
    })
}

fn slap(lab: &mut Lab) -> Result<()> {
    let (process, port) = serve(lab, Side::Sd)?;
    let watch = lab.watch(port);
    let servers = format!("--servers=127.0.0.1:{port}");
    for test in ["--test=set", "--test=get", "--test=mget"] {
        let args = [&servers, test, "--concurrency=16", "--execute-number=2000", "--initial-load=1000"];
        let output = lab.run(Side::Sd, "memcslap", &args, LIMIT)?;
        if !output.text().contains("seconds") {
            fail!("memcslap {test} printed {:?}, {:?}", output.text(), output.stderr);
        }
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(())
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    const EACH: usize = 2000;
    let (process, port) = serve(lab, side)?;
    let (servers, count) = (format!("--servers=127.0.0.1:{port}"), format!("--execute-number={EACH}"));
    let args = [&servers, "--test=get", "--concurrency=16", &count, "--initial-load=1000"];
    let said = lab.run(side, "memcslap", &args, LIMIT)?.text();
    process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(16.0 * EACH as f64 / rates::behind(&said, "keys by   16 threads:")?)
}
