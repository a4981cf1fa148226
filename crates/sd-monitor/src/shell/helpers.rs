//! Processes that the monitor starts for those who may start none: each bridges one connection (ADR 55).
//!
//! ```text
//! client --Bridge: one end of a pair--> monitor --starts, as the client's user--> helper
//!    |                                                                              ^
//!    +---- other end of the pair: connection, segment, slab, kernel socket ---------+
//! ```
//! It is in its client's PID namespace, as far as the monitor may enter that: the two ask each other by number whether they live.
//! The helper has nothing of the monitor's but a control connection, and gives up all rights before it reads what the
//! client sends. It may share the slabs of the process that it was started for, as a child of that process could.
//!
//! # Guarantees
//! * A user has [`OF_USER_MAX`] helpers at most; root, and the monitor's own user, as many as they like. What a helper needs
//!   of the monitor's descriptors is its user's (`core::quotas`).
//! * The main thread waits for no process to start or end.
//!
//! # Not guaranteed
//! That there is one: where none is started both sockets are closed, and the client goes on as without a monitor.

use super::connection::Connection;
use super::descriptors;
use super::descriptors::std_fd;
use super::sender::Sender;
use super::server::Server;
use crate::core::members::ProcessId;
use sd_proto::ErrorCode;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Helpers that one user may have.
const OF_USER_MAX: u32 = 1024;

/// Who has which.
pub(crate) struct Helpers {
    program: Option<PathBuf>,
    users: BTreeMap<ProcessId, u32>,
    of: HashMap<u32, u32>,
}

impl Helpers {
    pub(crate) fn new(program: Option<PathBuf>) -> Helpers {
        Helpers { program, users: BTreeMap::new(), of: HashMap::new() }
    }

    /// What is run as a helper.
    pub(super) fn program(&self) -> Option<&PathBuf> {
        self.program.as_ref()
    }

    fn of(&self, user: u32) -> u32 {
        self.of.get(&user).copied().unwrap_or_default()
    }

    fn started(&mut self, process: ProcessId, user: u32) {
        self.users.insert(process, user);
        *self.of.entry(user).or_default() += 1;
    }

    /// A process is gone, which may have been a helper.
    pub(crate) fn ended(&mut self, process: ProcessId) {
        let Some(user) = self.users.remove(&process) else { return };
        let left = self.of(user).saturating_sub(1);
        if left == 0 {
            self.of.remove(&user);
        } else {
            self.of.insert(user, left);
        }
    }
}

/// What a helper is started with.
pub(crate) struct Start {
    program: PathBuf,
    arguments: Vec<String>,
    socket: OwnedFd,
    control: Option<OwnedFd>,
    /// A process in whose PID namespace it shall be.
    near: Option<OwnedFd>,
}

impl Start {
    fn to_bridge(
        program: PathBuf,
        (user, near): (u32, Option<OwnedFd>),
        socket: OwnedFd,
        control: OwnedFd,
    ) -> Start {
        let arguments = vec!["bridge-helper".to_owned(), user.to_string()];
        Start { program, arguments, socket, control: Some(control), near }
    }

    /// One that empties the segments which it finds in a socket; see `remains`.
    pub(super) fn to_empty(program: PathBuf, socket: OwnedFd) -> Start {
        Start { program, arguments: vec!["empty-segments".to_owned()], socket, control: None, near: None }
    }

    /// Starts it. What runs at first forks the helper, which is so nobody's child, and ends.
    pub(crate) fn go(self) {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().current_dir("/");
        command.stdin(self.socket).stdout(self.control.map_or_else(Stdio::null, Stdio::from));
        command.stderr(self.near.map_or_else(Stdio::null, Stdio::from));
        if let Err(error) = command.spawn().and_then(|mut first| first.wait()) {
            tracing::warn!("a helper ({}) cannot be started: {error}", self.arguments.join(" "));
        }
    }
}

impl Server {
    /// A process that may start none has a connection to bridge.
    pub(super) fn bridge(
        &mut self,
        id: u64,
        sender: Sender,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ErrorCode> {
        let user = sender.uid;
        let [socket] = fds.as_slice() else { return Err(ErrorCode::Descriptor) };
        descriptors::check_pair(socket.as_fd(), sender.pid).map_err(|_| ErrorCode::Descriptor)?;
        let process = self.connections.get(&id).and_then(Connection::process).ok_or(ErrorCode::Protocol)?;
        let program = self.helpers.program.clone().ok_or(ErrorCode::Exhausted)?;
        let own = nix::unistd::geteuid().as_raw();
        // Nobody else can become another user.
        if own != 0 && own != user {
            return Err(ErrorCode::Denied);
        }
        if !self.core.quotas.is_exempt(user) && self.helpers.of(user) >= OF_USER_MAX {
            return Err(ErrorCode::Exhausted);
        }
        let pair = sd_sys::msg::pair_with_credentials().map_err(|_| ErrorCode::Exhausted)?;
        let [monitors, helpers] = pair.map(std_fd);
        let helper = self.core.members.helper_of(process);
        self.helpers.started(helper, user);
        let connection = Connection::of_child(monitors, helper, user).map_err(|_| ErrorCode::Exhausted);
        let is_served = connection
            .and_then(|connection| self.add_connection(connection, user).map_err(|_| ErrorCode::Exhausted));
        if let Err(error) = is_served {
            self.reap(helper);
            return Err(error);
        }
        let socket = fds.pop().ok_or(ErrorCode::Descriptor)?;
        tracing::debug!(user, process = process.0, helper = helper.0, "starts a helper");
        let near = self.pidfds.get(&process).and_then(|pidfd| pidfd.try_clone().ok());
        self.closers.start(user, Start::to_bridge(program, (user, near), socket, helpers));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_counted_by_user() {
        let mut all = Helpers::new(None);
        all.started(ProcessId(1), 5);
        all.started(ProcessId(2), 5);
        all.started(ProcessId(3), 6);
        all.ended(ProcessId(1));
        all.ended(ProcessId(1));
        all.ended(ProcessId(9));
        assert_eq!((all.of(5), all.of(6), all.of(7)), (1, 1, 0));
        all.ended(ProcessId(2));
        all.ended(ProcessId(3));
        assert!(all.of.is_empty() && all.users.is_empty());
    }
}
