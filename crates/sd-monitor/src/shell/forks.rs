//! Children: announced before the fork, known by a control connection that their parent has made for them.
//!
//! Whose parent's user has too many descriptors is refused that connection. It is a member of its families nevertheless,
//! and ends when its pidfd says so, which comes with Born; without one it ends with its parent, so that no dead child keeps
//! connections open for ever. A parent that forks on although not even a pidfd can be kept is dismissed.

use super::connection::Connection;
use super::descriptors;
use super::sender::Sender;
use super::server::Server;
use super::standing::Standing;
use crate::core::members::ProcessId;
use crate::core::quotas::Holding;
use sd_proto::ErrorCode;
use std::os::fd::{AsFd, OwnedFd};

impl Server {
    /// A fork is announced before it happens, so that nothing the child does can come too early.
    pub(super) fn fork(
        &mut self,
        (id, parent, sender): (u64, ProcessId, Sender),
        (member, serial): (u32, u32),
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ErrorCode> {
        let [socket] = fds.as_slice() else { return Err(ErrorCode::Descriptor) };
        descriptors::check_pair(socket.as_fd(), sender.pid).map_err(|_| ErrorCode::Descriptor)?;
        let uid = sender.uid;
        let child = self.core.members.forked(parent, member, serial).map_err(|_| ErrorCode::Protocol)?;
        tracing::debug!(parent = parent.0, child = child.0, member, "forks");
        self.remains.forked(parent, child);
        let made = fds.pop().map(|socket| Connection::of_child(socket, child, uid));
        match made.map(|made| made.map(|connection| self.add_connection(connection, uid))) {
            Some(Ok(Ok(()))) => return Ok(()),
            Some(Ok(Err(refused))) => self.closers.close(uid, refused),
            Some(Err((_, socket))) => fds.push(socket),
            None => {}
        }
        if self.charge(Holding::Child(child), uid, 1).is_err() {
            self.reap(child);
            self.dismiss(id, "nothing more can be known of its children");
            return Err(ErrorCode::Exhausted);
        }
        self.unseen.insert((parent, child));
        Ok(())
    }

    /// A process is gone, and with it what would tell of those of its children that are known through it alone.
    pub(super) fn reap_unseen(&mut self, parent: ProcessId) {
        let children = self.unseen.range((parent, ProcessId(0))..=(parent, ProcessId(u64::MAX)));
        let children: Vec<ProcessId> = children.map(|(_, child)| *child).collect();
        for child in children {
            self.unseen.remove(&(parent, child));
            if !self.pidfds.contains_key(&child) {
                self.reap(child);
            }
        }
    }

    /// The child's process id; and its pidfd, which tells of its end even if others have a copy of its socket. Whoever
    /// is no child, or one that its parent has no power over any more, is known by that socket alone.
    pub(super) fn born(
        &mut self,
        (parent, sender): (ProcessId, Sender),
        serial: u32,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ErrorCode> {
        let [pidfd] = fds.as_slice() else { return Err(ErrorCode::Descriptor) };
        let (pid, standing) = Standing::of(pidfd.as_fd()).ok_or(ErrorCode::Descriptor)?;
        if !standing.may_be_signalled_by(sender.uid) || !self.is_child(&standing, parent, sender) {
            return Err(ErrorCode::Descriptor);
        }
        let Some(child) = self.core.members.born(parent, serial, pid) else { return Ok(()) };
        if let Some(pidfd) = fds.pop().filter(|_| !self.pidfds.contains_key(&child)) {
            self.watch_process(child, pidfd);
        }
        Ok(())
    }

    /// The sender has forked it, with itself or its own parent (CLONE_PARENT) as the parent; where the sender has ended
    /// since, the kernel has given the child to another, and its user alone says that the sender had power over it.
    fn is_child(&self, child: &Standing, process: ProcessId, sender: Sender) -> bool {
        if child.parent == sender.pid {
            return true;
        }
        let ended = |pidfd: &OwnedFd| descriptors::has_ended(pidfd.as_fd());
        self.pidfds.get(&process).is_some_and(ended)
            || Standing::of_number(sender.pid).is_some_and(|own| own.parent == child.parent)
    }
}
