//! A link: a session with one other engine, over any number of paths.
//!
//! The caller moves packets and tells the time:
//!
//! ```text
//! packet came  > receive     all that follows happens in the call: bytes are put, news are told
//! time passed  > tick        at next_time, or later
//! after either > transmit    for each path, until there is nothing
//! ```

mod greet;
mod packets;

use crate::path::{Health, Path, PathConfig};
use crate::seal::{Random, Seal};
use crate::session::{Connection, Ends, Error, Limits, Session};
use crate::{Nanos, WINDOW_MAX};
use alloc::boxed::Box;
use alloc::vec::Vec;
use greet::Greeting;

/// What a link is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections that each side may open.
    pub connections_max: u32,
    /// Another one after each start of the engine, and not 0.
    pub epoch: u64,
    /// A number that nobody can guess.
    pub seed: u64,
    /// A session in which no packet came for so long, though one was asked for, has ended.
    pub silence: Nanos,
    /// A greeting is said again after this.
    pub greeting: Nanos,
    /// A path on which nothing was sent for so long asks whether the other engine is there; 0: never.
    pub heartbeat: Nanos,
    /// Packets of a path have new keys after this, if the seal has keys; 0: time changes none.
    pub rekey: Nanos,
}

impl Config {
    pub fn new(epoch: u64, seed: u64) -> Config {
        Config {
            connections_max: 1 << 16,
            epoch,
            seed,
            silence: 5_000_000_000,
            greeting: 50_000_000,
            heartbeat: 0,
            rekey: 0,
        }
    }
}

const UNSURE: Nanos = 5_000_000_000;

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other engine was started anew, or has begun another session.
    Restarted,
    /// It has broken the rules. The link does nothing more until [`Link::restart`].
    Violation,
    /// Nothing was heard of it.
    Silence,
    /// The caller has ended it.
    Asked,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Yes,
    /// It was malformed, forged, late, or of another session: nothing has happened.
    No,
    /// A session has begun; one may have ended before.
    Up,
    /// The session has ended.
    Down(Cause),
}

/// What has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets_sent: u64,
    pub packets_taken: u64,
    /// Of those packets, with headers and seals; and what carriers have placed.
    pub bytes_sent: u64,
    pub bytes_taken: u64,
    pub malformed: u64,
    /// The seal was broken, or of another session.
    pub forged: u64,
    /// It had come before, or was given up.
    pub again: u64,
    /// There was no memory for what was in it.
    pub shortage: u64,
    /// Records of bytes and others that were lost and said again.
    pub lost_records: u64,
    /// Bytes that carriers have placed: sent, and taken.
    pub placed: [u64; 2],
    /// Records about connections that were gone.
    pub stale: u64,
}

/// A session with one other engine.
#[derive(Debug)]
pub struct Link {
    config: Config,
    session: Session,
    paths: Vec<Path>,
    greeting: Greeting,
    seal: Box<dyn SealDebug>,
    counters: Counters,
    heard_at: Nanos,
    /// Since when something is asked, and nothing heard.
    asked_since: Option<Nanos>,
}

/// So that a link can be shown.
trait SealDebug: Seal {}
impl<S: Seal> SealDebug for S {}
impl core::fmt::Debug for dyn SealDebug {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seal")
    }
}

impl Link {
    /// A link with the paths that both ends have agreed on, in the same order: 255 at most.
    pub fn new(config: Config, paths: &[PathConfig], seal: impl Seal + 'static) -> Link {
        Link {
            config,
            session: Session::new(config.connections_max),
            paths: paths.iter().take(255).map(|path| Path::new(*path)).collect(),
            greeting: Greeting::new(config.epoch, Random(config.seed), paths.len()),
            seal: Box::new(seal),
            counters: Counters::default(),
            heard_at: 0,
            asked_since: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.greeting.is_up()
    }

    /// See [`Config::rekey`].
    pub fn rekey_after(&mut self, time: Nanos) {
        self.config.rekey = time;
    }

    /// Connections that are not over.
    pub fn connections(&self) -> u32 {
        self.session.connections()
    }

    pub fn counters(&self) -> Counters {
        let Session { stale, placed, .. } = self.session;
        let own = self.counters;
        let (bytes_sent, bytes_taken) = (own.bytes_sent + placed[0], own.bytes_taken + placed[1]);
        Counters { stale, placed, bytes_sent, bytes_taken, ..own }
    }

    /// From a packet to its acknowledgement, smoothed: of the fastest path on which that is known.
    pub fn rtt(&self) -> Option<Nanos> {
        self.paths.iter().filter_map(Path::rtt).min()
    }

    /// Ends the session, if there is one, and seeks another.
    pub fn restart(&mut self, now: Nanos, ends: &mut (impl Ends + ?Sized)) {
        self.down(ends);
        self.greeting.seek(now);
    }

    /// A carrier broke: what was under way on it is sent again, on any path. The other engine does the same, so nothing is acknowledged.
    pub fn path_broke(&mut self, path: u8) {
        self.say_again(path);
        self.paths.get_mut(usize::from(path)).into_iter().for_each(|path| path.received.told());
    }

    /// What is under way on this path is sent again, on any path that carries, though it may still come.
    pub fn say_again(&mut self, path: u8) {
        let Some(path) = self.paths.get_mut(usize::from(path)) else { return };
        path.give_up_all(|item| {
            self.counters.lost_records += 1;
            self.session.lost(item);
        });
    }

    /// Whether records go by this path, as they do by all at first; otherwise acknowledgements and questions only. What is under way by it is
    /// not sent again.
    pub fn carries(&mut self, path: u8, carries: bool) {
        if let Some(path) = self.paths.get_mut(usize::from(path)) {
            path.carries = carries;
        }
    }

    /// Asks by this path, whether it carries or not, whether the other engine is there; [`Link::health`] says whether it has answered.
    pub fn ask(&mut self, path: u8) {
        if let Some(path) = self.paths.get_mut(usize::from(path)) {
            path.must_ask = true;
        }
    }

    /// How a path does in this session.
    pub fn health(&self, path: u8) -> Health {
        self.paths.get(usize::from(path)).map(Path::health).unwrap_or_default()
    }

    /// A tenant, by the number that both engines know, and what it may use.
    pub fn tenant(&mut self, now: Nanos, id: u32, limits: Limits) -> Result<(), Error> {
        self.session.tenant(id, limits, now)
    }

    /// Opens a connection; the other engine is told `words`, and may send `window` bytes that are not consumed.
    pub fn open(&mut self, tenant: u32, end: u64, window: u32, words: &[u8]) -> Result<Connection, Error> {
        if !self.is_up() {
            return Err(Error::NotNow);
        }
        self.session.open(tenant, end, window.min(WINDOW_MAX), words)
    }

    /// Takes a connection that was offered; the other engine is told `words`, and may send `window` bytes that are not consumed.
    pub fn accept(
        &mut self,
        connection: Connection,
        end: u64,
        window: u32,
        words: &[u8],
    ) -> Result<(), Error> {
        self.session.accept(connection, end, window, words)
    }

    pub fn refuse(&mut self, connection: Connection, code: u8) -> Result<(), Error> {
        self.session.refuse(connection, code)
    }

    /// There are bytes up to position `to`, which [`Ends::read`] will give until they are consumed.
    pub fn announce(&mut self, connection: Connection, to: u64) -> Result<(), Error> {
        self.session.announce(connection, to)
    }

    /// The reader has consumed up to `to`.
    pub fn consumed(&mut self, connection: Connection, to: u64) -> Result<(), Error> {
        self.session.consumed(connection, to)
    }

    /// Nothing comes behind what was announced.
    pub fn fin(&mut self, connection: Connection) -> Result<(), Error> {
        self.session.fin(connection)
    }

    /// Ends it: at once, or behind what was sent. [`crate::News::Closed`] follows; until then [`Ends::read`] may be called.
    pub fn reset(&mut self, connection: Connection, code: u8, at_once: bool) -> Result<(), Error> {
        self.session.reset(connection, code, at_once)
    }

    /// The byte before `at` is urgent.
    pub fn urgent(&mut self, connection: Connection, at: u64, byte: u8) -> Result<(), Error> {
        self.session.urgent(connection, at, byte)
    }

    /// What the other engine is to know of an open connection: [`crate::News::Said`]. Of what is said one after the other the last surely comes.
    pub fn say(&mut self, connection: Connection, words: &[u8]) -> Result<(), Error> {
        self.session.say_words(connection, words)
    }

    /// The reader reads no more.
    pub fn stop(&mut self, connection: Connection) -> Result<(), Error> {
        self.session.stop(connection)
    }

    /// When [`Link::tick`] has something to do, if nothing else happens.
    pub fn next_time(&self) -> Option<Nanos> {
        if !self.is_up() {
            return self.greeting.next_time();
        }
        let paths = self.paths.iter().flat_map(|path| [path.next_time(), path.received.due()]);
        let silence = self.asked_since.map(|since| since + self.silence());
        let beats = self.heartbeats();
        let others = [self.greeting.next_time(), self.session.next_time(), silence, beats];
        paths.chain(others).flatten().min()
    }

    /// Until the other engine is sure to have this session it may have another one, and greetings are to be said again soon.
    fn silence(&self) -> Nanos {
        if self.greeting.may_send() { self.config.silence } else { self.config.silence.min(UNSURE) }
    }

    fn heartbeats(&self) -> Option<Nanos> {
        let is_wanted = self.config.heartbeat > 0 && self.session.connections() > 0;
        is_wanted.then(|| self.paths.iter().map(|path| path.asked_at + self.config.heartbeat).min())?
    }

    /// Time has passed. What is to be sent now, [`Link::transmit`] says.
    pub fn tick(&mut self, now: Nanos, ends: &mut (impl Ends + ?Sized)) -> Taken {
        self.greeting.tick(now, self.config.greeting);
        if !self.is_up() {
            return Taken::Yes;
        }
        if self.asked_since.is_some_and(|since| since + self.silence() <= now) {
            self.restart(now, ends);
            return Taken::Down(Cause::Silence);
        }
        self.session.tick(now);
        let (heartbeat, is_used) = (self.config.heartbeat, self.session.connections() > 0);
        for path in &mut self.paths {
            path.tick(now, |item| {
                self.counters.lost_records += 1;
                self.session.lost(item);
            });
            if heartbeat > 0 && is_used && path.asked_at + heartbeat <= now {
                path.must_ask = true;
            }
        }
        Taken::Yes
    }

    /// The session is over: connections are told, paths begin anew.
    fn down(&mut self, ends: &mut (impl Ends + ?Sized)) {
        self.session.clear(self.config.connections_max, ends);
        self.paths.iter_mut().for_each(Path::begin_anew);
        self.asked_since = None;
        self.greeting.down();
    }
}
