//! A server that hands on each connection to a child leaves its monitor, and its children's connections are moved all the same if they last (ADR 94).

use super::brief::{self, Seen};
use super::{Part, promote, served, start};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, product};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Connections after which a server has left.
const HANDED_ON: usize = 40;
/// Clients that have registered, and connect while it leaves; for how long; and rounds of that.
const DIALERS: usize = 3;
const DIAL_MS: &str = "700";
const ROUNDS: usize = 4;

/// What the server does with connections after those; see `tests/sharing/src/brief.rs`.
const WAYS: [(&str, Seen); 5] = [
    ("closed", Seen::Promoted),
    ("instance", Seen::Promoted),
    ("itself", Seen::Promoted),
    // It has the connection as well as its child.
    ("kept", Seen::Kernel),
    // Two children have it.
    ("twice", Seen::Kernel),
];

pub(super) fn parts<'a>() -> impl Iterator<Item = Part<'a>> {
    let ways = WAYS.into_iter().map(|(way, wanted)| {
        let check = move |lab: &mut Lab| run(lab, way, wanted);
        (format!("hands-on-{way}"), Box::new(check) as _)
    });
    let meanwhile: Part = ("hands-on-meanwhile".to_owned(), Box::new(meanwhile));
    let queue: Part = ("hands-on-queue".to_owned(), Box::new(queue));
    ways.chain([meanwhile, queue])
}

/// Connections to a server that are over soon, by a client without the library.
fn visit(port: &str, count: usize) -> Result<()> {
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse()?))?;
        let mut answer = [0; 5];
        stream.write_all(b"short")?;
        stream.read_exact(&mut answer)?;
        if answer != *b"short" {
            fail!("another answer");
        }
    }
    Ok(())
}

/// Whether the process has memory that it shares with the monitor.
fn is_registered(pid: u32) -> Result<bool> {
    Ok(fs::read_to_string(format!("/proc/{pid}/maps"))?.contains("memfd:sd-"))
}

fn run(lab: &mut Lab, way: &str, wanted: Seen) -> Result<String> {
    promote::let_earn(lab)?;
    let (serving, port) = served(start(lab, Side::Sd, &["echo-in-children", way])?)?;
    visit(&port, HANDED_ON)?;
    if is_registered(serving.pid())? {
        fail!("it is registered after {HANDED_ON} connections");
    }
    if !lab.is_oracle() {
        let shown = Command::new(product::sd()).arg("ss").env("SD_MONITOR", lab.socket()).output()?;
        let shown = String::from_utf8_lossy(&shown.stderr).into_owned();
        let line = shown.lines().find(|line| line.contains(&format!("(process {})", serving.pid())));
        if !line.is_some_and(|line| line.contains("none of its own connections has lasted")) {
            fail!("sd ss says of it: {line:?}");
        }
    }
    let mut client = start(lab, Side::Sd, &["brief", &port, "long"])?;
    client.wait_for_text("said", PATIENCE)?;
    if !lab.is_oracle() {
        brief::check(lab, client.pid(), wanted)?;
        // Who serves a connection that lasts registers for it.
        if is_registered(serving.pid())? != (way == "itself") {
            fail!("it is registered, or not, after a connection that lasts");
        }
    }
    client.kill();
    serving.kill();
    Ok(format!("{} connections", HANDED_ON + 1))
}

/// No connection fails while the server leaves.
fn meanwhile(lab: &mut Lab) -> Result<String> {
    promote::let_earn(lab)?;
    let mut dials = 0;
    for _ in 0..ROUNDS {
        let (serving, port) = served(start(lab, Side::Sd, &["echo-in-children"])?)?;
        let dialers: Result<Vec<_>> =
            (0..DIALERS).map(|_| start(lab, Side::Sd, &["dial", &port, DIAL_MS])).collect();
        for dialer in dialers? {
            dials += dialer.wait(PATIENCE)?.ok()?.text().trim().parse::<u64>()?;
        }
        if is_registered(serving.pid())? {
            fail!("it is registered after {dials} connections");
        }
        serving.kill();
    }
    Ok(format!("{ROUNDS} servers, {dials} connections"))
}

/// Connections over shared memory that wait to be accepted when the server might leave are accepted, all of them.
fn queue(lab: &mut Lab) -> Result<String> {
    promote::let_earn(lab)?;
    let (serving, port) = served(start(lab, Side::Sd, &["echo-in-children"])?)?;
    let program = super::program();
    let mut command = lab.command(Side::Sd, &program.to_string_lossy(), &["brief", &port, "queue"])?;
    let mut client = Proc::start(command.stdin(Stdio::piped()), "brief", lab.path())?;
    client.wait_for_text("known", PATIENCE)?;
    let mut orders = client.stdin()?;
    serving.signal(Signal::SIGSTOP);
    writeln!(orders)?;
    client.wait_for_text("waiting", PATIENCE)?;
    serving.signal(Signal::SIGCONT);
    writeln!(orders)?;
    client.wait_for_text("said", PATIENCE)?;
    visit(&port, HANDED_ON)?;
    if is_registered(serving.pid())? {
        fail!("it is registered when nobody waits any more");
    }
    client.kill();
    serving.kill();
    Ok("all are served".to_owned())
}
