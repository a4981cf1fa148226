//! Two scripted peers and what is done to them: the same play over the kernel and over us must end the same.

use super::python;
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::io::Write;
use std::process::ChildStdin;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Server,
    Client,
}

/// What the stage manager does, in order.
pub(crate) enum Act {
    /// Waits until a peer has printed this.
    Said(Who, &'static str),
    /// Lets a peer that asks go on.
    Go(Who),
    Kill(Who),
    Pause,
}

/// Steps are those of `py/peer.py`.
pub(crate) struct Play {
    pub(crate) name: &'static str,
    pub(crate) server: &'static [&'static str],
    pub(crate) client: &'static [&'static str],
    pub(crate) acts: &'static [Act],
}

const LIMIT: Duration = Duration::from_secs(10);

/// A scripted peer and its standard input.
pub(crate) struct Peer {
    process: Option<Proc>,
    input: ChildStdin,
}

impl Peer {
    pub(crate) fn start(lab: &Lab, side: Side, role: &str, port: u16, steps: &[&str]) -> Result<Peer> {
        let mut args = vec![role.to_owned(), port.to_string()];
        args.extend(steps.iter().map(|step| (*step).to_owned()));
        let mut process = python::start(lab, side, "peer.py", &args)?;
        let input = process.stdin()?;
        Ok(Peer { process: Some(process), input })
    }

    pub(crate) fn process(&mut self) -> Result<&mut Proc> {
        self.process.as_mut().ok_or_else(|| "this peer was killed".into())
    }

    pub(crate) fn said(&mut self, text: &str) -> Result<()> {
        self.process()?.wait_for_text(text, LIMIT)
    }

    pub(crate) fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.input)?)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Waits for the end and returns what was said, or the fact that it was killed.
    pub(crate) fn transcript(self) -> Result<String> {
        match self.process {
            None => Ok("killed\n".to_owned()),
            Some(process) => Ok(process.wait(LIMIT)?.ok()?.text()),
        }
    }
}

/// Performs a play with both peers on one side; returns what they said.
fn perform(lab: &Lab, side: Side, play: &Play) -> Result<String> {
    let port = free_port()?;
    let mut server = Peer::start(lab, side, "listen", port, play.server)?;
    server.process()?.wait_listening(port)?;
    let mut client = Peer::start(lab, side, "connect", port, play.client)?;
    for act in play.acts {
        let (server, client) = (&mut server, &mut client);
        let peer = |who| if who == Who::Server { server } else { client };
        match *act {
            Act::Said(who, text) => peer(who).said(text)?,
            Act::Go(who) => peer(who).go()?,
            Act::Kill(who) => peer(who).kill(),
            Act::Pause => std::thread::sleep(Duration::from_millis(150)),
        }
    }
    Ok(format!("server:\n{}client:\n{}", server.transcript()?, client.transcript()?))
}

/// Linux is the oracle: every play ends on us as it ends there.
pub(crate) fn compare(lab: &Lab, plays: &[Play]) -> Result<()> {
    let mut problems = Vec::new();
    for play in plays {
        let wanted =
            perform(lab, Side::Kernel, play).map_err(|e| format!("{} over the kernel: {e}", play.name))?;
        match perform(lab, Side::Sd, play) {
            Ok(got) if got == wanted => {}
            Ok(got) => problems.push(format!("{}: {}", play.name, first_difference(&got, &wanted))),
            Err(error) => problems.push(format!("{}: {error}", play.name)),
        }
    }
    if !problems.is_empty() {
        fail!("{} of {} plays differ from Linux: {}", problems.len(), plays.len(), problems.join("; "));
    }
    Ok(())
}

fn first_difference(got: &str, wanted: &str) -> String {
    let mut who = "";
    for (g, w) in got.lines().zip(wanted.lines()) {
        if g != w {
            return format!("{who} {g:?}, on Linux {w:?}");
        }
        if g.ends_with(':') {
            who = g;
        }
    }
    format!("{got:?}, on Linux {wanted:?}")
}
