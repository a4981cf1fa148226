//! Two hosts whose programs, and whose engines, use IPv6.

use super::Scenario;
use crate::engines::{LIMIT, end, finish, hosts, started_at, wait_for_engine};
use harness::host::Host;
use harness::lab::Lab;
use harness::{Result, network};

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::between_hosts("between-hosts-ipv6", &["python3", network::PROGRAM], ipv6)
        .ours()
        .limit_s(120)];

const CONNECTIONS: usize = 4;

/// Programs by IPv6, and by IPv4 to a server for both, while engines are reached by IPv4, and then by IPv6.
fn ipv6(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts()? else { return Ok(()) };
    hosts.iter().try_for_each(add_network)?;
    let other = hosts[1].address;
    let (ipv4, ipv6) = (other.to_string(), network::ipv6(other).to_string());
    let ways = [[&ipv6[..], &ipv6], ["::", &ipv6], ["::", &ipv4]];
    ways.iter().try_for_each(|way| carries(&hosts, *way))?;
    hosts.iter().try_for_each(Host::use_ipv6)?;
    hosts.iter().try_for_each(|host| host.wait_for_other_engine("[fd77::"))?;
    ways.iter().try_for_each(|way| carries(&hosts, *way))?;
    finish(hosts)
}

/// The other host has its address of IPv6 as well.
fn add_network(host: &Host) -> Result<()> {
    let text = std::fs::read_to_string(host.hosts_file())?;
    let mut more = String::new();
    for line in text.lines() {
        more += &format!("{line}\n");
        if let Some((address, rest)) = line.strip_prefix("host ").and_then(|line| line.split_once(' ')) {
            more += &format!("host {} {rest}\n", network::ipv6(address.parse()?));
        }
    }
    std::fs::write(host.hosts_file(), more)?;
    host.reload()
}

/// All connections go through the engines, and no byte is another one.
fn carries(hosts: &[Host; 2], way: [&str; 2]) -> Result<()> {
    let (server, mut client) = started_at(hosts, way, CONNECTIONS, 300_000)?;
    client.wait_for_text("carried", LIMIT)?;
    wait_for_engine(hosts, CONNECTIONS).map_err(|error| format!("{way:?}: {error}"))?;
    end(server, client, ("end", CONNECTIONS))
}
