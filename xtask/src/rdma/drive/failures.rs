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
    /// The network device goes down, once while nobody sends and once while a connection is used, until RDMA is given up, and comes back; the
    /// connection goes on.
    pub(super) fn outage(&mut self) -> Result<()> {
        self.port += 1;
        let (below, port) = (self.below, self.port);
        let link = |state: &str| configure(&format!("link set {below} {state}\n"));
        // Only the device tells of it then; and who does not send does not try RDMA again.
        link("down")?;
        until_rdma(&self.host, false)?;
        link("up")?;
        let (client, _input) = self.start_bench(&USED, Side::Sd, USED_MILLIS)?;
        let told = |error| format!("{error}; the client: {}", client.last_words());
        let host = &self.host;
        let outage = || {
            until_moved(host, port, || true)?;
            link("down")?;
            until_rdma(host, false)?;
            link("up")?;
            goes_on(host, port)
        };
        outage().map_err(told)?;
        drop(client);
        self.agent.end()?;
        say(PASSED)
    }

    /// `kill -9` of this host's engine: connections go back to the kernel, the monitor starts another engine, and all goes by RDMA again.
    pub(super) fn engine_killed(&mut self) -> Result<()> {
        self.port += 1;
        let port = self.port;
        let (client, _input) = self.start_bench(&USED, Side::Sd, USED_MILLIS)?;
        let told = |error| format!("{error}; the client: {}", client.last_words());
        let host = &self.host;
        let killed = || {
            until_moved(host, port, || true)?;
            let engine = || host.engine_seen().map(|seen| seen["pid"].as_u64().unwrap_or_default());
            let before = engine()?;
            send(before as u32, Signal::SIGKILL);
            until("there is another engine", PATIENCE, || {
                engine().is_ok_and(|pid| ![0, before].contains(&pid))
            })?;
            goes_on(host, port)
        };
        killed().map_err(told)?;
        drop(client);
        self.agent.end()?;
        say(PASSED)
    }
}

/// By RDMA, at last.
fn goes_on(host: &Host, port: u16) -> Result<()> {
    until_rdma(host, true)?;
    until_moved(host, port, || true)?;
    let before = bytes(host, port)?;
    until("the connection goes on", PATIENCE, || bytes(host, port).is_ok_and(|now| now > before))
}
