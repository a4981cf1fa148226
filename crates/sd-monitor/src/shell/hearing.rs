//! Messages that are received, or looked at, beside the main thread.
//!
//! The socket over which a forked child talks was made by its parent, who may have kept a copy of the monitor's end. Whoever
//! receives from a socket has its lock, and in a page fault that nobody serves has it for ever; recvmsg(2) of another holder
//! waits for it, MSG_DONTWAIT or not. So for users that others share the monitor with such a socket is received from in the
//! pool, one message at a time, at the expense of whoever has made it. Meanwhile the connection is not watched.
//!
//! ```text
//! socket ready --> await_found; pool: recvmsg --> take_found: watched again, message acted on
//! process ended --> the same, until there is no message left; only then it is let go
//! ```

use super::closers::{Found, What};
use super::connection::{Connection, Incoming};
use super::poller::Token;
use super::server::Server;
use nix::sys::socket::Shutdown;
use std::os::fd::AsRawFd;

impl Server {
    /// Whether others may have the socket's lock.
    pub(super) fn is_heard_elsewhere(&self, connection: &Connection) -> bool {
        connection.maker.is_some_and(|maker| !self.core.quotas.is_exempt(maker))
    }

    /// Something is being found out about a connection; what it says next has to wait.
    pub(super) fn await_found(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_awaited = true;
            self.poller.forget(connection.fd());
        }
    }

    /// Has the next message of a child's connection received; its turn comes later.
    pub(super) fn hear_elsewhere(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id).filter(|connection| !connection.is_awaited) else {
            return;
        };
        let Some(maker) = connection.maker else { return };
        match connection.fd().try_clone_to_owned() {
            Ok(socket) => {
                self.await_found(id);
                self.closers.receive(maker, id, socket);
            }
            Err(error) => self.dismiss(id, &format!("it cannot be heard: {error}")),
        }
    }

    /// A process has ended. True when its last words are still to be heard, after which it is let go.
    pub(super) fn hears_last_words(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get(&id).filter(|it| self.is_heard_elsewhere(it)) else {
            return false;
        };
        // What there is to hear is bounded from now on.
        let _ = nix::sys::socket::shutdown(connection.fd().as_raw_fd(), Shutdown::Read);
        self.poller.forget(connection.fd());
        self.connections.entry(id).and_modify(|connection| connection.has_ended = true);
        self.hear_elsewhere(id);
        self.connections.contains_key(&id)
    }

    /// What the pool has found out.
    pub(super) fn take_found(&mut self) {
        for Found { uid, connection: id, what } in self.closers.found() {
            if !self.watch_again(id) {
                // What came with it may take long to close.
                if let What::Received(Incoming::Message(message)) = what {
                    message.fds.into_iter().for_each(|fd| self.closers.close(uid, fd));
                }
                continue;
            }
            let is_over = matches!(what, What::Received(Incoming::Nothing | Incoming::End));
            match what {
                What::Examined(message) => self.in_turn(id, |server| server.handle(id, *message)),
                What::Received(incoming) => {
                    self.in_turn(id, |server| _ = server.take_incoming(id, incoming));
                }
            }
            match self.connections.get(&id).is_some_and(|connection| connection.has_ended) {
                true if is_over => self.let_go(id),
                true => self.hear_elsewhere(id),
                false => {}
            }
        }
    }

    /// What it says next is heard again. False when it is gone.
    pub(super) fn watch_again(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.is_awaited = false;
        if connection.has_ended {
            return true;
        }
        if let Err(error) = connection.watched_by(&self.poller, Token::Connection(id)) {
            self.dismiss(id, &format!("it cannot be watched: {error}"));
            return false;
        }
        true
    }
}
