//! Static Go programs of other people's modules that pass messages on: NATS and gRPC, with clients that compare each answer.
//!
//! The modules come from the module proxy, at the versions in `go/messages/go.sum`, and want a Go toolchain as new as `go.mod` says.

use super::Scenario;
use super::go::{BUILD_S, GRACE, compile, serve, start};
use super::table::Row;
use harness::lab::{Lab, each};
use harness::process::free_port;
use harness::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("go-nats", &["go"], |lab| messages(lab, ["nats-server", "nats"]))
        .limit_s(BUILD_S + 60)
        .extra(),
    Scenario::new("go-grpc", &["go"], |lab| messages(lab, ["grpc-server", "grpc"]))
        .limit_s(BUILD_S + 60)
        .extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "NATS",
        version: &["go", "version"],
        scenarios: "go-nats",
        features: "a static Go program: requests by way of a server, queues, publications to all; messages to 32 KiB",
        load: None,
    },
    Row {
        application: "gRPC (Go)",
        version: &["go", "version"],
        scenarios: "go-grpc",
        features: "static Go programs: HTTP/2, single calls beside streams on each connection",
        load: None,
    },
];

const FILES: [(&str, &str); 3] = [
    ("go.mod", include_str!("../go/messages/go.mod")),
    ("go.sum", include_str!("../go/messages/go.sum")),
    ("main.go", include_str!("../go/messages/main.go")),
];
const LIMIT: Duration = Duration::from_secs(50);
const CLIENTS: usize = 8;
const MESSAGES: usize = 2000;

/// A server and clients, each over Linux and over SocksDirect.
fn messages(lab: &mut Lab, [serves, asks]: [&str; 2]) -> Result<()> {
    let module = lab.path().join("messages");
    std::fs::create_dir_all(&module)?;
    for (name, text) in FILES {
        std::fs::write(module.join(name), text)?;
    }
    let program = lab.path().join("go-messages").display().to_string();
    compile(lab, "0", &["-o", &program, "."], |command| _ = command.current_dir(&module))?;
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let process = serve(lab, server, port, &program, &[serves, &text])?;
        let watch = lab.watch(port);
        let args = [asks, &text, &CLIENTS.to_string(), &MESSAGES.to_string()];
        let said = start(lab, client, &program, &args)?.wait(LIMIT)?.ok()?.text();
        let all = CLIENTS * MESSAGES;
        if said != format!("{all} answers, {all} messages\n") {
            fail!("the clients said {said:?}");
        }
        lab.check(watch, server, client)?;
        process.terminate(GRACE)?;
        Ok(())
    })
}
