//! `cargo xtask posix --between`: each subject of two processes with its server on one host and its client on another.
//!
//! ```text
//!  sd-posix run NAME ──nsenter──> role client, 10.77.0.1      a network, a monitor and an engine each
//!                    ──nsenter──> role server, 10.77.0.2      the kernel's turn: the same networks, without the library
//! ```
//! A role's 127.0.0.1 is the server's address here, and it waits a moment after each of its first messages (`SD_POSIX_PACE`), on the kernel
//! too, so that connections change their road in the middle of it. A subject whose roles need one host says so on the kernel, and is left out.

use super::{Mode, Place, Subject};
use harness::cable::Faults;
use harness::host::{self, Host};
use harness::report::Count;
use harness::{Result, fail, retry};
use std::process::Command;
use std::time::Duration;

/// Milliseconds after each of a role's first messages.
const PACE: &str = "10";
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Between {
    hosts: [Host; 2],
}

impl Between {
    pub(super) fn new(monitor_args: &[&str], faults: Faults) -> Result<Between> {
        if !nix::unistd::geteuid().is_root() {
            fail!("networks are root's to make");
        }
        Ok(Between { hosts: host::two_with_engines_told(faults, 1, monitor_args)? })
    }

    /// What a subject is run with.
    pub(super) fn adapt(&self, place: &Place, command: &mut Command, mode: Mode) -> Result<()> {
        let [client, server] = &self.hosts;
        command.env("SD_POSIX_ADDRESS", server.address.to_string()).env("SD_POSIX_PACE", PACE);
        let ends = [("SD_POSIX_CLIENT_PREFIX", client), ("SD_POSIX_SERVER_PREFIX", server)];
        for (variable, host) in ends {
            let Some(network) = host.lab.network() else { fail!("a host without a network") };
            let mut prefix = format!("nsenter --net={}", network.path().display());
            let is_ours = mode == Mode::Both
                || mode == Mode::Server && variable.contains("SERVER")
                || mode == Mode::Client && variable.contains("CLIENT");
            if is_ours {
                let socket = host.lab.socket();
                prefix += &format!(" env SD_MONITOR={} {} run --", socket.display(), place.sd.display());
            }
            command.env(variable, prefix);
        }
        Ok(())
    }

    /// Nothing is left in the monitors, and the engines have carried some connections.
    pub(super) fn finish(self) -> Result<()> {
        for host in &self.hosts {
            retry(PATIENCE, || {
                let carried = host.engine_seen()?["peers"][0]["bytes_sent"].as_u64().unwrap_or(0);
                match (host.lab.snapshot()?.promotions, carried) {
                    (0, _) | (_, 0) => fail!("nothing went through the engines"),
                    (promotions, _) => {
                        println!("{}: {promotions} promotions, {carried} bytes by the engine", host.address);
                        Ok(())
                    }
                }
            })?;
        }
        self.hosts.into_iter().try_for_each(Host::finish)
    }
}

/// Whether what the kernel gives says that the roles must be on one host.
pub(super) fn needs_one_host(subject: &Subject, oracle: &str) -> Option<(String, Count)> {
    let told = oracle.lines().find(|line| super::is_bad(line) || line.contains("EADDRNOTAVAIL"))?;
    let line = format!("skip  {}: on two kernels it says {told:?}", subject.name);
    Some((line, Count { skipped: 1, ..Count::default() }))
}
