//! A connection that is used lives through what fails below it.

use super::super::inside::PATIENCE;
use super::super::rows::{Case, What};
use super::{Driver, PASSED, bytes, say, until_moved, until_rdma};
use harness::host::Host;
use harness::lab::Side;
use harness::network::configure;
use harness::scratch::send;
use harness::{Result, until};
use nix::sys::signal::Signal;

const USED: Case = Case { what: What::RoundTrip, size: 64, count: 1 };
/// It is there for longer than anything is waited for.
const USED_MILLIS: u64 = 4 * PATIENCE.as_millis() as u64;

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

    /// `kill -9` of this host's engine: connections go back to the kernel, and the monitor starts another engine.
    pub(super) fn engine_killed(&mut self) -> Result<()> {
        self.lives_through(|host| {
            let before = engine(host)?;
            send(before, Signal::SIGKILL);
            until("there is another engine", PATIENCE, || engine(host).is_ok_and(|pid| pid != before))
        })
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
