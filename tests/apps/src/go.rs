//! Go programs: their system calls are their own, and come to the library all the same, whether libc is linked into them (ADR 108) or
//! not (ADR 113).

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, python, rates};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product};
use std::process::Command;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("go-echo", GO, echo).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-http", HTTP, web).limit_s(BUILD_S + 90).extra(),
    Scenario::new("go-busy", GO, busy).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-heir", GO, heir).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-static-echo", GO, |lab| echo_of(lab, Libc::Without)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-static-http", HTTP, |lab| web_of(lab, Libc::Without)).limit_s(BUILD_S + 90).extra(),
    Scenario::new("go-static-busy", GO, |lab| busy_of(lab, Libc::Without)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-static-heir", GO, |lab| heir_of(lab, Libc::Without)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-pie-echo", GO, |lab| echo_of(lab, Libc::Linked)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-pie-busy", GO, |lab| busy_of(lab, Libc::Linked)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-pie-heir", GO, |lab| heir_of(lab, Libc::Linked)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-musl-echo", MUSL, |lab| echo_of(lab, Libc::Musl)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-musl-busy", MUSL, |lab| busy_of(lab, Libc::Musl)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-musl-heir", MUSL, |lab| heir_of(lab, Libc::Musl)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-both-echo", GO, |lab| echo_of(lab, Libc::Static)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-both-busy", GO, |lab| busy_of(lab, Libc::Static)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-both-heir", GO, |lab| heir_of(lab, Libc::Static)).limit_s(BUILD_S + 60).extra(),
    Scenario::new("go-both-musl-busy", MUSL, |lab| busy_of(lab, Libc::StaticMusl))
        .limit_s(BUILD_S + 60)
        .extra(),
    Scenario::new("go-mixed", GO, mixed).limit_s(BUILD_S + 60).extra(),
    Scenario::new("caddy-files", &["caddy", "curl", "wrk", "python3"], |lab| caddy(lab, "caddy"))
        .limit_s(90)
        .extra(),
    Scenario::new("prometheus-scrapes", &["prometheus", "curl", "wrk"], |lab| prometheus(lab, "prometheus"))
        .limit_s(90)
        .extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Go net/http",
        version: &["go", "version"],
        scenarios: "go-",
        features: "goroutines, netpoll, garbage collection, profiles, os/exec, an inherited listener; with cgo (glibc, musl; linked dynamically and statically), position-independent without it, and static without it (measured)",
        load: Some(Load {
            unit: "requests/s of 64 bytes, wrk, 50 connections",
            rate: |lab, side| {
                let program = build(lab, Libc::Without)?;
                let port = free_port()?;
                let process = serve(lab, side, port, &program, &["http", &port.to_string(), "."])?;
                let rate = http::wrk(lab, side, &format!("http://127.0.0.1:{port}/64"), 50, false)?;
                process.terminate(GRACE)?;
                Ok(rate)
            },
        }),
    },
    Row {
        application: "Go net",
        version: &["go", "version"],
        scenarios: "go-echo",
        features: "a server of goroutines, with cgo",
        load: Some(Load {
            unit: python::ECHOES,
            rate: |lab, side| {
                let program = build(lab, Libc::With)?;
                let port = free_port()?;
                let process = serve(lab, side, port, &program, &["server", &port.to_string()])?;
                let rate = rates::echoes(lab, side, port, "echo")?;
                process.terminate(GRACE)?;
                Ok(rate)
            },
        }),
    },
    Row {
        application: "Caddy",
        version: &["caddy", "version"],
        scenarios: "caddy-",
        features: "files of all sizes, uploads that are refused, kept and short connections",
        load: Some(Load {
            unit: "requests/s of 64 bytes, wrk, 50 connections",
            rate: |lab, side| {
                let caddy = Caddy::start(lab, side, "caddy")?;
                let rate = http::wrk(lab, side, &caddy.url("64"), 50, false)?;
                caddy.process.terminate(GRACE)?;
                Ok(rate)
            },
        }),
    },
];

const GO: &[&str] = &["go", "gcc", "/usr/include/stdio.h", "python3"];
const MUSL: &[&str] = &["go", "musl-gcc", "python3"];
const HTTP: &[&str] = &["go", "gcc", "/usr/include/stdio.h", "wrk", "curl", "python3"];
const ECHO_GO: &str = include_str!("../go/echo.go");
const LIMIT: Duration = Duration::from_secs(40);
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// What is compiled is kept: the standard library, and the modules of large servers.
pub(super) const BUILD_S: u64 = 900;

/// Whether libc is linked into a program: with it Go's threads are libc's, and the dynamic linker loads the library.
#[derive(Clone, Copy)]
pub(super) enum Libc {
    With,
    /// Musl's.
    Musl,
    Without,
    /// It is not, but a dynamic linker loads the program, which is position-independent.
    Linked,
    /// It is in a static program.
    Static,
    /// Likewise, and musl's.
    StaticMusl,
}

/// Compiles the program; where it is.
pub(super) fn build(lab: &Lab, libc: Libc) -> Result<String> {
    let source = lab.path().join("echo.go");
    let own = || ECHO_GO.replace("import \"C\"\n", "");
    let (name, cgo, mode, text) = match libc {
        Libc::With => ("go-echo", "1", "default", ECHO_GO.to_owned()),
        Libc::Musl => ("go-echo-musl", "1", "default", ECHO_GO.to_owned()),
        Libc::Static => ("go-echo-both", "1", "default", ECHO_GO.to_owned()),
        Libc::StaticMusl => ("go-echo-both-musl", "1", "default", ECHO_GO.to_owned()),
        Libc::Without => ("go-echo-static", "0", "default", own()),
        Libc::Linked => ("go-echo-pie", "0", "pie", own()),
    };
    std::fs::write(&source, text)?;
    let program = lab.path().join(name).display().to_string();
    let (mode, source) = (format!("-buildmode={mode}"), source.display().to_string());
    let args: Vec<&str> = match libc {
        // As programs are released.
        Libc::Without => vec!["-trimpath", "-ldflags=-s -w -buildid="],
        Libc::Static | Libc::StaticMusl => {
            vec!["-tags=netgo,osusergo", "-ldflags=-linkmode=external -extldflags=-static"]
        }
        _ => vec![&mode],
    };
    let compiler = if let Libc::Musl | Libc::StaticMusl = libc { "musl-gcc" } else { "gcc" };
    compile(lab, cgo, &[&args[..], &["-o", &program, &source]].concat(), |go| _ = go.env("CC", compiler))?;
    Ok(program)
}

/// `go build` with these arguments. What it compiles is kept.
pub(super) fn compile(lab: &Lab, cgo: &str, args: &[&str], adapt: impl FnOnce(&mut Command)) -> Result<()> {
    let mut command = lab.command(Side::Kernel, "go", &[&["build"], args].concat())?;
    let kept = product::target().join("apps").join("go");
    command.env("CGO_ENABLED", cgo).env("GOCACHE", kept).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
    adapt(&mut command);
    Proc::start(&mut command, "go", lab.path())?.wait(Duration::from_secs(BUILD_S))?.ok()?;
    Ok(())
}

/// Starts it.
pub(super) fn start(lab: &Lab, side: Side, program: &str, args: &[&str]) -> Result<Proc> {
    Proc::start(&mut lab.command(side, program, args)?, "go-echo", lab.path())
}

/// Starts it, and waits until it listens.
pub(super) fn serve(lab: &Lab, side: Side, port: u16, program: &str, args: &[&str]) -> Result<Proc> {
    let mut process = start(lab, side, program, args)?;
    process.wait_listening(port)?;
    if side == Side::Sd {
        lab.wait_accepting(port);
    }
    Ok(process)
}

/// Go at either end, and a client that is not Go's.
fn echo(lab: &mut Lab) -> Result<()> {
    echo_of(lab, Libc::With)
}

fn echo_of(lab: &mut Lab, libc: Libc) -> Result<()> {
    let program = build(lab, libc)?;
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let process = serve(lab, server, port, &program, &["server", &text])?;
        let watch = lab.watch(port);
        let said = start(lab, client, &program, &["client", &text, "20", "5000"])?.wait(LIMIT)?.ok()?.text();
        if said != "100000 echoes\n" {
            fail!("the client said {said:?}");
        }
        let args = [text, "64".to_owned(), "8".to_owned()];
        let said = python::run(lab, client, "echo_client.py", &args, LIMIT)?;
        if said.trim() != "512 echoes" {
            fail!("the client in Python said {said:?}");
        }
        lab.check(watch, server, client)?;
        process.terminate(GRACE)?;
        Ok(())
    })
}

fn web(lab: &mut Lab) -> Result<()> {
    web_of(lab, Libc::With)
}

fn web_of(lab: &mut Lab, libc: Libc) -> Result<()> {
    let program = build(lab, libc)?;
    each(|server, client| {
        let port = free_port()?;
        let root = lab.path().join(format!("files-{port}"));
        std::fs::create_dir_all(&root)?;
        let process =
            serve(lab, server, port, &program, &["http", &port.to_string(), &root.display().to_string()])?;
        let watch = lab.watch(port);
        let url = format!("http://127.0.0.1:{port}");
        http::files(lab, client, &root, &url)?;
        for (connections, is_short) in [(50, false), (20, true)] {
            http::wrk(lab, client, &format!("{url}/64"), connections, is_short)?;
        }
        lab.check(watch, server, client)?;
        process.terminate(GRACE)?;
        Ok(())
    })
}

fn busy(lab: &mut Lab) -> Result<()> {
    busy_of(lab, Libc::With)
}

fn busy_of(lab: &mut Lab, libc: Libc) -> Result<()> {
    let program = build(lab, libc)?;
    for (connections, messages) in [(4, 10_000), (40, 1000)] {
        let port = free_port()?;
        let watch = lab.watch(port);
        let (connections_text, messages_text) = (connections.to_string(), messages.to_string());
        let args = ["busy", &port.to_string(), &connections_text, &messages_text];
        let said = start(lab, Side::Sd, &program, &args)?.wait(LIMIT)?.ok()?.text();
        if said != format!("{} echoes\n", connections * messages) {
            fail!("it said {said:?}");
        }
        lab.check(watch, Side::Sd, Side::Sd)?;
    }
    Ok(())
}

/// Programs with libc and without talk with each other.
fn mixed(lab: &mut Lab) -> Result<()> {
    let programs = [build(lab, Libc::With)?, build(lab, Libc::Without)?, build(lab, Libc::Linked)?];
    for (server, client) in [(0, 1), (1, 0), (1, 1), (2, 0), (1, 2)] {
        let port = free_port()?;
        let text = port.to_string();
        let process = serve(lab, Side::Sd, port, &programs[server], &["server", &text])?;
        let watch = lab.watch(port);
        let args = ["client", &text, "20", "5000"];
        let said = start(lab, Side::Sd, &programs[client], &args)?.wait(LIMIT)?.ok()?.text();
        if said != "100000 echoes\n" {
            fail!("the client said {said:?}");
        }
        lab.check(watch, Side::Sd, Side::Sd)?;
        process.terminate(GRACE)?;
    }
    Ok(())
}

/// A child of os/exec inherits the listener, and its parent closes it.
fn heir(lab: &mut Lab) -> Result<()> {
    heir_of(lab, Libc::With)
}

fn heir_of(lab: &mut Lab, libc: Libc) -> Result<()> {
    let program = build(lab, libc)?;
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let process = serve(lab, server, port, &program, &["hand-over", &text, "20"])?;
        let watch = lab.watch(port);
        let said = start(lab, client, &program, &["client", &text, "20", "5000"])?.wait(LIMIT)?.ok()?.text();
        if said != "100000 echoes\n" {
            fail!("the client said {said:?}");
        }
        lab.check(watch, server, client)?;
        process.wait(GRACE)?.ok()?;
        Ok(())
    })
}

struct Caddy {
    process: Proc,
    port: u16,
    root: std::path::PathBuf,
}

impl Caddy {
    fn start(lab: &Lab, side: Side, program: &str) -> Result<Caddy> {
        let port = free_port()?;
        let root = lab.path().join(format!("files-{port}"));
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("64"), [b'x'; 64])?;
        let config = lab.path().join("Caddyfile");
        let (folder, home) = (root.display(), lab.path().display());
        std::fs::write(
            &config,
            format!(
                "{{\nadmin off\nauto_https off\nstorage file_system {home}/caddy\n}}\nhttp://127.0.0.1:{port} {{\nroot * {folder}\nfile_server\n}}\n"
            ),
        )?;
        let args = ["run", "--config", &config.display().to_string(), "--adapter", "caddyfile"];
        let process = lab.serve(side, port, program, &args)?;
        Ok(Caddy { process, port, root })
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

pub(super) fn caddy(lab: &Lab, program: &str) -> Result<()> {
    each(|server, client| {
        let caddy = Caddy::start(lab, server, program)?;
        let watch = lab.watch(caddy.port);
        http::files(lab, client, &caddy.root, &caddy.url(""))?;
        for (connections, is_short) in [(50, false), (20, true)] {
            http::wrk(lab, client, &caddy.url("64"), connections, is_short)?;
        }
        lab.check(watch, server, client)?;
        caddy.process.terminate(GRACE)?;
        Ok(())
    })?;
    let caddy = Caddy::start(lab, Side::Sd, program)?;
    let steady = Steady::start(lab, Side::Sd, caddy.port, "/64", 64)?;
    std::thread::sleep(Duration::from_secs(1));
    steady.finish()?;
    caddy.process.terminate(GRACE)?;
    Ok(())
}

/// It asks itself, ten times a second, and is asked.
pub(super) fn prometheus(lab: &Lab, program: &str) -> Result<()> {
    let port = free_port()?;
    let config = lab.path().join("prometheus.yml");
    let text = format!(
        "scrape_configs:\n- job_name: self\n  scrape_interval: 100ms\n  scrape_timeout: 100ms\n  static_configs:\n  - targets: ['127.0.0.1:{port}']\n"
    );
    std::fs::write(&config, text)?;
    let (config, store) = (config.display().to_string(), lab.path().join("prometheus").display().to_string());
    let (config, store) = (format!("--config.file={config}"), format!("--storage.tsdb.path={store}"));
    let listen = format!("--web.listen-address=127.0.0.1:{port}");
    let process = lab.serve(Side::Sd, port, program, &[&config, &store, &listen])?;
    let watch = lab.watch(port);
    http::wrk(lab, Side::Sd, &format!("http://127.0.0.1:{port}/metrics"), 8, false)?;
    let query = format!("http://127.0.0.1:{port}/api/v1/query?query=up");
    let is_up = || {
        let output = lab.run(Side::Sd, "curl", &["-sS", "--fail", &query], LIMIT);
        output.is_ok_and(|output| output.text().contains(",\"1\"]"))
    };
    http::wait_for(is_up, "Prometheus to have asked itself")?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    process.terminate(GRACE)?;
    Ok(())
}
