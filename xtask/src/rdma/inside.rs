//! What runs in guests: the hidden half of `cargo xtask rdma`.
//!
//! ```text
//!  two guests   client: eth0 10.77.0.1, rxe0 on it ──── cable ──── server: eth0 10.77.0.2, rxe0 on it
//!  one guest    10.9.0.1 and 10.9.0.2 on one network device, rxe0 on it: two addresses, and GIDs, stand for two hosts
//! ```
//! rxe works in the first network namespace only, and packets to an address of the own machine leave by `lo`, where no rxe is: two rxe
//! devices in one guest would not reach each other. So in one guest both hosts are in that namespace. The client decides what is measured, the server does what it is asked ([`super::agent`]).

use super::agent::{self, Agent};
use super::boot::SAYS_AT;
use super::drive;
use harness::network::{Network, addresses, configure};
use harness::process::{Output, Proc, output};
use harness::scratch::Scratch;
use harness::{Result, fail, retry};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) const DEVICE: &str = "rxe0";
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const HOSTS_OF_ONE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const CONTROL_PORT: u16 = 7070;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a guest, or a program in one, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Role {
    /// All of it: starts the other two.
    One,
    Server,
    Client,
}

/// One end of all that is measured.
pub(super) struct End {
    pub(super) network: Network,
    /// Of TCP programs, and of the verbs' device.
    pub(super) address: Ipv4Addr,
    /// What is below that device.
    pub(super) below: &'static str,
}

pub(super) fn run(role: Role, options: &super::Options) -> Result<()> {
    if !options.within_one {
        prepare(role)?;
        say("up")?;
    }
    if let Some(line) = &options.shell {
        let status = Command::new("/bin/sh").args(["-c", line]).status()?;
        return if status.success() { Ok(()) } else { fail!("the line ended with {status}") };
    }
    options.device_tests.iter().try_for_each(|program| test_device(program))?;
    if role == Role::One {
        return one(options);
    }
    let at = usize::from(role == Role::Server);
    let hosts = if options.within_one { HOSTS_OF_ONE } else { HOSTS };
    let network = Network::at(Path::new("/proc/self/ns/net"))?;
    let end = End { network, address: hosts[at], below: below(options.within_one) };
    let control = SocketAddr::from((hosts[1], CONTROL_PORT));
    match role {
        Role::Server => agent::serve(end, control),
        _ => drive::run(end, hosts[1], Agent::connect(control)?, options),
    }
}

/// Tells the lab, outside.
pub(super) fn say(what: &str) -> Result<()> {
    let mut lab = std::fs::OpenOptions::new().append(true).open(SAYS_AT)?;
    Ok(lab.write_all(format!("{what}\n").as_bytes())?)
}

/// Addresses and the device.
fn prepare(role: Role) -> Result<()> {
    let lines = match role {
        Role::One => {
            let [one, other] = HOSTS_OF_ONE;
            format!(
                "link set lo up\nlink add d0 type dummy\n{}{}link set d0 mtu 9000 up\n",
                addresses(one, "d0"),
                addresses(other, "d0")
            )
        }
        Role::Client | Role::Server => {
            let own = HOSTS[usize::from(role == Role::Server)];
            format!("link set lo up\n{}link set eth0 up\n", addresses(own, "eth0"))
        }
    };
    configure(&lines)?;
    let below = below(role == Role::One);
    // Those of IPv4 stay when the device goes down.
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{below}/keep_addr_on_down"), "1")?;
    let rdma = harness::process::find_program("rdma").unwrap_or_else(|| "rdma".into());
    output(Command::new(rdma).args(["link", "add", DEVICE, "type", "rxe", "netdev", below]))?;
    let state = format!("/sys/class/infiniband/{DEVICE}/ports/1/state");
    retry(PATIENCE, || match std::fs::read_to_string(&state)?.contains("ACTIVE") {
        true => Ok(()),
        false => fail!("{DEVICE} does not become active"),
    })
}

/// The network device that the verbs' device is on.
fn below(is_one: bool) -> &'static str {
    if is_one { "d0" } else { "eth0" }
}

/// The number of an address in the device's table of GIDs, where it stands as `::ffff:ADDRESS`.
pub(super) fn gid_index(address: Ipv4Addr) -> Result<u32> {
    let [a, b, c, d] = address.octets();
    let wanted = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    for index in 0..16 {
        let file = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids/{index}");
        if std::fs::read_to_string(file).is_ok_and(|gid| gid.trim() == wanted) {
            return Ok(index);
        }
    }
    fail!("{DEVICE} has no GID of {address}")
}

/// Both hosts in this guest.
fn one(options: &super::Options) -> Result<()> {
    let scratch = Scratch::new("ends")?;
    let start = |role: &str| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rdma", "--inside", role, "--within-one"]);
        command.args(options.words());
        Proc::start(&mut command, role, scratch.path())
    };
    let server = start("server")?;
    let client = start("client")?;
    // The lab outside knows for how long.
    let done = client.wait(Duration::from_secs(24 * 3600)).and_then(Output::ok);
    done.map_err(|error| format!("{error}; the server: {}", server.last_words()))?;
    server.wait(PATIENCE)?.ok()?;
    Ok(())
}

/// Those tests of a program that want a device; their closing line goes to the lab.
fn test_device(program: &Path) -> Result<()> {
    let scratch = Scratch::new("verbs")?;
    let mut command = Command::new(program);
    command.args(["--ignored", "--test-threads=1"]);
    let tests = Proc::start(&mut command, "tests", scratch.path())?.wait(PATIENCE * 2)?;
    let text = tests.text();
    for line in text.lines().chain(tests.stderr.lines()) {
        println!("{line}");
    }
    match text.lines().find(|line| line.starts_with("test result: ")) {
        Some(line) => say(line)?,
        None => fail!("the tests that want a device ended with {}: {text} {}", tests.status, tests.stderr),
    }
    Ok(())
}
