//! Apache httpd with its event and prefork modules, and lighttpd: files, CGI, proxy, graceful restarts.

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, files, web};
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("apache-event", APACHE, |lab| contents(lab, Kind::Event)).limit_s(120).extra(),
    Scenario::new("apache-prefork", APACHE, |lab| contents(lab, Kind::Prefork)).limit_s(120).extra(),
    Scenario::new("apache-event-graceful", APACHE, |lab| graceful(lab, Kind::Event)).extra(),
    Scenario::new("apache-prefork-graceful", APACHE, |lab| graceful(lab, Kind::Prefork)).extra(),
    Scenario::new("apache-prefork-ab", &["apache2", "ab"], ab).limit_s(180).extra(),
    Scenario::new("lighttpd", LIGHTTPD, |lab| contents(lab, Kind::Lighttpd)).limit_s(120).extra(),
    Scenario::new("lighttpd-workers", LIGHTTPD, |lab| contents(lab, Kind::LighttpdWorkers))
        .limit_s(120)
        .extra(),
    Scenario::new("lighttpd-proxy", LIGHTTPD_PROXY, proxy).extra(),
    Scenario::new("lighttpd-graceful", LIGHTTPD, |lab| graceful(lab, Kind::Lighttpd)).extra(),
];

const WRK: &str = "requests/s of 64 bytes, wrk, 50 connections";

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Apache httpd, event",
        version: &["apache2", "-v"],
        scenarios: "apache-event",
        features: "threads, files, CGI through cgid, keep-alive, graceful restart and stop",
        load: Some(Load { unit: WRK, rate: |lab, side| rate(lab, side, Kind::Event) }),
    },
    Row {
        application: "Apache httpd, prefork",
        version: &["apache2", "-v"],
        scenarios: "apache-prefork",
        features: "a process for each connection, files, CGI, graceful restart and stop",
        load: Some(Load { unit: WRK, rate: |lab, side| rate(lab, side, Kind::Prefork) }),
    },
    Row {
        application: "lighttpd",
        version: &["lighttpd", "-v"],
        scenarios: "lighttpd",
        features: "files, CGI, reverse proxy, workers, graceful restart and stop",
        load: Some(Load { unit: WRK, rate: |lab, side| rate(lab, side, Kind::Lighttpd) }),
    },
];

const APACHE: &[&str] = &["apache2", "wrk", "curl", "python3"];
const LIGHTTPD: &[&str] = &["lighttpd", "wrk", "curl", "python3"];
const LIGHTTPD_PROXY: &[&str] = &["lighttpd", "nginx", "wrk", "curl"];
const GRACE: Duration = Duration::from_secs(10);

/// Answers with what it was sent; only after it has read all, since servers write all before they read.
const ECHO: &str = "#!/bin/sh
file=$(mktemp)
cat >$file
printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'
cat $file
rm $file
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Event,
    Prefork,
    Lighttpd,
    LighttpdWorkers,
}

impl Kind {
    fn is_lighttpd(self) -> bool {
        matches!(self, Kind::Lighttpd | Kind::LighttpdWorkers)
    }
}

struct Httpd {
    process: Proc,
    kind: Kind,
    port: u16,
    root: PathBuf,
}

impl Httpd {
    fn start(lab: &Lab, side: Side, kind: Kind, more: &str) -> Result<Httpd> {
        let port = free_port()?;
        let prefix = lab.path().join(format!("httpd-{port}"));
        let root = prefix.join("files");
        std::fs::create_dir_all(root.join("cgi"))?;
        std::fs::write(root.join("64"), [b'x'; 64])?;
        let script = root.join("cgi/echo.cgi");
        std::fs::write(&script, ECHO)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        let prefix = prefix.display().to_string();
        let file = format!("{prefix}/httpd.conf");
        let process = match kind {
            Kind::Event | Kind::Prefork => {
                std::fs::write(&file, apache(&prefix, port, kind) + more)?;
                lab.serve(side, port, "apache2", &["-d", &prefix, "-f", &file, "-DFOREGROUND"])?
            }
            Kind::Lighttpd | Kind::LighttpdWorkers => {
                std::fs::write(&file, lighttpd(&prefix, port, kind) + more)?;
                lab.serve(side, port, "lighttpd", &["-D", "-f", &file])?
            }
        };
        Ok(Httpd { process, kind, port, root })
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The signals for a graceful restart and a graceful stop.
    fn signals(&self) -> (Signal, Signal) {
        match self.kind {
            Kind::Event | Kind::Prefork => (Signal::SIGUSR1, Signal::SIGWINCH),
            Kind::Lighttpd | Kind::LighttpdWorkers => (Signal::SIGUSR1, Signal::SIGINT),
        }
    }

    fn stop(self) -> Result<()> {
        let status = self.process.terminate(GRACE)?.status;
        // lighttpd sometimes says 1, over Linux alone as well.
        let is_fine = status.success() || self.kind.is_lighttpd() && status.code() == Some(1);
        if !is_fine {
            fail!("the server ended with {status}");
        }
        Ok(())
    }
}

/// Apache runs as root with workers of another user, as Debian sets it up, or as whoever we are.
fn apache(prefix: &str, port: u16, kind: Kind) -> String {
    let (mpm, cgi) = if kind == Kind::Event { ("event", "cgid") } else { ("prefork", "cgi") };
    let user = if nix::unistd::geteuid().is_root() { "User www-data\nGroup www-data\n" } else { "" };
    let mut text = format!(
        "ServerName localhost\nDefaultRuntimeDir {prefix}\nPidFile {prefix}/httpd.pid\nErrorLog {prefix}/error.log\n\
         Listen 127.0.0.1:{port}\nDocumentRoot {prefix}/files\n{user}\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\nEnableSendfile On\n"
    );
    for module in [&format!("mpm_{mpm}"), "authz_core", "alias", cgi] {
        text.push_str(&format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n"));
    }
    text.push_str(&format!("ScriptAlias /cgi/ {prefix}/files/cgi/\n"));
    // A server that ends because it is spare would close connections that are kept, and so does one whose
    // threads are all busy.
    text.push_str(match kind {
        Kind::Event => "ScriptSock cgi.sock\nStartServers 2\nThreadsPerChild 64\nMaxSpareThreads 256\nMaxRequestWorkers 256\n",
        _ => "StartServers 8\nMinSpareServers 4\nMaxSpareServers 100\nMaxRequestWorkers 100\n",
    });
    text
}

fn lighttpd(prefix: &str, port: u16, kind: Kind) -> String {
    let workers = if kind == Kind::LighttpdWorkers { 2 } else { 0 };
    format!(
        "server.document-root = \"{prefix}/files\"\nserver.port = {port}\nserver.bind = \"127.0.0.1\"\n\
         server.modules = ( \"mod_cgi\", \"mod_proxy\" )\nserver.errorlog = \"{prefix}/error.log\"\n\
         server.upload-dirs = ( \"{prefix}\" )\nserver.max-keep-alive-requests = 1000000\n\
         server.max-worker = {workers}\nserver.graceful-shutdown-timeout = 5\n\
         cgi.assign = ( \".cgi\" => \"\" )\n"
    )
}

fn rate(lab: &Lab, side: Side, kind: Kind) -> Result<f64> {
    let httpd = Httpd::start(lab, side, kind, "")?;
    let rate = http::wrk(lab, side, &httpd.url("64"), 50, false)?;
    httpd.stop()?;
    Ok(rate)
}

/// Files, uploads through CGI, kept and short connections.
fn contents(lab: &mut Lab, kind: Kind) -> Result<()> {
    each(|server, client| {
        let httpd = Httpd::start(lab, server, kind, "")?;
        let watch = lab.watch(httpd.port);
        http::files(lab, client, &httpd.root, &httpd.url(""))?;
        let data = files::bytes(1_000_001);
        let echo = http::upload(lab, client, "POST", &httpd.url("cgi/echo.cgi"), &data)?;
        files::require_same("answer of the CGI program", &echo, &data)?;
        for (connections, is_short) in [(50, false), (20, true)] {
            http::wrk(lab, client, &httpd.url("64"), connections, is_short)?;
        }
        lab.check(watch, server, client)?;
        httpd.stop()
    })
}

/// More kept connections than workers: who waits gets the first one that is free, or new. Apache makes those within
/// five seconds.
fn ab(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let httpd = Httpd::start(lab, server, Kind::Prefork, "")?;
        for is_kept in [true, false, true] {
            let start = std::time::Instant::now();
            http::ab(lab, client, &httpd.url("64"), 5000, is_kept)?;
            if start.elapsed() > Duration::from_secs(15) {
                fail!("kept connections: {is_kept}; ab took {:?}", start.elapsed());
            }
        }
        httpd.stop()
    })
}

/// No request fails while workers are replaced; a graceful stop lets a download end.
fn graceful(lab: &mut Lab, kind: Kind) -> Result<()> {
    let httpd = Httpd::start(lab, Side::Sd, kind, "")?;
    let data = files::bytes(100_000);
    std::fs::write(httpd.root.join("100k"), &data)?;
    let (restart, stop) = httpd.signals();
    let steady = Steady::start(lab, Side::Sd, httpd.port, "/100k", data.len())?;
    let is_forking = !matches!(kind, Kind::Lighttpd);
    for _ in 0..3 {
        let old = procfs::children(httpd.process.pid());
        httpd.process.signal(restart);
        http::wait_for(
            || !is_forking || procfs::children(httpd.process.pid()).iter().any(|p| !old.contains(p)),
            "new workers",
        )?;
        std::thread::sleep(Duration::from_millis(300));
        web::download(lab, Side::Kernel, &httpd.url("100k"), &data)?;
    }
    steady.finish()?;
    let watch = lab.watch(httpd.port);
    http::wrk(lab, Side::Sd, &httpd.url("64"), 20, false)?;
    lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("after the restarts: {error}"))?;
    let large = files::bytes(30_000_000);
    std::fs::write(httpd.root.join("large"), &large)?;
    let download = web::Download::start(lab, Side::Sd, &httpd.url("large"))?;
    httpd.process.signal(stop);
    std::thread::sleep(Duration::from_millis(300));
    download.finish(&large)?;
    let output = httpd.process.wait(GRACE)?;
    if !output.status.success() {
        fail!("after a graceful stop: {}", output.status);
    }
    Ok(())
}

fn proxy(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let back = Nginx::start(lab, Side::Sd, &Workers { count: 2, user: &own_user() })?;
        let more = format!(
            "$HTTP[\"url\"] =~ \"^/proxy/\" {{\n proxy.server = ( \"\" => (( \"host\" => \"127.0.0.1\", \"port\" => {} )))\n\
             proxy.header = ( \"map-urlpath\" => ( \"/proxy/\" => \"/\" ) )\n}}\n",
            back.port
        );
        let front = Httpd::start(lab, server, Kind::Lighttpd, &more)?;
        let (inner, outer) = (lab.watch(back.port), lab.watch(front.port));
        http::files(lab, client, &back.root, &front.url("proxy"))?;
        http::wrk(lab, client, &front.url("proxy/64"), 20, false)?;
        lab.check(inner, Side::Sd, server).map_err(|error| format!("to the upstream: {error}"))?;
        lab.check(outer, server, client)?;
        front.stop()?;
        back.process.terminate(GRACE)?.ok()?;
        Ok(())
    })
}
