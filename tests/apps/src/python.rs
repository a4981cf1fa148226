//! Servers and clients in python: http.server, asyncio, threads, fork, select.

use super::table::{Load, Row};
use super::{Scenario, files, rates, web};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::process::Stdio;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("python-asyncio-256-connections", &["python3"], |lab| echo(lab, "asyncio", 256, 12)),
    Scenario::new("python-threads", &["python3"], |lab| echo(lab, "threads", 64, 12)),
    Scenario::new("python-fork", &["python3"], |lab| echo(lab, "fork", 40, 8)),
    Scenario::new("python-select", &["python3"], |lab| echo(lab, "select", 100, 8)),
    Scenario::new("python-http-server-curl", &["python3", "curl"], http),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "Python asyncio",
    version: &["python3", "--version"],
    scenarios: "python-",
    features: "asyncio with 256 connections, threads, fork, select, http.server",
    load: Some(Load { unit: ECHOES, rate: |lab, side| rate(lab, side, "asyncio") }),
}];

pub(crate) const ECHOES: &str = "echoes/s of 64 bytes, 20 connections of a client in Python";

const LIMIT: Duration = Duration::from_secs(40);

const SCRIPTS: &[(&str, &str)] = &[
    ("activated_server.py", include_str!("../py/activated_server.py")),
    ("echo_server.py", include_str!("../py/echo_server.py")),
    ("echo_client.py", include_str!("../py/echo_client.py")),
    ("who.py", include_str!("../py/who.py")),
    ("imap_client.py", include_str!("../py/imap_client.py")),
    ("smtp_client.py", include_str!("../py/smtp_client.py")),
    ("idle_client.py", include_str!("../py/idle_client.py")),
    ("inside.py", include_str!("../py/inside.py")),
    ("memcached_client.py", include_str!("../py/memcached_client.py")),
    ("rabbit.py", include_str!("../py/rabbit.py")),
    ("rate.py", include_str!("../py/rate.py")),
    ("shifted.py", include_str!("../py/shifted.py")),
    ("steady.py", include_str!("../py/steady.py")),
    ("wsgi.py", include_str!("../py/wsgi.py")),
    ("grpc_echo.py", include_str!("../py/grpc_echo.py")),
    ("odd.py", include_str!("../py/odd.py")),
    ("both_ends.py", include_str!("../py/both_ends.py")),
    ("peer.py", include_str!("../py/peer.py")),
    ("redis_client.py", include_str!("../py/redis_client.py")),
];

/// Writes one of our scripts into the laboratory; returns its path.
pub(crate) fn script(lab: &Lab, name: &str) -> Result<String> {
    let Some((_, text)) = SCRIPTS.iter().find(|(known, _)| *known == name) else {
        fail!("no script {name}");
    };
    let path = lab.path().join(name);
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// Starts one of our scripts; its standard input is a pipe.
pub(crate) fn start(lab: &Lab, side: Side, name: &str, args: &[String]) -> Result<Proc> {
    let path = script(lab, name)?;
    let mut all = vec!["-u", path.as_str()];
    all.extend(args.iter().map(String::as_str));
    let mut command = lab.command(side, "python3", &all)?;
    command.stdin(Stdio::piped());
    Proc::start(&mut command, name, lab.path())
}

/// Runs one of our scripts to its end.
pub(crate) fn run(lab: &Lab, side: Side, script: &str, args: &[String], limit: Duration) -> Result<String> {
    Ok(start(lab, side, script, args)?.wait(limit)?.ok()?.text())
}

pub(crate) fn start_echo_server(lab: &Lab, side: Side, kind: &str) -> Result<(Proc, u16)> {
    let port = free_port()?;
    let mut server = start(lab, side, "echo_server.py", &[port.to_string(), kind.to_owned()])?;
    server.wait_listening(port)?;
    Ok((server, port))
}

pub(crate) fn echo(lab: &mut Lab, kind: &str, connections: usize, rounds: usize) -> Result<()> {
    each(|server, client| {
        let (process, port) = start_echo_server(lab, server, kind)?;
        let watch = lab.watch(port);
        let args = [port.to_string(), connections.to_string(), rounds.to_string()];
        let said = run(lab, client, "echo_client.py", &args, LIMIT)?;
        if said.trim() != format!("{} echoes", connections * rounds) {
            fail!("echo_client.py printed {said:?}");
        }
        lab.check(watch, server, client)?;
        process.terminate(Duration::from_secs(5))?;
        Ok(())
    })
}

fn http(lab: &mut Lab) -> Result<()> {
    let root = lab.path().join("files");
    std::fs::create_dir(&root)?;
    // The last is more than all buffers on the way hold, so that the server cannot be done before the client is.
    let sizes = [0, 1, 1000, 65_537, 30_000_000];
    for len in sizes {
        std::fs::write(root.join(format!("{len}.bin")), files::bytes(len))?;
    }
    let port = free_port()?;
    let (text, folder) = (port.to_string(), root.display().to_string());
    let args = ["-m", "http.server", &text, "--bind", "127.0.0.1", "--directory", &folder];
    each(|server, client| {
        let process = lab.serve(server, port, "python3", &args)?;
        let watch = lab.watch(port);
        for len in sizes {
            let url = format!("http://127.0.0.1:{port}/{len}.bin");
            let fetch = if len == 30_000_000 { web::download_late } else { web::download };
            fetch(lab, client, &url, &files::bytes(len))?;
        }
        lab.check(watch, server, client)?;
        process.terminate(Duration::from_secs(5))?;
        Ok(())
    })
}

pub(crate) fn rate(lab: &Lab, side: Side, kind: &str) -> Result<f64> {
    let (server, port) = start_echo_server(lab, side, kind)?;
    let rate = rates::echoes(lab, side, port, "echo")?;
    server.terminate(Duration::from_secs(5))?;
    Ok(rate)
}
