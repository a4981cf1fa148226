//! First contacts: whoever finds the kernel's listener finds the accelerated one as well (ADR 46, ADR 53).
//!
//! A *herd* is many processes that each connect once, as soon as they can, and stay. Which path each got is seen in `sd ss`.

use super::servers::Server;
use super::start;
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use harness::{procfs, ss};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Rounds, and processes in each.
const ROUNDS: usize = 20;
const HERD: usize = 50;
/// So many of the rounds have a server that comes in time, however busy the machine is.
const IN_TIME_MIN: usize = 2;
/// Clients beside each other while a monitor comes and goes, and for how long.
const DIALERS: usize = 4;
const DIAL_MS: &str = "3000";

/// A program that has threads in an epoll instance when the monitor comes: `MONITOR PORT`.
const OLD_INSTANCE: &str = r#"
import os, select, socket, sys, threading, time
instance = select.epoll()
connections = {}
seen = set()
def wait():
    while len(seen) < 20:
        for number, _ in instance.poll():
            if connections[number].recv(100):
                seen.add(number)
thread = threading.Thread(target=wait)
thread.start()
print("waits", flush=True)
while sys.argv[1] != "-" and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(0.3)
for _ in range(20):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    connections[connection.fileno()] = connection
    instance.register(connection, select.EPOLLIN)
    connection.send(b"GET / HTTP/1.1\r\nHost: herd\r\n\r\n")
thread.join(10)
print("seen", len(seen), flush=True)
time.sleep(60)
"#;

/// Without a monitor one of two relatives listens on a socket that both have had before, and the other one accepts.
const RELATIVES: &str = r#"
import os, socket, sys
def one(is_parent):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listens, has_listened = os.pipe()
    child = os.fork()
    if (child == 0) == is_parent:
        # The one that accepts.
        os.read(listens, 1)
        client = socket.socket()
        client.connect(listener.getsockname())
        # Python's own accept does not block.
        number, _ = listener._accept()
        os.write(number, b"well")
        if client.recv(10) != b"well":
            sys.exit("another answer")
    else:
        listener.listen(5)
        os.write(has_listened, b"x")
    if child == 0:
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child failed")
one(True)
one(False)
print("both", flush=True)
"#;

/// Starts a herd: each process waits for a monitor if there is none, connects until somebody listens, and says so.
fn herd(lab: &Lab, port: u16) -> Result<Proc> {
    let socket = lab.socket().display().to_string();
    let monitor = if lab.is_oracle() { "-" } else { &socket };
    start(lab, Side::Sd, &["herd", monitor, &port.to_string(), &HERD.to_string()])
}

/// How many of a herd's connections are over the kernel, as they see it themselves; then it ends.
fn strays(lab: &Lab, mut herd: Proc, port: u16) -> Result<usize> {
    herd.wait_for_text("all", TIMEOUT)?;
    let mut stray = 0;
    if !lab.is_oracle() {
        let seen = lab.snapshot()?;
        let to = format!(":{port}");
        let of_herd: Vec<_> = seen.connections.iter().filter(|c| c.peer.ends_with(&to)).collect();
        if of_herd.len() != HERD {
            let all: Vec<_> = of_herd.iter().map(|c| ss::describe(c)).collect();
            fail!("{} of {HERD} connections are seen: {}", of_herd.len(), all.join(", "));
        }
        let strays: Vec<_> = of_herd.iter().filter(|c| c.path != "shm").collect();
        strays.first().into_iter().for_each(|c| println!("     {}", ss::describe(c)));
        stray = strays.len();
    }
    herd.kill();
    Ok(stray)
}

/// Rounds of herds. None of their connections may go over the kernel, but for two reasons that only a busy machine has. Both
/// are shown:
/// - The monitor waits for a server for a time that ADR 53 states, and says so when that is over before anybody accepts.
/// - A client that stands still between its look and its connect is waited for so many times only (ADR 46). That is excused
///   where others want the processors too, and in half of the rounds at most.
#[derive(Default)]
struct Rounds {
    in_time: usize,
    /// Connections over the kernel, of each round that had such.
    strays: Vec<usize>,
    strays_of_busy: Vec<usize>,
    /// And of each round whose server came too late.
    late: Vec<usize>,
}

impl Rounds {
    /// Connections of one round, in which this monitor was there to be asked.
    fn add(&mut self, lab: &Lab, herd: Proc, port: u16) -> Result<()> {
        let strays = strays(lab, herd, port)?;
        if lab.monitor_said(&format!("nobody accepts in time port={port}")) {
            self.late.push(strays);
            return Ok(());
        }
        self.in_time += 1;
        if strays > 0 {
            let rounds = if procfs::is_busy() { &mut self.strays_of_busy } else { &mut self.strays };
            rounds.push(strays);
        }
        Ok(())
    }

    fn verdict(&self) -> Result<String> {
        let Rounds { in_time, strays, strays_of_busy, late } = self;
        let all = in_time * HERD;
        let beside = |rounds: &[usize], what: &str| match rounds.len() {
            0 => String::new(),
            count => format!("; {} over the kernel in {count} rounds {what}", rounds.iter().sum::<usize>()),
        };
        let note = beside(late, "whose server came too late") + &beside(strays_of_busy, "on a busy machine");
        if !strays.is_empty() || strays_of_busy.len() * 2 > *in_time {
            fail!("of {all} connections over the kernel, by rounds: {strays:?}{note}");
        }
        if *in_time < IN_TIME_MIN {
            fail!("{in_time} rounds in time{note}");
        }
        let kernel: usize = strays_of_busy.iter().sum();
        Ok(format!("{} of {all} on shared memory{note}", all - kernel))
    }
}

/// The monitor is killed and started again while a server stays, and clients connect the moment that it is there.
pub(super) fn monitor_restarts(lab: &mut Lab, server: Server) -> Result<String> {
    let port = free_port()?;
    let mut served = server.begin(lab, port)?;
    served.wait_listening(port)?;
    lab.wait_accepting(port);
    let mut rounds = Rounds::default();
    for round in 0..ROUNDS {
        lab.kill_monitor();
        let herd = herd(lab, port)?;
        // Sometimes servers and clients have looked for it for a while.
        std::thread::sleep(Duration::from_millis([0, 5, 300, 1100][round % 4]));
        if !lab.is_oracle() {
            lab.start_monitor()?;
        }
        rounds.add(lab, herd, port)?;
    }
    served.terminate(TIMEOUT)?;
    rounds.verdict()
}

/// A server starts and listens, then comes the monitor, then its clients.
pub(super) fn server_before_monitor(lab: &mut Lab, server: Server) -> Result<String> {
    let mut rounds = Rounds::default();
    for round in 0..ROUNDS {
        lab.kill_monitor();
        let port = free_port()?;
        let mut served = server.begin(lab, port)?;
        served.wait_listening(port)?;
        let herd = herd(lab, port)?;
        std::thread::sleep(Duration::from_millis([50, 200, 700][round % 3]));
        if !lab.is_oracle() {
            lab.start_monitor()?;
        }
        rounds.add(lab, herd, port)?;
        served.terminate(TIMEOUT)?;
    }
    rounds.verdict()
}

/// A program's epoll instance, in which a thread sleeps, is older than the monitor; then come sockets that are ours.
pub(super) fn instance_before_monitor(lab: &mut Lab) -> Result<String> {
    lab.kill_monitor();
    let port = free_port()?;
    let socket = lab.socket().display().to_string();
    let monitor = if lab.is_oracle() { "-" } else { &socket };
    let _ = std::fs::remove_file(&socket);
    let mut program = lab.start(Side::Sd, "python3", &["-c", OLD_INSTANCE, monitor, &port.to_string()])?;
    program.wait_for_text("waits", TIMEOUT)?;
    let mut server = Server::Echo.begin(lab, port)?;
    server.wait_listening(port)?;
    if !lab.is_oracle() {
        lab.start_monitor()?;
    }
    program.wait_for_text("seen 20", TIMEOUT)?;
    if !lab.is_oracle() {
        let seen = lab.snapshot()?;
        let strays: Vec<_> = seen.connections.iter().filter(|c| c.path != "shm").map(ss::describe).collect();
        if seen.connections.is_empty() || !strays.is_empty() {
            fail!("of {} connections not on shared memory: {}", seen.connections.len(), strays.join(", "));
        }
    }
    program.kill();
    server.terminate(TIMEOUT)?;
    Ok("20 of 20 connections told of their data".to_owned())
}

/// See [`RELATIVES`].
pub(super) fn relatives(lab: &mut Lab) -> Result<String> {
    lab.kill_monitor();
    lab.start(Side::Sd, "python3", &["-c", RELATIVES])?.wait(TIMEOUT)?.ok()?;
    Ok("each is served".to_owned())
}

/// Clients try until a server listens that forks before anybody accepts.
pub(super) fn workers_come_late(lab: &mut Lab, server: Server) -> Result<String> {
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let port = free_port()?;
        let herd = herd(lab, port)?;
        std::thread::sleep(Duration::from_millis(50));
        let served = server.begin(lab, port)?;
        rounds.add(lab, herd, port)?;
        served.terminate(TIMEOUT)?;
    }
    rounds.verdict()
}

/// Under a policy, which accept asks about, the monitor is killed and started again while clients make one connection after the
/// other: none of them fails. A port that is the kernel's by a rule stays so, and one that is denied is refused.
pub(super) fn policy(lab: &mut Lab, server: Server) -> Result<String> {
    let (port, of_kernel, denied) = (free_port()?, free_port()?, free_port()?);
    let text = format!("kernel to=127.9.9.9\nkernel port={of_kernel}\ndeny port={denied}\n");
    lab.set_policy(&text)?;
    lab.kill_monitor();
    if !lab.is_oracle() {
        lab.start_monitor()?;
    }
    let mut servers = Vec::new();
    for port in [port, of_kernel, denied] {
        let mut server = server.begin(lab, port)?;
        server.wait_listening(port)?;
        servers.push(server);
    }
    lab.wait_accepting(port);
    let mut dialers = Vec::new();
    for number in 0..DIALERS {
        let port = if number == 0 { of_kernel } else { port }.to_string();
        dialers.push(start(lab, Side::Sd, &["dial", &port, DIAL_MS])?);
    }
    for pause in [100, 0, 40, 400, 0] {
        std::thread::sleep(Duration::from_millis(250));
        lab.kill_monitor();
        std::thread::sleep(Duration::from_millis(pause));
        if !lab.is_oracle() {
            lab.start_monitor()?;
        }
    }
    let mut dials = 0;
    for dialer in dialers {
        dials += dialer.wait(TIMEOUT)?.ok()?.text().trim().parse::<u64>()?;
    }
    if strays(lab, herd(lab, port)?, port)? != 0 {
        fail!("not every connection was over shared memory in the end");
    }
    if !lab.is_oracle() {
        if strays(lab, herd(lab, of_kernel)?, of_kernel)? != HERD {
            fail!("a rule says kernel, and not every connection was");
        }
        if start(lab, Side::Sd, &["dial", &denied.to_string(), "0"])?.wait(TIMEOUT)?.status.success() {
            fail!("a rule says deny, and a connection was made");
        }
    }
    for server in servers {
        server.terminate(TIMEOUT)?;
    }
    Ok(format!("{DIALERS} clients, {dials} connections, 5 restarts"))
}
