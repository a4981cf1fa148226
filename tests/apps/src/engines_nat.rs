//! Two hosts with an engine each, and kernels that translate addresses between them.

use super::Scenario;
use super::engines::{CLIENT, LIMIT, PORT, SERVER, end, finish, hosts};
use harness::host::{ENGINE_PORT, Host};
use harness::lab::Side;
use harness::network::{self, Network, configure};
use harness::process::Proc;
use harness::{Result, fail, retry, ss};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::between_hosts(
    "between-hosts-translated",
    &["python3", "iptables", network::PROGRAM],
    |_| {
        let Some(hosts) = hosts()? else { return Ok(()) };
        for case in CASES {
            case.run(&hosts).map_err(|error| format!("{}: {error}", case.name))?;
        }
        contained(&hosts).map_err(|error| format!("from a container: {error}"))?;
        finish(hosts)
    },
)
.ours()
.limit_s(180)];

/// A service's address, which is nobody's.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const SERVICE_PORT: u16 = 80;
/// A container of the first host, and the host as that has it.
const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const COUNT: usize = 4;

struct Case {
    name: &'static str,
    /// Rules of the table `nat` of the host that connects, and of the one that accepts.
    rules: [&'static [&'static str]; 2],
    to: Ipv4Addr,
}

const TO_THE_OTHER: &str = "OUTPUT -d 10.96.0.10 -p tcp --dport 80 -j DNAT --to-destination 10.77.0.2:7000";
const FROM_ELSEWHERE: &str =
    "POSTROUTING -d 10.77.0.2 -p tcp --dport 7000 -j SNAT --to-source 10.77.0.1:50000-59999";
const CASES: &[Case] = &[
    Case { name: "a service", rules: [&[TO_THE_OTHER], &[]], to: SERVICE },
    Case { name: "a service, from another port", rules: [&[TO_THE_OTHER, FROM_ELSEWHERE], &[]], to: SERVICE },
    Case {
        name: "a published port",
        rules: [&[], &["PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 7000"]],
        to: Ipv4Addr::new(10, 77, 0, 2),
    },
];

impl Case {
    fn run(&self, hosts: &[Host; 2]) -> Result<()> {
        let [here, there] = hosts;
        let networks = [network_of(here)?, network_of(there)?];
        networks[0].inside(|| configure("route replace 10.96.0.0/24 dev eth0\n"))?;
        for (network, rules) in networks.into_iter().zip(self.rules) {
            translate(network, rules)?;
        }
        let server = serve(there)?;
        let client = start(here, self.to, |_| Ok(()))?;
        carried(hosts, server, client)
    }
}

fn network_of(host: &Host) -> Result<&Network> {
    host.lab.network().ok_or_else(|| "the host has no network of its own".into())
}

/// These are the rules of the table `nat`.
fn translate(network: &Network, rules: &[&str]) -> Result<()> {
    network.iptables("nat", "-F")?;
    rules.iter().try_for_each(|rule| network.iptables("nat", &format!("-A {rule}")))
}

fn serve(host: &Host) -> Result<Proc> {
    let (address, port) = (host.address.to_string(), PORT.to_string());
    host.lab.serve(Side::Sd, PORT, "python3", &["-c", SERVER, &address, &port])
}

fn start(host: &Host, to: Ipv4Addr, place: impl FnOnce(&mut Command) -> Result<()>) -> Result<Proc> {
    let (address, port, count) = (to.to_string(), SERVICE_PORT.to_string(), COUNT.to_string());
    let args = ["-c", CLIENT, &address, &port, &count, "1000000"];
    let mut command = host.lab.command(Side::Sd, "python3", &args)?;
    place(&mut command)?;
    command.stdin(Stdio::piped());
    Proc::start(&mut command, "python3", host.lab.path())
}

/// All connections go through the engines, as both hosts say, and all bytes are right.
fn carried(hosts: &[Host; 2], server: Proc, mut client: Proc) -> Result<()> {
    client.wait_for_text("carried", LIMIT)?;
    for (at, (host, port)) in hosts.iter().zip([SERVICE_PORT, PORT]).enumerate() {
        let other = Some(format!("{}:{ENGINE_PORT}", hosts[1 - at].address));
        retry(LIMIT, || {
            let seen = host.lab.snapshot()?;
            let here = seen.of_port(port);
            // By its name alone nobody would know whose engine that is.
            let is_carried = |it: &&&ss::Connection| it.path == "engine" && it.engine == other;
            match here.iter().filter(is_carried).count() {
                COUNT => Ok(()),
                count => fail!("{count} of {COUNT} go through the engine: {here:?}"),
            }
        })?;
    }
    end(server, client, ("end", COUNT))
}

/// A container has a network namespace of its own; its host forwards what it sends, under the host's address.
fn contained(hosts: &[Host; 2]) -> Result<()> {
    let [here, there] = hosts;
    let (host, container) = (network_of(here)?, Network::new()?);
    let place = container.path();
    let lines = format!(
        "link add pod0 type veth peer name eth0 netns {}\naddress add {GATEWAY}/24 dev pod0\nlink set pod0 up\n",
        place.display()
    );
    host.inside(|| configure(&lines))?;
    container.inside(|| {
        configure(&format!(
            "address add {CONTAINER}/24 dev eth0\nlink set eth0 up\nroute add default via {GATEWAY}\n"
        ))
    })?;
    host.set(&[("net/ipv4/ip_forward", "1")])?;
    let service = "PREROUTING -d 10.96.0.10 -p tcp --dport 80 -j DNAT --to-destination 10.77.0.2:7000";
    translate(host, &[service, "POSTROUTING -s 10.88.0.0/24 ! -d 10.88.0.0/24 -j MASQUERADE"])?;
    translate(network_of(there)?, &[])?;
    let server = serve(there)?;
    let client = start(here, SERVICE, |command| container.host(command))?;
    carried(hosts, server, client)
}
