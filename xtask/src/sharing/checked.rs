//! A server at one host and a client at another one, accelerated, which talks with it and checks every byte until it is ended.

use super::migrated::{PATIENCE, all_right};
use super::program;
use harness::Result;
use harness::host::Host;
use harness::lab::Side;
use harness::process::Proc;
use harness::scratch::send;
use nix::sys::signal::Signal;
use std::process::{ChildStdin, Stdio};

pub(crate) struct Checked {
    server: Proc,
    client: (Proc, ChildStdin),
    pub(crate) port: u16,
}

impl Checked {
    pub(crate) fn start(server: &Host, client: &Host) -> Result<Checked> {
        let start = |host: &Host, args: &[&str]| {
            let mut command = host.lab.command(Side::Sd, &program().to_string_lossy(), args)?;
            Proc::start(command.stdin(Stdio::piped()), "migrant", host.lab.path())
        };
        let address = server.address.to_string();
        let (server, port) = super::served(start(server, &["migrant", &address])?)?;
        let mut client = start(client, &["migrant", &format!("{address}:{port}"), "7"])?;
        client.wait_for_text("connected", PATIENCE)?;
        let input = client.stdin()?;
        Ok(Checked { server, client: (client, input), port: port.parse()? })
    }

    /// The client stands still, or goes on.
    pub(crate) fn is_to_run(&self, runs: bool) {
        send(self.client.0.pid(), if runs { Signal::SIGCONT } else { Signal::SIGSTOP });
    }

    /// What the client says at last.
    pub(crate) fn end(self) -> Result<String> {
        let said = all_right(vec![self.client])?;
        self.server.kill();
        Ok(said)
    }
}
