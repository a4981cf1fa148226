//! What carries between two hosts' engines: a trunk, and datagrams while a trunk suffers.

use super::Scenario;
use crate::engines::{LIMIT, end, finish, hosts_on, start, start_again};
use harness::cable::Faults;
use harness::host::Host;
use harness::lab::Lab;
use harness::{Result, fail, network, retry};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-loss", &["python3", network::PROGRAM], loss).ours(),
    Scenario::between_hosts("between-hosts-no-datagrams", &["python3", network::PROGRAM], no_datagrams)
        .ours(),
    Scenario::between_hosts("between-hosts-parts", &["python3", network::PROGRAM], parts).ours(),
];

const LOSSY: Faults = Faults {
    lost_ppm: 20_000,
    doubled_ppm: 0,
    delay: Duration::from_micros(200),
    jitter: Duration::ZERO,
    is_cut: false,
};
const CONNECTIONS: usize = 8;

/// Waits until both hosts send so.
fn wait_for_carrier(hosts: &[Host; 2], carrier: &str) -> Result<()> {
    hosts.iter().try_for_each(|host| {
        retry(LIMIT, || match host.engine_seen()?["peers"][0]["carrier"].as_str() {
            Some(now) if now == carrier => Ok(()),
            now => fail!("packets go by {now:?}, not by {carrier:?}"),
        })
    })
}

/// A cable that loses packets brings datagrams; one that is mended, the trunk. Then for a moment nothing comes through.
fn loss(_: &mut Lab) -> Result<()> {
    let Some(hosts) = hosts_on(LOSSY)? else { return Ok(()) };
    let (server, client) = start(&hosts, CONNECTIONS, 500_000)?;
    wait_for_carrier(&hosts, "datagram")?;
    let Some(cable) = &hosts[0].cable else { fail!("there is no cable") };
    let mended = Faults { lost_ppm: 0, ..LOSSY };
    cable.set(mended);
    wait_for_carrier(&hosts, "trunk")?;
    cable.set(Faults { is_cut: true, ..mended });
    std::thread::sleep(Duration::from_millis(500));
    cable.set(LOSSY);
    wait_for_carrier(&hosts, "datagram")?;
    end(server, client, ("end", CONNECTIONS))?;
    finish(hosts)
}

/// Adds a line to the hosts file of one of them.
fn told(hosts: &mut [Host; 2], at: usize, line: &str) -> Result<()> {
    let file = hosts[at].hosts_file();
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, format!("{text}{line}\n"))?;
    start_again(&mut hosts[at])
}

/// Where the other host takes no datagrams the trunk carries, whatever it loses.
fn no_datagrams(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts_on(LOSSY)? else { return Ok(()) };
    told(&mut hosts, 1, "carrier trunk")?;
    let (server, client) = start(&hosts, CONNECTIONS, 200_000)?;
    retry(LIMIT, || match hosts[0].engine_seen()?["peers"][0]["retransmitted"].as_u64() {
        Some(10..) => Ok(()),
        few => fail!("the kernel has sent {few:?} segments again"),
    })?;
    std::thread::sleep(Duration::from_secs(1));
    wait_for_carrier(&hosts, "trunk")?;
    end(server, client, ("end", CONNECTIONS))?;
    finish(hosts)
}

/// What the hosts file chooses: datagrams though nothing is lost, with each controller.
fn parts(_: &mut Lab) -> Result<()> {
    for controller in ["newreno", "dctcp", "swift=200"] {
        let Some(mut hosts) = hosts_on(Faults::default())? else { return Ok(()) };
        for at in [0, 1] {
            told(&mut hosts, at, &format!("carrier datagram\ncongestion {controller}"))?;
        }
        let (server, client) = start(&hosts, CONNECTIONS, 2_000_000)?;
        wait_for_carrier(&hosts, "datagram")?;
        end(server, client, ("end", CONNECTIONS))?;
        finish(hosts)?;
    }
    Ok(())
}
