//! Two hosts between which nothing comes through any more: what a program's own keep-alive finds while an engine carries its connections.

use super::Scenario;
use crate::engines::{ECHO, LIMIT, PORT, finish, hosts_on, uncut, wait_for_engine};
use harness::cable::Faults;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, network, retry};
use std::io::Write;
use std::process::{ChildStdin, Stdio};

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::between_hosts("between-hosts-keep-alive", &["python3", network::PROGRAM], keep_alive)
        .ours()
        .limit_s(120)];

/// Connections of the client: each waits in another way, and asks for keep-alive before it connects, late, or not at all.
const NAMES: [&str; 5] = ["recv", "epoll", "poll", "late", "none"];

/// Who has asked hears of it, as often and with the same error as over the kernel; who has not talks on when something comes through again.
fn keep_alive(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts_on(uncut())? else { return Ok(()) };
    let [here, there] = &hosts;
    let (address, port) = (there.address.to_string(), PORT.to_string());
    let server = there.lab.serve(Side::Sd, PORT, "python3", &["-c", ECHO, &address, &port])?;
    let call = |side| {
        let mut command = here.lab.command(side, "python3", &["-c", CLIENT, &address, &port])?;
        command.stdin(Stdio::piped());
        Proc::start(&mut command, "python3", here.lab.path())
    };
    let mut clients = [call(Side::Sd)?, call(Side::Kernel)?];
    wait_for_engine(&hosts, NAMES.len())?;
    let mut told: Vec<ChildStdin> = clients.iter_mut().map(Proc::stdin).collect::<Result<_>>()?;
    tell(&mut told)?;
    clients.iter_mut().try_for_each(|client| client.wait_for_text("silent", LIMIT))?;
    let Some(cable) = &here.cable else { fail!("there is no cable") };
    cable.set(Faults { is_cut: true, ..uncut() });
    for client in &clients {
        retry(LIMIT, || match client.stdout_so_far().lines().count() {
            lines if lines >= NAMES.len() => Ok(()),
            _ => fail!("of {NAMES:?} these have heard of it: {:?}", client.stdout_so_far()),
        })?;
    }
    cable.set(uncut());
    tell(&mut told)?;
    for (client, whose) in clients.into_iter().zip(["ours", "the kernel's"]) {
        let said = client.wait(LIMIT)?.ok()?.text();
        // The second one where the kernel has asked for the other's Ethernet address meanwhile.
        let said = said.replace("EHOSTUNREACH", "ETIMEDOUT");
        let ended = NAMES
            .map(|name| if name == "none" { "none goes on".to_owned() } else { format!("{name} ETIMEDOUT") });
        if !ended.iter().all(|line| said.lines().any(|said| said == line)) {
            fail!("{whose} ended with {said:?}");
        }
    }
    drop(server);
    finish(hosts)
}

/// A line for each.
fn tell(clients: &mut [ChildStdin]) -> Result<()> {
    clients.iter_mut().try_for_each(|stdin| stdin.write_all(b"\n")).map_err(|error| error.to_string().into())
}

/// Asks on each connection until it is told, is silent then, and says what it hears.
const CLIENT: &str = r#"
import errno, os, select, socket, sys, threading
quiet, again, all_quiet = threading.Event(), threading.Event(), threading.Barrier(6)
def ask_to_be_told(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
def echo(connection):
    connection.sendall(b"x" * 64)
    assert connection.recv(64, socket.MSG_WAITALL) == b"x" * 64
def say(*words):
    os.write(1, " ".join(words).encode() + b"\n")
def wait(name, connection):
    if name == "epoll":
        epoll = select.epoll()
        epoll.register(connection, select.EPOLLIN | select.EPOLLET)
        epoll.poll()
    elif name == "poll":
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.poll()
    connection.recv(1)
    say(name, "end")
def run(name, connection):
    while not quiet.is_set():
        echo(connection)
    if name == "late":
        ask_to_be_told(connection)
    all_quiet.wait()
    try:
        if name != "none":
            return wait(name, connection)
        again.wait()
        echo(connection)
        say("none goes on")
    except OSError as error:
        say(name, errno.errorcode[error.errno])
threads = []
for name in ["recv", "epoll", "poll", "late", "none"]:
    connection = socket.socket()
    name in ["late", "none"] or ask_to_be_told(connection)
    connection.connect((sys.argv[1], int(sys.argv[2])))
    threads.append(threading.Thread(target=run, args=[name, connection]))
for thread in threads:
    thread.start()
sys.stdin.readline()
quiet.set()
all_quiet.wait()
say("silent")
sys.stdin.readline()
again.set()
for thread in threads:
    thread.join()
"#;
