//! More processes than there are large pieces of the range of source ports, and more connections than a channel has slots.

use super::{program, served};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::ss::{self, Snapshot};
use harness::{Result, fail, procfs};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Processes of a crowd, and crowds one after the other, which together are more than there is room for.
const PROCESSES: usize = 600;
const CROWDS: usize = 5;
/// Connections at a time, as many times; and slots of a channel.
const CONNECTIONS: usize = 2500;
const TIMES: usize = 6;
const SLOTS: usize = 1024;
/// Clients that try until somebody listens.
const FIRST_CONTACTS: usize = 1000;

/// Every process of a crowd has a connection over shared memory, and what a crowd had the next one can have.
pub(super) fn processes(lab: &mut Lab) -> Result<String> {
    let (server, port) = served(start(lab, &["echo"])?)?;
    lab.wait_accepting(port.parse()?);
    for _ in 0..CROWDS {
        let mut crowd = start(lab, &["crowd", &port, &PROCESSES.to_string()])?;
        crowd.wait_for_text("all", TIMEOUT)?;
        if !lab.is_oracle() {
            are_shared(&lab.snapshot()?)?;
        }
        crowd.kill();
    }
    server.terminate(TIMEOUT)?;
    Ok(format!("{CROWDS} crowds of {PROCESSES}"))
}

fn are_shared(seen: &Snapshot) -> Result<()> {
    let kernel: Vec<_> = seen.connections.iter().filter(|end| end.path != "shm").map(ss::describe).collect();
    if !kernel.is_empty() {
        fail!("{}", kernel.join(", "));
    }
    // Some of an earlier crowd may still be there.
    if seen.connections.len() < 2 * PROCESSES {
        fail!("{} ends of {PROCESSES} connections", seen.connections.len());
    }
    Ok(())
}

/// Channels that two processes have, and do not need any more, are used again.
pub(super) fn connections(lab: &mut Lab) -> Result<String> {
    let (server, port) = served(start(lab, &["echo"])?)?;
    let mut waves = start(lab, &["waves", &port, &CONNECTIONS.to_string(), &TIMES.to_string()])?;
    waves.wait_for_text("all", TIMEOUT)?;
    let segments = procfs::fd_targets(server.pid());
    let channels = segments.iter().filter(|target| target.contains("sd-channel")).count();
    // One more, as the server may not have finished with the last connections when others begin.
    if channels > CONNECTIONS.div_ceil(SLOTS) + 1 {
        fail!("{channels} channels for {CONNECTIONS} connections at a time");
    }
    waves.kill();
    server.terminate(TIMEOUT)?;
    Ok(format!("{channels} channels"))
}

/// Who tries until somebody listens gets shared memory, whenever the listener comes.
pub(super) fn first_contacts(lab: &mut Lab) -> Result<String> {
    let mut client = start(lab, &["late-client", &FIRST_CONTACTS.to_string()])?;
    client.wait_for_text("all", TIMEOUT)?;
    if !lab.is_oracle() {
        let seen = lab.snapshot()?.connections;
        let kernel: Vec<_> = seen.iter().filter(|end| end.path != "shm").map(ss::describe).collect();
        if !kernel.is_empty() || seen.len() < 2 * FIRST_CONTACTS {
            fail!("{} of {} ends over the kernel: {}", kernel.len(), seen.len(), kernel.join(", "));
        }
    }
    client.kill();
    Ok(format!("{FIRST_CONTACTS} of {FIRST_CONTACTS} on shared memory"))
}

fn start(lab: &Lab, args: &[&str]) -> Result<Proc> {
    let mut command = lab.command(Side::Sd, &program().to_string_lossy(), args)?;
    let most = getrlimit(Resource::RLIMIT_NOFILE)?.1;
    let raise = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?);
    // SAFETY: one system call.
    unsafe { command.pre_exec(raise) };
    Proc::start(&mut command, args[0], lab.path())
}
