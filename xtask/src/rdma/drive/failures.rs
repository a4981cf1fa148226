//! A connection that is used lives through what fails below it.

use super::super::KILL_SERVER;
use super::super::agent::start;
use super::super::boot::SERVER_MAC;
use super::super::inside::PATIENCE;
use super::super::rows::{Case, What};
use super::{Driver, PASSED, bytes, say, until_moved, until_rdma};
use crate::loads::{Ask, Load, client};
use harness::host::Host;
use harness::lab::Side;
use harness::network::{configure, ipv6};
use harness::scratch::send;
use harness::{Result, fail, until};
use nix::sys::signal::Signal;

const USED: Case = Case { what: What::RoundTrip, size: 64, count: 1 };
/// It is there for longer than anything is waited for.
const USED_MILLIS: u64 = 4 * PATIENCE.as_millis() as u64;

/// More than is answered before the other machine is gone.
const ENDLESS: Ask = Ask { load: Load::Redis, connections: 10, seconds: 3600, a_second: 5_000 };

impl Driver {
    /// The network device goes down, once while nobody sends and once while a connection is used, until RDMA is given up, and comes back.
    pub(super) fn outage(&mut self) -> Result<()> {
        let below = self.below;
        let outage = |host: &Host| {
            configure(&format!("link set {below} down\n"))?;
            until_rdma(host, false)?;
            configure(&format!("link set {below} up\n"))
        };
        // Only the device tells of it then; and who does not send does not try RDMA again.
        outage(&self.host)?;
        self.lives_through(outage)
    }

    /// Both engines listen at other addresses, of IPv6, and so do the ends of their pairs.
    pub(super) fn by_ipv6(&mut self) -> Result<()> {
        self.host.use_ipv6()?;
        self.agent.use_ipv6()?;
        self.host.wait_for_other_engine(&format!("[{}]", ipv6(self.server)))?;
        until_rdma(&self.host, true)?;
        self.lives_through(|_| Ok(()))
    }

    /// `kill -9` of this host's engine: connections go back to the kernel, and the monitor starts another engine.
    pub(super) fn engine_killed(&mut self) -> Result<()> {
        self.lives_through(another_engine)
    }

    /// The other machine is gone without a word: connections by RDMA end as the kernel's own do.
    pub(super) fn machine_killed(&mut self) -> Result<()> {
        // Kernel and engine try for a quarter of an hour otherwise; an engine that begins now knows. And what the kernel says depends on whether it
        // still knows the other's Ethernet address.
        std::fs::write("/proc/sys/net/ipv4/tcp_retries2", "3")?;
        another_engine(&self.host)?;
        until_rdma(&self.host, true)?;
        let (server, below) = (self.server, self.below);
        configure(&format!("neighbour replace {server} lladdr {SERVER_MAC} dev {below} nud permanent\n"))?;
        let server = self.serve(Load::Redis)?;
        let begin = |side| {
            let (program, args) = client(&ENDLESS, (&server.0, server.1));
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            start(&self.host, Some(side), program, &args)
        };
        let (mut ours, kernels) = (begin(Side::Sd)?, begin(Side::Kernel)?);
        until_moved(&self.host, server.1, || ours.is_running())
            .map_err(|error| format!("{error}; its client: {}", ours.last_words()))?;
        say(KILL_SERVER)?;
        let ends =
            [ours, kernels].map(|one| one.wait(2 * PATIENCE).map(|end| (end.status.code(), end.stderr)));
        let [ours, kernels] = ends;
        let (ours, kernels) = (ours?, kernels?);
        if ours != kernels || ours.0 == Some(0) {
            fail!(
                "the other machine is gone: the client by RDMA ended with {ours:?}, by the kernel with {kernels:?}"
            );
        }
        until("the other engine is known to be gone", PATIENCE, || {
            self.host.engine_seen().is_ok_and(|seen| seen["peers"][0]["state"] != "up")
        })?;
        say(PASSED)
    }

    /// A connection that is used and goes by RDMA does so again after what happens.
    fn lives_through(&mut self, happens: impl Fn(&Host) -> Result<()>) -> Result<()> {
        self.port += 1;
        let (client, _input) = self.start_bench(&USED, Side::Sd, USED_MILLIS)?;
        let (host, port) = (&self.host, self.port);
        let lives = || {
            until_moved(host, port, || true)?;
            happens(host)?;
            goes_on(host, port)
        };
        lives().map_err(|error| format!("{error}; the client: {}", client.last_words()))?;
        drop(client);
        self.agent.end()?;
        say(PASSED)
    }
}

/// Kills this host's, and waits for its successor.
fn another_engine(host: &Host) -> Result<()> {
    let before = engine(host)?;
    send(before, Signal::SIGKILL);
    until("there is another engine", PATIENCE, || engine(host).is_ok_and(|pid| pid != before))
}

/// The process of this host's engine.
fn engine(host: &Host) -> Result<u32> {
    let pid = host.engine_seen()?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    pid.filter(|pid| *pid != 0).ok_or_else(|| "there is no engine".into())
}

/// By RDMA, at last.
fn goes_on(host: &Host, port: u16) -> Result<()> {
    until_rdma(host, true)?;
    until_moved(host, port, || true)?;
    let before = bytes(host, port)?;
    until("the connection goes on", PATIENCE, || bytes(host, port).is_ok_and(|now| now > before))
}
