//! Two hosts whose tenants have network namespaces of their own, with the same addresses.

use super::Scenario;
use super::engines::{LIMIT, PORT, SERVER, finish, hosts, start_again};
use harness::host::{ENGINE_PORT, Host};
use harness::lab::Side;
use harness::network::{self, Network};
use harness::process::Proc;
use harness::{Result, fail, retry, ss};
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::between_hosts("between-hosts-overlap", &["python3", network::PROGRAM], |_| {
        carried()?;
        kept_apart()
    })
    .ours()
    .limit_s(180)];

/// Of each tenant at each host.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 50, 0, 1), Ipv4Addr::new(10, 50, 0, 2)];
const NAMES: [&str; 2] = ["blue", "red"];
/// Of each tenant.
const COUNT: usize = 3;

/// Connections that say nothing which those of another tenant say, from the same ports.
const CLIENT: &str = r#"
import os, random, socket, sys, threading
name, here, there, port, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
over, busy = threading.Event(), threading.Barrier(count + 1)
def run(number):
    try:
        connection = socket.create_connection((there, port), source_address=(here, 41000 + number))
        dice, turns = random.Random(f"{name} {number}"), 0
        while not over.is_set():
            data = dice.randbytes(dice.choice([1, 64, 1000, 20000]))
            connection.sendall(data)
            got = b""
            while len(got) < len(data):
                more = connection.recv(65536)
                assert more, "it has ended"
                got += more
            assert got == data, "other bytes"
            turns += 1
            turns == 300 and busy.wait()
            # Many in a row: a connection that says little now and then stays with the kernel.
            turns % 16 or over.wait(0.01)
    except Exception as error:
        print("wrong:", error, flush=True)
        os._exit(1)
threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
[thread.start() for thread in threads]
busy.wait()
print("busy", flush=True)
sys.stdin.readline()
over.set()
[thread.join() for thread in threads]
print("over", flush=True)
"#;

/// A tenant's namespaces, at one host and at the other.
type Tenant = [Network; 2];

/// `named`: which of the tenants each host takes the first tenant's namespaces for. `None`: hosts cannot be made.
fn made(named: [usize; 2]) -> Result<Option<([Host; 2], [Tenant; 2])>> {
    let Some(mut hosts) = hosts()? else { return Ok(None) };
    let tenant = || {
        let both = [Network::new()?, Network::new()?];
        Network::join([(&both[0], ADDRESSES[0]), (&both[1], ADDRESSES[1])])?;
        Ok::<_, harness::Error>(both)
    };
    let tenants = [tenant()?, tenant()?];
    for (at, host) in hosts.iter_mut().enumerate() {
        let mut text = std::fs::read_to_string(host.hosts_file())?;
        let Some(key) =
            text.split_ascii_whitespace().find(|word| word.starts_with("key=")).map(str::to_owned)
        else {
            fail!("the hosts file has no key: {text}");
        };
        let other = if host.address.octets()[3] == 1 { 2 } else { 1 };
        let [a, b, c, _] = host.address.octets();
        let engine = Ipv4Addr::new(a, b, c, other);
        for (number, tenant) in tenants.iter().enumerate() {
            let name = NAMES[(number + named[at]) % 2];
            let place = tenant[at].path();
            text += &format!("tenant {name} netns={}\n", place.display());
            text += &format!("host 10.50.0.0/24 {engine}:{ENGINE_PORT} {key} tenant={name}\n");
        }
        std::fs::write(host.hosts_file(), text)?;
        start_again(host)?;
    }
    Ok(Some((hosts, tenants)))
}

/// A server and a client of each tenant, which have said something.
fn started(hosts: &[Host; 2], tenants: &[Tenant; 2]) -> Result<Vec<[Proc; 2]>> {
    let [here, there] = hosts;
    let (near, far) = (ADDRESSES[0].to_string(), ADDRESSES[1].to_string());
    let (port, count) = (PORT.to_string(), COUNT.to_string());
    let mut all = Vec::new();
    for (tenant, name) in tenants.iter().zip(NAMES) {
        let mut command = there.lab.command(Side::Sd, "python3", &["-c", SERVER, &far, &port])?;
        tenant[1].host(&mut command)?;
        let mut server = Proc::start(&mut command, "python3", there.lab.path())?;
        server.wait_for_text("listens", LIMIT)?;
        let args = ["-c", CLIENT, name, &near, &far, &port, &count];
        let mut command = here.lab.command(Side::Sd, "python3", &args)?;
        tenant[0].host(&mut command)?;
        command.stdin(Stdio::piped());
        all.push([server, Proc::start(&mut command, "python3", here.lab.path())?]);
    }
    for [_, client] in &mut all {
        client.wait_for_text("busy", LIMIT)?;
    }
    Ok(all)
}

fn end(all: Vec<[Proc; 2]>) -> Result<()> {
    for [server, mut client] in all {
        drop(client.stdin()?);
        let said = client.wait(LIMIT)?.ok()?;
        if !said.text().contains("over") {
            fail!("the client said {:?}", said.text());
        }
        server.kill();
    }
    Ok(())
}

fn is_carried(connection: &&ss::Connection) -> bool {
    connection.path == "engine"
}

/// All connections of both tenants go through the engines, and each byte comes where it belongs.
fn carried() -> Result<()> {
    let Some((hosts, tenants)) = made([0, 0])? else { return Ok(()) };
    let all = started(&hosts, &tenants)?;
    for host in &hosts {
        retry(LIMIT, || {
            let seen = host.lab.snapshot()?;
            let carried: Vec<_> = seen.of_port(PORT).into_iter().filter(is_carried).collect();
            let of = |name: &str| carried.iter().filter(|it| it.tenant.as_deref() == Some(name)).count();
            match NAMES.map(of) == [COUNT; 2] {
                true => Ok(()),
                false => fail!("not all go through the engine, for whom they are: {:?}", seen.of_port(PORT)),
            }
        })?;
    }
    end(all)?;
    finish(hosts)
}

/// Where the other host takes a tenant's namespace for another one's, its connections stay the kernel's.
fn kept_apart() -> Result<()> {
    let Some((hosts, tenants)) = made([0, 1])? else { return Ok(()) };
    let all = started(&hosts, &tenants)?;
    // Four times as long as those take that are carried.
    std::thread::sleep(Duration::from_secs(4));
    for host in &hosts {
        let seen = host.lab.snapshot()?;
        if let Some(one) = seen.of_port(PORT).into_iter().find(is_carried) {
            fail!("carried all the same: {}", ss::describe(one));
        }
    }
    end(all)?;
    finish(hosts)
}
