//! What is said to a client, in order. A socket takes a few hundred messages that nobody has read; what has no room waits here for it.
//!
//! Thousands of connections may be moved at the same moment, and a program reads what it is told when it makes its next call. Who never reads is told
//! no more at some time, and is dismissed where he goes on asking.

use super::poller::{Poller, Token};
use sd_proto::{MESSAGE_MAX, Reply};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// Of notices that can be withheld so many wait: for a client that the monitor serves without bounds, and for others.
const NOTICES_MAX: [usize; 2] = [1 << 14, 1 << 10];
/// Of messages with descriptors, for the former: who does not read for long gets no more channels, and connections to him are the kernel's.
const WITH_FDS_MAX: usize = 64;
/// Of answers, as a client asks one question at a time; some it may have given up.
const ANSWERS_MAX: usize = 4;

/// What another client is told once this one has been: it may not act on it before.
pub(crate) struct Then {
    /// Its connection.
    pub(crate) to: u64,
    pub(crate) notice: Reply,
    pub(crate) fds: Vec<OwnedFd>,
}

struct Waiting {
    reply: Reply,
    fds: Vec<OwnedFd>,
    is_answer: bool,
    then: Option<Then>,
}

impl Waiting {
    /// For this client, or the next.
    fn has_fds(&self) -> bool {
        !self.fds.is_empty() || self.then.as_ref().is_some_and(|then| !then.fds.is_empty())
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Who says that there is room, if anybody does.
    poller: Option<(Rc<Poller>, Token)>,
    is_watched: bool,
    /// The monitor serves its user without bounds: more may wait, and descriptors, which are the monitor's meanwhile.
    is_trusted: bool,
}

impl Outbox {
    pub(super) fn trusts(&mut self, is_trusted: bool) {
        self.is_trusted = is_trusted;
    }

    /// This poller watches the socket from now on, for what comes by it; and for room where something waits.
    pub(super) fn watched_by(&mut self, socket: &OwnedFd, poller: Rc<Poller>, token: Token) {
        (self.poller, self.is_watched) = (Some((poller, token)), false);
        self.watch(socket);
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether there is room for so many more notices.
    pub(super) fn takes(&self, more: usize) -> bool {
        let [of_trusted, of_others] = NOTICES_MAX;
        self.waiting.len() + more <= if self.is_trusted { of_trusted } else { of_others }
    }

    pub(super) fn clear(&mut self, socket: &OwnedFd) {
        self.waiting.clear();
        self.watch(socket);
    }

    /// Says something, now or when there is room. An answer is one to the client's question.
    pub(super) fn say(
        &mut self,
        socket: &OwnedFd,
        (reply, fds): (&Reply, &[BorrowedFd<'_>]),
        is_answer: bool,
    ) -> io::Result<()> {
        if self.sends(socket, reply, fds)? {
            return Ok(());
        }
        let answers = || self.waiting.iter().filter(|waiting| waiting.is_answer).count();
        if is_answer && answers() >= ANSWERS_MAX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.add(socket, (reply, fds), is_answer, None)
    }

    /// Gives a notice, and what another one is told then: it is returned where that is now.
    pub(super) fn say_then(
        &mut self,
        socket: &OwnedFd,
        reply: &Reply,
        then: Then,
    ) -> io::Result<Option<Then>> {
        if self.sends(socket, reply, &[])? {
            return Ok(Some(then));
        }
        self.add(socket, (reply, &[]), false, Some(then)).map(|()| None)
    }

    /// Sends it, unless it has to wait.
    fn sends(&self, socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        if !self.waiting.is_empty() {
            return Ok(false);
        }
        match send(socket, reply, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            done => done.map(|()| true),
        }
    }

    fn add(
        &mut self,
        socket: &OwnedFd,
        (reply, fds): (&Reply, &[BorrowedFd<'_>]),
        is_answer: bool,
        then: Option<Then>,
    ) -> io::Result<()> {
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        let waiting = Waiting { reply: *reply, fds, is_answer, then };
        let with_fds = || self.waiting.iter().filter(|waiting| waiting.has_fds()).count();
        if waiting.has_fds() && (!self.is_trusted || with_fds() >= WITH_FDS_MAX) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.waiting.push_back(waiting);
        self.watch(socket);
        Ok(())
    }

    /// Sends what waits, as far as there is room. When something was sent: what others are told then.
    pub(super) fn send(&mut self, socket: &OwnedFd) -> Option<Vec<Then>> {
        let (before, mut then) = (self.waiting.len(), vec![]);
        while let Some(first) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = first.fds.iter().map(AsFd::as_fd).collect();
            match send(socket, &first.reply, &fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Its end will be seen when it is read from.
                Err(_) => self.waiting.clear(),
                Ok(()) => then.extend(self.waiting.pop_front().and_then(|sent| sent.then)),
            }
        }
        self.watch(socket);
        (self.waiting.len() < before).then_some(then)
    }

    /// Watches for room where something waits for it, and only there.
    fn watch(&mut self, socket: &OwnedFd) {
        let wanted = !self.waiting.is_empty();
        if wanted != self.is_watched
            && let Some((poller, token)) = &self.poller
        {
            // It may be watched by nobody for a while: see `watched_by`.
            self.is_watched = wanted && poller.watch_room(socket, *token, true).is_ok();
            if !wanted {
                let _ = poller.watch_room(socket, *token, false);
            }
        }
    }
}

/// Sends a message, or fails at once.
fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut buf = [0u8; MESSAGE_MAX];
    let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let sent =
        sd_sys::msg::send_with_fds(socket.as_raw_fd(), reply.encode(&mut buf), &fds, libc::MSG_DONTWAIT);
    sent.map(drop).map_err(|error| io::Error::from_raw_os_error(error.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TOKEN: Token = Token::Connection(7);

    /// A box with its socket, who reads from it, and who watches.
    struct Line {
        outbox: Outbox,
        socket: OwnedFd,
        client: OwnedFd,
        poller: Rc<Poller>,
    }

    impl Line {
        fn new() -> Line {
            let [socket, client] = sd_sys::msg::pair_with_credentials().unwrap().map(|fd| {
                let kept = sd_sys::fd::dup(fd.raw()).unwrap();
                super::super::descriptors::std_fd(kept)
            });
            let (poller, mut outbox) = (Rc::new(Poller::new().unwrap()), Outbox::default());
            poller.watch(&socket, TOKEN).unwrap();
            outbox.watched_by(&socket, poller.clone(), TOKEN);
            outbox.trusts(true);
            Line { outbox, socket, client, poller }
        }

        fn notice(&mut self, id: u64) {
            self.outbox.say(&self.socket, (&Reply::ChannelDead { id }, &[]), false).unwrap();
        }

        /// Reads so many messages at most: the numbers of these, and with how many descriptors each came.
        fn read(&self, most: usize) -> Vec<(u64, usize)> {
            let mut found = vec![];
            let mut bytes = [0; MESSAGE_MAX];
            while found.len() < most
                && let Ok(got) =
                    sd_sys::msg::recv_with_fds(self.client.as_raw_fd(), &mut bytes, libc::MSG_DONTWAIT)
            {
                let Ok(Reply::ChannelDead { id }) = Reply::decode(&bytes[..got.len]) else { panic!() };
                found.push((id, got.fds.as_slice().len()));
            }
            found
        }

        fn is_told_of_room(&self) -> bool {
            !self.poller.wait(Some(Duration::ZERO)).unwrap().is_empty()
        }
    }

    #[test]
    fn what_has_no_room_waits_for_it_in_order() {
        let mut line = Line::new();
        (0..2000).for_each(|id| line.notice(id));
        assert!(!line.outbox.is_empty(), "a socket does not take all that");
        assert!(!line.is_told_of_room());
        let mut found = line.read(300);
        assert!(line.is_told_of_room());
        while line.outbox.send(&line.socket).is_some() {
            found.append(&mut line.read(usize::MAX));
        }
        assert_eq!(found, (0..2000).map(|id| (id, 0)).collect::<Vec<_>>());
        assert!(line.outbox.is_empty() && !line.is_told_of_room(), "nobody waits for room any more");
    }

    #[test]
    fn descriptors_wait_along() {
        let mut line = Line::new();
        (0..1000).for_each(|id| line.notice(id));
        let (outbox, socket) = (&mut line.outbox, &line.socket);
        outbox
            .say(socket, (&Reply::ChannelDead { id: 1000 }, &[socket.as_fd(), socket.as_fd()]), true)
            .unwrap();
        line.notice(1001);
        let mut found = vec![];
        while found.len() < 1002 {
            found.append(&mut line.read(100));
            line.outbox.send(&line.socket);
        }
        assert_eq!(found[999..], [(999, 0), (1000, 2), (1001, 0)]);
    }

    #[test]
    fn who_does_not_read_gets_few_answers() {
        let mut line = Line::new();
        let mut said = 0;
        while line.outbox.is_empty() {
            line.notice(said);
            said += 1;
        }
        let mut ask = || line.outbox.say(&line.socket, (&Reply::ChannelDead { id: 9 }, &[]), true);
        assert!((0..ANSWERS_MAX).all(|_| ask().is_ok()) && ask().is_err());
        assert_eq!(line.read(usize::MAX).len() as u64, said - 1);
        assert!(line.outbox.send(&line.socket).is_some() && line.outbox.is_empty());
        assert!(line.outbox.say(&line.socket, (&Reply::ChannelDead { id: 9 }, &[]), true).is_ok());
        assert!(line.outbox.takes(NOTICES_MAX[0]) && !line.outbox.takes(NOTICES_MAX[0] + 1));
    }

    #[test]
    fn few_descriptors_wait() {
        let mut line = Line::new();
        let give = |line: &mut Line| {
            line.outbox.say(&line.socket, (&Reply::ChannelDead { id: 0 }, &[line.socket.as_fd()]), false)
        };
        while line.outbox.is_empty() {
            give(&mut line).unwrap();
        }
        assert!((1..WITH_FDS_MAX).all(|_| give(&mut line).is_ok()) && give(&mut line).is_err());
        line.notice(1);
        while line.outbox.send(&line.socket).is_some() || !line.outbox.is_empty() {
            line.read(usize::MAX);
        }
        assert!(give(&mut line).is_ok());
    }

    #[test]
    fn of_others_fewer_wait_and_no_descriptors() {
        let mut line = Line::new();
        line.outbox.trusts(false);
        assert!(line.outbox.takes(NOTICES_MAX[1]) && !line.outbox.takes(NOTICES_MAX[1] + 1));
        while line.outbox.is_empty() {
            line.notice(0);
        }
        let (outbox, socket, reply) = (&mut line.outbox, &line.socket, Reply::ChannelDead { id: 1 });
        let then = |fds| Then { to: 1, notice: reply, fds };
        assert!(outbox.say(socket, (&reply, &[socket.as_fd()]), false).is_err());
        assert!(outbox.say(socket, (&reply, &[socket.as_fd()]), true).is_err());
        assert!(outbox.say_then(socket, &reply, then(vec![socket.try_clone().unwrap()])).is_err());
        assert!((0..ANSWERS_MAX).all(|_| outbox.say(socket, (&reply, &[]), true).is_ok()));
        assert!(outbox.say_then(socket, &reply, then(vec![])).is_ok_and(|then| then.is_none()));
    }

    #[test]
    fn who_is_told_then_is_told_when_it_was_read_by_the_first() {
        let mut line = Line::new();
        let then = |to| Then { to, notice: Reply::ChannelDead { id: to }, fds: vec![] };
        let mut told = 0;
        let tell = |line: &mut Line, to| line.outbox.say_then(&line.socket, &then(to).notice, then(to));
        while let Some(now) = tell(&mut line, told).unwrap() {
            assert_eq!(now.to, told);
            told += 1;
        }
        assert!(tell(&mut line, told + 1).unwrap().is_none());
        assert!(line.outbox.send(&line.socket).is_none(), "nobody has read");
        line.read(usize::MAX);
        let later = line.outbox.send(&line.socket).unwrap();
        assert_eq!(later.iter().map(|then| then.to).collect::<Vec<_>>(), [told, told + 1]);
        assert_eq!(line.read(usize::MAX), [(told, 0), (told + 1, 0)]);
    }

    #[test]
    fn what_is_forgotten_is_not_waited_for() {
        let mut line = Line::new();
        (0..2000).for_each(|id| line.notice(id));
        line.outbox.clear(&line.socket);
        line.read(usize::MAX);
        assert!(line.outbox.is_empty() && !line.is_told_of_room());
    }
}
