//! Two hosts with an engine each: what is better off with the kernel goes back there, and stays (ADR 103).

use super::Scenario;
use super::engines::{LIMIT, PORT, finish, start_again};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::Side;
use harness::process::Proc;
use harness::{Result, fail, network, retry, ss};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-advice", &["python3", "ss", network::PROGRAM], |_| few_and_bulk())
        .ours()
        .limit_s(180),
    Scenario::between_hosts("between-hosts-trial", &["python3", network::PROGRAM], |_| trial())
        .ours()
        .limit_s(180),
    Scenario::between_hosts("between-hosts-woken", &["python3", network::PROGRAM], |_| woken())
        .ours()
        .limit_s(180),
    Scenario::between_hosts("between-hosts-crowd", &["python3", network::PROGRAM], |_| crowd())
        .ours()
        .limit_s(180),
    Scenario::between_hosts("between-hosts-sparse", &["python3", network::PROGRAM], |_| sparse())
        .ours()
        .limit_s(180),
];

/// Answers with what has come, all in one thread: so what comes for several connections goes together.
const SERVER: &str = r#"
import select, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
print("listens", flush=True)
waits, all = select.epoll(), {}
waits.register(listener, select.EPOLLIN)
while True:
    for number, _ in waits.poll():
        if number == listener.fileno():
            new = listener.accept()[0]
            all[new.fileno()] = new
            waits.register(new, select.EPOLLIN)
        elif data := all[number].recv(65536):
            all[number].sendall(data)
        else:
            waits.unregister(number)
            all.pop(number).close()
"#;
const CLIENT: &str = concat!(include_str!("../py/talk.py"), include_str!("../py/advice_client.py"));
const TRIAL: &str = concat!(include_str!("../py/talk.py"), include_str!("../py/trial_client.py"));
const WOKEN: &str = concat!(include_str!("../py/talk.py"), include_str!("../py/woken_client.py"));
const CROWD: &str = concat!(include_str!("../py/talk.py"), include_str!("../py/crowd_client.py"));
const SPARSE: &str = concat!(include_str!("../py/talk.py"), include_str!("../py/sparse_client.py"));
/// As the hosts file has it where it says nothing.
const LEAST: usize = 32;
const COUNT: usize = 40;
/// More than a program is told of at once, as its socket has no room.
const MANY: usize = 600;
/// How many are left at the end, as the client has it: too few for an engine, and more than would each wake who reads them.
const LEFT: usize = 20;
/// What a busy machine carries faster is not to be a test's result.
const NO_TRIAL: &str = "trial off\n";
/// Long enough for whoever would come again.
const WHILE: Duration = Duration::from_secs(6);

/// Two hosts, a server on one, and a client with so many connections to it on the other.
struct Talk {
    hosts: [Host; 2],
    server: Proc,
    client: Proc,
    input: ChildStdin,
}

impl Talk {
    /// `lines`: of the hosts file, besides; `of_host`: behind each line of a host.
    fn start(script: &str, lines: &str, of_host: &str) -> Result<Talk> {
        Talk::of((LEAST, COUNT), script, lines, of_host)
    }

    /// So many are carried at least, where there are so many.
    fn of((least, count): (usize, usize), script: &str, lines: &str, of_host: &str) -> Result<Talk> {
        let mut hosts = host::two_with_engines(Faults::default(), least)?;
        for host in &mut hosts {
            let text = std::fs::read_to_string(host.hosts_file())?;
            let said = text.lines().map(|line| match line.starts_with("host ") {
                true => format!("{line} {of_host}\n"),
                false => format!("{line}\n"),
            });
            std::fs::write(host.hosts_file(), said.collect::<String>() + lines)?;
            start_again(host)?;
        }
        let [here, there] = &hosts;
        let (address, port, count) = (there.address.to_string(), PORT.to_string(), count.to_string());
        let server = there.lab.serve(Side::Sd, PORT, "python3", &["-c", SERVER, &address, &port])?;
        let mut command = here.lab.command(Side::Sd, "python3", &["-c", script, &address, &port, &count])?;
        let mut client = Proc::start(command.stdin(Stdio::piped()), "python3", here.lab.path())?;
        let input = client.stdin()?;
        Ok(Talk { hosts, server, client, input })
    }

    fn end(mut self) -> Result<()> {
        next(&mut self.input, &mut self.client, "over")?;
        drop(self.input);
        self.client.wait(LIMIT)?.ok()?;
        self.server.kill();
        finish(self.hosts)
    }
}

/// Forty come, by an engine that may send less than the kernel does: all go back for what comes of that, and stay.
fn trial() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut talk = Talk::start(TRIAL, "tenant slow rate=20000\n", "tenant=slow")?;
    talk.client.wait_for_text("many", LIMIT)?;
    all_went_back(&talk.hosts)?;
    nobody_comes(&talk.hosts)?;
    talk.end()
}

/// Forty threads with a connection each are slower by the engine: all go back, and their next connections are not tried anew.
fn woken() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut talk = Talk::start(WOKEN, "", "")?;
    talk.client.wait_for_text("many", LIMIT)?;
    all_went_back(&talk.hosts)?;
    next(&mut talk.input, &mut talk.client, "again")?;
    nobody_comes(&talk.hosts)?;
    talk.end()
}

/// Waits until all are the kernel's again, for one of these two reasons. Who was offered late is not carried by then. On a busy machine what a slow
/// engine carries wakes its reader each time, before the trial is over; or the trial is over first.
fn all_went_back(hosts: &[Host; 2]) -> Result<()> {
    let why = [Some("the engine was slower"), Some("each message wakes its reader")];
    hosts.iter().try_for_each(|host| {
        retry(LIMIT, || {
            let seen = host.lab.snapshot()?;
            let all = seen.of_port(PORT);
            let is_back = |c: &&&ss::Connection| c.path == "kernel" && why.contains(&c.moved.as_deref());
            match all.iter().filter(is_back).count() {
                back if 2 * back >= COUNT && all.iter().all(|c| c.path == "kernel") => Ok(()),
                back => fail!("{back} of {COUNT} went back: {}", roads(&seen)),
            }
        })
    })
}

/// For a while none is promoted.
fn nobody_comes(hosts: &[Host; 2]) -> Result<()> {
    let promotions = || Ok::<_, harness::Error>(hosts[0].lab.snapshot()?.promotions);
    let before = promotions()?;
    std::thread::sleep(WHILE);
    match promotions()? {
        now if now == before => Ok(()),
        now => fail!("{before} promotions, then {now}"),
    }
}

/// Hundreds may come at the same moment, while their program reads nothing of what it is told: each of them comes, and no later than it is told.
fn crowd() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut talk = Talk::of((MANY, MANY), CROWD, NO_TRIAL, "")?;
    talk.client.wait_for_text("many", LIMIT)?;
    // Who is forgotten is offered again in a minute.
    came_within(&talk.hosts, MANY, LIMIT / 2)?;
    talk.end()
}

/// Among forty, the one with a message each 100 ms stays with the kernel, and the one that becomes so goes back there.
fn sparse() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut talk = Talk::start(SPARSE, NO_TRIAL, "")?;
    talk.client.wait_for_text("many", LIMIT)?;
    let said = talk.client.stdout_so_far();
    let ports: Vec<&str> = said.split_whitespace().skip(1).take(2).collect();
    let [first, fresh] = ports[..] else { fail!("no ports in {said:?}") };
    came(&talk.hosts, COUNT - 1)?;
    next(&mut talk.input, &mut talk.client, "sparse")?;
    went_back(&talk.hosts, "sparse", 1)?;
    std::thread::sleep(WHILE);
    came(&talk.hosts, COUNT - 2)?;
    for host in &talk.hosts {
        let seen = host.lab.snapshot()?;
        let of = |port: &str| {
            let end = format!(":{port}");
            let is_it = |c: &&&ss::Connection| c.local.ends_with(&end) || c.peer.ends_with(&end);
            seen.of_port(PORT).iter().find(is_it).map(|c| (c.path.clone(), c.moved.clone()))
        };
        let (kernel, sparse) = ("kernel".to_owned(), "sparse".to_owned());
        if (of(first), of(fresh)) != (Some((kernel.clone(), Some(sparse))), Some((kernel, None))) {
            fail!("of {first}: {:?}, of {fresh}: {:?}", of(first), of(fresh));
        }
    }
    talk.end()
}

/// Forty are promoted; the one that becomes bulk goes back, and the last ones do when the others have closed. Nobody comes again.
fn few_and_bulk() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let mut talk = Talk::start(CLIENT, NO_TRIAL, "")?;
    let (hosts, client, input) = (&talk.hosts, &mut talk.client, &mut talk.input);
    client.wait_for_text("many", LIMIT)?;
    came(hosts, COUNT)?;
    kept_alive(&hosts[0])?;
    next(input, client, "bulk")?;
    went_back(hosts, "bulk", 1)?;
    came(hosts, COUNT - 1)?;
    next(input, client, "few")?;
    went_back(hosts, "few are busy between the hosts", LEFT)?;

    carried(hosts, 0)?;
    let promotions = hosts.each_ref().map(|host| host.lab.snapshot().map(|seen| seen.promotions));
    std::thread::sleep(WHILE);
    for (host, before) in hosts.iter().zip(promotions) {
        let (seen, before) = (host.lab.snapshot()?, before?);
        if seen.promotions != before || seen.of_port(PORT).iter().any(|c| c.path != "kernel") {
            fail!("{before} promotions, then {}: {}", seen.promotions, roads(&seen));
        }
        // Each connection once. An end may be in a call when its slot is to be had, as most are on a busy machine, and is offered again
        // after 1 s, then 2, up to a minute: seven times within the limit of this stage.
        if before as usize > COUNT * 8 {
            fail!("{before} promotions of {COUNT} connections");
        }
    }
    talk.end()
}

fn next(input: &mut ChildStdin, client: &mut Proc, stage: &str) -> Result<()> {
    writeln!(input)?;
    client.wait_for_text(stage, LIMIT)
}

/// How many connections take which road, and why.
fn roads(seen: &ss::Snapshot) -> String {
    let mut counts = BTreeMap::new();
    for c in seen.of_port(PORT) {
        *counts.entry((&c.path, &c.moved, &c.awaits)).or_insert(0) += 1;
    }
    format!("{counts:?}")
}

/// Waits until so many go through the engines.
fn came(hosts: &[Host; 2], count: usize) -> Result<()> {
    came_within(hosts, count, LIMIT)
}

fn came_within(hosts: &[Host; 2], count: usize, limit: Duration) -> Result<()> {
    hosts.iter().try_for_each(|host| {
        retry(limit, || {
            let seen = host.lab.snapshot()?;
            match seen.of_port(PORT).iter().filter(|c| c.path == "engine").count() {
                found if found == count => Ok(()),
                found => fail!("{found} of {count} go through the engine: {}", roads(&seen)),
            }
        })
    })
}

/// Waits until so many connections are the kernel's again for this reason, at both ends.
fn went_back(hosts: &[Host; 2], why: &str, count: usize) -> Result<()> {
    hosts.iter().try_for_each(|host| {
        retry(LIMIT, || {
            let seen = host.lab.snapshot()?;
            let is_back = |c: &&ss::Connection| c.path == "kernel" && c.moved.as_deref() == Some(why);
            match seen.of_port(PORT).into_iter().filter(is_back).count() {
                found if found == count => Ok(()),
                found => fail!("{found} of {count} went back for {why:?}: {}", roads(&seen)),
            }
        })
    })
}

/// Waits until both engines know of so many connections with the other one: neither of those that were closed, nor of those that went back.
fn carried(hosts: &[Host; 2], count: u64) -> Result<()> {
    hosts.iter().try_for_each(|host| {
        retry(LIMIT, || match host.engine_seen()? {
            seen if seen["peers"][0]["connections"] == count => Ok(()),
            seen => fail!("{count} connections are left, but the engine says {seen}"),
        })
    })
}

/// The kernel's connections beneath ask once a minute whether the other end is there, whatever the program has set.
fn kept_alive(host: &Host) -> Result<()> {
    let seconds = |line: &str| {
        let (_, timer) = line.split_once("timer:(keepalive,")?;
        timer.split_once("sec")?.0.parse::<f64>().ok()
    };
    let port = format!(":{PORT}");
    retry(LIMIT, || {
        let said = host.lab.run(Side::Kernel, "ss", &["-tnoH", "dport", &port], LIMIT)?.text();
        match said.lines().filter(|line| seconds(line).is_some_and(|left| left <= 60.0)).count() {
            COUNT => Ok(()),
            kept => fail!("{kept} of {COUNT} are kept alive: {said}"),
        }
    })
}
