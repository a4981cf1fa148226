//! The monitor's state and its event loop.

use super::closers::{self, Closers};
use super::connection::{Connection, Incoming, Message, Question, UNKNOWN};
use super::cut_off::CutOffs;
use super::descriptors::{Identity, has_ended};
use super::directories::Directories;
use super::door::Door;
use super::engine::Engine;
use super::family::Family;
use super::files;
use super::helpers::Helpers;
use super::looks::Looks;
use super::metrics::Metrics;
use super::outbox::Then;
use super::place::Place;
use super::poller::{Poller, Token};
use super::proof::{Namespaces, own_netns};
use super::pumps::Pumps;
use super::recovery::Recovery;
use super::remains::Remains;
use super::rescue::Waiting;
use super::segments::Segment;
use super::silent::Silent;
use super::soon::Soon;
use super::turns::Turns;
use super::wander::Wander;
use crate::Options;
use crate::core::channels::{ChannelKey, Channels};
use crate::core::listeners::Listeners;
use crate::core::members::{Members, ProcessId};
use crate::core::offers::Offers;
use crate::core::policy::Policy;
use crate::core::ports::Leases;
use crate::core::quotas::{Holding, Quotas};
use crate::core::time_wait::TimeWaits;
use crate::core::{ClientId, Core};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use sd_proto::Reply;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What the monitor has done so far.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub(crate) struct Counters {
    pub(crate) clients: u64,
    pub(crate) routes_shm: u64,
    pub(crate) routes_kernel: u64,
    pub(crate) routes_denied: u64,
    pub(crate) channels: u64,
    pub(crate) connections_reaped: u64,
    pub(crate) malformed: u64,
    pub(crate) refused_connections: u64,
    pub(crate) offers: u64,
    pub(crate) twins: u64,
    pub(crate) promotions: u64,
}

/// See the module.
pub(crate) struct Server {
    pub(crate) core: Core,
    pub(crate) poller: Rc<Poller>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) families: HashMap<ClientId, Family>,
    pub(crate) pidfds: HashMap<ProcessId, OwnedFd>,
    pub(crate) segments: HashMap<ChannelKey, Segment>,
    pub(crate) by_identity: HashMap<Identity, ChannelKey>,
    pub(crate) recovery: Recovery,
    pub(crate) silent: Silent,
    pub(super) cut_offs: CutOffs,
    pub(crate) counters: Counters,
    pub(crate) closers: Closers,
    pub(crate) waiting: Waiting,
    pub(crate) directories: Directories,
    pub(crate) namespaces: Namespaces,
    pub(crate) soon: Soon,
    pub(crate) turns: Turns,
    pub(super) looks: Looks,
    /// Children whose connections were refused, by who has forked them.
    pub(crate) unseen: BTreeSet<(ProcessId, ProcessId)>,
    /// See `grant`.
    pub(super) mappings_max: usize,
    /// The network namespace that the monitor is in.
    pub(crate) netns: Option<u64>,
    pub(crate) helpers: Helpers,
    pub(super) remains: Remains,
    pub(super) pumps: Pumps,
    pub(super) engine: Engine,
    pub(super) metrics: Metrics,
    pub(super) promote: crate::Promote,
    pub(super) wander: Wander,
    policy_path: Option<PathBuf>,
    pub(super) place: Place,
    signals: SignalFd,
    pub(super) door: Door,
    last_connection: u64,
    random: RandomState,
}

impl Server {
    pub(crate) fn new(
        place: Place,
        signals: SignalFd,
        options: &Options,
        policy: Policy,
    ) -> io::Result<Server> {
        let poller = Rc::new(Poller::new()?);
        let random = RandomState::new();
        poller.watch(&place.listener, Token::Accept)?;
        poller.watch(&signals, Token::Signals)?;
        let closers = Closers::new()?;
        poller.watch(closers.bell(), Token::Found)?;
        let (first, last) = files::ephemeral_ports();
        let core = Core {
            policy,
            listeners: Listeners::default(),
            // Lower ones tell of rights (sd-socket's addr.rs).
            leases: Leases::new(first.max(1024), last),
            members: Members::default(),
            offers: Offers::default(),
            channels: Channels::new(first_channel_id()),
            quotas: Quotas::new(nix::unistd::geteuid().as_raw()),
            time_waits: TimeWaits::default(),
        };
        sd_sys::time::calibrate();
        Ok(Server {
            core,
            poller,
            connections: BTreeMap::new(),
            families: HashMap::new(),
            pidfds: HashMap::new(),
            segments: HashMap::new(),
            by_identity: HashMap::new(),
            recovery: Recovery::default(),
            silent: Silent::default(),
            cut_offs: CutOffs::default(),
            counters: Counters::default(),
            closers,
            waiting: Waiting::default(),
            directories: Directories::default(),
            namespaces: Namespaces::default(),
            soon: Soon::default(),
            turns: Turns::default(),
            looks: Looks::default(),
            unseen: BTreeSet::new(),
            mappings_max: super::grant::mappings_max(),
            netns: own_netns(),
            helpers: Helpers::new(options.helper.clone()),
            remains: Remains::default(),
            pumps: Pumps::new(options.pump),
            engine: Engine::new(options.hosts.clone()),
            metrics: Metrics::default(),
            promote: options.promote,
            wander: Wander::new(options.wander),
            policy_path: options.policy.clone(),
            place,
            signals,
            door: Door::new()?,
            last_connection: 0,
            random,
        })
    }

    /// From now on metrics are to be had there.
    pub(crate) fn serve_metrics(&mut self, listener: OwnedFd) -> io::Result<()> {
        self.metrics = Metrics::start(listener, &self.poller)?;
        Ok(())
    }

    /// Serves until a signal asks for the end.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let pauses = [
                self.recovery.pause(),
                self.closers.pause(),
                self.soon.expected.pause(),
                self.turns.pause(now),
                self.door.pause(),
                self.pause_of_looks(now),
                self.cut_offs.pause(now),
                self.metrics.pause(),
                self.wander.pause(now),
            ];
            for token in self.poller.wait(pauses.into_iter().flatten().min())? {
                match token {
                    Token::Accept => self.accept(),
                    Token::Signals => {
                        if self.take_signals() {
                            return Ok(());
                        }
                    }
                    Token::Connection(id) => self.attend(id),
                    Token::Process(id) => self.process_ended(ProcessId(id)),
                    Token::Witness(key) => self.witness_ended(ChannelKey(key)),
                    Token::Found => self.take_found(),
                    Token::Emptied(number) => self.emptied(number),
                    Token::Metrics => self.begin_to_gather(),
                }
            }
            self.closers.tend();
            self.take_turns();
            self.look_on();
            self.gather_on();
            self.look_at_witnesses();
            self.recover_overdue();
            self.end_expectations();
            self.wander();
            self.open_door();
        }
    }

    /// True when it is time to end.
    fn take_signals(&mut self) -> bool {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo as i32 != Signal::SIGHUP as i32 {
                tracing::info!("ending, as signal {} asks", signal.ssi_signo);
                return true;
            }
            match files::read_policy(self.policy_path.as_deref()) {
                Ok(policy) => {
                    self.core.policy = policy;
                    self.policy_changed();
                    self.say_promotes();
                    self.demote_what_stays();
                    tracing::info!("policy read again");
                }
                Err(error) => tracing::error!("{error}; the old policy stays"),
            }
            self.hand_hosts_over();
        }
        false
    }

    /// Serves a connection from now on, at the expense of a user; the socket of one that is refused is returned.
    pub(crate) fn add_connection(&mut self, mut connection: Connection, uid: u32) -> Result<(), OwnedFd> {
        self.last_connection += 1;
        let id = self.last_connection;
        if self.charge(Holding::Connection(id), uid, 2).is_err() {
            return Err(connection.into_socket());
        }
        connection.trusts(self.core.quotas.is_exempt(uid));
        if let Err(error) = connection.watched_by(&self.poller, Token::Connection(id)) {
            tracing::warn!("a connection is not watched and so refused: {error}");
            self.core.quotas.give_back(Holding::Connection(id));
            return Err(connection.into_socket());
        }
        self.connections.insert(id, connection);
        Ok(())
    }

    /// Something happened on a control connection: sends what had to wait, and takes one message.
    fn attend(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(then) = connection.send_waiting() {
            // It may have slept since it read what came before.
            self.announce_mail(id);
            then.into_iter().for_each(|then| self.tell_next(then));
        }
        if !self.waits_for_turn(id) {
            self.in_turn(id, |server| _ = server.take_message(id));
        }
    }

    /// The client of a connection looks into its mail.
    pub(super) fn announce_mail(&self, id: u64) {
        let who = self.connections.get(&id).and_then(|connection| connection.who);
        who.and_then(|who| self.families.get(&who.client)).into_iter().for_each(Family::announce_mail);
    }

    /// Another client was told what this one is not to act on before.
    pub(super) fn tell_next(&mut self, then: Then) {
        let Then { to, notice, fds } = then;
        let Some(connection) = self.connections.get_mut(&to) else { return };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let told = connection.notify(&notice, &fds);
        if let (Err(_), Reply::Promote { channel, .. }, Some(who)) = (told, notice, connection.who)
            && !fds.is_empty()
        {
            // Nobody is to be promised a slot of a channel that this one does not know.
            let _ = self.decline(who.client, channel);
        }
        self.announce_mail(to);
    }

    /// Takes in one message; false when there is none.
    pub(crate) fn take_message(&mut self, id: u64) -> bool {
        let Some(uid) = self.connections.get(&id).map(|connection| connection.uid) else { return false };
        if !self.make_room(uid) || self.is_choked(uid) {
            self.dismiss(id, "its user has too many descriptors");
            return false;
        }
        let Some(connection) = self.connections.get(&id) else { return false };
        if self.is_heard_elsewhere(connection) {
            self.hear_elsewhere(id);
            return false;
        }
        let incoming = connection.receive();
        self.take_incoming(id, incoming)
    }

    /// Acts on what a connection had; false when it was no message, or one whose turn comes later.
    pub(super) fn take_incoming(&mut self, id: u64, incoming: Incoming) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        match incoming {
            Incoming::Nothing => return false,
            Incoming::End if self.ends_soon(connection) => {
                self.poller.forget(connection.fd());
                return false;
            }
            Incoming::End => {
                if !self.stays_cut_off(id) {
                    self.let_go(id);
                }
                return false;
            }
            Incoming::Message(mut message) => {
                let uid = message.sender.map_or(connection.uid, |(_, uid)| uid);
                if let Some(question) = message.question()
                    && !self.examined_now(uid, question, &mut message)
                {
                    self.await_found(id);
                    self.closers.examine(uid, id, question, message);
                    return false;
                }
                self.handle(id, *message);
            }
        }
        true
    }

    /// Whether the socket that came was looked at, since user and socket are nobody's whom others have to be kept safe from.
    fn examined_now(&self, uid: u32, question: Question, message: &mut Message) -> bool {
        let is_trusted = |user: u32| self.core.quotas.is_exempt(user);
        is_trusted(uid) && closers::examine_now(question, message, is_trusted)
    }

    /// The process at the other end is on its way out, so its pidfd will tell. It may have descriptors
    /// open still, a listener perhaps, that its peers must not find when they are told of its end.
    fn ends_soon(&self, connection: &Connection) -> bool {
        let pidfd = connection.process().and_then(|process| self.pidfds.get(&process));
        pidfd.is_some_and(|pidfd| !has_ended(pidfd.as_fd())) && files::is_exiting(connection.pid)
    }

    /// A client that cannot be talked with is let go; as far as its connections are concerned it is dead.
    pub(crate) fn dismiss(&mut self, id: u64, why: &str) {
        if let Some(connection) = self.connections.get(&id) {
            tracing::info!(pid = connection.pid, uid = connection.uid, "client dismissed: {why}");
        }
        self.let_go(id);
    }

    /// Ends a connection that may have something left in its queue.
    pub(crate) fn let_go(&mut self, id: u64) {
        let uid = self.connections.get(&id).map_or(UNKNOWN, |connection| connection.uid);
        if let Some(socket) = self.connection_ended(id) {
            self.closers.close(uid, socket);
        }
    }

    /// Listeners or policy have changed (in one network namespace).
    pub(crate) fn routes_changed(&self, netns: Option<u64>) {
        self.directories.publish((&self.core, &self.soon), netns);
        let concerned =
            self.families.values().filter(|family| netns.is_none_or(|netns| netns == family.netns));
        concerned.for_each(Family::forget_routes);
    }

    /// A number that nobody can foresee.
    pub(crate) fn random(&self, salt: u64) -> u32 {
        self.random.hash_one(salt) as u32
    }

    pub(crate) fn next_client(&mut self) -> ClientId {
        self.counters.clients += 1;
        ClientId(self.counters.clients)
    }
}

/// Ids of channels made before and after a restart must differ: they begin at the time of day, in
/// units that leave room for a thousand channels per millisecond.
fn first_channel_id() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() as u64) << 10
}
