//! A server is moved to another host with its connections, and back, under clients that check every byte: from shared memory to the engines'
//! road, and to shared memory again (ADR 86, §4.1.3).
//!
//! ```text
//!  host A 10.77.0.1 ─────────── 10.77.0.2 host B           a monitor and an engine each
//!  clients 10.9.0.1 ── bridge ── 10.9.0.2 server           containers, of which A's monitor serves the clients
//!                         │      shared memory             the server's monitor is A's,
//!                         └───── engines                   B's, and A's again
//! ```
//! The server reaches its monitor by a path that leads to the one of its host, as in a container. See `migrated` for how it is moved.

use super::across::{Joint, Networks, SERVER, started};
use super::migrated::{
    A_WHILE, CLIENTS, PATIENCE, all_right, carry_over, client, has_nothing, promoted, say, sd,
};
use super::program;
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::lab::{Lab, Side};
use harness::network::Network;
use harness::process::Proc;
use harness::{Result, fail, until};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};

const CLIENT: &str = "10.9.0.1";

/// For root. The lab is not used: each host has its own.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor".to_owned());
    }
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    let hosts = host::two_with_engines_told(Faults::default(), 1, &["--promote=all"])?;
    let said = with(&hosts, "engine")?;
    hosts.into_iter().try_for_each(Host::finish)?;
    Ok(said)
}

/// Between two hosts whose engines take connections by this road, as `sd ss` names it.
pub(crate) fn with(hosts: &[Host; 2], road: &str) -> Result<String> {
    let [a, b] = hosts;
    let (networks, there) = (Networks::new(Joint::Bridge)?, Network::new()?);
    leads_to(b, a, CLIENT)?;
    let mut server = Container::start(a, &networks.server)?;
    let port = server.port.clone();
    let mut clients = Vec::new();
    for seed in 0..CLIENTS {
        clients.push(client(&a.lab, &networks, &port, seed)?);
    }
    let (called, its_port) = called(a, &networks, &mut server)?;
    let share = |all| promoted(&a.lab, &port) == all * 2 && promoted(&a.lab, &its_port) == 2;
    let mut all = CLIENTS as usize;
    until("they are on shared memory", PATIENCE, || share(all))?;
    std::thread::sleep(A_WHILE);

    let before = leads_to(a, b, SERVER)?;
    server.migrate(&networks, [&networks.server, &there], [a, b], all + 1)?;
    let is_carried = |port: &str, all| [a, b].iter().all(|host| carried(&host.lab, port, road) == all);
    let are_carried = |all| is_carried(&port, all) && is_carried(&its_port, 1);
    until("they go by the engines", PATIENCE, || are_carried(all))?;
    clients.push(client(&a.lab, &networks, &port, CLIENTS)?);
    all += 1;
    until("so does a new one", PATIENCE, || are_carried(all))?;
    std::thread::sleep(A_WHILE);

    fs::write(a.hosts_file(), before)?;
    a.reload()?;
    server.migrate(&networks, [&there, &networks.server], [b, a], all + 1)?;
    until("they are on shared memory again", PATIENCE, || share(all))?;
    std::thread::sleep(A_WHILE);
    clients.push(called);
    let said = all_right(clients)?;
    server.process.kill();
    Ok(format!("{all} connections and one of its own, {said}"))
}

/// The host is told that this address is at the other one; what its file was before.
fn leads_to(host: &Host, other: &Host, address: &str) -> Result<String> {
    let (text, known) = (fs::read_to_string(host.hosts_file())?, other.address.to_string());
    let Some(line) = text.lines().find(|line| line.starts_with(&format!("host {known} "))) else {
        fail!("the other host is not in the file: {text}");
    };
    fs::write(host.hosts_file(), format!("{text}{}\n", line.replacen(&known, address, 1)))?;
    host.reload()?;
    Ok(text)
}

/// Ends at this port that go by this road.
fn carried(lab: &Lab, port: &str, road: &str) -> usize {
    let (Ok(seen), Ok(port)) = (lab.snapshot(), port.parse()) else { return 0 };
    seen.of_port(port).iter().filter(|end| end.path == road).count()
}

/// A server, and where it finds its monitor.
struct Container {
    process: Proc,
    input: ChildStdin,
    port: String,
    monitor: PathBuf,
}

impl Container {
    fn start(host: &Host, network: &Network) -> Result<Container> {
        let monitor = host.lab.path().join("of-the-host");
        leads(&monitor, host)?;
        let mut command = host.lab.command(Side::Sd, &program().to_string_lossy(), &["migrant", SERVER])?;
        let name = host.lab.socket();
        command.env("SD_MONITOR", monitor.join(name.file_name().unwrap_or_default())).stdin(Stdio::piped());
        network.host(&mut command)?;
        let process = Proc::start(&mut command, "migrant", host.lab.path())?;
        let (mut process, port) = super::served(process)?;
        let input = process.stdin()?;
        Ok(Container { process, input, port, monitor })
    }

    /// From one namespace and host to another, with so many connections.
    fn migrate(
        &mut self,
        networks: &Networks,
        places: [&Network; 2],
        [here, there]: [&Host; 2],
        connections: usize,
    ) -> Result<()> {
        let pid = self.process.pid().to_string();
        sd(&here.lab, &["detach", &pid])?;
        has_nothing(&here.lab, self.process.pid())?;
        carry_over((&mut self.process, &mut self.input), networks, places, connections)?;
        leads(&self.monitor, there)?;
        std::thread::sleep(A_WHILE);
        sd(&there.lab, &["attach", &pid])
    }
}

/// A client that the server connects to, and its port.
fn called(host: &Host, networks: &Networks, server: &mut Container) -> Result<((Proc, ChildStdin), String)> {
    let args = ["migrant", "called", CLIENT, "7"];
    let (mut client, port) =
        super::served(started(&host.lab, Side::Sd, &networks.client, &args, Stdio::piped())?)?;
    say(&mut server.input, &format!("dial {CLIENT}:{port}"))?;
    client.wait_for_text("connected", PATIENCE)?;
    let input = client.stdin()?;
    Ok(((client, input), port))
}

/// The path leads to this host's monitor.
fn leads(path: &Path, host: &Host) -> Result<()> {
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    Ok(symlink(host.lab.path(), path)?)
}
