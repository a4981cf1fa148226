//! Clients that live although their control connection has ended: a program can close the library's descriptors by a
//! system call instruction of its own (close_range(2)), past libc.
//!
//! exec(2) ends the connection too, and is the end of the image. What tells them apart is the *witness* that came with Hello: a file in
//! memory on which the client has a lock, flock(2), by a description that nothing but a mapping of the image's keeps. It is
//! free when the image is over, and held whatever the program closes, and whoever it forks (ADR 67).
//!
//! ```text
//! connection ends --witness held--> cut off --Resume: same process, witness held--> an ordinary client
//!                                      |
//!                                      +--pidfd, or witness free: looked at after 1 ms, 2 ms, .. 1 s--> reaper
//! ```
//! Who is cut off keeps its slab and its channels. Its listeners are taken off the list: whoever connects there gets the kernel's.
//! What it could gain by lies are its own connections, which stay open no longer than its process lives. It is charged for as if it
//! had its control connection, and of each user there are 64 at a time; others end as they do without a witness.

use super::connection::{Connection, Identity};
use super::descriptors::{Unfit, check_segment, has_ended};
use super::reaper::{LAST_WORDS_MAX, Woken};
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::members::ProcessId;
use crate::core::quotas::Holding;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::channel::Side;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Of one user at a time.
const MANY: usize = 64;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A client without a connection.
struct CutOff {
    who: Identity,
    pid: u32,
    uid: u32,
    /// The connection that it had, for which its user is still charged.
    connection: u64,
    /// When its witness is looked at next, and how long after that again.
    due: Instant,
    pause: Duration,
}

/// See the module.
#[derive(Default)]
pub(crate) struct CutOffs {
    by_process: BTreeMap<ProcessId, CutOff>,
}

impl CutOffs {
    /// How long to sleep at most; `None` when there is nothing to wait for.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        self.by_process.values().map(|one| one.due.saturating_duration_since(now)).min()
    }

    /// The processes of a user.
    pub(crate) fn of_user(&self, uid: u32) -> Vec<ProcessId> {
        let theirs = self.by_process.iter().filter(|(_, one)| one.uid == uid);
        theirs.map(|(process, _)| *process).collect()
    }

    fn with_pid(&self, pid: u32) -> Option<ProcessId> {
        self.by_process.iter().find(|(_, one)| one.pid == pid).map(|(process, _)| *process)
    }
}

/// Checks that a witness is a file in memory without content, for good: so nobody can make the monitor keep pages, and a look at
/// its lock asks nobody but the kernel.
pub(crate) fn check_witness(fd: BorrowedFd<'_>) -> Result<(), Unfit> {
    check_segment(fd, 0, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW).map(drop)
}

/// Whether somebody has the lock, by another description than ours.
fn is_held(witness: &OwnedFd) -> bool {
    // SAFETY: no pointers.
    let flock = |operation| unsafe { libc::flock(witness.as_raw_fd(), operation) } == 0;
    let is_free = flock(libc::LOCK_EX | libc::LOCK_NB);
    if is_free {
        flock(libc::LOCK_UN);
    }
    !is_free
}

impl Server {
    /// Whether the image of a client lives, as far as its witness tells.
    fn image_lives(&self, who: Identity) -> bool {
        let pidfd = self.pidfds.get(&who.process);
        let witness = self.families.get(&who.client).and_then(|family| family.witness.as_ref());
        pidfd.is_some_and(|pidfd| !has_ended(pidfd.as_fd())) && witness.is_some_and(is_held)
    }

    /// The control connection of a client that lives has ended: it stays, without one. False: it is gone.
    pub(super) fn stays_cut_off(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let (pid, uid) = (connection.pid, connection.uid);
        let Some(who) = connection.who.filter(|who| self.image_lives(*who)) else { return false };
        if self.cut_offs.by_process.values().filter(|one| one.uid == uid).count() >= MANY {
            return false;
        }
        tracing::debug!(pid, uid, client = who.client.0, "a living client has closed its control connection");
        let Some(connection) = self.connections.remove(&id) else { return false };
        self.poller.forget(connection.fd());
        // What lies in its queue is bounded from now on.
        let _ = nix::sys::socket::shutdown(connection.fd().as_raw_fd(), nix::sys::socket::Shutdown::Read);
        self.closers.close(uid, connection.into_socket());
        let due = Instant::now() + PAUSE_MIN;
        let one = CutOff { who, pid, uid, connection: id, due, pause: PAUSE_MIN };
        self.cut_offs.by_process.insert(who.process, one);
        let client = who.client;
        let changed = self.core.listeners.remove_client(client) | self.soon.forget(client);
        self.listeners_changed(client, changed);
        if let Some(family) = self.families.get_mut(&client) {
            family.connection = None;
            // It learns of its loss when it reads its mail.
            family.announce_mail();
            family.wake_all();
        }
        true
    }

    /// The process is gone, or has a connection again.
    pub(super) fn forget_cut_off(&mut self, process: ProcessId) {
        if let Some(one) = self.cut_offs.by_process.remove(&process) {
            self.core.quotas.give_back(Holding::Connection(one.connection));
        }
    }

    /// Looks at the witnesses that are due.
    pub(super) fn look_at_witnesses(&mut self) {
        let now = Instant::now();
        let due = self.cut_offs.by_process.iter().filter(|(_, one)| one.due <= now);
        let due: Vec<ProcessId> = due.map(|(process, _)| *process).collect();
        for process in due {
            self.look_at_witness(process, now);
        }
    }

    fn look_at_witness(&mut self, process: ProcessId, now: Instant) {
        let Some(who) = self.cut_offs.by_process.get(&process).map(|one| one.who) else { return };
        if !self.image_lives(who) {
            tracing::debug!(process = process.0, "the image of a client without a connection has ended");
            return self.reap(process);
        }
        if let Some(one) = self.cut_offs.by_process.get_mut(&process) {
            one.pause = (one.pause * 2).min(PAUSE_MAX);
            one.due = now + one.pause;
        }
    }

    /// A process registers: an image that it had before may have ended a moment ago.
    pub(super) fn settle_cut_off(&mut self, pid: u32) {
        if let Some(process) = self.cut_offs.with_pid(pid) {
            self.look_at_witness(process, Instant::now());
        }
    }

    /// Acts on [`Request::Resume`].
    pub(super) fn resume(&mut self, id: u64, pid: u32) -> Result<(), ErrorCode> {
        let uid = self.connections.get(&id).map(|connection| connection.uid).ok_or(ErrorCode::Protocol)?;
        let process = self.cut_off_of(id, pid)?;
        let one = self.cut_offs.by_process.get(&process).filter(|one| one.uid == uid);
        let who = one.map(|one| one.who).ok_or(ErrorCode::Protocol)?;
        if !self.image_lives(who) {
            self.reap(process);
            return Err(ErrorCode::Protocol);
        }
        self.forget_cut_off(process);
        let Server { connections, families, .. } = self;
        let family = families.get_mut(&who.client).ok_or(ErrorCode::Protocol)?;
        let connection = connections.get_mut(&id).ok_or(ErrorCode::Protocol)?;
        (connection.who, family.connection) = (Some(who), Some(id));
        let given =
            [Some(family.slab.file().as_fd()), family.public.as_ref().map(AsFd::as_fd), family.eventfd()];
        let given: Vec<BorrowedFd<'_>> = given.into_iter().flatten().collect();
        let sent = connection.answer(&Reply::Resumed, &given);
        tracing::debug!(pid, client = who.client.0, "it has resumed");
        if let Err(error) = sent {
            self.dismiss(id, &format!("it cannot be given back what it had: {error}"));
        }
        Ok(())
    }

    /// The process with this number, without a connection: the one that it had was closed, whether that was heard of or not.
    fn cut_off_of(&mut self, id: u64, pid: u32) -> Result<ProcessId, ErrorCode> {
        if let Some(process) = self.cut_offs.with_pid(pid) {
            return Ok(process);
        }
        let has_witness =
            |who: Identity| self.families.get(&who.client).is_some_and(|it| it.witness.is_some());
        let is_it = |(other, it): &(&u64, &Connection)| {
            **other != id && it.pid == pid && it.who.is_some_and(has_witness)
        };
        if let Some(old) = self.connections.iter().find(is_it).map(|(old, _)| *old) {
            // What it said there comes first.
            for _ in 0..LAST_WORDS_MAX {
                if !self.take_message(old) {
                    break;
                }
            }
            if self.connections.get(&old).is_some_and(|it| it.is_awaited) {
                return Err(ErrorCode::InUse);
            }
            // A process that was forked past libc may have a copy of the socket.
            if self.connections.contains_key(&old) && !self.stays_cut_off(old) {
                return Err(ErrorCode::Protocol);
            }
        }
        self.cut_offs.with_pid(pid).ok_or(ErrorCode::Protocol)
    }

    /// Acts on [`Request::GiveBack`].
    pub(super) fn give_back(
        &mut self,
        id: u64,
        client: ClientId,
        asked: Request,
    ) -> Result<Option<Reply>, ErrorCode> {
        let Request::GiveBack { channel, side } = asked else { return Err(ErrorCode::Protocol) };
        let side = Side::from_u32(side).ok_or(ErrorCode::Protocol)?;
        let key = self.core.channels.named(client, channel).ok_or(ErrorCode::Protocol)?;
        if !self.core.channels.side(key, side).contains(&(client, channel)) {
            return Err(ErrorCode::Protocol);
        }
        let segment = self.segments.get(&key).ok_or(ErrorCode::Protocol)?;
        let maker = self.core.channels.maker(key, side.other());
        let eventfd = maker.and_then(|maker| self.families.get(&maker)?.eventfd());
        let given: Vec<BorrowedFd<'_>> =
            [Some(segment.file().as_fd()), eventfd].into_iter().flatten().collect();
        let reply = Reply::GivenBack { stranger: self.core.channels.is_strange(key) };
        let sent = self.connections.get_mut(&id).map(|connection| connection.answer(&reply, &given));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be given a channel back: {error}"));
        }
        Ok(None)
    }

    /// Acts on [`Request::Restored`].
    pub(super) fn restored(&mut self, client: ClientId) {
        let keys = self.core.channels.of_family(client);
        let connects = |key: &&ChannelKey| {
            self.core.channels.side(**key, Side::A).iter().any(|(other, _)| *other == client)
        };
        let connecting: Vec<ChannelKey> = keys.iter().filter(connects).copied().collect();
        // That nobody will accept what waits was said to nobody meanwhile, or lies in a socket that was closed.
        for key in connecting {
            self.look_for_acceptors(key);
        }
        let both = |key| [Side::A, Side::B].map(|side| (key, side as u32));
        self.wake_sides(&keys.into_iter().flat_map(both).collect::<Woken>());
    }
}
