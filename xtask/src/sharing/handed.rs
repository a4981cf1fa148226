//! A promoted connection is handed to a program without the library, by exec and in a message, and kept by a process that gives rights up: the
//! kernel's socket is all that is needed then, so no process copies its bytes (ADR 83). Some of them lie unread in the ring at that moment.

use super::promote::{is_promoted, let_promote};
use super::{Part, served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail};
use nix::sys::signal::Signal;
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// Until it is promoted.
const TRIES: usize = 200;

pub(super) fn parts() -> Vec<Part<'static>> {
    let part = |how: &'static str| -> Part<'static> {
        (format!("handed-over-by-{how}"), Box::new(move |lab: &mut Lab| run(lab, how)))
    };
    let mut parts: Vec<Part<'static>> = ["exec", "pass", "leave"].map(part).into();
    parts.push(("handed-over-and-deserted".to_owned(), Box::new(deserted)));
    parts
}

/// A connection that is promoted, and its client's orders.
struct Talk {
    server: Proc,
    client: Proc,
    orders: ChildStdin,
    told: usize,
    port: u16,
}

impl Talk {
    fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.orders, "{line}")?;
        self.told += 1;
        self.client.wait_for_text(&"done\n".repeat(self.told), PATIENCE)
    }
}

/// The other end stands still when it is asked to send again what lies in its ring, and dies.
fn deserted(lab: &mut Lab) -> Result<String> {
    let mut talk = promoted(lab)?;
    writeln!(talk.orders, "exec-when-told")?;
    talk.client.wait_for_text("unread", PATIENCE)?;
    talk.server.signal(Signal::SIGSTOP);
    writeln!(talk.orders)?;
    talk.client.wait_for_text("begun", PATIENCE)?;
    talk.server.kill();
    writeln!(talk.orders)?;
    talk.client.wait_for_text("begun\ndone", PATIENCE)?;
    talk.client.kill();
    Ok("nothing is lost with an end that was asked to send it again".to_owned())
}

fn promoted(lab: &mut Lab) -> Result<Talk> {
    let_promote(lab)?;
    let (server, port) = served(start(lab, Side::Sd, &["steered", "serve"])?)?;
    let number: u16 = port.parse()?;
    let program = super::program();
    let place = format!("127.0.0.1:{port}");
    let mut command = lab.command(Side::Sd, &program.to_string_lossy(), &["steered", &place])?;
    let mut client = Proc::start(command.stdin(Stdio::piped()), "steered", lab.path())?;
    client.wait_for_text("connected", PATIENCE)?;
    let orders = client.stdin()?;
    let mut talk = Talk { server, client, orders, told: 0, port: number };
    for _ in 0..TRIES {
        talk.tell("50 0")?;
        if lab.is_oracle() || is_promoted(lab, number)? {
            return Ok(talk);
        }
    }
    fail!("it was not promoted");
}

fn run(lab: &mut Lab, how: &str) -> Result<String> {
    let mut talk = promoted(lab)?;
    talk.tell(how)?;
    talk.tell("500 0")?;
    let Talk { mut server, client, port: number, .. } = talk;
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
