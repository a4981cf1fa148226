//! Servers of other people's in Go, as their makers ship them: static, without cgo. Each is built from what the module proxy has, once. And many
//! goroutines at once.

use super::Scenario;
use super::go::{self, BUILD_S, GRACE, Libc, caddy, compile, prometheus, serve, start};
use super::relays::etcd;
use super::table::Row;
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("static-caddy", &["go", "curl", "wrk", "python3"], |lab| {
        caddy(lab, &build(lab, "caddy", CADDY)?.join("caddy").display().to_string())
    })
    .limit_s(BUILD_S + 90)
    .extra(),
    Scenario::new("static-prometheus", &["go", "curl", "wrk"], |lab| {
        prometheus(lab, &build(lab, "prometheus", PROMETHEUS)?.join("prometheus").display().to_string())
    })
    .limit_s(BUILD_S + 90)
    .extra(),
    Scenario::new("static-etcd", &["go", "curl"], |lab| {
        let folder = build(lab, "etcd", ETCD)?;
        let [server, control] = ["server", "etcdctl"].map(|name| folder.join(name).display().to_string());
        etcd(lab, [&server, &control])
    })
    .limit_s(BUILD_S + 60)
    .extra(),
    Scenario::new("go-static-crowd", &["go"], crowd).limit_s(BUILD_S + 200).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Caddy, static",
        version: &["echo", "2.11.9"],
        scenarios: "static-caddy",
        features: "a static Go program: as Caddy",
        load: None,
    },
    Row {
        application: "Prometheus, static",
        version: &["echo", "3.16.0"],
        scenarios: "static-prometheus",
        features: "a static Go program: as Prometheus",
        load: None,
    },
    Row {
        application: "etcd, static",
        version: &["echo", "3.7.3"],
        scenarios: "static-etcd",
        features: "static Go programs: server and etcdctl, gRPC and its gateway, a restart",
        load: None,
    },
];

const CADDY: &[&str] = &["github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9"];
const PROMETHEUS: &[&str] = &["github.com/prometheus/prometheus/cmd/prometheus@v0.316.0"];
const ETCD: &[&str] = &["go.etcd.io/etcd/server/v3@v3.7.3", "go.etcd.io/etcd/etcdctl/v3@v3.7.3"];
/// Prometheus without the libraries of all clouds, which take a compiler ten minutes.
const TAGS: &str = "remove_all_sd";

/// The folder of the programs that these packages, at these versions, are.
fn build(lab: &Lab, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let kept = product::target().join("apps").join(format!("static-{name}"));
    if kept.exists() {
        return Ok(kept);
    }
    let module = lab.path().join("module");
    std::fs::create_dir_all(&module)?;
    std::fs::write(module.join("go.mod"), format!("module {name}\n\ngo 1.26.0\n"))?;
    let mut get = lab.command(Side::Kernel, "go", &[&["get"], packages].concat())?;
    get.current_dir(&module).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
    Proc::start(&mut get, "go", lab.path())?.wait(Duration::from_secs(BUILD_S))?.ok()?;
    let built = kept.with_extension("new");
    std::fs::create_dir_all(&built)?;
    let folder = format!("{}/", built.display());
    let paths = packages.iter().map(|package| package.split('@').next().unwrap_or(package));
    let args = ["-mod=mod", "-tags", TAGS, "-o", &folder].into_iter().chain(paths);
    compile(lab, "0", &args.collect::<Vec<_>>(), |command| _ = command.current_dir(&module))?;
    // All of them, or none.
    std::fs::rename(built, &kept)?;
    Ok(kept)
}

const CONNECTIONS: usize = 10_000;
const MESSAGES: usize = 100;

/// As many goroutines as connections, at both ends.
fn crowd(lab: &mut Lab) -> Result<()> {
    let program = go::build(lab, Libc::Without)?;
    each(|server, client| {
        let port = free_port()?;
        let (text, connections) = (port.to_string(), CONNECTIONS.to_string());
        let process = serve(lab, server, port, &program, &["crowd-server", &text, &connections])?;
        let args = ["crowd", &text, &connections, &MESSAGES.to_string()];
        let said = start(lab, client, &program, &args)?.wait(Duration::from_secs(60))?.ok()?.text();
        if said != format!("{} echoes\n", CONNECTIONS * MESSAGES) {
            fail!("the client said {said:?}");
        }
        process.wait(GRACE)?.ok()?;
        Ok(())
    })
}
