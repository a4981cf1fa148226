//! nginx with a master and four workers, wrk and curl.

use super::table::{Load, Row};
use super::{Scenario, files, http};
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::Output;
use harness::scratch::send;
use harness::{Result, fail, procfs, retry, until};
use nix::sys::signal::Signal;
use std::io::Read;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("nginx-files-curl", PROGRAMS, files_by_curl).limit_s(120),
    Scenario::new("nginx-wrk", PROGRAMS, load),
    Scenario::new("nginx-short-connections", PROGRAMS, short_connections),
    Scenario::new("nginx-reload-under-load", PROGRAMS, reload),
    Scenario::new("nginx-worker-killed-under-load", PROGRAMS, worker_killed),
    Scenario::new("nginx-master-killed", PROGRAMS, master_killed),
    Scenario::new("nginx-workers-of-another-user", PROGRAMS, another_user),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "nginx",
    version: &["nginx", "-v"],
    scenarios: "nginx-",
    features: "master and workers, sendfile, keep-alive and short connections, reload, crashes, drop of privileges",
    load: Some(Load {
        unit: UNIT,
        rate: |lab, side| {
            let nginx = Nginx::start(lab, side, &Workers { count: 1, user: &own_user() })?;
            rate(lab, side, nginx)
        },
    }),
}];

const PROGRAMS: &[&str] = &["nginx", "wrk", "curl"];
const LIMIT: Duration = Duration::from_secs(40);
const FILE_BYTES: [usize; 8] = [1, 64, 1000, 4096, 65_537, 1_000_000, 10_000_000, 100_000_000];

/// Of [`rate`].
pub(crate) const UNIT: &str = "requests/s of 64 bytes, wrk, 50 connections";

/// What it serves, and its end.
pub(crate) fn rate(lab: &Lab, side: Side, nginx: Nginx) -> Result<f64> {
    let output = lab.run(side, "wrk", &["-t1", "-c50", "-d2s", &nginx.url("64")], LIMIT)?;
    stop(nginx)?;
    require_clean(&output)
}

fn start(lab: &Lab, side: Side) -> Result<Nginx> {
    Nginx::start(lab, side, &Workers { count: 4, user: &own_user() })
}

pub(crate) fn stop(nginx: Nginx) -> Result<()> {
    nginx.process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(())
}

/// Downloads with curl and compares.
pub(crate) fn download(lab: &Lab, side: Side, url: &str, wanted: &[u8]) -> Result<()> {
    let output = lab.run(side, "curl", &["-sS", "--fail", "--max-time", "30", url], LIMIT)?;
    if !output.stderr.is_empty() {
        fail!("curl {url} wrote to standard error: {:?}", output.stderr);
    }
    files::require_same(url, &output.stdout, wanted)
}

/// As `download`, but takes the bytes so late that curl must keep its connection open until `sd ss` has shown it.
/// The content must be larger than a pipe and curl's buffer hold.
pub(crate) fn download_late(lab: &Lab, side: Side, url: &str, wanted: &[u8]) -> Result<()> {
    let download = Download::start(lab, side, url)?;
    std::thread::sleep(Duration::from_millis(300));
    download.finish(wanted)
}

/// A download under way: its first byte has come, and no more is taken than buffers hold.
pub(crate) struct Download {
    curl: Child,
    rest: ChildStdout,
    got: Vec<u8>,
    url: String,
}

impl Download {
    pub(crate) fn start(lab: &Lab, side: Side, url: &str) -> Result<Download> {
        let mut command = lab.command(side, "curl", &["-sS", "--fail", "--max-time", "30", url])?;
        let mut curl = command.stdout(Stdio::piped()).spawn()?;
        let Some(mut rest) = curl.stdout.take() else { fail!("curl has no output") };
        let mut got = Vec::new();
        rest.by_ref().take(1).read_to_end(&mut got)?;
        Ok(Download { curl, rest, got, url: url.to_owned() })
    }

    /// So many bytes more.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<()> {
        self.rest.by_ref().take(bytes as u64).read_to_end(&mut self.got)?;
        Ok(())
    }

    pub(crate) fn finish(mut self, wanted: &[u8]) -> Result<()> {
        self.rest.read_to_end(&mut self.got)?;
        let status = self.curl.wait()?;
        if !status.success() {
            fail!("curl {} ended with {status}", self.url);
        }
        files::require_same(&self.url, &self.got, wanted)
    }
}

/// Files of many lengths.
pub(crate) fn transfer(lab: &Lab, nginx: &Nginx, client: Side) -> Result<()> {
    for len in FILE_BYTES {
        let data = files::bytes(len);
        std::fs::write(nginx.root.join(format!("{len}.bin")), &data)?;
        let url = nginx.url(&format!("{len}.bin"));
        let fetch = if len == 100_000_000 { download_late } else { download };
        fetch(lab, client, &url, &data)?;
    }
    std::fs::remove_dir_all(&nginx.root)?;
    Ok(())
}

fn files_by_curl(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let nginx = start(lab, server)?;
        let watch = lab.watch(nginx.port);
        transfer(lab, &nginx, client)?;
        lab.check(watch, server, client)?;
        stop(nginx)?;
        Ok(())
    })
}

/// wrk's report: no errors, and at least some requests.
pub(crate) fn require_clean(output: &Output) -> Result<f64> {
    let text = output.text();
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        fail!("wrk met errors: {text:?}");
    }
    requests_per_s(&text)
}

pub(crate) fn requests_per_s(text: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    match line.and_then(|cell| cell.trim().parse::<f64>().ok()) {
        Some(rate) if rate > 10.0 => Ok(rate),
        _ => fail!("wrk made hardly any request: {text:?}"),
    }
}

fn load(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let nginx = start(lab, server)?;
        std::fs::write(nginx.root.join("100k"), files::bytes(100_000))?;
        let watch = lab.watch(nginx.port);
        for (connections, path) in [("-c50", "64"), ("-c200", "64"), ("-c20", "100k")] {
            let args = ["-t2", connections, "-d1s", &nginx.url(path)];
            let output = lab.run(client, "wrk", &args, LIMIT)?;
            require_clean(&output)?;
        }
        lab.check(watch, server, client)?;
        stop(nginx)?;
        Ok(())
    })
}

/// A new connection for each request.
fn short_connections(lab: &mut Lab) -> Result<()> {
    let nginx = start(lab, Side::Sd)?;
    let watch = lab.watch(nginx.port);
    let args = ["-t2", "-c20", "-d3s", "-H", "Connection: close", &nginx.url("64")];
    requests_per_s(&lab.run(Side::Sd, "wrk", &args, LIMIT)?.text())?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    stop(nginx)
}

/// Waits until nginx has `count` workers, none of which is in `old`.
pub(crate) fn wait_for_workers(nginx: &Nginx, count: usize, old: &[u32]) -> Result<Vec<u32>> {
    retry(Duration::from_secs(15), || {
        let workers = nginx.workers();
        if workers.len() != count || workers.iter().any(|pid| old.contains(pid)) {
            fail!("wanted {count} new workers, have {workers:?}, had {old:?}");
        }
        Ok(workers)
    })
}

/// New workers take over without one refused connection, and the old ones end.
fn reload(lab: &mut Lab) -> Result<()> {
    let nginx = start(lab, Side::Sd)?;
    let data = files::bytes(10_000);
    std::fs::write(nginx.root.join("10k"), &data)?;
    let watch = lab.watch(nginx.port);
    let load = lab.start(Side::Sd, "wrk", &["-t1", "-c20", "-d6s", &nginx.url("64")])?;
    for _ in 0..3 {
        let old = wait_for_workers(&nginx, 4, &[])?;
        nginx.process.signal(Signal::SIGHUP);
        for side in [Side::Sd, Side::Kernel].into_iter().cycle().take(10) {
            download(lab, side, &nginx.url("10k"), &data)?;
        }
        wait_for_workers(&nginx, 4, &old)?;
    }
    requests_per_s(&load.wait(LIMIT)?.ok()?.text())?;
    lab.check_program(watch, "wrk")?;
    stop(nginx)
}

/// The killed worker's connections end, its siblings and its successor go on.
fn worker_killed(lab: &mut Lab) -> Result<()> {
    let nginx = start(lab, Side::Sd)?;
    let data = files::bytes(10_000);
    std::fs::write(nginx.root.join("10k"), &data)?;
    let watch = lab.watch(nginx.port);
    let load = lab.start(Side::Sd, "wrk", &["-t1", "-c40", "-d5s", &nginx.url("64")])?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        let workers = wait_for_workers(&nginx, 4, &[])?;
        send(workers[0], Signal::SIGKILL);
        wait_for_workers(&nginx, 4, &workers[..1])?;
        for side in [Side::Sd, Side::Kernel].into_iter().cycle().take(8) {
            download(lab, side, &nginx.url("10k"), &data)?;
        }
    }
    requests_per_s(&load.wait(LIMIT)?.ok()?.text())?;
    lab.check_program(watch, "wrk")?;
    stop(nginx)
}

/// Workers outlive their master and go on serving, as over the kernel; then they are ended.
fn master_killed(lab: &mut Lab) -> Result<()> {
    let nginx = start(lab, Side::Sd)?;
    let workers = wait_for_workers(&nginx, 4, &[])?;
    let Nginx { process, port, .. } = nginx;
    process.kill();
    let url = format!("http://127.0.0.1:{port}/64");
    for side in [Side::Sd, Side::Kernel].into_iter().cycle().take(8) {
        download(lab, side, &url, &[b'x'; 64])?;
    }
    let watch = lab.watch(port);
    http::wrk(lab, Side::Sd, &url, 20, false)?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    workers.iter().for_each(|&pid| send(pid, Signal::SIGTERM));
    let are_gone = || !workers.iter().any(|&pid| procfs::is_alive(pid));
    until("the end of the workers", Duration::from_secs(5), are_gone)
}

/// As Debian sets nginx up: the master is root, the workers are not.
fn another_user(lab: &mut Lab) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let nginx = Nginx::start(lab, Side::Sd, &Workers { count: 4, user: "nobody nogroup" })?;
    let watch = lab.watch(nginx.port);
    http::wrk(lab, Side::Sd, &nginx.url("64"), 20, false)?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    download(lab, Side::Kernel, &nginx.url("64"), &[b'x'; 64])?;
    stop(nginx)
}
