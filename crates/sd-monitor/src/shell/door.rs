//! Lets clients in, and refuses them when no descriptor is left.
//!
//! A spare descriptor is given up for a moment then, so that a connection can be refused instead of waiting, ready, for ever.
//! What was sent over it is closed with it, which may take as long as its sender likes: so the pool closes it. The number is
//! free as soon as a thread has begun with that, and becomes the spare again. Until then nobody is let in, and
//! those who are served notice nothing.

use super::connection::Connection;
use super::poller::Token;
use super::server::Server;
use nix::errno::Errno;
use nix::sys::socket::SockFlag;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// So long until the spare is asked for again.
const PAUSE: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Door {
    /// None: the listener is not watched.
    spare: Option<File>,
}

impl Door {
    pub(crate) fn new() -> io::Result<Door> {
        Ok(Door { spare: Some(open()?) })
    }

    /// How long to sleep at most before [`Server::open_door`].
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.spare.is_none().then_some(PAUSE)
    }
}

fn open() -> io::Result<File> {
    File::open("/dev/null")
}

impl Server {
    /// Somebody connects.
    pub(super) fn accept(&mut self) {
        match self.take_in() {
            Ok(socket) => self.admit(socket),
            Err(Errno::EMFILE | Errno::ENFILE) => self.refuse(),
            Err(error) => tracing::debug!("accept: {error}"),
        }
    }

    fn take_in(&self) -> nix::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = nix::sys::socket::accept4(self.place.listener.as_raw_fd(), flags)?;
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn admit(&mut self, socket: OwnedFd) {
        let connection = match Connection::new(socket) {
            Ok(connection) => connection,
            Err((error, socket)) => {
                tracing::debug!("a connection has no peer: {error}");
                return self.closers.close(super::connection::UNKNOWN, socket);
            }
        };
        let uid = connection.uid;
        if let Err(refused) = self.add_connection(connection, uid) {
            self.counters.refused_connections += 1;
            self.closers.close(uid, refused);
        }
    }

    fn refuse(&mut self) {
        self.counters.refused_connections += 1;
        self.door.spare = None;
        self.poller.forget(&self.place.listener);
        if let Ok(socket) = self.take_in() {
            let uid = super::connection::user_of(&socket).unwrap_or(super::connection::UNKNOWN);
            self.closers.close(uid, socket);
        }
        tracing::warn!("out of descriptors: a connection was refused");
        self.open_door();
    }

    /// Lets clients in again, if there is a descriptor.
    pub(super) fn open_door(&mut self) {
        if self.door.spare.is_none()
            && let Ok(spare) = open()
            && self.poller.watch(&self.place.listener, Token::Accept).is_ok()
        {
            self.door.spare = Some(spare);
        }
    }
}
