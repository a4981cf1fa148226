//! HAProxy before nginx: TCP and HTTP mode, several threads, reloads of master and worker.

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, files, web};
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("haproxy-tcp", PROGRAMS, |lab| contents(lab, "tcp")).limit_s(120).extra(),
    Scenario::new("haproxy-http", PROGRAMS, |lab| contents(lab, "http")).limit_s(120).extra(),
    Scenario::new("haproxy-load", PROGRAMS, load).extra(),
    Scenario::new("haproxy-reload-under-load", PROGRAMS, reload).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "HAProxy, HTTP mode",
        version: &["haproxy", "-v"],
        scenarios: "haproxy-",
        features: "TCP and HTTP mode, threads, upstream reuse, short connections, uploads, master-worker reload (SIGUSR2)",
        load: Some(Load {
            unit: "requests/s of 64 bytes, wrk, 50 connections",
            rate: |lab, side| rate(lab, side, "http", false),
        }),
    },
    Row {
        application: "HAProxy, TCP mode",
        version: &["haproxy", "-v"],
        scenarios: "haproxy-tcp",
        features: "a connection to the server for each of the client",
        load: Some(Load {
            unit: "short connections/s, 64 bytes, wrk, 20 connections",
            rate: |lab, side| rate(lab, side, "tcp", true),
        }),
    },
];

const PROGRAMS: &[&str] = &["haproxy", "nginx", "wrk", "curl", "python3"];
const GRACE: Duration = Duration::from_secs(10);

struct Pair {
    back: Nginx,
    proxy: Proc,
    port: u16,
}

impl Pair {
    fn start(lab: &Lab, back: Side, front: Side, mode: &str) -> Result<Pair> {
        let back = Nginx::start(lab, back, &Workers { count: 2, user: &own_user() })?;
        let port = free_port()?;
        let path = lab.path().join(format!("haproxy-{port}.cfg"));
        std::fs::write(&path, configuration(mode, port, back.port))?;
        // A master and a worker, not in the background.
        let args = ["-W", "-db", "-f", &path.display().to_string()];
        let proxy = lab.serve(front, port, "haproxy", &args)?;
        Ok(Pair { back, proxy, port })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn stop(self) -> Result<()> {
        // What a master says of itself after SIGTERM: 128 and the signal.
        let status = self.proxy.terminate(GRACE)?.status;
        if !matches!(status.code(), Some(0 | 143)) {
            fail!("haproxy ended with {status}");
        }
        self.back.process.terminate(GRACE)?.ok()?;
        Ok(())
    }
}

fn configuration(mode: &str, port: u16, back: u16) -> String {
    let reuse = if mode == "http" { "http-reuse always" } else { "" };
    format!(
        "global\n nbthread 2\n maxconn 4000\n\
         defaults\n mode {mode}\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         frontend front\n bind 127.0.0.1:{port}\n default_backend back\n\
         backend back\n {reuse}\n server one 127.0.0.1:{back}\n"
    )
}

fn rate(lab: &Lab, side: Side, mode: &str, is_short: bool) -> Result<f64> {
    let pair = Pair::start(lab, side, side, mode)?;
    let rate = http::wrk(lab, side, &format!("{}/64", pair.url()), if is_short { 20 } else { 50 }, is_short)?;
    pair.stop()?;
    Ok(rate)
}

fn contents(lab: &mut Lab, mode: &str) -> Result<()> {
    use Side::{Kernel, Sd};
    for (back, front, client) in [(Sd, Sd, Sd), (Kernel, Sd, Sd), (Sd, Sd, Kernel), (Sd, Kernel, Sd)] {
        one_path(lab, mode, back, front, client)
            .map_err(|error| format!("server {back:?}, proxy {front:?}, client {client:?}: {error}"))?;
    }
    Ok(())
}

fn one_path(lab: &Lab, mode: &str, back: Side, front: Side, client: Side) -> Result<()> {
    let pair = Pair::start(lab, back, front, mode)?;
    let (inner, outer) = (lab.watch(pair.back.port), lab.watch(pair.port));
    http::files(lab, client, &pair.back.root, &pair.url())?;
    let data = files::bytes(3_000_001);
    http::upload(lab, client, "PUT", &format!("{}/put/file", pair.url()), &data)?;
    files::require_same("uploaded file", &std::fs::read(pair.back.root.join("put/file"))?, &data)?;
    lab.check(inner, back, front).map_err(|error| format!("to the server: {error}"))?;
    lab.check(outer, front, client).map_err(|error| format!("to the proxy: {error}"))?;
    pair.stop()
}

fn load(lab: &mut Lab) -> Result<()> {
    for mode in ["tcp", "http"] {
        let pair = Pair::start(lab, Side::Sd, Side::Sd, mode)?;
        let (inner, outer) = (lab.watch(pair.back.port), lab.watch(pair.port));
        for (connections, is_short) in [(50, false), (20, true)] {
            http::wrk(lab, Side::Sd, &format!("{}/64", pair.url()), connections, is_short)?;
        }
        lab.check(inner, Side::Sd, Side::Sd)?;
        lab.check(outer, Side::Sd, Side::Sd)?;
        pair.stop()?;
    }
    Ok(())
}

/// SIGUSR2: the master executes itself, the new worker gets the listeners from the old one over a Unix socket.
fn reload(lab: &mut Lab) -> Result<()> {
    let pair = Pair::start(lab, Side::Sd, Side::Sd, "http")?;
    let data = files::bytes(100_000);
    std::fs::write(pair.back.root.join("100k"), &data)?;
    let steady = Steady::start(lab, Side::Sd, pair.port, "/100k", data.len())?;
    let master = pair.proxy.pid();
    let workers = || -> Vec<u32> { procfs::children(master).iter().map(|p| p.pid).collect() };
    for _ in 0..3 {
        let old = workers();
        pair.proxy.signal(Signal::SIGUSR2);
        let mut asked = Instant::now();
        // A master that is still starting drops the signal, on the kernel as well.
        let is_new = || {
            if asked.elapsed() > Duration::from_secs(4) && workers() == old {
                pair.proxy.signal(Signal::SIGUSR2);
                asked = Instant::now();
            }
            workers().len() == 1 && !workers().iter().any(|pid| old.contains(pid))
        };
        http::wait_for(is_new, "one new worker")?;
        web::download(lab, Side::Kernel, &format!("{}/100k", pair.url()), &data)?;
    }
    steady.finish()?;
    let watch = lab.watch(pair.port);
    http::wrk(lab, Side::Sd, &format!("{}/64", pair.url()), 20, false)?;
    lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("after the reloads: {error}"))?;
    pair.stop()
}
