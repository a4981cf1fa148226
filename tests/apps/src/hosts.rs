//! Two hosts: what goes from one to the other, and what stays on each.

use super::web::{self, Download};
use super::{Scenario, files};
use harness::host::{self, Host};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, network, ss};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("two-hosts", &["python3", "curl", network::PROGRAM], two_hosts).ours()];

/// Each host has all ports, so that both can use the same.
const PORT: u16 = 8000;

/// Half of it is more than 64 messages of a server's, however little a kernel buffers: then a monitor knows of its end. And half of it is
/// more than kernels buffer, so that the server still sends when `sd ss` looks.
const BYTES: usize = 100_000_000;

/// What `sd ss` says on the host that connects, and on the one that accepts.
const REASONS: [&str; 2] = ["destination is not on this host", "peer is not accelerated"];

/// From one to the other it is the kernel, and each host says why; on each of them it is shared memory, by the address of
/// the cable as well as by that of the loopback.
fn two_hosts(_: &mut Lab) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let hosts = host::two(false)?;
    let data = files::bytes(BYTES);
    let servers = [serve(&hosts[0], &data)?, serve(&hosts[1], &data)?];
    for (from, to) in [(0, 1), (1, 0)] {
        across(&hosts[from], &hosts[to], &data)?;
    }
    for host in &hosts {
        for address in [host.address, Ipv4Addr::LOCALHOST] {
            let watch = host.lab.watch(PORT);
            web::download_late(&host.lab, Side::Sd, &url(address), &data)?;
            host.lab.check(watch, Side::Sd, Side::Sd).map_err(|e| format!("{address} on its host: {e}"))?;
        }
    }
    for server in servers {
        server.terminate(Duration::from_secs(5))?;
    }
    hosts.into_iter().try_for_each(Host::finish)
}

fn serve(host: &Host, data: &[u8]) -> Result<Proc> {
    let root = host.lab.path().join("files");
    std::fs::create_dir(&root)?;
    std::fs::write(root.join("file"), data)?;
    let (port, folder) = (PORT.to_string(), text(&root));
    let args = ["-m", "http.server", &port, "--bind", "0.0.0.0", "--directory", &folder];
    host.lab.serve(Side::Sd, PORT, "python3", &args)
}

/// Both programs have the library; there is nothing that it can do.
fn across(from: &Host, to: &Host, data: &[u8]) -> Result<()> {
    let watches = [from.lab.watch(PORT), to.lab.watch(PORT)];
    let mut download = Download::start(&from.lab, Side::Sd, &url(to.address))?;
    download.take(BYTES / 2)?;
    std::thread::sleep(Duration::from_millis(300));
    download.finish(data)?;
    for (watch, reason) in watches.into_iter().flatten().zip(REASONS) {
        let seen = watch.finish()?;
        // A client that has had few messages is not known to any monitor.
        let may_be_young = reason == REASONS[0];
        if seen.is_empty() && may_be_young {
            continue;
        }
        ss::require_kernel(&seen).map_err(|error| format!("to the other host: {error}"))?;
        let is_told = |told: &str| {
            [reason, "the first connection of a process"].contains(&told)
                || may_be_young && told.starts_with("it has not lasted yet")
        };
        if let Some(other) = seen.iter().find(|c| !c.reason.as_deref().is_some_and(is_told)) {
            fail!("expected the reason {reason:?}, but sd ss shows {}", ss::describe(other));
        }
    }
    Ok(())
}

fn url(address: Ipv4Addr) -> String {
    format!("http://{address}:{PORT}/file")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
