//! nginx as reverse proxy before nginx; reloads and the upgrade of the binary while requests come in.

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, files, web};
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::scratch::send;
use harness::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("nginx-proxy-kept-upstream", PROGRAMS, |lab| contents(lab, true)).limit_s(120).extra(),
    Scenario::new("nginx-proxy-short-upstream", PROGRAMS, |lab| contents(lab, false)).limit_s(120).extra(),
    Scenario::new("nginx-proxy-load", PROGRAMS, load).extra(),
    Scenario::new("nginx-proxy-reload-under-load", PROGRAMS, reload).limit_s(120).extra(),
    Scenario::new("nginx-proxy-restart-of-upstream", PROGRAMS, restart).extra(),
    Scenario::new("nginx-upgrade-of-binary", PROGRAMS, upgrade).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "nginx, reverse proxy",
    version: &["nginx", "-v"],
    scenarios: "nginx-proxy-",
    features: "upstream keep-alive, short upstream connections, uploads, reload of proxy and upstream under load, \
               restart of the upstream",
    load: Some(Load { unit: "requests/s of 64 bytes, wrk, 50 connections", rate }),
}];

const PROGRAMS: &[&str] = &["nginx", "wrk", "curl", "python3"];
const GRACE: Duration = Duration::from_secs(10);

/// A server and a proxy before it.
struct Pair {
    back: Nginx,
    front: Nginx,
}

impl Pair {
    fn start(lab: &Lab, back: Side, front: Side, keep: bool) -> Result<Pair> {
        let workers = Workers { count: 2, user: &own_user() };
        let back = Nginx::start(lab, back, &workers)?;
        let front = Nginx::start_proxy(lab, front, &workers, back.port, keep)?;
        Ok(Pair { back, front })
    }

    fn stop(self) -> Result<()> {
        self.front.process.terminate(GRACE)?.ok()?;
        self.back.process.terminate(GRACE)?.ok()?;
        Ok(())
    }
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let pair = Pair::start(lab, side, side, true)?;
    let rate = http::wrk(lab, side, &pair.front.url("proxy/64"), 50, false)?;
    pair.stop()?;
    Ok(rate)
}

/// Each of upstream, proxy and client with us and without.
fn contents(lab: &mut Lab, keep: bool) -> Result<()> {
    use Side::{Kernel, Sd};
    for (back, front, client) in [(Sd, Sd, Sd), (Kernel, Sd, Sd), (Sd, Sd, Kernel), (Sd, Kernel, Sd)] {
        one_path(lab, keep, back, front, client)
            .map_err(|error| format!("upstream {back:?}, proxy {front:?}, client {client:?}: {error}"))?;
    }
    Ok(())
}

fn one_path(lab: &Lab, keep: bool, back: Side, front: Side, client: Side) -> Result<()> {
    let pair = Pair::start(lab, back, front, keep)?;
    let (inner, outer) = (lab.watch(pair.back.port), lab.watch(pair.front.port));
    http::files(lab, client, &pair.back.root, &pair.front.url("proxy"))?;
    let data = files::bytes(3_000_001);
    http::upload(lab, client, "PUT", &pair.front.url("proxy/put/file"), &data)?;
    let stored = std::fs::read(pair.back.root.join("put/file"))?;
    files::require_same("uploaded file", &stored, &data)?;
    lab.check(inner, back, front).map_err(|error| format!("to the upstream: {error}"))?;
    lab.check(outer, front, client).map_err(|error| format!("to the proxy: {error}"))?;
    pair.stop()
}

fn load(lab: &mut Lab) -> Result<()> {
    for keep in [true, false] {
        let pair = Pair::start(lab, Side::Sd, Side::Sd, keep)?;
        std::fs::write(pair.back.root.join("100k"), files::bytes(100_000))?;
        let (inner, outer) = (lab.watch(pair.back.port), lab.watch(pair.front.port));
        for (path, connections, is_short) in
            [("proxy/64", 50, false), ("proxy/64", 20, true), ("proxy/100k", 20, false)]
        {
            http::wrk(lab, Side::Sd, &pair.front.url(path), connections, is_short)?;
        }
        lab.check(inner, Side::Sd, Side::Sd)?;
        lab.check(outer, Side::Sd, Side::Sd)?;
        pair.stop()?;
    }
    Ok(())
}

/// The workers of proxy and upstream are replaced three times each, and no request fails.
fn reload(lab: &mut Lab) -> Result<()> {
    let pair = Pair::start(lab, Side::Sd, Side::Sd, true)?;
    let data = files::bytes(100_000);
    std::fs::write(pair.back.root.join("100k"), &data)?;
    let outer = lab.watch(pair.front.port);
    let steady = Steady::start(lab, Side::Sd, pair.front.port, "/proxy/100k", data.len())?;
    for nginx in [&pair.front, &pair.back].into_iter().cycle().take(6) {
        let old = web::wait_for_workers(nginx, 2, &[])?;
        nginx.process.signal(Signal::SIGHUP);
        web::wait_for_workers(nginx, 2, &old)?;
        web::download(lab, Side::Kernel, &pair.front.url("proxy/100k"), &data)?;
    }
    steady.finish()?;
    if let Some(outer) = outer {
        // The downloads in between are regular ones.
        let seen = outer.finish()?;
        if !seen.iter().any(|c| c.path == "shm") {
            fail!("no connection to the proxy was on shared memory");
        }
    }
    pair.stop()
}

/// A proxy whose upstream is gone says 502, and works again as soon as it is back.
fn restart(lab: &mut Lab) -> Result<()> {
    let Pair { back, front } = Pair::start(lab, Side::Sd, Side::Sd, true)?;
    let url = front.url("proxy/64");
    web::download(lab, Side::Sd, &url, &[b'x'; 64])?;
    let back = back.restart(lab, Side::Sd, || {
        let args = ["-s", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let code = lab.run(Side::Sd, "curl", &args, GRACE)?.text();
        if code != "502" {
            fail!("without its upstream the proxy answered {code}");
        }
        Ok(())
    })?;
    let inner = lab.watch(back.port);
    http::wrk(lab, Side::Sd, &url, 20, false)?;
    lab.check(inner, Side::Sd, Side::Sd)?;
    Pair { back, front }.stop()
}

/// USR2 starts a new master on the same listener, WINCH ends the old workers, QUIT the old master.
fn upgrade(lab: &mut Lab) -> Result<()> {
    let (old, port, root) = Nginx::start_daemon(lab, Side::Sd, &Workers { count: 2, user: &own_user() })?;
    let data = files::bytes(100_000);
    std::fs::write(root.join("100k"), &data)?;
    let url = format!("http://127.0.0.1:{port}/100k");
    let workers = |master| -> Vec<u32> { procfs::children(master).iter().map(|p| p.pid).collect() };
    let steady = Steady::start(lab, Side::Sd, port, "/100k", data.len())?;
    let old_workers = workers(old);
    send(old, Signal::SIGUSR2);
    let file = root.with_file_name("nginx.pid");
    let number = || std::fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok();
    http::wait_for(|| number().is_some_and(|pid| pid != old), "a new master")?;
    let new = number().unwrap_or(0);
    http::wait_for(|| workers(new).len() == 2, "workers of the new master")?;
    send(old, Signal::SIGWINCH);
    http::wait_for(|| !old_workers.iter().any(|&pid| procfs::is_alive(pid)), "the end of the old workers")?;
    send(old, Signal::SIGQUIT);
    http::wait_for(|| !procfs::is_alive(old), "the end of the old master")?;
    steady.finish()?;
    web::download(lab, Side::Kernel, &url, &data)?;
    let watch = lab.watch(port);
    http::wrk(lab, Side::Sd, &url, 20, false)?;
    lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("after the upgrade: {error}"))?;
    send(new, Signal::SIGQUIT);
    http::wait_for(|| !procfs::is_alive(new), "the end of the new master")
}
