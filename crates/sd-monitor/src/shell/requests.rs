//! What clients ask for, except routes.

use super::connection::{Identity, Message, UNKNOWN};
use super::cut_off::check_witness;
use super::descriptors::{self, Owned, Unfit};
use super::family::Family;
use super::poller::Token;
use super::recovery::{Announced, RECOVERY_MAX};
use super::route::Wanted as Destination;
use super::segments::Slab;
use super::sender::Sender;
use super::server::Server;
use super::shortage::Room;
use super::waking::WakeTarget;
use crate::core::ClientId;
use crate::core::listeners::Listener;
use crate::core::members::ProcessId;
use crate::core::quotas::Holding;
use sd_proto::{ErrorCode, Reply, Request, VERSION};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

const SEALS_PUBLIC: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;

/// Slabs that one process can share; no honest one has more.
const SHARES_MAX: usize = 64;

impl Server {
    /// Acts on a message.
    pub(crate) fn handle(&mut self, id: u64, mut message: Message) {
        let Some(request) = self.understand(id, &mut message) else { return };
        let began = self.metrics.now();
        self.act_on(id, request, message);
        self.metrics.acted_on(request.name(), began);
    }

    fn act_on(&mut self, id: u64, request: Request, message: Message) {
        tracing::trace!(connection = id, ?request, fds = message.fds.len());
        let who = self.connections.get(&id).and_then(|connection| connection.who);
        let sender = self.note_sender(id, message.sender);
        let (mut fds, listener, connected) = (message.fds, message.listener, message.connected);
        let Some(sender) = sender else {
            return self.conclude(id, &request, Err(ErrorCode::Protocol), fds);
        };
        let result = match (request, who) {
            (Request::Offer { .. }, Some(who)) => self.offered(who.client, request, connected),
            _ => self.act((id, sender), (request, who), &mut fds, listener),
        };
        self.conclude(id, &request, result, fds);
    }

    fn act(
        &mut self,
        (id, sender): (u64, Sender),
        (request, who): (Request, Option<Identity>),
        fds: &mut Vec<OwnedFd>,
        listener: Result<Owned, Unfit>,
    ) -> Result<Option<Reply>, ErrorCode> {
        match (request, who) {
            (Request::Hello { again, .. }, None) => self.hello(id, again, fds)?,
            (Request::Resume, None) => self.resume(id, sender.pid)?,
            (Request::Status, _) => self.status(id)?,
            (Request::Demote { pid, ip, port, at_once, before_ns }, _) => {
                self.demote(id, (pid, ip, port), (at_once, before_ns))?;
            }
            (Request::Detach { pid, tell }, _) => return self.detach(id, pid, tell).map(Some),
            (Request::Memory { len }, _) => self.memory(id, sender.uid, len)?,
            (Request::Bridge, _) => self.bridge(id, sender, fds)?,
            (Request::CannotTake, _) => self.cannot_take(id, listener)?,
            (Request::Separate, _) => return self.separate(id).map(Some),
            (_, None) => return Err(ErrorCode::Protocol),
            (asked, Some(who)) => return self.act_for((id, sender, who), asked, fds, listener),
        }
        Ok(None)
    }

    /// Acts on a message of a client's. All kinds of messages are named: of a new one the compiler asks what is to be done.
    fn act_for(
        &mut self,
        (id, sender, who @ Identity { client, .. }): (u64, Sender, Identity),
        asked: Request,
        fds: &mut Vec<OwnedFd>,
        listener: Result<Owned, Unfit>,
    ) -> Result<Option<Reply>, ErrorCode> {
        match asked {
            Request::Hello { .. } => self.hello_of_next_image(id, who, fds)?,
            Request::GiveBack { .. } => return self.give_back(id, client, asked),
            Request::Restored => self.restored(client),
            Request::Listen { index, generation, backlog, accepting } => {
                self.listen(client, Wanted { index, generation, backlog, accepting }, listener)?;
                return Ok(Some(Reply::Ok));
            }
            Request::WillListen { index } => return self.will_listen(client, index, listener),
            Request::Listens { index, generation, backlog } => {
                self.listens(client, Wanted { index, generation, backlog, accepting: true })?;
            }
            Request::Accepting { index, accepting } => self.accepting(client, index, accepting),
            Request::Unlisten { index } => return Ok(Some(self.unlisten(client, index))),
            Request::Waiting { index } => return self.waiting_at_socket(client, index).map(Some),
            Request::Stuck { channel } => self.stuck(client, channel)?,
            Request::Idle { channel } => self.idle(client, channel),
            Request::Adopter { channel, number } => self.tell_adopter(id, client, channel, number)?,
            Request::Leave { channel } => return self.leave(client, channel).map(Some),
            Request::Finished { channel } => self.finished(client, channel),
            Request::Decline { channel } => self.decline(client, channel)?,
            Request::Connect { ip, port, nth, want_ports, want_channel } => {
                self.connect(id, client, Destination { ip, port, nth, want_ports, want_channel })?;
            }
            Request::Fork { member, serial } => {
                self.fork((id, who.process, sender), (member, serial), fds)?
            }
            Request::Born { serial } => self.born((who.process, sender), serial, fds)?,
            Request::Channel { id, side, peer_pid, adopter } => {
                self.recover_channel(client, Announced { id, side, peer_pid, adopter }, fds)?;
            }
            Request::Join { id, side } => return self.join(client, id, side, fds).map(|()| Some(Reply::Ok)),
            Request::Share => return self.share(who.process, sender.uid, fds).map(Some),
            Request::WakeTarget { channel, side, client: target } => {
                self.wake_by(id, client, WakeTarget { channel, side, client: ClientId(target) })?;
            }
            Request::ThreadWaker { number } => return self.waker(client, number, fds).map(Some),
            Request::ThreadWakerOf { .. } => return self.tell_waker(id, client, asked),
            Request::Signal { .. } => self.signal(client, asked),
            Request::Withdraw { serial } => self.withdrawn(client, serial),
            Request::Ring { channel, side } => self.ring(client, channel, side)?,
            Request::Bind { .. } | Request::Tuple { .. } | Request::Admits { .. } => {
                return self.may_use(id, who, asked);
            }
            Request::Pump { .. }
            | Request::Over { .. }
            | Request::Carries { .. }
            | Request::Engine
            | Request::Sought { .. }
            | Request::Found { .. }
            | Request::Stays { .. }
            | Request::Listed { .. }
            | Request::Network { .. }
            | Request::Peer { .. } => return self.act_for_carrier(client, &asked),
            // It is registered already; what anybody may ask, `act` does.
            Request::Resume
            | Request::Status
            | Request::Memory { .. }
            | Request::Bridge
            | Request::CannotTake
            | Request::Demote { .. }
            | Request::Detach { .. }
            | Request::Offer { .. }
            | Request::Separate => return Err(ErrorCode::Protocol),
        }
        Ok(None)
    }

    /// Tells the client what its message has come to, if it waits for that.
    fn conclude(
        &mut self,
        id: u64,
        request: &Request,
        result: Result<Option<Reply>, ErrorCode>,
        fds: Vec<OwnedFd>,
    ) {
        match result {
            Ok(None) => self.answer_nothing(id, fds),
            Ok(Some(reply)) => self.answer(id, Ok(reply), fds),
            Err(code) if request.is_answered() => self.answer(id, Err(code), fds),
            Err(code) => {
                tracing::debug!(connection = id, ?request, ?code, "ignored");
                self.metrics.refused(code);
                self.answer_nothing(id, fds);
            }
        }
    }

    /// What a message asks for; one that cannot be understood is answered.
    fn understand(&mut self, id: u64, message: &mut Message) -> Option<Request> {
        let fds = std::mem::take(&mut message.fds);
        if message.bytes().is_empty() {
            self.answer_nothing(id, fds);
            self.dismiss(id, "it sends nothing but descriptors");
            return None;
        }
        if message.is_cut {
            self.cut(id, message, fds);
            return None;
        }
        // Before anything else, as other versions may have other messages.
        if let [1, a, b, c, d, ..] = *message.bytes()
            && u32::from_le_bytes([a, b, c, d]) != VERSION
        {
            self.answer(id, Err(ErrorCode::Version), fds);
            return None;
        }
        let Ok(request) = Request::decode(message.bytes()) else {
            self.counters.malformed += 1;
            self.answer(id, Err(ErrorCode::Protocol), fds);
            self.dismiss(id, "its message makes no sense");
            return None;
        };
        if fds.len() > request.brings() {
            self.counters.malformed += 1;
            self.conclude(id, &request, Err(ErrorCode::Descriptor), fds);
            return None;
        }
        message.fds = fds;
        Some(request)
    }

    /// Descriptors of a message were lost, so it cannot be acted on; or it was too long, which no request is.
    fn cut(&mut self, id: u64, message: &Message, fds: Vec<OwnedFd>) {
        match Request::decode(message.bytes()) {
            Ok(request) if request.is_answered() => self.answer(id, Err(ErrorCode::Exhausted), fds),
            _ => self.answer_nothing(id, fds),
        }
    }

    /// Closes what came with a message and was not used, then answers: so a client that has its
    /// answer knows that we hold none of those any more.
    fn answer(&mut self, id: u64, result: Result<Reply, ErrorCode>, fds: Vec<OwnedFd>) {
        self.answer_nothing(id, fds);
        if let Err(code) = result {
            self.metrics.refused(code);
        }
        let reply = result.unwrap_or_else(|code| Reply::Error { code });
        self.reply(id, &reply, &[]);
    }

    fn answer_nothing(&mut self, id: u64, fds: Vec<OwnedFd>) {
        fds.into_iter().for_each(|fd| self.close(id, fd));
    }

    /// Closes what came over a connection, which may take as long as its sender likes.
    fn close(&self, id: u64, fd: OwnedFd) {
        let uid = self.connections.get(&id).map_or(UNKNOWN, |connection| connection.uid);
        self.closers.close(uid, fd);
    }

    /// The socket of a Hello, which its client has still. Where sender and maker are root's or the monitor's user's they could
    /// hold the monitor up anyway, and a thread of the pool is not woken for it.
    fn close_tcp(&self, id: u64, socket: OwnedFd) {
        let is_trusted = |user: u32| self.core.quotas.is_exempt(user);
        let sender = self.connections.get(&id).map(|connection| connection.uid);
        let maker = nix::sys::stat::fstat(&socket).ok().map(|found| found.st_uid);
        if sender.is_some_and(is_trusted) && maker.is_some_and(is_trusted) {
            drop(socket);
        } else {
            self.close(id, socket);
        }
    }

    /// Sends an answer; a client that does not read its answers is dismissed.
    pub(crate) fn reply(&mut self, id: u64, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        let sent = self.connections.get_mut(&id).map(|connection| connection.answer(reply, fds));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be answered: {error}"));
        }
    }

    fn hello(&mut self, id: u64, again: bool, fds: &mut Vec<OwnedFd>) -> Result<(), ErrorCode> {
        let (client, netns) = self.register(id, again, fds)?;
        self.welcome(id, client, netns);
        Ok(())
    }

    fn welcome(&mut self, id: u64, client: ClientId, netns: u64) {
        let Server { directories, core, soon, connections, .. } = self;
        let directory = directories.of(netns, (core, soon));
        let reply = Reply::Welcome { client: client.0 };
        let sent = connections.get_mut(&id).map(|connection| connection.answer(&reply, directory.as_slice()));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be welcomed: {error}"));
        }
    }

    /// A process and its descriptors: its number and its network namespace.
    fn register(
        &mut self,
        id: u64,
        again: bool,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(ClientId, u64), ErrorCode> {
        let netns = check_hello(fds).map_err(|_| ErrorCode::Descriptor)?;
        let pid = self.connections.get(&id).map_or(0, |connection| connection.pid);
        if self.connections.get(&id).is_none_or(|connection| connection.uid == UNKNOWN) {
            return Err(ErrorCode::Protocol);
        }
        if !self.has_addresses() {
            return Err(ErrorCode::Exhausted);
        }
        self.settle_cut_off(pid);
        let client = self.next_client();
        let uid = self.connections.get(&id).map_or(UNKNOWN, |connection| connection.uid);
        let witness = fds.split_off(HELLO_MIN).pop();
        // What is held for a namespace may be held for this client alone.
        let count = if self.netns == Some(netns) { 3 } else { 6 } + u64::from(witness.is_some());
        self.charge(Holding::Family(client), uid, count)?;
        self.namespaces.learn(netns, fds[3].as_fd());
        let [slab, public, eventfd, tcp] =
            <[OwnedFd; HELLO_MIN]>::try_from(std::mem::take(fds)).map_err(|_| ErrorCode::Descriptor)?;
        self.close_tcp(id, tcp);
        if let Ok(identity) = Slab::check(slab.as_fd()) {
            self.has_spoken(pid, identity);
        }
        let Some(slab) = Slab::new(slab.into()) else {
            self.core.quotas.give_back(Holding::Family(client));
            return Err(ErrorCode::Exhausted);
        };
        slab.header().place.store(self.place.number, Ordering::Relaxed);
        self.say_policy(slab.header(), again);
        slab.header().promotes.store(self.promotes() as u32, Ordering::Release);
        let process = self.register_process(id, client);
        let Some(connection) = self.connections.get_mut(&id) else { return Err(ErrorCode::Protocol) };
        connection.who = Some(Identity { client, process });
        connection.recovers_until = again.then(|| Instant::now() + RECOVERY_MAX);
        let (pid, uid) = (connection.pid, connection.uid);
        let (public, eventfd) = (Some(File::from(public)), Some(eventfd));
        let (connection, thread_wakers, room) = (Some(id), BTreeMap::new(), Room::default());
        let family =
            Family { slab, public, eventfd, witness, thread_wakers, netns, uid, pid, connection, room };
        if again {
            self.reclaim_ports(client, &family);
        }
        self.families.insert(client, family);
        tracing::debug!(pid, uid, client = client.0, netns, again, "registered");
        Ok((client, netns))
    }

    /// The process has executed another program, which goes on with its sockets over the same connection, and now
    /// has a slab of its own. It stays a member of the families it was in.
    fn hello_of_next_image(
        &mut self,
        id: u64,
        before: Identity,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ErrorCode> {
        if self.core.members.share_count(before.process) >= SHARES_MAX {
            return Err(ErrorCode::Exhausted);
        }
        let (client, netns) = self.register(id, false, fds)?;
        self.expect_heirs_of_all(before.client);
        let changed = self.core.listeners.remove_client(before.client) | self.soon.forget(before.client);
        self.listeners_changed(before.client, changed);
        if let Some(family) = self.families.get_mut(&before.client) {
            family.connection = None;
        }
        self.inherit_foreign(before.client, client);
        self.welcome(id, client, netns);
        Ok(())
    }

    /// A connection was passed to a process of another family; that it has the slab says that it is so.
    fn share(&mut self, process: ProcessId, uid: u32, fds: &[OwnedFd]) -> Result<Reply, ErrorCode> {
        let [fd] = fds else { return Err(ErrorCode::Descriptor) };
        let identity = Slab::check(fd.as_fd()).map_err(|_| ErrorCode::Descriptor)?;
        let is_it = |(_, family): &(&ClientId, &Family)| family.slab.identity() == identity;
        let (client, family) = self.families.iter().find(is_it).ok_or(ErrorCode::Protocol)?;
        // Who can write a slab can harm all who share it. A process that has changed its user since it made its slab has a
        // helper of its new one.
        if family.uid != uid && !self.core.members.helps(process, *client) {
            return Err(ErrorCode::Protocol);
        }
        if self.core.members.share_count(process) >= SHARES_MAX {
            return Err(ErrorCode::Exhausted);
        }
        // Relatives that fork take their numbers there.
        let members = &family.slab.header().members;
        let takes = |bit| members.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        let member = self.core.members.share(process, *client, takes).ok_or(ErrorCode::Exhausted)?;
        Ok(Reply::Shared { member })
    }

    /// Finds or makes the record of the process at the other end of a connection.
    fn register_process(&mut self, id: u64, client: ClientId) -> ProcessId {
        let Some(connection) = self.connections.get(&id) else {
            return self.core.members.register(None, 0, client);
        };
        let pidfd = connection.pidfd();
        let process = self.core.members.register(connection.process(), connection.pid, client);
        if let Some(pidfd) = pidfd.filter(|_| !self.pidfds.contains_key(&process)) {
            self.watch_process(process, pidfd);
        }
        process
    }

    /// The end of a process is seen by its pidfd, even where an unknown child of it keeps the
    /// control connection open.
    pub(crate) fn watch_process(&mut self, process: ProcessId, pidfd: OwnedFd) {
        match self.poller.watch(&pidfd, Token::Process(process.0)) {
            Ok(()) => drop(self.pidfds.insert(process, pidfd)),
            Err(error) => tracing::warn!("a process is not watched: {error}"),
        }
    }

    fn accepting(&mut self, client: ClientId, index: u32, accepting: bool) {
        let listener = self.core.listeners.get(client, index).copied();
        let changed = self.core.listeners.set_accepting(client, index, accepting);
        let changed = changed | listener.is_some_and(|listener| self.note_interest(&listener, accepting));
        self.listeners_changed(client, changed);
        self.rescue_orphans();
        self.tell_newcomer(client);
    }

    /// Somebody accepts, or does not any more: whether what is expected has changed.
    fn note_interest(&mut self, listener: &Listener, accepting: bool) -> bool {
        match accepting {
            true => self.soon.expected.has_come(listener.netns, listener.ip, listener.port),
            false => self.expect_heirs_of(listener),
        }
    }

    /// The kernel's listener was looked at, and closed, by the closers.
    pub(super) fn listen(
        &mut self,
        client: ClientId,
        wanted: Wanted,
        listener: Result<Owned, Unfit>,
    ) -> Result<(), ErrorCode> {
        let family = self.families.get(&client).ok_or(ErrorCode::Protocol)?;
        let (netns, user) = (family.netns, family.uid);
        let owned = self.as_listed(listener)?;
        let is_sensible = (wanted.index as usize) < sd_shm::public::LISTENERS && wanted.generation % 2 == 1;
        if owned.netns != netns || !is_sensible {
            return Err(ErrorCode::Protocol);
        }
        if !self.core.quotas.is_exempt(user) && !self.core.listeners.has_room(user, (client, wanted.index)) {
            return Err(ErrorCode::Exhausted);
        }
        let Wanted { index, generation, backlog, accepting } = wanted;
        let Owned { ip, port, v6only, cookie, owner, .. } = owned;
        let listener = Listener {
            client,
            user,
            cookie,
            owner,
            index,
            generation,
            netns,
            ip,
            port,
            v6only,
            backlog,
            accepting,
        };
        // Whoever had the port before has lost it.
        for gone in self.prove(netns, port) {
            self.rescue_all(gone.client, false);
        }
        self.core.time_waits.listening(netns, port, user);
        let changed = self.core.listeners.insert(listener) | self.soon.settle(client, index);
        let changed = changed | self.note_interest(&listener, accepting);
        self.listeners_changed(client, changed);
        tracing::debug!(client = client.0, index, generation, ?ip, port, accepting, "listener");
        self.rescue_orphans();
        self.tell_newcomer(client);
        Ok(())
    }

    /// What waits there has gone to others by the time of the answer.
    fn unlisten(&mut self, client: ClientId, index: u32) -> Reply {
        let changed = self.core.listeners.remove(client, index) | self.soon.settle(client, index);
        self.listeners_changed(client, changed);
        self.rescue_all(client, false);
        Reply::Ok
    }

    pub(crate) fn listeners_changed(&self, client: ClientId, changed: bool) {
        if changed && let Some(family) = self.families.get(&client) {
            self.routes_changed(Some(family.netns));
        }
    }
}

/// Descriptors that each Hello brings.
const HELLO_MIN: usize = 4;

/// Checks the descriptors of a Hello: slab, public page, eventfd, TCP socket, perhaps a witness. The namespace's cookie.
fn check_hello(fds: &[OwnedFd]) -> Result<u64, Unfit> {
    let (slab, public, eventfd, tcp) = match fds {
        [slab, public, eventfd, tcp] => (slab, public, eventfd, tcp),
        [slab, public, eventfd, tcp, witness] => {
            check_witness(witness.as_fd())?;
            (slab, public, eventfd, tcp)
        }
        _ => return Err(Unfit),
    };
    Slab::check(slab.as_fd())?;
    descriptors::check_segment(public.as_fd(), sd_shm::public::LEN, SEALS_PUBLIC)?;
    descriptors::check_eventfd(eventfd.as_fd())?;
    descriptors::netns_of_tcp(tcp.as_fd())
}

/// A Listen request.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) backlog: u32,
    pub(super) accepting: bool,
}
