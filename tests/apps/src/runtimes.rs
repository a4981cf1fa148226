//! Language runtimes with event loops of their own: uvloop, Node, Java NIO and Netty, gRPC.

use super::http::{self, Steady};
use super::table::{Load, Row};
use super::{Scenario, files, python, rates};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("uvloop-echo", &["python3", UVLOOP], |lab| python::echo(lab, "uvloop", 256, 12)).extra(),
    Scenario::new("grpc-python", &["python3", GRPC], grpc).limit_s(90).extra(),
    Scenario::new("node-http", NODE, |lab| node(lab, &[])).limit_s(90).extra(),
    Scenario::new("node-cluster-shared-listener", NODE, |lab| node(lab, &["2", "none"])).limit_s(90).extra(),
    Scenario::new("node-cluster", NODE, |lab| node(lab, &["2"])).limit_s(90).extra(),
    Scenario::new("node-cluster-reload-under-load", NODE, node_reload).limit_s(90).extra(),
    Scenario::new("java-nio", JAVA, |lab| java(lab, "NioEcho", NIO)).limit_s(120).extra(),
    Scenario::new("java-netty", NETTY_NEEDS, |lab| java(lab, "NettyEcho", NETTY)).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "uvloop",
        version: &["python3", "-c", "import uvloop; print(uvloop.__version__)"],
        scenarios: "uvloop-",
        features: "libuv's event loop, 256 connections, half-close",
        load: Some(Load { unit: python::ECHOES, rate: |lab, side| python::rate(lab, side, "uvloop") }),
    },
    Row {
        application: "gRPC (Python)",
        version: &["python3", "-c", "import grpc; print(grpc.__version__)"],
        scenarios: "grpc-",
        features: "HTTP/2, threads, single calls and streams, messages of 0 to 1,000,000 bytes",
        load: Some(Load { unit: "calls/s, one at a time, 0 to 1,000,000 bytes", rate: grpc_rate }),
    },
    Row {
        application: "Node HTTP",
        version: &["node", "--version"],
        scenarios: "node-",
        features: "HTTP server, uploads, cluster (connections passed between processes), replacement of workers",
        load: Some(Load {
            unit: "requests/s of 64 bytes, wrk, 50 connections",
            rate: |lab, side| {
                let node = Node::start(lab, side, &[])?;
                let rate = http::wrk(lab, side, &node.url("64"), 50, false)?;
                node.stop()?;
                Ok(rate)
            },
        }),
    },
    Row {
        application: "Java NIO",
        version: &["javac", "--version"],
        scenarios: "java-nio",
        features: "selector, direct buffers, server and client",
        load: Some(Load { unit: python::ECHOES, rate: |lab, side| java_rate(lab, side, "NioEcho", NIO) }),
    },
    Row {
        application: "Netty",
        version: &["sh", "-c", "ls /usr/share/java/netty-transport-*.jar"],
        scenarios: "java-netty",
        features: "event loops in threads, NIO transport",
        load: Some(Load { unit: python::ECHOES, rate: |lab, side| java_rate(lab, side, "NettyEcho", NETTY) }),
    },
];

const UVLOOP: &str = "/usr/lib/python3/dist-packages/uvloop";
const GRPC: &str = "/usr/lib/python3/dist-packages/grpc";
const NODE: &[&str] = &["node", "wrk", "curl", "python3"];
const JAVA: &[&str] = &["javac", "java", "python3"];
const NETTY_NEEDS: &[&str] = &["javac", "java", "python3", "/usr/share/java/netty-transport.jar"];
const NIO: &str = include_str!("../java/NioEcho.java");
const NETTY: &str = include_str!("../java/NettyEcho.java");
const SERVER_JS: &str = include_str!("../js/http_server.js");
const LIMIT: Duration = Duration::from_secs(40);
const GRACE: Duration = Duration::from_secs(10);

fn grpc_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let text = port.to_string();
    let mut server = python::start(lab, side, "grpc_echo.py", &["server".to_owned(), text.clone()])?;
    server.wait_listening(port)?;
    let said = python::run(lab, side, "grpc_echo.py", &["client".to_owned(), text], LIMIT)?;
    server.terminate(GRACE)?.ok()?;
    match said.split_once(" calls/s, all right") {
        Some((rate, _)) => Ok(rate.parse()?),
        None => fail!("the client said {said:?}"),
    }
}

fn grpc(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let mut process = python::start(lab, server, "grpc_echo.py", &["server".to_owned(), text.clone()])?;
        process.wait_listening(port)?;
        let watch = lab.watch(port);
        let said = python::run(lab, client, "grpc_echo.py", &["client".to_owned(), text], LIMIT)?;
        if !said.contains("all right") {
            fail!("the client said {said:?}");
        }
        lab.check(watch, server, client)?;
        process.terminate(GRACE)?.ok()?;
        Ok(())
    })
}

struct Node {
    process: Proc,
    port: u16,
    root: PathBuf,
}

impl Node {
    /// `cluster`: workers, and their policy.
    fn start(lab: &Lab, side: Side, cluster: &[&str]) -> Result<Node> {
        let port = free_port()?;
        let root = lab.path().join(format!("files-{port}"));
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("64"), [b'x'; 64])?;
        let script = lab.path().join("http_server.js");
        std::fs::write(&script, SERVER_JS)?;
        let (script, folder) = (script.display().to_string(), root.display().to_string());
        let port_text = port.to_string();
        let args = [&[script.as_str(), &port_text, &folder], cluster].concat();
        let process = lab.serve(side, port, "node", &args)?;
        Ok(Node { process, port, root })
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    fn stop(self) -> Result<()> {
        self.process.terminate(GRACE)?.ok()?;
        Ok(())
    }
}

fn node(lab: &mut Lab, cluster: &[&str]) -> Result<()> {
    each(|server, client| {
        let node = Node::start(lab, server, cluster)?;
        if server == Side::Sd && !lab.is_oracle() {
            // Workers make the shared listener theirs a moment after the primary listens.
            let ours = format!("127.0.0.1:{}", node.port);
            let is_there = || lab.snapshot().is_ok_and(|s| s.listeners.contains(&ours));
            http::wait_for(is_there, "the listener in sd ss")?;
        }
        let watch = lab.watch(node.port);
        http::files(lab, client, &node.root, &node.url(""))?;
        let data = files::bytes(5_000_001);
        let echo = http::upload(lab, client, "POST", &node.url("echo"), &data)?;
        files::require_same("answer to POST", &echo, &data)?;
        for (connections, is_short) in [(50, false), (20, true)] {
            http::wrk(lab, client, &node.url("64"), connections, is_short)?;
        }
        match watch {
            // A worker that is slow to receive what the primary passes finds that its bridge has begun to copy.
            Some(watch) if cluster == ["2"] && (server, client) == (Side::Sd, Side::Sd) => {
                let mut seen = watch.finish()?;
                seen.retain(|connection| connection.path != "bridged");
                lab.require_shm(&seen)?;
            }
            watch => lab.check(watch, server, client)?,
        }
        node.stop()
    })
}

/// The workers of a cluster are replaced twice, and no request fails.
fn node_reload(lab: &mut Lab) -> Result<()> {
    let node = Node::start(lab, Side::Sd, &["2"])?;
    let data = files::bytes(100_000);
    std::fs::write(node.root.join("100k"), &data)?;
    let steady = Steady::start(lab, Side::Sd, node.port, "/100k", data.len())?;
    for _ in 0..2 {
        let workers = || -> Vec<u32> { procfs::children(node.process.pid()).iter().map(|p| p.pid).collect() };
        http::wait_for(|| workers().len() == 2, "two workers")?;
        let old = workers();
        node.process.signal(Signal::SIGHUP);
        http::wait_for(
            || workers().len() == 2 && !workers().iter().any(|pid| old.contains(pid)),
            "two new workers",
        )?;
    }
    steady.finish()?;
    node.stop()
}

/// Compiles a program; where its classes and those that it needs are.
fn compile_java(lab: &Lab, name: &str, text: &str) -> Result<String> {
    let source = lab.path().join(format!("{name}.java"));
    std::fs::write(&source, text)?;
    let folder = lab.path().display().to_string();
    let classes = format!("{folder}:/usr/share/java/*");
    let args = ["-cp", &classes, "-d", &folder, &source.display().to_string()];
    lab.run(Side::Kernel, "javac", &args, LIMIT)?;
    Ok(classes)
}

fn java_rate(lab: &Lab, side: Side, name: &str, text: &str) -> Result<f64> {
    let classes = compile_java(lab, name, text)?;
    let port = free_port()?;
    let args = ["-cp", &classes, name, "server", &port.to_string()];
    let process = lab.serve(side, port, "java", &args)?;
    // The first one lets the compiler of the virtual machine do its work.
    rates::echoes(lab, side, port, "echo")?;
    let rate = rates::echoes(lab, side, port, "echo")?;
    process.terminate(GRACE)?;
    Ok(rate)
}

/// Checks a program's echo with a client in Python; Java NIO brings a client as well.
fn java(lab: &mut Lab, name: &str, text: &str) -> Result<()> {
    let classes = compile_java(lab, name, text)?;
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let process = lab.serve(server, port, "java", &["-cp", &classes, name, "server", &text])?;
        let watch = lab.watch(port);
        let args = [text.clone(), "64".to_owned(), "8".to_owned()];
        let mut said = vec![python::run(lab, client, "echo_client.py", &args, LIMIT)?];
        if name == "NioEcho" {
            let args = ["-cp", &classes, name, "client", &text, "64", "8"];
            said.push(lab.run(client, "java", &args, LIMIT)?.text());
        }
        if said.iter().any(|text| text.trim() != "512 echoes") {
            fail!("the clients said {said:?}");
        }
        lab.check(watch, server, client)?;
        // Java's own status after SIGTERM.
        let status = process.terminate(GRACE)?.status;
        if status.code() != Some(143) {
            fail!("java ended with {status}");
        }
        Ok(())
    })
}
