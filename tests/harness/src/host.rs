//! Hosts of ours on one machine: each has a network namespace and a monitor of its own.
//!
//! ```text
//!   10.77.0.1 eth0 ------------- eth0 10.77.0.2
//!   programs  lo, all ports      programs  lo, all ports
//!   monitor                      monitor
//! ```
//! They share files and process numbers, but no port, no address and no monitor, so that what goes from one to the other
//! goes as it does between machines.

use crate::cable::{Cable, Faults};
use crate::lab::Lab;
use crate::network::Network;
use crate::{Result, fail, procfs, product, retry, ss};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Its programs are run by its lab.
pub struct Host {
    pub lab: Lab,
    /// Of the device that leads to the other one.
    pub address: Ipv4Addr,
    /// What joins it to the other one, if that has faults; the first host has it.
    pub cable: Option<Cable>,
}

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const PATIENCE: Duration = Duration::from_secs(60);
/// Of a cable's fate.
const SEED: u64 = 77;
/// Where engines are reached.
const ENGINE_PORT: u16 = 7077;

/// Two of them, joined by a cable.
pub fn two(is_oracle: bool) -> Result<[Host; 2]> {
    let (here, there) = (Network::new()?, Network::new()?);
    Network::join([(&here, ADDRESSES[0]), (&there, ADDRESSES[1])])?;
    let host = |network, address| {
        Ok::<_, crate::Error>(Host { lab: Lab::on(network, is_oracle)?, address, cable: None })
    };
    Ok([host(here, ADDRESSES[0])?, host(there, ADDRESSES[1])?])
}

/// Two of them with an engine each, which know each other by keys; joined by a cable that has these faults, or the kernel's own pair of
/// devices where it has none. Fewer connections than `least` stay the kernel's.
pub fn two_with_engines(faults: Faults, least: usize) -> Result<[Host; 2]> {
    let (here, there) = (Network::new()?, Network::new()?);
    let ends = [(&here, ADDRESSES[0]), (&there, ADDRESSES[1])];
    let cable = match faults == Faults::default() {
        true => Network::join(ends).map(|()| None)?,
        false => Some(Cable::join(ends, faults, SEED)?),
    };
    let lab = |network, address| {
        Ok::<_, crate::Error>(Host { lab: Lab::on_without_monitor(network)?, address, cable: None })
    };
    let mut hosts = [lab(here, ADDRESSES[0])?, lab(there, ADDRESSES[1])?];
    let keys = [hosts[0].make_key("engine.key")?, hosts[1].make_key("engine.key")?];
    for (at, host) in hosts.iter_mut().enumerate() {
        let (own, other, key) = (host.address, ADDRESSES[1 - at], &keys[1 - at]);
        let text = format!(
            "listen {own}:{ENGINE_PORT}\nkey engine.key\nhost {other} {other}:{ENGINE_PORT} key={key}\nleast {least}\n"
        );
        std::fs::write(host.hosts_file(), text)?;
        host.start_monitor()?;
        retry(PATIENCE, || host.lab.has_more_descriptors())?;
    }
    hosts[0].cable = cable;
    Ok(hosts)
}

impl Host {
    /// A monitor with an engine.
    pub fn start_monitor(&mut self) -> Result<()> {
        let file = self.hosts_file().display().to_string();
        self.lab.start_monitor_with(&["--hosts", &file])
    }

    /// What says where the other host's engine is.
    pub fn hosts_file(&self) -> PathBuf {
        self.lab.path().join("hosts")
    }

    /// Makes a key of this name beside the hosts file; the public one.
    pub fn make_key(&self, name: &str) -> Result<String> {
        let file = self.lab.path().join(name).display().to_string();
        let made = Command::new(product::sd()).args(["key", "new", &file]).output()?;
        match made.status.success() {
            true => Ok(String::from_utf8_lossy(&made.stdout).trim().to_owned()),
            false => fail!("sd key new: {}", String::from_utf8_lossy(&made.stderr)),
        }
    }

    /// The process that carries.
    pub fn engine(&self) -> Result<u32> {
        let Some(monitor) = self.lab.monitor_pid() else { fail!("there is no monitor") };
        let all = procfs::children(monitor);
        match all.iter().filter(|process| process.state != 'Z').map(|process| process.pid).max() {
            Some(pid) => Ok(pid),
            None => fail!("there is no engine"),
        }
    }

    /// What `sd ss --json` says of its engine and those that it knows.
    pub fn engine_seen(&self) -> Result<Value> {
        let mut document = ss::document(&product::sd(), &self.lab.socket())?;
        Ok(document["monitor"]["engine"].take())
    }

    /// What `sd doctor` says of the other host's engine, behind its verdict.
    pub fn doctor(&self) -> Result<String> {
        let mut command = Command::new(product::sd());
        command.args(["doctor", "--json"]).env("SD_MONITOR", self.lab.socket());
        // Whether all else is well is not asked here.
        let text = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?.stdout;
        let document: Value = serde_json::from_slice(&text)?;
        let checks = document["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let said = |check: &Value| {
            let word = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", word("verdict"), word("detail"))
        };
        let mut others = checks.iter().filter(|check| check["name"] == "other engine").map(said);
        others.next().ok_or_else(|| format!("sd doctor says nothing of the other engine: {document}").into())
    }

    /// Ends its monitor, after a check that nothing is left in it.
    pub fn finish(self) -> Result<()> {
        self.lab.finish()
    }
}
