//! A promoted connection is handed to a program without the library, by exec and in a message, and kept by a process that gives rights up: the
//! kernel's socket is all that is needed then, so no process copies its bytes (ADR 83). Some of them lie unread in the ring at that moment.

use super::promote::{is_promoted, let_promote};
use super::{Part, served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// Until it is promoted.
const TRIES: usize = 200;

pub(super) fn parts() -> Vec<Part<'static>> {
    let part = |how: &'static str| -> Part<'static> {
        (format!("handed-over-by-{how}"), Box::new(move |lab: &mut Lab| run(lab, how)))
    };
    ["exec", "pass", "leave"].map(part).into()
}

fn run(lab: &mut Lab, how: &str) -> Result<String> {
    let_promote(lab)?;
    let (mut server, port) = served(start(lab, Side::Sd, &["steered", "serve"])?)?;
    let number: u16 = port.parse()?;
    let program = super::program();
    let place = format!("127.0.0.1:{port}");
    let mut command = lab.command(Side::Sd, &program.to_string_lossy(), &["steered", &place])?;
    let mut client = harness::process::Proc::start(command.stdin(Stdio::piped()), "steered", lab.path())?;
    client.wait_for_text("connected", PATIENCE)?;
    let mut orders = client.stdin()?;
    let mut told = 0;
    let mut tell = |line: &str, client: &mut harness::process::Proc| -> Result<()> {
        writeln!(orders, "{line}")?;
        told += 1;
        client.wait_for_text(&"done\n".repeat(told), PATIENCE)
    };
    for tried in 0.. {
        tell("50 0", &mut client)?;
        if lab.is_oracle() || is_promoted(lab, number)? {
            break;
        }
        if tried == TRIES {
            fail!("it was not promoted");
        }
    }
    tell(how, &mut client)?;
    tell("500 0", &mut client)?;
    if !lab.is_oracle() {
        let seen = lab.snapshot()?;
        let ends = seen.of_port(number);
        if ends.is_empty() || ends.iter().any(|end| end.path != "kernel" || end.comm == "sd-bridge") {
            fail!("not the kernel's: {:?}", ends.into_iter().map(harness::ss::describe).collect::<Vec<_>>());
        }
    }
    if !server.is_running() {
        fail!("the server is over: {}", server.last_words());
    }
    server.kill();
    client.kill();
    Ok("nobody between the ends".to_owned())
}
