//! The event loop's ear: epoll, with a token per descriptor that is never used twice.

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// What became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Somebody connects.
    Accept,
    /// A signal came.
    Signals,
    /// A control connection has a message, or room for one, or has ended.
    Connection(u64),
    /// A process has ended.
    Process(u64),
    /// The process that should announce the other side of a recovered channel has ended.
    Witness(u64),
    /// The closers have found something out.
    Found,
    /// Who asks for metrics wants the monitor to look around.
    Metrics,
    /// A process that empties segments has done so, or has ended.
    Emptied(u64),
}

impl Token {
    fn encode(self) -> u64 {
        match self {
            Token::Accept => 0,
            Token::Signals => 1,
            Token::Found => 5,
            Token::Metrics => 8,
            Token::Connection(n) => n << 3 | 2,
            Token::Process(n) => n << 3 | 3,
            Token::Witness(n) => n << 3 | 4,
            Token::Emptied(n) => n << 3 | 6,
        }
    }

    fn decode(word: u64) -> Option<Token> {
        match word & 7 {
            0 if word == 8 => Some(Token::Metrics),
            0 => Some(Token::Accept),
            1 => Some(Token::Signals),
            5 => Some(Token::Found),
            2 => Some(Token::Connection(word >> 3)),
            3 => Some(Token::Process(word >> 3)),
            4 => Some(Token::Witness(word >> 3)),
            6 => Some(Token::Emptied(word >> 3)),
            _ => None,
        }
    }
}

/// See the module.
pub(crate) struct Poller {
    epoll: Epoll,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)? })
    }

    /// Watches for input and for the end.
    pub(crate) fn watch(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token.encode()))?)
    }

    /// Watches for room to write as well, or no longer.
    pub(crate) fn watch_room(&self, fd: impl AsFd, token: Token, wanted: bool) -> io::Result<()> {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, wanted);
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(flags, token.encode()))?)
    }

    /// Watches no longer. Closing alone is not enough: clients may have duplicates.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    /// Sleeps until something is ready, or the time is over: whatever is ready.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Token>> {
        let timeout = match timeout {
            // Rounded up, or the last millisecond would be spent spinning.
            Some(t) => EpollTimeout::try_from(t + Duration::from_millis(1)).unwrap_or(EpollTimeout::MAX),
            None => EpollTimeout::NONE,
        };
        let mut events = [EpollEvent::empty(); 64];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        Ok(events.iter().take(count).filter_map(|event| Token::decode(event.data())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive() {
        for token in [
            Token::Accept,
            Token::Signals,
            Token::Found,
            Token::Metrics,
            Token::Connection(9),
            Token::Process(0),
            Token::Witness(1 << 60),
            Token::Emptied(1),
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(7), None);
    }
}
