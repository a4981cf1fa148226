//! Connections between two network namespaces, as containers have them, are moved to shared memory while they carry data. One monitor, in a
//! third.
//!
//! ```text
//! cable      10.9.0.1 ──────────────── 10.9.0.2                 a pair of veth devices
//! bridge     10.9.0.1 ──┐ bridge  ┌─── 10.9.0.2                 in a namespace of its own
//! published  10.8.0.2 ── 10.8.0.1:7777  10.9.0.1 ── 10.9.0.2    a published port: neither end has the name that the other one knows
//! ```

use super::{Check, Part, program, promote};
use harness::lab::{Lab, Side};
use harness::network::{Network, configure};
use harness::process::Proc;
use harness::{Result, fail};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Connections each way.
const ROUNDS: u64 = 2;
pub(crate) const PUBLISHED: u16 = 7777;
pub(crate) const SERVER: &str = "10.9.0.2";

/// How the two are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joint {
    Cable,
    Bridge,
    Published,
}

pub(super) fn parts<'a>(seed: u64) -> [Part<'a>; 3] {
    [("cable", Joint::Cable), ("bridge", Joint::Bridge), ("published", Joint::Published)].map(
        |(name, joint)| {
            let check: Check<'_> = Box::new(move |lab| run(lab, joint, seed));
            (format!("across-{name}"), check)
        },
    )
}

/// The client's and the server's, and what is between.
pub(crate) struct Networks {
    pub(crate) client: Network,
    pub(crate) server: Network,
    between: Option<Network>,
}

impl Networks {
    pub(crate) fn new(joint: Joint) -> Result<Networks> {
        let (client, server) = (Network::new()?, Network::new()?);
        let between = match joint {
            Joint::Cable => {
                Network::join([
                    (&client, Ipv4Addr::new(10, 9, 0, 1)),
                    (&server, Ipv4Addr::new(10, 9, 0, 2)),
                ])?;
                None
            }
            Joint::Bridge | Joint::Published => Some(Network::new()?),
        };
        let networks = Networks { client, server, between };
        match joint {
            Joint::Cable => {}
            Joint::Bridge => {
                networks.lead_in(("10.9.0.1", SERVER), None)?;
                networks.in_between("link add br0 type bridge\nlink set c0 master br0\nlink set s0 master br0\nlink set br0 up\n")?;
            }
            Joint::Published => {
                networks.lead_in(("10.8.0.2", SERVER), Some(("10.8.0.1", "10.9.0.1")))?;
                networks.in_between("address add 10.8.0.1/24 dev c0\naddress add 10.9.0.1/24 dev s0\n")?;
                networks.between.iter().try_for_each(|it| it.set(&[("net/ipv4/ip_forward", "1")]))?;
            }
        }
        Ok(networks)
    }

    /// Who routes, bridges or translates.
    pub(super) fn between(&self) -> Option<&Network> {
        self.between.as_ref()
    }

    /// A cable from each to the one between.
    fn lead_in(&self, addresses: (&str, &str), gateways: Option<(&str, &str)>) -> Result<()> {
        let ends = [
            (&self.client, "c0", addresses.0, gateways.map(|both| both.0)),
            (&self.server, "s0", addresses.1, gateways.map(|both| both.1)),
        ];
        for (network, name, address, gateway) in ends {
            let other = network.path();
            self.in_between(&format!(
                "link add {name} type veth peer name eth0 netns {}\n",
                other.display()
            ))?;
            self.in_between(&format!("link set {name} up\n"))?;
            let route = gateway.map(|to| format!("route add default via {to}\n")).unwrap_or_default();
            let lines = format!("address add {address}/24 dev eth0\nlink set eth0 up\n{route}");
            network.inside(|| configure(&lines))?;
        }
        Ok(())
    }

    pub(super) fn in_between(&self, lines: &str) -> Result<()> {
        self.between.iter().try_for_each(|network| network.inside(|| configure(lines)))
    }

    /// What comes for the published port goes to the server's, and seems to come from the one between.
    pub(crate) fn publish(&self, port: &str) -> Result<()> {
        let Some(network) = &self.between else { fail!("nobody between who could translate") };
        let to = format!("-A PREROUTING -p tcp --dport {PUBLISHED} -j DNAT --to-destination {SERVER}:{port}");
        network.iptables("nat", &to)?;
        network.iptables("nat", &format!("-A POSTROUTING -p tcp -d {SERVER} -j MASQUERADE"))
    }
}

fn start(lab: &Lab, network: &Network, args: &[&str]) -> Result<Proc> {
    started(lab, Side::Sd, network, args, Stdio::null())
}

pub(super) fn started(lab: &Lab, side: Side, network: &Network, args: &[&str], stdin: Stdio) -> Result<Proc> {
    let mut command = lab.command(side, &program().to_string_lossy(), args)?;
    network.host(&mut command)?;
    Proc::start(command.stdin(stdin), args[0], lab.path())
}

/// For root.
fn run(lab: &mut Lab, joint: Joint, seed: u64) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    promote::let_promote(lab)?;
    let ways: Vec<_> = promote::WAYS.iter().filter(|(way, _)| ["turns", "edge"].contains(way)).collect();
    let mut all_promoted = 0;
    for (way, bytes) in &ways {
        let mut promoted = 0;
        for round in 0..ROUNDS {
            promoted += u32::from(carries(lab, joint, [way, &(seed + round).to_string(), bytes])?);
        }
        if promoted == 0 && !lab.is_oracle() {
            fail!("{way}: none of {ROUNDS} connections was promoted");
        }
        all_promoted += promoted;
    }
    Ok(format!("{} connections, {all_promoted} promoted", ROUNDS * ways.len() as u64))
}

/// One connection carries what it should: whether it was promoted. Networks of its own, so that what is published leads to one server.
fn carries(lab: &Lab, joint: Joint, [way, seed, bytes]: [&str; 3]) -> Result<bool> {
    let networks = Networks::new(joint)?;
    let server = start(lab, &networks.server, &["crossing", "serve-all", way, seed, bytes])?;
    let (mut server, port) = super::served(server)?;
    let to = match joint {
        Joint::Published => {
            networks.publish(&port)?;
            format!("10.8.0.1:{PUBLISHED}")
        }
        _ => format!("{SERVER}:{port}"),
    };
    let mut client = start(lab, &networks.client, &["crossing", &to, way, seed, bytes])?;
    for end in [&mut server, &mut client] {
        end.wait_for_text("carried", PATIENCE)?;
    }
    let seen_at = if joint == Joint::Published { PUBLISHED } else { port.parse()? };
    let promoted = promote::is_promoted(lab, port.parse()?)? && promote::is_promoted(lab, seen_at)?;
    server.kill();
    client.kill();
    Ok(promoted)
}

/// A user of no rights.
const NOBODY: [&str; 6] = ["setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups"];
/// Root of a user namespace; what is in /tmp there is its own, and a monitor trusts it.
const ROOTLESS: [&str; 6] = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
const OWN_TMP: &str = "mount -t tmpfs none /tmp && exec \"$@\"";

/// All parts whose name begins so, once more: everything, the monitor too, is a user's who has no rights outside of a user namespace.
pub(super) fn rootless(seed: u64) -> Result<String> {
    let within = |prefix: &[&str], command: &[&str]| {
        let words = [prefix, &ROOTLESS, &[OWN_TMP, "sh"], command].concat();
        let mut made = Command::new(words[0]);
        made.args(&words[1..]).env("TMPDIR", "/tmp").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        made
    };
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let can = |prefix: &[&str]| {
        within(prefix, &[&program, "sharing", "--help"]).output().is_ok_and(|said| said.status.success())
    };
    // Where others may not read the programs it is root, whose rights end at the namespace.
    let prefix: &[&str] = match () {
        () if nix::unistd::geteuid().is_root() && can(&NOBODY) => &NOBODY,
        () if can(&[]) => &[],
        () => return Ok("skipped: no user namespaces".to_owned()),
    };
    let seed = seed.to_string();
    let output = within(prefix, &[&program, "sharing", "--only", "across-", "--seed", &seed]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !said.contains("ok   across-cable") {
        fail!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let who = if prefix.is_empty() { "root" } else { "uid 4711" };
    Ok(format!("of {who}: {}", said.lines().last().unwrap_or_default()))
}
