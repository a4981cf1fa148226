//! Application servers: gunicorn, uwsgi, and PHP's FastCGI server behind nginx.

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, files, python, web};
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("gunicorn-sync", GUNICORN, |lab| contents(lab, Kind::Sync)).limit_s(120).extra(),
    Scenario::new("gunicorn-threads", GUNICORN, |lab| contents(lab, Kind::Threads)).limit_s(120).extra(),
    Scenario::new("gunicorn-reload-under-load", GUNICORN, |lab| reload(lab, Kind::Sync)).limit_s(90).extra(),
    Scenario::new("uwsgi-socket", UWSGI, |lab| contents(lab, Kind::Socket)).limit_s(120).extra(),
    Scenario::new("uwsgi-router", UWSGI, |lab| contents(lab, Kind::Router)).limit_s(120).extra(),
    Scenario::new("uwsgi-reload-under-load", UWSGI, |lab| reload(lab, Kind::Socket)).limit_s(90).extra(),
    Scenario::new("php-fpm-nginx", PHP, php).limit_s(90).extra(),
];

const SHORT: &str = "short connections/s, 64 bytes, wrk, 20 at a time";

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "gunicorn",
        version: &["gunicorn", "--version"],
        scenarios: "gunicorn-",
        features: "pre-forked sync workers, threaded workers, uploads, reload by HUP under load",
        load: Some(Load { unit: SHORT, rate: |lab, side| rate(lab, side, Kind::Sync) }),
    },
    Row {
        application: "uwsgi",
        version: &["uwsgi", "--version"],
        scenarios: "uwsgi-",
        features: "processes on one socket, HTTP router before them, uploads, reload by HUP (exec) under load",
        load: Some(Load { unit: SHORT, rate: |lab, side| rate(lab, side, Kind::Socket) }),
    },
    Row {
        application: "PHP FPM behind nginx",
        version: &[PHP_FPM, "-v"],
        scenarios: "php-fpm-",
        features: "FastCGI over TCP, uploads, reload by USR2 (exec)",
        load: Some(Load { unit: "requests/s of 64 bytes, wrk, 20 connections", rate: php_rate }),
    },
];

const PHP_FPM: &str = "php-fpm8.2";
const GUNICORN: &[&str] = &["gunicorn", "wrk", "curl", "python3"];
const UWSGI: &[&str] = &["uwsgi", "/usr/lib/uwsgi/plugins/python3_plugin.so", "wrk", "curl", "python3"];
const PHP: &[&str] = &[PHP_FPM, "nginx", "curl", "wrk"];
const GRACE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sync,
    Threads,
    Socket,
    Router,
}

impl Kind {
    fn is_gunicorn(self) -> bool {
        matches!(self, Kind::Sync | Kind::Threads)
    }
}

struct Server {
    process: Proc,
    port: u16,
    root: PathBuf,
}

impl Server {
    fn start(lab: &Lab, side: Side, kind: Kind) -> Result<Server> {
        let port = free_port()?;
        let root = lab.path().join(format!("files-{port}"));
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("64"), [b'x'; 64])?;
        let script = python::script(lab, "wsgi.py")?;
        let address = format!("127.0.0.1:{port}");
        let uwsgi = ["--wsgi-file", &script, "--master", "--processes", "3"];
        let mut args = match kind {
            Kind::Sync => vec!["-b", &address, "-w", "3"],
            Kind::Threads => vec!["-b", &address, "-w", "2", "-k", "gthread", "--threads", "8"],
            Kind::Socket => vec!["--plugins", "http,python3", "--http-socket", &address],
            Kind::Router => vec!["--plugins", "http,python3", "--http", &address, "--http-keepalive"],
        };
        let program = if kind.is_gunicorn() {
            args.extend(["--graceful-timeout", "5", "wsgi:application"]);
            "gunicorn"
        } else {
            args.extend(uwsgi);
            // As others do at SIGTERM; without it that means reload.
            args.extend(["--die-on-term", "--disable-logging", "--listen", "128"]);
            "uwsgi"
        };
        let mut command = lab.command(side, program, &args)?;
        let mut process = Proc::start(command.env("ROOT", &root), program, lab.path())?;
        process.wait_listening(port)?;
        Ok(Server { process, port, root })
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    fn stop(self) -> Result<()> {
        self.process.terminate(GRACE)?.ok()?;
        Ok(())
    }
}

fn rate(lab: &Lab, side: Side, kind: Kind) -> Result<f64> {
    let server = Server::start(lab, side, kind)?;
    let rate = http::wrk(lab, side, &server.url("64"), 20, false)?;
    server.stop()?;
    Ok(rate)
}

fn contents(lab: &mut Lab, kind: Kind) -> Result<()> {
    each(|side, client| {
        let server = Server::start(lab, side, kind)?;
        let watch = lab.watch(server.port);
        http::files(lab, client, &server.root, &server.url(""))?;
        let data = files::bytes(1_000_001);
        let echo = http::upload(lab, client, "POST", &server.url("echo"), &data)?;
        files::require_same("answer to POST", &echo, &data)?;
        http::wrk(lab, client, &server.url("64"), 20, false)?;
        lab.check(watch, side, client)?;
        server.stop()
    })
}

/// Workers (and uwsgi itself, which executes itself) are replaced three times, and no request fails.
fn reload(lab: &mut Lab, kind: Kind) -> Result<()> {
    let server = Server::start(lab, Side::Sd, kind)?;
    let data = files::bytes(100_000);
    std::fs::write(server.root.join("100k"), &data)?;
    let steady = Steady::start(lab, Side::Sd, server.port, "/100k", data.len())?;
    let master = server.process.pid();
    for _ in 0..3 {
        let workers = || -> Vec<u32> { procfs::children(master).iter().map(|p| p.pid).collect() };
        let old = workers();
        server.process.signal(Signal::SIGHUP);
        http::wait_for(
            || workers().len() == 3 && !workers().iter().any(|pid| old.contains(pid)),
            "three new workers",
        )?;
        web::download(lab, Side::Kernel, &server.url("100k"), &data)?;
    }
    steady.finish()?;
    let watch = lab.watch(server.port);
    http::wrk(lab, Side::Sd, &server.url("64"), 10, false)?;
    lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("after the reloads: {error}"))?;
    server.stop()
}

/// nginx that talks FastCGI to PHP.
struct Php {
    fpm: Proc,
    nginx: Nginx,
    port: u16,
    log: PathBuf,
}

impl Php {
    fn start(lab: &Lab, back: Side, front: Side) -> Result<Php> {
        let port = free_port()?;
        let user = if nix::unistd::geteuid().is_root() { "user = www-data\ngroup = www-data\n" } else { "" };
        let path = lab.path().join(format!("fpm-{port}.conf")).display().to_string();
        let log = lab.path().join(format!("fpm-{port}.log"));
        std::fs::write(
            &path,
            format!(
                "[global]\nerror_log = {}\nprocess_control_timeout = 2s\n[www]\n{user}listen = 127.0.0.1:{port}\n\
                 pm = static\npm.max_children = 3\n",
                log.display()
            ),
        )?;
        let fpm = lab.serve(back, port, PHP_FPM, &["-F", "-y", &path])?;
        let location = format!(
            "location ~ [.]php$ {{ fastcgi_pass 127.0.0.1:{port}; client_max_body_size 0; \
             fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; \
             fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type; \
             fastcgi_param CONTENT_LENGTH $content_length; root files; fastcgi_buffering off; }}"
        );
        let workers = Workers { count: 2, user: &own_user() };
        let nginx = Nginx::start_with(lab, front, &workers, "", &location)?;
        let header = "<?php header('Content-Type: application/octet-stream');";
        std::fs::write(nginx.root.join("echo.php"), format!("{header} readfile('php://input');"))?;
        let slow = format!("{header} for ($i = 0; $i < 9; $i++) {{ echo $i; flush(); usleep(50000); }}");
        std::fs::write(nginx.root.join("slow.php"), slow)?;
        std::fs::write(nginx.root.join("64.php"), format!("{header} echo str_repeat('x', 64);"))?;
        Ok(Php { fpm, nginx, port, log })
    }

    /// Waits until the `count`th image of the server is ready. It drops signals before, over Linux alone as well, and
    /// as long as no worker has called accept, connections go to the kernel (ADR 17).
    fn wait_ready(&self, lab: &Lab, back: Side, count: usize) -> Result<()> {
        let said = || std::fs::read_to_string(&self.log).unwrap_or_default();
        http::wait_for(|| said().matches("ready to handle connections").count() >= count, "PHP to be ready")?;
        if back == Side::Kernel || lab.is_oracle() {
            return Ok(());
        }
        let address = format!("127.0.0.1:{}", self.port);
        let accepts = || lab.snapshot().is_ok_and(|s| s.accepting.contains(&address));
        http::wait_for(accepts, "a worker of PHP that accepts")
    }

    fn stop(self) -> Result<()> {
        self.nginx.process.terminate(GRACE)?.ok()?;
        let status = self.fpm.terminate(GRACE)?.status;
        // Soon after a reload it ends by the signal itself, over Linux alone as well.
        if status.code().is_some_and(|code| code != 0) {
            fail!("{PHP_FPM} ended with {status}");
        }
        Ok(())
    }
}

/// A reload of PHP executes it anew on the same listener.
fn php(lab: &mut Lab) -> Result<()> {
    each(|back, front| {
        let php = Php::start(lab, back, front)?;
        for round in 0..3 {
            php.wait_ready(lab, back, round + 1)?;
            let watch = lab.watch(php.port);
            for len in [1, 100_000, 5_000_000] {
                let data = files::bytes(len);
                let echo = http::upload(lab, Side::Kernel, "POST", &php.nginx.url("echo.php"), &data)?;
                files::require_same("answer of PHP", &echo, &data)?;
            }
            web::download(lab, Side::Kernel, &php.nginx.url("slow.php"), b"012345678")?;
            lab.check(watch, back, front).map_err(|error| format!("round {round}: {error}"))?;
            if round < 2 {
                php.fpm.signal(Signal::SIGUSR2);
            }
        }
        php.stop()
    })
}

fn php_rate(lab: &Lab, side: Side) -> Result<f64> {
    let php = Php::start(lab, side, side)?;
    php.wait_ready(lab, side, 1)?;
    let rate = http::wrk(lab, side, &php.nginx.url("64.php"), 20, false)?;
    php.stop()?;
    Ok(rate)
}
