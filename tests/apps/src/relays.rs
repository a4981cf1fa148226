//! Programs between others: stunnel, tinyproxy; a name server asked over TCP; etcd, which is beyond our reach.

use super::table::{Load, Row};
use super::{Scenario, files, http, rates, tls, web};
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("stunnel-chain", &["stunnel4", "socat", "openssl", "nginx", "wrk"], stunnel)
        .limit_s(120)
        .extra(),
    Scenario::new("tinyproxy-http-and-connect", &["tinyproxy", "nginx", "curl"], proxy).limit_s(120).extra(),
    Scenario::new("dns-dnsmasq-tcp", &["dnsmasq", "kdig"], names).limit_s(120).extra(),
    Scenario::new("etcd-with-accelerated-clients", &["etcd", "etcdctl", "curl", "wrk"], |lab| {
        etcd(lab, ["etcd", "etcdctl"])
    })
    .limit_s(120)
    .extra(),
    Scenario::new("meters-sockperf", &["sockperf"], sockperf).limit_s(120).extra(),
    Scenario::new("meters-qperf", &["qperf"], qperf).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "stunnel",
        version: &["stunnel4", "-version"],
        scenarios: "stunnel-",
        features: "threads, TLS at both ends of a chain of three programs, half-close",
        load: Some(Load {
            unit: "requests/s of 64 bytes, wrk over TLS to stunnel and nginx, 20 connections",
            rate: stunnel_rate,
        }),
    },
    Row {
        application: "tinyproxy",
        version: &["tinyproxy", "-v"],
        scenarios: "tinyproxy-",
        features: "requests and CONNECT through a proxy with threads",
        load: Some(Load { unit: "MB/s, curl through it from nginx, 30 MB", rate: proxy_rate }),
    },
    Row {
        application: "dnsmasq",
        version: &["dnsmasq", "--version"],
        scenarios: "dns-",
        features: "fork for each TCP connection, many questions on one",
        load: Some(Load { unit: "answers/s, kdig, 90 on a connection", rate: names_rate }),
    },
    Row {
        application: "etcd",
        version: &["etcd", "--version"],
        scenarios: "etcd-",
        features: "a Go program with gRPC, a gateway in it, and a log on disk; restarts",
        load: Some(Load { unit: "requests/s, wrk, 20 connections", rate: etcd_rate }),
    },
    Row {
        application: "sockperf, qperf",
        version: &["sockperf", "--version"],
        scenarios: "meters-",
        features: "blocking calls, streams, latencies",
        load: Some(Load { unit: "messages/s there and back, qperf tcp_lat of 64 bytes", rate: qperf_rate }),
    },
];

const LIMIT: Duration = Duration::from_secs(40);
const SIDES: [(Side, Side); 3] = [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)];

/// A stunnel between two ports.
fn tunnel(lab: &Lab, side: Side, name: &str, (from, to): (u16, u16), extra: &str) -> Result<Proc> {
    let path = lab.path().join(format!("{name}.conf"));
    let text = format!(
        "foreground = yes\npid =\ndebug = notice\n[{name}]\naccept = 127.0.0.1:{from}\n\
         connect = 127.0.0.1:{to}\n{extra}"
    );
    std::fs::write(&path, text)?;
    lab.serve(side, from, "stunnel4", &[&path.display().to_string()])
}

fn stunnel_rate(lab: &Lab, side: Side) -> Result<f64> {
    let pair = tls::certificate(lab)?;
    let nginx = Nginx::start(lab, side, &Workers { count: 1, user: &own_user() })?;
    let port = free_port()?;
    let keys = format!("cert = {}\nkey = {}\n", pair.certificate, pair.key);
    let process = tunnel(lab, side, "rate", (port, nginx.port), &keys)?;
    let rate = http::wrk(lab, side, &format!("https://127.0.0.1:{port}/64"), 20, false)?;
    process.terminate(LIMIT)?.ok()?;
    nginx.process.terminate(LIMIT)?.ok()?;
    Ok(rate)
}

/// client -> stunnel that encrypts -> stunnel that decrypts -> echo
fn stunnel(lab: &mut Lab) -> Result<()> {
    let pair = tls::certificate(lab)?;
    let data = files::bytes(10_000_000);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    let ports = [free_port()?, free_port()?, free_port()?];
    let listen = format!("TCP-LISTEN:{},bind=127.0.0.1,fork,reuseaddr", ports[2]);
    // A block is what a pipe takes whole when select says that it is writable. With socat's usual 8192 bytes it may stop
    // for good in a write to the pipe that it alone reads: on Linux as well, once reads were short.
    let echo = lab.serve(Side::Sd, ports[2], "socat", &["-t10", "-b4096", &listen, "PIPE"])?;
    let tunnel = |name: &str, from: u16, to: u16, extra: &str| tunnel(lab, Side::Sd, name, (from, to), extra);
    let server = format!("cert = {}\nkey = {}\n", pair.certificate, pair.key);
    let inner = tunnel("inner", ports[1], ports[2], &server)?;
    let client = format!("client = yes\nverifyChain = yes\nCAfile = {}\n", pair.certificate);
    let outer = tunnel("outer", ports[0], ports[1], &client)?;
    let watches = ports.map(|port| lab.watch(port));
    // Without a half-close: after one stunnel now and then drops what is still on its way back, on Linux as well. So
    // the client ends when nothing has come for four seconds.
    let connect = format!("TCP:127.0.0.1:{},shut-none", ports[0]);
    for _ in 0..3 {
        let output = lab.run_with_input(Side::Sd, &sample, "socat", &["-t4", "-", &connect], LIMIT)?;
        files::require_same("through the chain", &output.stdout, &data)?;
    }
    for watch in watches {
        lab.check(watch, Side::Sd, Side::Sd)?;
    }
    outer.terminate(LIMIT)?.ok()?;
    inner.terminate(LIMIT)?.ok()?;
    echo.terminate(LIMIT)?;
    Ok(())
}

fn start_tinyproxy(lab: &Lab, side: Side) -> Result<(Proc, u16)> {
    let port = free_port()?;
    let configuration = lab.path().join(format!("tinyproxy-{port}.conf"));
    let text = format!("Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 50\nAllow 127.0.0.1\n");
    std::fs::write(&configuration, text)?;
    let args = ["-d", "-c", &configuration.display().to_string()];
    Ok((lab.serve(side, port, "tinyproxy", &args)?, port))
}

fn proxy_rate(lab: &Lab, side: Side) -> Result<f64> {
    let nginx = Nginx::start(lab, side, &Workers { count: 1, user: &own_user() })?;
    std::fs::write(nginx.root.join("file"), files::bytes(30_000_000))?;
    let (process, port) = start_tinyproxy(lab, side)?;
    let proxy = format!("http://127.0.0.1:{port}");
    let url = nginx.url("file");
    let args = ["-sS", "--fail", "--noproxy", "", "-o", "/dev/null", "--proxy", &proxy, &url];
    let rate = rates::per_second(|| lab.run(side, "curl", &args, LIMIT).map(|_| ()))?;
    process.terminate(LIMIT)?;
    nginx.process.terminate(LIMIT)?.ok()?;
    Ok(rate * 30.0)
}

fn proxy(lab: &mut Lab) -> Result<()> {
    let data = files::bytes(30_000_000);
    for (server, client) in SIDES {
        let nginx = Nginx::start(lab, server, &Workers { count: 1, user: &own_user() })?;
        std::fs::write(nginx.root.join("file"), &data)?;
        let (process, port) = start_tinyproxy(lab, server)?;
        let watch = lab.watch(port);
        let address = format!("http://127.0.0.1:{port}");
        let url = nginx.url("file");
        for extra in [&["--proxy", address.as_str()][..], &["--proxytunnel", "--proxy", address.as_str()]] {
            let mut args = vec!["-sS", "--fail", "--noproxy", "", "--max-time", "30"];
            args.extend(extra);
            args.push(&url);
            let got = lab.run(client, "curl", &args, LIMIT)?.stdout;
            files::require_same(&format!("{extra:?}"), &got, &data)?;
        }
        lab.check(watch, server, client)?;
        web::download(lab, client, &url, &data)?;
        process.terminate(LIMIT)?;
        nginx.process.terminate(LIMIT)?.ok()?;
    }
    Ok(())
}

fn start_names(lab: &Lab, side: Side, port: u16) -> Result<Proc> {
    let user = format!("--user={}", own_user());
    let port_option = format!("--port={port}");
    let mut options = vec!["-k", &port_option, &user, "--conf-file=/dev/null", "--no-resolv", "--no-hosts"];
    options.extend(["--listen-address=127.0.0.1", "--bind-interfaces", "--pid-file="]);
    let hosts: Vec<String> = (0..100).map(|n| format!("--host-record=h{n}.test,10.1.2.{n}")).collect();
    options.extend(hosts.iter().map(String::as_str));
    let long: Vec<String> =
        (0..20).map(|n| format!("--txt-record=large.test,{n}{}", "x".repeat(240))).collect();
    options.extend(long.iter().map(String::as_str));
    lab.serve(side, port, "dnsmasq", &options)
}

fn names_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let process = start_names(lab, side, port)?;
    let text = port.to_string();
    let questions: Vec<String> = (0..90).map(|n| format!("h{n}.test")).collect();
    let mut args = vec!["+tcp", "+keepopen", "+short", "@127.0.0.1", "-p", &text];
    args.extend(questions.iter().map(String::as_str));
    let rate = rates::per_second(|| lab.run(side, "kdig", &args, LIMIT).map(|_| ()))?;
    process.terminate(LIMIT)?;
    Ok(rate * 90.0)
}

/// Ninety questions on one connection, and a large answer.
fn names(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let text = port.to_string();
        let process = start_names(lab, server, port)?;
        let watch = lab.watch_every(port, Duration::from_millis(2));
        let questions: Vec<String> = (0..90).map(|n| format!("h{n}.test")).collect();
        let mut args = vec!["+tcp", "+keepopen", "+short", "@127.0.0.1", "-p", &text];
        args.extend(questions.iter().map(String::as_str));
        let said = lab.run(client, "kdig", &args, LIMIT)?.text();
        for _ in 0..20 {
            // Often enough for `sd ss` to show one of these short connections.
            lab.run(client, "kdig", &args, LIMIT)?;
        }
        let wanted: String = (0..90).map(|n| format!("10.1.2.{n}\n")).collect();
        files::require_same("addresses", said.as_bytes(), wanted.as_bytes())?;
        let args = ["+tcp", "+short", "@127.0.0.1", "-p", &text, "large.test", "TXT"];
        let said = lab.run(client, "kdig", &args, LIMIT)?.text();
        if said.lines().count() != 20 || said.len() < 20 * 240 {
            fail!("a large answer has {} lines, {} bytes", said.lines().count(), said.len());
        }
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

fn start_etcd(lab: &Lab, side: Side, program: &str, clients: u16, store: &str) -> Result<Proc> {
    let peers = free_port()?;
    let (urls, peer_urls) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let cluster = format!("default={peer_urls}");
    let args = [
        "--data-dir",
        store,
        "--listen-client-urls",
        &urls,
        "--advertise-client-urls",
        &urls,
        "--listen-peer-urls",
        &peer_urls,
        "--initial-advertise-peer-urls",
        &peer_urls,
        "--initial-cluster",
        &cluster,
    ];
    lab.serve(side, clients, program, &args)
}

fn etcd_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let store = lab.path().join("etcd").display().to_string();
    let process = start_etcd(lab, side, "etcd", port, &store)?;
    let url = format!("http://127.0.0.1:{port}/version");
    let rate = http::wrk(lab, side, &url, 20, false)?;
    process.terminate(LIMIT)?;
    Ok(rate)
}

/// A Go program makes its system calls itself, and they come to us (ADR 108). Its clients are ours, and another Go program.
pub(super) fn etcd(lab: &Lab, [program, control]: [&str; 2]) -> Result<()> {
    let (clients, store) = (free_port()?, lab.path().join("etcd").display().to_string());
    let urls = format!("http://127.0.0.1:{clients}");
    for restart in [false, true] {
        let process = start_etcd(lab, Side::Sd, program, clients, &store)?;
        let controlled = |args: &[&str]| -> Result<String> {
            let mut command = lab.command(Side::Sd, control, args)?;
            command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &urls);
            Ok(Proc::start(&mut command, "etcdctl", lab.path())?.wait(LIMIT)?.ok()?.text())
        };
        if !restart {
            controlled(&["put", "key", "value"])?;
        }
        if controlled(&["get", "key", "--print-value-only"])? != "value\n" {
            fail!("etcd lost a value; restarted: {restart}");
        }
        let watch = lab.watch(clients);
        // {"key":"key"}, as the gateway wants it: in base64.
        let range = format!("{urls}/v3/kv/range?[1-500]");
        let output =
            lab.run(Side::Sd, "curl", &["-sS", "--fail", "-d", r#"{"key":"a2V5"}"#, &range], LIMIT)?;
        let right = output.text().matches(r#""value":"dmFsdWU=""#).count();
        if right != 500 {
            fail!("{right} of 500 answers of etcd are right");
        }
        lab.check(watch, Side::Sd, Side::Sd)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

fn sockperf(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let text = port.to_string();
        let process =
            lab.serve(server, port, "sockperf", &["server", "--tcp", "-i", "127.0.0.1", "-p", &text])?;
        let watch = lab.watch(port);
        for test in ["ping-pong", "throughput", "under-load"] {
            let args = [test, "--tcp", "-i", "127.0.0.1", "-p", &text, "-t", "1", "-m", "64"];
            let output = lab.run(client, "sockperf", &args, LIMIT)?;
            if !output.text().contains("Summary:") && !output.text().contains("Total Run") {
                fail!("sockperf {test}: {:?}", output.text());
            }
        }
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

/// sockperf has room for 600,000 messages a second only.
fn qperf_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let text = port.to_string();
    let process = lab.serve(side, port, "qperf", &["-lp", &text])?;
    let args = ["127.0.0.1", "-lp", &text, "-t", "1", "-m", "64", "tcp_lat"];
    let said = lab.run(side, "qperf", &args, LIMIT)?.text();
    process.terminate(LIMIT)?;
    let one_way_us = rates::behind(&said, "latency  =")? * if said.contains(" ns") { 1e-3 } else { 1.0 };
    Ok(5e5 / one_way_us)
}

fn qperf(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let text = port.to_string();
        let process = lab.serve(server, port, "qperf", &["-lp", &text])?;
        let watch = lab.watch(port);
        let args = ["127.0.0.1", "-lp", &text, "-t", "1", "tcp_bw", "tcp_lat"];
        let output = lab.run(client, "qperf", &args, LIMIT)?;
        if !output.text().contains("tcp_bw:") || !output.text().contains("latency") {
            fail!("qperf: {:?} {:?}", output.text(), output.stderr);
        }
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}
