//! Files that the monitor reads: its policy, and what /proc tells.

use crate::Error;
use crate::core::policy::{Find, Policy};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The policy in a file, or the one that allows everything.
pub(crate) fn read_policy(path: Option<&Path>) -> Result<Policy, Error> {
    let Some(path) = path else { return Ok(Policy::default()) };
    let text = fs::read_to_string(path).map_err(|e| Error::System("read the policy", path.to_owned(), e))?;
    let uid_of = |name: &str| nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    Policy::parse(&text, &Find { uid: &uid_of, netns: &netns_of })
        .map_err(|e| Error::Policy(path.to_owned(), e.line, e.message))
}

/// The cookie of a network namespace with a name below /run/netns, or at a path.
fn netns_of(name: &str) -> Option<u64> {
    let path = if name.contains('/') { name.into() } else { Path::new("/run/netns").join(name) };
    let place = fs::File::open(path).ok()?;
    // In a thread of its own, which ends there.
    let ask = || {
        nix::sched::setns(&place, nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        Some(super::descriptors::netns_of(socket.as_fd())).filter(|cookie| *cookie != 0)
    };
    std::thread::scope(|scope| scope.spawn(ask).join().ok()?)
}

/// The kernel's range of ephemeral ports.
pub(crate) fn ephemeral_ports() -> (u16, u16) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) => (first, last),
        _ => (32768, 60999),
    }
}

/// Whether a process has begun to end: it has no memory, and so no program, any more.
pub(crate) fn is_exiting(pid: u32) -> bool {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::exists(format!("/proc/{pid}")).unwrap_or(false)
        }
        Err(_) => is_exiting_by_flags(pid),
    }
}

/// Whether a process exits, for one whose files may not be looked at (PF_EXITING; proc(5), field 9 of stat). Not for others: reading that
/// keeps the process's memory for a moment, and who keeps it last gives it back.
fn is_exiting_by_flags(pid: u32) -> bool {
    const PF_EXITING: u32 = 4;
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse().ok());
    flags.is_some_and(|flags: u32| flags & PF_EXITING != 0)
}

/// The name of a process's program; empty when it is gone.
pub(crate) fn comm(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
