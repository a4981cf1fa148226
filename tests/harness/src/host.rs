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
use crate::network::{Network, Switch};
use crate::scratch::send;
use crate::{Result, fail, network, procfs, product, retry, ss, until};
use nix::sys::signal::Signal;
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
    /// What its monitor is told besides.
    monitor_args: Vec<String>,
}

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const PATIENCE: Duration = Duration::from_secs(60);
/// Of a cable's fate.
const SEED: u64 = 77;
/// Where engines are reached.
pub const ENGINE_PORT: u16 = 7077;

/// Two of them, joined by a cable.
pub fn two(is_oracle: bool) -> Result<[Host; 2]> {
    let (here, there) = (Network::new()?, Network::new()?);
    Network::join([(&here, ADDRESSES[0]), (&there, ADDRESSES[1])])?;
    let host = |network, address| {
        Ok::<_, crate::Error>(Host {
            lab: Lab::on(network, is_oracle)?,
            address,
            cable: None,
            monitor_args: Vec::new(),
        })
    };
    Ok([host(here, ADDRESSES[0])?, host(there, ADDRESSES[1])?])
}

/// Two of them with an engine each, which know each other by keys; joined by a cable that has these faults, or the kernel's own pair of
/// devices where it has none. Fewer connections than `least` stay the kernel's.
pub fn two_with_engines(faults: Faults, least: usize) -> Result<[Host; 2]> {
    two_with_engines_told(faults, least, &[])
}

/// The same; their monitors are told this besides.
pub fn two_with_engines_told(faults: Faults, least: usize, monitor_args: &[&str]) -> Result<[Host; 2]> {
    let (here, there) = (Network::new()?, Network::new()?);
    let ends = [(&here, ADDRESSES[0]), (&there, ADDRESSES[1])];
    let cable = match faults == Faults::default() {
        true => Network::join(ends).map(|()| None)?,
        false => Some(Cable::join(ends, faults, SEED)?),
    };
    let mut hosts = [Host::bare(here, ADDRESSES[0])?, Host::bare(there, ADDRESSES[1])?];
    introduce(&hosts, least)?;
    for host in &mut hosts {
        host.tell_monitor(monitor_args);
    }
    hosts.iter_mut().try_for_each(Host::start_engine)?;
    hosts[0].cable = cable;
    Ok(hosts)
}

/// So many of them, joined by a switch, whose engines know each other by keys: 10.77.0.1 and so on. Nothing runs there yet
/// ([`Host::start_engine`]).
pub fn many(count: u8, least: usize) -> Result<(Switch, Vec<Host>)> {
    let networks = (0..count).map(|_| Network::new()).collect::<Result<Vec<_>>>()?;
    let addresses = (1..=count).map(|number| Ipv4Addr::new(10, 77, 0, number));
    let switch = Switch::join(&networks.iter().zip(addresses.clone()).collect::<Vec<_>>())?;
    let hosts = networks.into_iter().zip(addresses).map(|(network, address)| Host::bare(network, address));
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    introduce(&hosts, least)?;
    Ok((switch, hosts))
}

/// Each gets a key, and a file that names the others by theirs.
fn introduce(hosts: &[Host], least: usize) -> Result<()> {
    let keys = hosts.iter().map(|host| host.make_key("engine.key")).collect::<Result<Vec<_>>>()?;
    let known: Vec<(Ipv4Addr, String)> =
        hosts.iter().zip(&keys).map(|(host, key)| (host.address, by_key(key))).collect();
    hosts.iter().try_for_each(|host| host.knows(&known, least))
}

/// In a hosts file: an engine that has this key.
pub fn by_key(key: &str) -> String {
    format!("key={key}")
}

/// Anybody, and nothing is encrypted.
pub const PLAIN: &str = "plain";

impl Host {
    /// Without a monitor, and known by nobody yet.
    pub fn bare(network: Network, address: Ipv4Addr) -> Result<Host> {
        Ok(Host { lab: Lab::on_without_monitor(network)?, address, cable: None, monitor_args: Vec::new() })
    }

    /// Writes the file that names other hosts, and how their engines are trusted ([`by_key`], [`PLAIN`]); its own key is `engine.key`
    /// ([`Host::make_key`]).
    pub fn knows(&self, others: &[(Ipv4Addr, String)], least: usize) -> Result<()> {
        let own = self.address;
        let mut text = format!("listen {own}:{ENGINE_PORT}\nkey engine.key\nleast {least}\n");
        for (address, trust) in others.iter().filter(|(address, _)| *address != own) {
            text += &format!("host {address} {address}:{ENGINE_PORT} {trust}\n");
        }
        Ok(std::fs::write(self.hosts_file(), text)?)
    }

    /// What its monitor is told besides, when it starts.
    pub fn tell_monitor(&mut self, args: &[&str]) {
        self.monitor_args = args.iter().map(|word| (*word).to_owned()).collect();
    }

    /// A monitor, and waits until that knows its engine.
    pub fn start_engine(&mut self) -> Result<()> {
        self.start_monitor()?;
        retry(PATIENCE, || self.lab.has_more_descriptors())
    }

    /// `kill -9` of all that runs there, as if the machine had lost everything but its kernel.
    pub fn kill_all(&mut self) -> Result<()> {
        let Some(network) = self.lab.network() else { fail!("it has no network of its own") };
        until("everything there is gone", PATIENCE, || {
            let pids = network.processes().unwrap_or_default();
            pids.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
            !pids.iter().any(|pid| procfs::is_alive(*pid))
        })?;
        self.lab.kill_monitor();
        Ok(())
    }

    /// A monitor with an engine.
    pub fn start_monitor(&mut self) -> Result<()> {
        let file = self.hosts_file().display().to_string();
        let besides = self.monitor_args.iter().map(String::as_str);
        let args: Vec<&str> = ["--hosts", &file].into_iter().chain(besides).collect();
        self.lab.start_monitor_with(&args)
    }

    /// The hosts file is read again, as a service manager asks for it.
    pub fn reload(&self) -> Result<()> {
        let Some(monitor) = self.lab.monitor_pid() else { fail!("there is no monitor") };
        send(monitor, Signal::SIGHUP);
        Ok(())
    }

    /// Where the hosts file has engines' IPv4 addresses it has those of IPv6 from now on; networks stay.
    pub fn use_ipv6(&self) -> Result<()> {
        let text = std::fs::read_to_string(self.hosts_file())?;
        let port = format!(":{ENGINE_PORT}");
        let word = |word: &str| match word.strip_suffix(&port).map(str::parse) {
            Some(Ok(address)) => format!("[{}]{port}", network::ipv6(address)),
            _ => word.to_owned(),
        };
        let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
        std::fs::write(self.hosts_file(), text.lines().map(line).collect::<String>())?;
        self.reload()
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

    /// All engines there, the oldest first: that of a monitor which is gone carries on, and those that others have started wait.
    pub fn engines(&self) -> Result<Vec<u32>> {
        let Some(network) = self.lab.network() else { fail!("it has no network of its own") };
        let is_engine =
            |pid: &u32| procfs::process(*pid).is_some_and(|it| it.comm == "sd-engine" && it.state != 'Z');
        let mut pids = network.processes()?;
        pids.retain(is_engine);
        pids.sort_unstable();
        Ok(pids)
    }

    /// What `sd ss --json` says of its engine and those that it knows.
    pub fn engine_seen(&self) -> Result<Value> {
        let mut document = ss::document(&product::sd(), &self.lab.socket())?;
        Ok(document["monitor"]["engine"].take())
    }

    /// Waits until its engine has a session with the other host's, which is reached by an address that begins so.
    pub fn wait_for_other_engine(&self, address: &str) -> Result<()> {
        retry(PATIENCE, || {
            let seen = self.engine_seen()?;
            let peer = &seen["peers"][0];
            let is_it = peer["address"].as_str().is_some_and(|it| it.starts_with(address));
            match is_it && peer["state"] == "up" {
                true => Ok(()),
                false => {
                    fail!("the other engine is not reached at {address}: {seen} {:?}", self.lab.last_said())
                }
            }
        })
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
