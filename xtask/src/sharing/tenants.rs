//! What promotion between network namespaces must not do: take the wrong two for one connection, or move what the policy keeps where it is.
//!
//! | part | how the ends are joined | what must be |
//! |---|---|---|
//! | `across-tenants` | two pairs of namespaces with the same four numbers at once: 10.9.0.1:40001 to 10.9.0.2:40001 | each end gets its own peer's bytes, over shared memory |
//! | `across-proxy` | a proxy between | the kernel's on both sides |
//! | `across-tproxy` | a transparent one: each end sees the name that the other has | likewise |
//! | `across-stay` | a cable, and rules for user, port, network and namespace | the kernel's; with the same rules for others: moved |
//!
//! Where nothing may be moved the same is done first in a way in which it is moved, so that the test can fail.

use super::across::{Joint, Networks, SERVER, started};
use super::{Check, Part, promote};
use harness::lab::{Lab, Side};
use harness::network::{Network, configure};
use harness::process::{Proc, find_program};
use harness::{Result, fail};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// A namespace's only port that is given out.
const PORT: u16 = 40001;
const ROUNDS: u64 = 4;

/// Copies between whoever connects and SERVER, until one of them closes; with `transparent` under the names that they have.
const PROXY: &str = r#"
import socket, sys, threading
transparent, to = sys.argv[1] == "transparent", (sys.argv[2], int(sys.argv[3]))
def fresh():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if transparent:
        made.setsockopt(socket.IPPROTO_IP, 19, 1)
    return made
def copy(one, other):
    while data := one.recv(65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
listener = fresh()
listener.bind(("0.0.0.0", 9999))
listener.listen()
print("listening", flush=True)
while True:
    client, name = listener.accept()
    server = fresh()
    if transparent:
        assert client.getsockname() == to, client.getsockname()
        server.bind(name)
    server.connect(to)
    for ends in [(client, server), (server, client)]:
        threading.Thread(target=copy, args=ends, daemon=True).start()
"#;

pub(super) fn parts<'a>(seed: u64) -> Vec<Part<'a>> {
    let part = |name: &str, check: fn(&mut Lab, u64) -> Result<String>| {
        let check: Check<'a> = Box::new(move |lab: &mut Lab| match nix::unistd::geteuid().is_root() {
            true => check(lab, seed),
            false => Ok("skipped: only root makes network namespaces".to_owned()),
        });
        (format!("across-{name}"), check)
    };
    vec![
        part("tenants", tenants),
        part("proxy", |lab, seed| proxied(lab, seed, "plain")),
        part("tproxy", |lab, seed| proxied(lab, seed, "transparent")),
        part("stay", stay),
    ]
}

/// Both ends of one connection.
struct Pair {
    server: Proc,
    client: Proc,
}

/// What both ends carry, and how: see `tests/sharing/src/crossing.rs`.
#[derive(Clone, Copy)]
struct Load<'a> {
    way: &'a str,
    bytes: &'a str,
    seed: u64,
}

impl Pair {
    fn start(lab: &Lab, networks: &Networks, to: &str, load: Load<'_>) -> Result<Pair> {
        networks.server.set(&[("net/ipv4/ip_local_port_range", &format!("{PORT} {PORT}"))])?;
        let seed = load.seed.to_string();
        let program = |network: &Network, place: &str| {
            let args = ["crossing", place, load.way, &seed, load.bytes];
            started(lab, Side::Sd, network, &args, Stdio::null())
        };
        let (server, port) = super::served(program(&networks.server, "serve-all")?)?;
        if port != PORT.to_string() {
            fail!("the server is at {port}");
        }
        Ok(Pair { server, client: program(&networks.client, to)? })
    }

    fn carried(&mut self) -> Result<()> {
        [&mut self.server, &mut self.client]
            .into_iter()
            .try_for_each(|end| end.wait_for_text("carried", TIMEOUT))
    }
}

fn to_server() -> String {
    format!("{SERVER}:{PORT}")
}

/// Whether one of some connections is promoted; every one carries what it should.
fn one_is_promoted(lab: &Lab, networks: impl Fn() -> Result<Networks>, to: &str, seed: u64) -> Result<bool> {
    for round in 0..ROUNDS {
        let networks = networks()?;
        let load = Load { way: "turns", bytes: "200000", seed: seed + round };
        let mut pair = Pair::start(lab, &networks, to, load)?;
        pair.carried()?;
        if promote::is_promoted(lab, PORT)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same names, ports and moment, in two pairs of namespaces of one monitor.
fn tenants(lab: &mut Lab, seed: u64) -> Result<String> {
    promote::let_promote(lab)?;
    let loads = [("turns", "200000"), ("edge", "3000000")];
    for round in 1..=ROUNDS {
        let networks = [Networks::new(Joint::Cable)?, Networks::new(Joint::Cable)?];
        let mut pairs = Vec::new();
        for (networks, (way, bytes)) in networks.iter().zip(loads) {
            networks.client.set(&[("net/ipv4/ip_local_port_range", &format!("{PORT} {PORT}"))])?;
            pairs.push(Pair::start(lab, networks, &to_server(), Load { way, bytes, seed: seed + round })?);
        }
        pairs.iter_mut().try_for_each(Pair::carried)?;
        if lab.is_oracle() || !promote::is_promoted(lab, PORT)? {
            continue;
        }
        let seen = lab.snapshot()?;
        let ends = seen.of_port(PORT);
        let names: BTreeSet<_> = ends.iter().map(|end| (&end.local, &end.peer)).collect();
        if (ends.len(), names.len()) != (4, 2) {
            fail!("{} ends with {} pairs of names", ends.len(), names.len());
        }
        return Ok(format!("both promoted, in round {round}"));
    }
    if lab.is_oracle() {
        return Ok(format!("{ROUNDS} rounds"));
    }
    fail!("in none of {ROUNDS} rounds both were promoted")
}

/// A proxy has two connections, which are not one, whatever their names are.
fn proxied(lab: &mut Lab, seed: u64, kind: &str) -> Result<String> {
    promote::let_promote(lab)?;
    let direct = || Networks::new(Joint::Published);
    if !one_is_promoted(lab, direct, &to_server(), seed)? && !lab.is_oracle() {
        fail!("none of {ROUNDS} connections through a router was promoted");
    }
    let before = if lab.is_oracle() { 0 } else { lab.snapshot()?.promotions };
    let networks = direct()?;
    let Some(between) = networks.between() else { fail!("nobody between") };
    if kind == "transparent" && !divert(between)? {
        return Ok("skipped: this kernel has no TPROXY".to_owned());
    }
    let Some(python) = find_program("python3") else { fail!("python3 is not installed") };
    let mut command = Command::new(python);
    command.args(["-c", PROXY, kind, SERVER, &PORT.to_string()]).stdin(Stdio::null());
    between.host(&mut command)?;
    let mut proxy = Proc::start(&mut command, "proxy", lab.path())?;
    proxy.wait_for_text("listening", TIMEOUT)?;
    let to = if kind == "transparent" { to_server() } else { "10.8.0.1:9999".to_owned() };
    let load = Load { way: "turns", bytes: "200000", seed };
    let mut pair = Pair::start(lab, &networks, &to, load)?;
    pair.carried()?;
    if !lab.is_oracle() {
        let seen = lab.snapshot()?;
        if seen.promotions != before || seen.of_port(PORT).iter().any(|end| end.path != "kernel") {
            fail!("through a proxy, and promoted: {} before, {} now", before, seen.promotions);
        }
    }
    if !proxy.is_running() {
        fail!("the proxy: {}", proxy.last_words());
    }
    Ok("promoted through a router, and not through the proxy".to_owned())
}

/// What goes to or comes from the server's port is the proxy's. False: the kernel has no such rule.
fn divert(between: &Network) -> Result<bool> {
    let taken = [
        format!("-A PREROUTING -i c0 -p tcp --dport {PORT} -j TPROXY --on-port 9999 --tproxy-mark 1"),
        format!("-A PREROUTING -i s0 -p tcp --sport {PORT} -j MARK --set-mark 1"),
    ];
    if let Err(error) = taken.iter().try_for_each(|rule| between.iptables("mangle", rule)) {
        println!("{error}");
        return Ok(false);
    }
    between
        .inside(|| configure("rule add fwmark 1 lookup 100\nroute add local 0.0.0.0/0 dev lo table 100\n"))?;
    let lax = ["all", "c0", "s0"].map(|name| format!("net/ipv4/conf/{name}/rp_filter"));
    lax.iter().try_for_each(|name| between.set(&[(name, "0")]))?;
    Ok(true)
}

/// Where the client is, where the server is, and another place, as rules name them.
type Rule = fn(client: &str, server: &str, other: &str) -> String;

const KEPT: [Rule; 6] = [
    |_, _, _| "stay".to_owned(),
    |_, _, _| "stay uid=0".to_owned(),
    |_, _, _| format!("stay port={PORT}"),
    |_, _, _| "stay to=10.9.0.0/24".to_owned(),
    |client, _, _| format!("stay netns={client}"),
    |_, server, _| format!("stay netns={server} port={PORT}"),
];

const OF_OTHERS: Rule = |_, server, other| {
    format!(
        "stay uid=1\nstay port=1-40000\nstay to=10.8.0.0/24\nstay netns={other}\nstay netns={server} port=1\n"
    )
};

/// Each kind of rule: users and addresses by the kernel's own handshake, namespaces by their cookies.
fn stay(lab: &mut Lab, seed: u64) -> Result<String> {
    let mut is_moved = false;
    for round in 0..ROUNDS {
        is_moved |= is_moved_under(lab, OF_OTHERS, seed + round)?;
    }
    if !is_moved && !lab.is_oracle() {
        fail!("rules about others kept {ROUNDS} connections where they were");
    }
    for (number, rule) in KEPT.into_iter().enumerate() {
        if is_moved_under(lab, rule, seed)? || !lab.is_oracle() && lab.snapshot()?.promotions != 0 {
            fail!("moved in spite of {:?}", KEPT[number]("the client's", "the server's", ""));
        }
    }
    Ok(format!("{} rules", KEPT.len()))
}

/// Whether a connection was promoted under a new monitor with this policy.
fn is_moved_under(lab: &mut Lab, rule: Rule, seed: u64) -> Result<bool> {
    let (networks, other) = (Networks::new(Joint::Cable)?, Network::new()?);
    let [client, server, other] =
        [&networks.client, &networks.server, &other].map(|it| it.path().display().to_string());
    lab.set_policy(&rule(&client, &server, &other))?;
    promote::let_promote(lab)?;
    let mut pair = Pair::start(lab, &networks, &to_server(), Load { way: "turns", bytes: "200000", seed })?;
    pair.carried()?;
    promote::is_promoted(lab, PORT)
}
