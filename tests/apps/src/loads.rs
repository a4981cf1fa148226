//! Load generators other than wrk: ab and h2load, each against nginx; curl with a large file.

use super::table::{Load, Row};
use super::{Scenario, files, http, rates};
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("ab-nginx", &["nginx", "ab"], ab).extra(),
    Scenario::new("h2load-nginx", &["nginx", "h2load"], h2load).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "ab",
        version: &["ab", "-V"],
        scenarios: "ab-",
        features: "a connection for each request, and kept ones",
        load: Some(Load {
            unit: "short connections/s to nginx, 20 at a time",
            rate: |lab, side| against_nginx(lab, side, |url| http::ab(lab, side, url, 20_000, false)),
        }),
    },
    Row {
        application: "wrk",
        version: &["wrk", "-v"],
        scenarios: "nginx-short",
        features: "threads with an epoll instance each, kept and short connections",
        load: Some(Load {
            unit: "short connections/s to nginx, 20 at a time",
            rate: |lab, side| against_nginx(lab, side, |url| http::wrk(lab, side, url, 20, true)),
        }),
    },
    Row {
        application: "h2load",
        version: &["h2load", "--version"],
        scenarios: "h2load-",
        features: "threads with libev, kept connections",
        load: Some(Load {
            unit: "requests/s to nginx, 40 connections",
            rate: |lab, side| against_nginx(lab, side, |url| h2load_rate(&h2load_run(lab, side, url)?)),
        }),
    },
    Row {
        application: "curl",
        version: &["curl", "--version"],
        scenarios: "nginx-files",
        features: "files of all sizes, uploads, ftp, proxies: in most scenarios of HTTP",
        load: Some(Load { unit: "MB/s from nginx, 100 MB", rate: curl_rate }),
    },
];

const LIMIT: Duration = Duration::from_secs(30);

fn with_nginx(lab: &Lab, server: Side, client: Side, load: fn(&Lab, Side, &str) -> Result<()>) -> Result<()> {
    let nginx = Nginx::start(lab, server, &Workers { count: 2, user: &own_user() })?;
    let watch = lab.watch(nginx.port);
    load(lab, client, &nginx.url("64"))?;
    lab.check(watch, server, client)?;
    nginx.process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(())
}

/// A connection for each request, then kept alive.
fn ab(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        with_nginx(lab, server, client, |lab, client, url| {
            http::ab(lab, client, url, 10_000, false)?;
            http::ab(lab, client, url, 30_000, true)?;
            Ok(())
        })
    })
}

fn h2load_run(lab: &Lab, client: Side, url: &str) -> Result<String> {
    let args = ["--h1", "-n", "30000", "-c", "40", "-t", "2", url];
    let text = lab.run(client, "h2load", &args, LIMIT)?.text();
    if !text.contains("30000 succeeded, 0 failed, 0 errored, 0 timeout") {
        fail!("h2load: {text:?}");
    }
    Ok(text)
}

/// Of `finished in 1.20s, 25000.00 req/s, 5.10MB/s`.
fn h2load_rate(said: &str) -> Result<f64> {
    let before = said.split_once(" req/s").and_then(|(before, _)| before.rsplit(' ').next());
    rates::number(before.unwrap_or_default())
}

fn h2load(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        with_nginx(lab, server, client, |lab, client, url| h2load_run(lab, client, url).map(|_| ()))
    })
}

fn against_nginx(lab: &Lab, side: Side, load: impl Fn(&str) -> Result<f64>) -> Result<f64> {
    let nginx = Nginx::start(lab, side, &Workers { count: 2, user: &own_user() })?;
    let rate = load(&nginx.url("64"))?;
    nginx.process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(rate)
}

fn curl_rate(lab: &Lab, side: Side) -> Result<f64> {
    let nginx = Nginx::start(lab, side, &Workers { count: 1, user: &own_user() })?;
    std::fs::write(nginx.root.join("file"), files::bytes(100_000_000))?;
    let args = ["-sS", "--fail", "-o", "/dev/null", &nginx.url("file")];
    let rate = rates::per_second(|| lab.run(side, "curl", &args, LIMIT).map(|_| ()))?;
    nginx.process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(rate * 100.0)
}
