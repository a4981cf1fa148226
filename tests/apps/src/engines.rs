//! Two hosts with an engine each: what lasts between them goes through these.

use super::Scenario;
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, network, procfs, retry, ss};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts(
        "between-hosts-redis",
        &["redis-server", "redis-cli", "redis-benchmark", network::PROGRAM],
        redis,
    )
    .ours()
    .limit_s(180),
    Scenario::between_hosts("between-hosts-bytes", &["python3", network::PROGRAM], bytes).ours(),
    Scenario::between_hosts("between-hosts-bad-cable", &["python3", network::PROGRAM], bad_cable).ours(),
    Scenario::between_hosts("between-hosts-other-key", &["python3", network::PROGRAM], other_key).ours(),
    Scenario::between_hosts("between-hosts-seen", &[network::PROGRAM], seen).ours(),
    Scenario::between_hosts("between-hosts-tenants", &["python3", network::PROGRAM], tenants).ours(),
    Scenario::between_hosts("between-hosts-stay", &["python3", network::PROGRAM], stay).ours(),
];

pub(crate) const PORT: u16 = 7000;
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(15);

/// Answers with what has come, a connection for each thread.
pub(crate) const SERVER: &str = r#"
import os, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family, dualstack_ipv6=sys.argv[1] == "::", backlog=100)
print("listens", flush=True)
def serve(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
        os.write(1, b"end\n")
    except ConnectionResetError:
        os.write(1, b"reset\n")
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;

/// Sends back what comes, to each in a thread.
pub(crate) const ECHO: &str = r#"
import socket, sys, threading
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
def serve(connection):
    try:
        while got := connection.recv(1000):
            connection.sendall(got)
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;

/// Some connections at once; each sends pieces of all sizes and checks what comes back, byte by byte, then goes on in small pieces, some in a
/// row, until it is told to end.
pub(crate) const CLIENT: &str = r#"
import os, random, select, socket, sys, threading
address, port, count, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pattern = random.Random(5).randbytes(1 << 20) * 2
over, done = threading.Event(), threading.Barrier(count + 1)
def turn(connection, at, size, dice):
    begin = at % (1 << 20)
    wanted = pattern[begin:begin + size]
    sender = threading.Thread(target=connection.sendall, args=[wanted]) if size > 50000 else None
    sender.start() if sender else connection.sendall(wanted)
    got = b""
    while len(got) < size:
        more = connection.recv(dice.randint(1, size - len(got)))
        assert more, "it has ended"
        got += more
    assert got == wanted, f"other bytes at {at}"
    sender and sender.join()
def run(number):
    dice, at = random.Random(number), 0
    connection = socket.create_connection((address, port))
    try:
        while at < total:
            size = dice.choice([1, 7, 64, 1000, 5000, 70000, 300000])
            turn(connection, at, size, dice)
            at += size
        done.wait()
        while not over.is_set():
            turn(connection, at, 64, dice)
            at += 64
            # Many in a row: a connection that says little now and then stays with the kernel.
            at // 64 % 16 or over.wait(0.03)
    except ConnectionResetError:
        print("reset", flush=True)
    except Exception as error:
        print("wrong:", error, flush=True)
        os._exit(1)
threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
[thread.start() for thread in threads]
done.wait()
print("carried", flush=True)
sys.stdin.readline()
over.set()
[thread.join() for thread in threads]
print("over", flush=True)
"#;

/// Two hosts whose monitors have engines, which know each other. `None`: they cannot be made.
pub(crate) fn hosts() -> Result<Option<[Host; 2]>> {
    hosts_on(Faults::default())
}

pub(crate) fn hosts_on(faults: Faults) -> Result<Option<[Host; 2]>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    host::two_with_engines(faults, 1).map(Some)
}

/// Of a cable that does nothing yet: one without faults is none, and cannot be cut.
pub(crate) fn uncut() -> Faults {
    Faults { delay: Duration::from_micros(1), ..Faults::default() }
}

/// Waits until so many connections of the port go through the engines, as both hosts say.
pub(crate) fn wait_for_engine(hosts: &[Host; 2], count: usize) -> Result<()> {
    for host in hosts {
        retry(LIMIT, || {
            let seen = host.lab.snapshot()?;
            let is_carried =
                |c: &&ss::Connection| c.path == "engine" && c.carrier.as_deref() != Some("loopback");
            match seen.of_port(PORT).into_iter().filter(is_carried).count() {
                carried if carried >= count => Ok(()),
                carried => fail!("{carried} of {count} go through the engine: {:?}", seen.of_port(PORT)),
            }
        })?;
    }
    Ok(())
}

fn carries_nothing(host: &Host) -> Result<()> {
    retry(LIMIT / 2, || {
        let seen = host.engine_seen()?;
        let peers = seen["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
        match peers.iter().filter_map(|peer| peer["connections"].as_u64()).sum() {
            0 => Ok(()),
            left => fail!("an engine still has {left} connections: {seen}"),
        }
    })
}

/// Waits until `sd doctor` says this of the other host's engine.
fn wait_for_word(host: &Host, word: &str) -> Result<()> {
    retry(SOON, || match host.doctor()? {
        said if said.contains(word) => Ok(()),
        said => fail!("sd doctor says {said:?}, not {word:?}"),
    })
}

/// Waits until a monitor knows what goes over the trunk, with so many connections at least.
fn wait_for_counts(host: &Host, connections: u64) -> Result<()> {
    retry(SOON, || {
        let seen = host.engine_seen()?;
        let peer = &seen["peers"][0];
        let count = |name: &str| peer[name].as_u64().unwrap_or_default();
        let counts =
            ["bytes_sent", "bytes_received", "packets_sent", "packets_received", "rtt_ns"].map(count);
        let is_up = peer["state"] == "up" && peer["encrypted"] == true && peer["carrier"] == "trunk";
        match is_up && count("connections") >= connections && !counts.contains(&0) {
            true => Ok(()),
            false => fail!("sd ss --json says of the other engine {seen}"),
        }
    })
}

/// Each is told whether the other one's engine is reached, and why not; engines that carry nothing sleep all the while.
fn seen(_: &mut Lab) -> Result<()> {
    for leaves in [0, 1] {
        let Some(hosts) = hosts()? else { return Ok(()) };
        hosts.iter().try_for_each(|host| wait_for_word(host, "is reached"))?;
        hosts.iter().try_for_each(|host| wait_for_word(host, "encrypted, round trip"))?;
        let engines = [hosts[0].engine()?, hosts[1].engine()?];
        std::thread::sleep(Duration::from_millis(1500));
        let before = engines.map(procfs::cpu_ns);
        std::thread::sleep(Duration::from_millis(2500));
        if engines.map(procfs::cpu_ns) != before {
            fail!("an engine that carries nothing is awake");
        }
        let [here, there] = hosts;
        let (mut leaver, stays) = if leaves == 0 { (here, there) } else { (there, here) };
        // An engine that carries nothing ends with its monitor.
        leaver.lab.kill_monitor();
        // Whoever has had a session calls.
        wait_for_word(&stays, "nobody listens there")?;
        if stays.engine_seen()?["peers"][0]["state"] == "up" {
            fail!("it is up all the same");
        }
        // With its network goes the cable, and this one's address.
        drop(leaver);
        if leaves == 1 {
            wait_for_word(&stays, "the connection to it fails")?;
        }
        stays.finish()?;
    }
    Ok(())
}

/// Waits for the end of what its programs had, which have ended: what its monitor, which is another than at first, has then is what it is to end with.
pub(crate) fn forget_programs(host: &mut Host) -> Result<()> {
    retry(LIMIT, || match host.lab.snapshot()?.connections.is_empty() {
        true => host.lab.has_more_descriptors(),
        false => fail!("connections are left"),
    })
}

/// Ends both, once their engines carry nothing: those that still owe each other a word stay after the way between them is gone.
pub(crate) fn finish(hosts: [Host; 2]) -> Result<()> {
    hosts.iter().try_for_each(carries_nothing)?;
    hosts.into_iter().try_for_each(Host::finish)
}

fn redis(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    let [here, there] = &hosts;
    let (address, port) = (there.address.to_string(), PORT.to_string());
    let args = ["--port", &port, "--bind", &address, "--protected-mode", "no", "--save", ""];
    let server = there.lab.serve(Side::Sd, PORT, "redis-server", &args)?;
    let load =
        ["-h", &address, "-p", &port, "-t", "set,get", "-c", "20", "-n", "200000", "-d", "100", "--csv"];
    let client = here.lab.start(Side::Sd, "redis-benchmark", &load)?;
    wait_for_engine(&hosts, 20)?;
    hosts.iter().try_for_each(|host| wait_for_counts(host, 20))?;
    // Beside others on the same processors each of the six hops of a request waits for its turn.
    let output = client.wait(2 * LIMIT)?.ok()?;
    if output.text().lines().filter(|line| line.starts_with("\"SET\"") || line.starts_with("\"GET\"")).count()
        != 2
    {
        fail!("redis-benchmark says {:?}", output.text());
    }
    let cli = |args: &[&str]| {
        let all: Vec<&str> = ["-h", &address, "-p", &port].iter().chain(args).copied().collect();
        Ok::<_, harness::Error>(here.lab.run(Side::Sd, "redis-cli", &all, LIMIT)?.text().trim().to_owned())
    };
    let found = cli(&["get", "key:__rand_int__"])?;
    if found.len() != 100 {
        fail!("the value that was set is {found:?}");
    }
    server.terminate(LIMIT)?;
    finish(hosts)
}

/// A server and a client with so many connections, all of which go through the engines.
pub(crate) fn start(hosts: &[Host; 2], connections: usize, total: usize) -> Result<(Proc, Proc)> {
    let (server, mut client) = started(hosts, connections, total)?;
    client.wait_for_text("carried", LIMIT)?;
    wait_for_engine(hosts, connections)?;
    Ok((server, client))
}

pub(crate) fn started(hosts: &[Host; 2], connections: usize, total: usize) -> Result<(Proc, Proc)> {
    let address = hosts[1].address.to_string();
    started_at(hosts, [&address, &address], connections, total)
}

/// The same where the server listens, and the client connects, to these addresses.
pub(crate) fn started_at(
    hosts: &[Host; 2],
    [listens, address]: [&str; 2],
    connections: usize,
    total: usize,
) -> Result<(Proc, Proc)> {
    let ([here, there], port) = (hosts, PORT.to_string());
    let server = there.lab.serve(Side::Sd, PORT, "python3", &["-c", SERVER, listens, &port])?;
    let (count, total) = (connections.to_string(), total.to_string());
    let mut command =
        here.lab.command(Side::Sd, "python3", &["-c", CLIENT, address, &port, &count, &total])?;
    command.stdin(std::process::Stdio::piped());
    let client = Proc::start(&mut command, "python3", here.lab.path())?;
    Ok((server, client))
}

/// Ends the client, which has checked all bytes, and the server.
pub(crate) fn end(mut server: Proc, mut client: Proc, said: (&str, usize)) -> Result<()> {
    drop(client.stdin()?);
    let output = client.wait(LIMIT)?.ok()?;
    let (word, count) = said;
    retry(Duration::from_secs(5), || {
        let text = server.stdout_so_far();
        match text.lines().filter(|line| *line == word).count() == count {
            true => Ok(()),
            false => fail!(
                "expected {count} times {word}, but the server said {text:?}, the client {:?}",
                output.text()
            ),
        }
    })?;
    server.is_running();
    server.kill();
    Ok(())
}

fn bytes(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    let (server, client) = start(&hosts, 8, 10_000_000)?;
    end(server, client, ("end", 8))?;
    finish(hosts)
}

/// Packets are lost, doubled and late, and for a moment nothing comes through.
fn bad_cable(_: &mut Lab) -> Result<()> {
    let bad = Faults {
        lost_ppm: 5_000,
        doubled_ppm: 5_000,
        delay: Duration::from_micros(500),
        jitter: Duration::from_micros(500),
        is_cut: false,
    };
    let Some(hosts) = hosts_on(bad)? else { return Ok(()) };
    let (server, client) = start(&hosts, 4, 1_000_000)?;
    let Some(cable) = &hosts[0].cable else { fail!("there is no cable") };
    cable.set(Faults { is_cut: true, ..bad });
    std::thread::sleep(Duration::from_millis(1500));
    cable.set(bad);
    end(server, client, ("end", 4))?;
    finish(hosts)
}

/// An engine that shows another key than the one in the hosts file carries nothing; the kernel does.
fn other_key(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    let host = &mut hosts[0];
    let key = host.make_key("other.key")?;
    let text = std::fs::read_to_string(host.hosts_file())?;
    let other = text.replace("key engine.key", "key other.key");
    if key.is_empty() || other == text {
        fail!("the hosts file has no key: {text}");
    }
    std::fs::write(host.hosts_file(), other)?;
    start_again(host)?;
    // The one that calls shows the other key, and is not told why nobody wants it.
    wait_for_word(&hosts[0], "it ends the greeting")?;
    wait_for_word(&hosts[1], "another key")?;
    stays_with_the_kernel(hosts)
}

/// Connections of a tenant go through the engines, with its limits; those between two tenants do not.
fn tenants(_: &mut Lab) -> Result<()> {
    let named = |names: [&str; 2]| {
        let Some(mut hosts) = hosts()? else { return Ok(None) };
        for (host, name) in hosts.iter_mut().zip(names) {
            let text = std::fs::read_to_string(host.hosts_file())?;
            let lines = text.lines().map(|line| match line.starts_with("host ") {
                true => format!("{line} tenant={name}\ntenant {name} weight=2 rate=20000000\n"),
                false => format!("{line}\n"),
            });
            std::fs::write(host.hosts_file(), lines.collect::<String>())?;
            start_again(host)?;
        }
        Ok::<_, harness::Error>(Some(hosts))
    };
    let Some(hosts) = named(["blue", "blue"])? else { return Ok(()) };
    let (server, client) = start(&hosts, 4, 1_000_000)?;
    end(server, client, ("end", 4))?;
    finish(hosts)?;
    let Some(hosts) = named(["blue", "red"])? else { return Ok(()) };
    stays_with_the_kernel(hosts)
}

/// A rule of either host's policy keeps connections where they are.
fn stay(_: &mut Lab) -> Result<()> {
    for at in [0, 1] {
        let Some(mut hosts) = hosts()? else { return Ok(()) };
        hosts[at].lab.set_policy("stay to=10.77.0.2\ndefault allow\n")?;
        start_again(&mut hosts[at])?;
        stays_with_the_kernel(hosts)?;
    }
    Ok(())
}

pub(crate) fn start_again(host: &mut Host) -> Result<()> {
    host.lab.kill_monitor();
    host.start_engine()
}

fn stays_with_the_kernel(hosts: [Host; 2]) -> Result<()> {
    let (server, mut client) = started(&hosts, 2, 100_000)?;
    client.wait_for_text("carried", LIMIT)?;
    // Long enough for an engine that is believed.
    std::thread::sleep(Duration::from_secs(2));
    for host in &hosts {
        let seen = host.lab.snapshot()?;
        if let Some(carried) = seen.of_port(PORT).iter().find(|c| c.path == "engine") {
            fail!("carried all the same: {}", ss::describe(carried));
        }
    }
    end(server, client, ("end", 2))?;
    finish(hosts)
}

/// An engine that carries nothing is looked at for so long. What it says once a second is said by then.
const IDLE: Duration = Duration::from_secs(5);

/// Engines that carry nothing, and those that wait for their places, use no processor.
pub(crate) fn must_sleep(hosts: &[Host; 2]) -> Result<()> {
    let engines: Vec<Vec<u32>> = hosts.iter().map(Host::engines).collect::<Result<_>>()?;
    let used = || engines.iter().flatten().map(|pid| procfs::cpu_ns(*pid)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_secs(2));
    let before = used();
    std::thread::sleep(IDLE);
    if used() != before {
        fail!("engines {engines:?} that carry nothing have used {before:?} ns, and then {:?}", used());
    }
    Ok(())
}
