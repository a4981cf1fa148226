//! Questions for which many slabs have to be looked through are answered in pieces.
//!
//! A user can have thousands of processes, and each question about a port or for a document looks into all of theirs: in one
//! go everybody else would wait for the end of it. So who asks waits instead:
//!
//! ```text
//! question --> slab, slab, ... for PIECE --not all yet--> the connection is not watched; it is the turn of others (`turns`)
//!                                      --its user's turn again--> slab, slab, ... --> answer, watched again
//! ```
//! # Guarantees
//! * One piece is [`PIECE`] and one slab long, however many slabs there are.
//! * A connection has one question at a time, and its answers keep their order.
//!
//! Root and the monitor's own user are answered in one go. A process that comes while others are looked at is not looked at.

use super::bind::{Bind, Tuple};
use super::demote::Demotion;
use super::server::Server;
use super::status::Draft;
use super::turns::busy;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Reply};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Longer than what makes a user wait for its turn, so that pieces of several do not follow each other.
const PIECE: Duration = Duration::from_micros(300);

/// What is looked for.
pub(super) enum What {
    Bind(Bind),
    Tuple(Tuple),
    Status(Box<Draft>),
    Demotion(Demotion),
}

/// A question that is being answered.
pub(crate) struct Look {
    connection: u64,
    what: What,
    /// Families that are still to be looked at.
    left: Vec<ClientId>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Looks(Vec<Look>);

impl Server {
    /// Answers a question of a connection's, for which these families have to be looked at; now or later.
    pub(super) fn look(&mut self, connection: u64, what: What, left: Vec<ClientId>) {
        if let Some(unfinished) = self.look_for_a_while(Look { connection, what, left }) {
            self.await_found(connection);
            self.looks.0.push(unfinished);
        }
    }

    /// Goes on with those whose users' turn it is.
    pub(super) fn look_on(&mut self) {
        let now = Instant::now();
        for look in std::mem::take(&mut self.looks.0) {
            let id = look.connection;
            let Some(user) = self.pays(id) else {
                // It is gone, or has become somebody who is answered in one go.
                self.end_look(look);
                continue;
            };
            if self.turns.has_to_wait(user, now) {
                self.looks.0.push(look);
                continue;
            }
            let mut left = None;
            self.in_turn(id, |server| left = server.look_for_a_while(look));
            match left {
                Some(unfinished) => self.looks.0.push(unfinished),
                None => _ = self.watch_again(id),
            }
        }
    }

    /// How long to sleep at most before [`Server::look_on`].
    pub(super) fn pause_of_looks(&self, now: Instant) -> Option<Duration> {
        let users = self.looks.0.iter().map(|look| self.pays(look.connection));
        users.map(|user| user.map_or(Duration::ZERO, |user| self.turns.wait_of(user, now))).min()
    }

    fn end_look(&mut self, look: Look) {
        let id = look.connection;
        if self.connections.contains_key(&id) && self.look_for_a_while(look).is_none() {
            self.watch_again(id);
        }
    }

    /// The rest, if the time was not enough.
    fn look_for_a_while(&mut self, mut look: Look) -> Option<Look> {
        let is_bounded = self.pays(look.connection).is_some();
        let began = if is_bounded { busy() } else { Duration::ZERO };
        while let Some(client) = look.left.pop() {
            let is_found = match &mut look.what {
                What::Bind(wanted) => self.families.get(&client).is_some_and(|it| wanted.is_at(it)),
                What::Tuple(wanted) => self.has_tuple(client, wanted),
                What::Status(draft) => {
                    self.draw(draft, client);
                    false
                }
                What::Demotion(asked) => {
                    self.demote_of(asked, client);
                    false
                }
            };
            if is_found {
                self.reply(look.connection, &Reply::Error { code: ErrorCode::InUse }, &[]);
                return None;
            }
            if is_bounded && !look.left.is_empty() && busy().saturating_sub(began) > PIECE {
                return Some(look);
            }
        }
        self.answer_look(look);
        None
    }

    fn answer_look(&mut self, Look { connection, what, .. }: Look) {
        let draft = match what {
            What::Status(draft) => draft,
            What::Demotion(asked) => {
                return self.reply(connection, &Reply::Demoted { count: asked.count }, &[]);
            }
            What::Bind(_) | What::Tuple(_) => return self.reply(connection, &Reply::Ok, &[]),
        };
        match self.document(*draft) {
            Some(file) => self.reply(connection, &Reply::Status, &[file.as_fd()]),
            None => self.reply(connection, &Reply::Error { code: ErrorCode::Exhausted }, &[]),
        }
    }
}
