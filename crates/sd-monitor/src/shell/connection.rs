//! A control connection: who is at its other end, and messages that never block.

use super::closers::NOT_EXAMINED;
use super::descriptors::{Owned, Unfit, std_fd};
use super::outbox::{Outbox, Then};
use super::poller::{Poller, Token};
use crate::core::ClientId;
use crate::core::members::ProcessId;
use crate::core::offers::Facts;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use sd_proto::{MESSAGE_MAX, Reply, Request};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

/// A registered process image: its client id and the process it runs in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) client: ClientId,
    pub(crate) process: ProcessId,
}

/// What has to be known of the socket that came with a message.
#[derive(Clone, Copy)]
pub(crate) enum Question {
    Listener,
    Bound,
    /// When that was asked ([`Request::Offer`]).
    Connected(u64),
}

/// The user of a child that has not said anything. No process has this number.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// See the module.
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Of a socket that a parent has made: its user, who may hold the monitor's end as well.
    pub(crate) maker: Option<u32>,
    /// Somebody beside the main thread is busy with it: it is not watched meanwhile.
    pub(crate) is_awaited: bool,
    /// The process has ended. What it said before is still to be heard.
    pub(crate) has_ended: bool,
    /// Set by Hello.
    pub(crate) who: Option<Identity>,
    /// The forked process that has the other end, where its parent made the connection for it.
    pub(crate) child: Option<ProcessId>,
    outbox: Outbox,
    /// Until when it may bring the channels of an earlier monitor's time.
    pub(crate) recovers_until: Option<Instant>,
}

/// What a look at the socket found.
pub(crate) enum Incoming {
    /// Nothing, for now.
    Nothing,
    /// The other end is closed.
    End,
    /// A message and its descriptors.
    Message(Box<Message>),
}

/// A message as it came.
pub(crate) struct Message {
    bytes: [u8; MESSAGE_MAX],
    len: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// Process and user that sent it, where the socket tells.
    pub(crate) sender: Option<(u32, u32)>,
    /// It was too long, or descriptors were lost: too many, or no room in our table.
    pub(crate) is_cut: bool,
    /// What its descriptor is, where it should be a listener, or become one, and was looked at.
    pub(crate) listener: Result<Owned, Unfit>,
    /// The same where it should be connected.
    pub(crate) connected: Result<Facts, Unfit>,
}

impl Message {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// It brings a socket about which questions have to be asked that may take long.
    pub(crate) fn question(&self) -> Option<Question> {
        let question = match Request::decode(self.bytes()) {
            Ok(Request::Listen { .. } | Request::CannotTake) => Question::Listener,
            Ok(Request::WillListen { .. }) => Question::Bound,
            Ok(Request::Offer { asked_ms, .. }) => Question::Connected(asked_ms),
            _ => return None,
        };
        (!self.is_cut && self.fds.len() == 1).then_some(question)
    }
}

impl Connection {
    /// A socket that is none is given back: closing it may take long.
    pub(crate) fn new(socket: OwnedFd) -> Result<Connection, (Errno, OwnedFd)> {
        // A client that sends before this has its credentials noted too: the listener has the option.
        let done = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::PassCred, &true);
        let peer = match done.and_then(|()| nix::sys::socket::getsockopt(&socket, PeerCredentials)) {
            Ok(peer) => peer,
            Err(error) => return Err((error, socket)),
        };
        let (pid, uid) = (peer.pid().max(0) as u32, peer.uid());
        Ok(Connection {
            socket,
            pid,
            uid,
            maker: None,
            is_awaited: false,
            has_ended: false,
            who: None,
            child: None,
            outbox: Outbox::default(),
            recovers_until: None,
        })
    }

    /// A connection that a parent, of user `maker`, has made for the child of its next fork. Who the child is, it says itself.
    pub(crate) fn of_child(
        socket: OwnedFd,
        child: ProcessId,
        maker: u32,
    ) -> Result<Connection, (Errno, OwnedFd)> {
        let made = Connection::new(socket)?;
        Ok(Connection { pid: 0, uid: UNKNOWN, maker: Some(maker), child: Some(child), ..made })
    }

    /// The process at the other end is as one that has just been forked, and not the one that is reaped.
    pub(crate) fn begin_anew(&mut self, reaped: ProcessId) {
        (self.who, self.child, self.uid) = (None, Some(reaped), UNKNOWN);
        self.outbox.clear(&self.socket);
    }

    /// The process at the other end, registered or announced.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.who.map(|who| who.process).or(self.child)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket alone, for closing it elsewhere.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// A pidfd of the process at the other end.
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        // Of a pair it would be the one who made it.
        if self.child.is_none()
            && let Ok(pidfd) = nix::sys::socket::getsockopt(&self.socket, PeerPidfd)
        {
            return Some(pidfd);
        }
        // A child, or a kernel before 6.5. The number could be another's by now only if the process has ended,
        // and then the connection's end says so too.
        let fd = sd_sys::fd::pidfd_open(self.pid as i32).ok()?;
        Some(std_fd(fd))
    }

    /// The next message, if any.
    pub(crate) fn receive(&self) -> Incoming {
        receive(self.fd())
    }

    /// Bytes of the kernel's that hold what was sent and not read yet.
    pub(crate) fn unread(&self) -> usize {
        let mut bytes = 0;
        // SAFETY: the kernel writes one number.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if asked == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// Answers what the client has asked, now or when there is room. Fails where it does not read its answers, or has ended.
    pub(crate) fn answer(&mut self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.outbox.say(&self.socket, (reply, fds), true)
    }

    /// Tells it something that it has not asked for, now or when there is room. Fails where too much waits, or it has ended.
    pub(crate) fn tell(&mut self, notice: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.has_room(1) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.notify(notice, fds)
    }

    /// Tells it something however much waits: that a channel has ended, or one of its connections, of which it has so many. Fails where it has ended,
    /// which is seen when it is read from, or where descriptors may not wait.
    pub(crate) fn notify(&mut self, notice: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.outbox.say(&self.socket, (notice, fds), false)
    }

    /// Whether it can be told so much more.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.outbox.takes(more)
    }

    /// Tells it something, and another one then: what, is returned where that is now.
    pub(crate) fn tell_then(&mut self, notice: &Reply, then: Then) -> io::Result<Option<Then>> {
        self.outbox.say_then(&self.socket, notice, then)
    }

    /// Sends what waits for room. When something of it was sent: what others are told then.
    pub(crate) fn send_waiting(&mut self) -> Option<Vec<Then>> {
        self.outbox.send(&self.socket)
    }

    /// The monitor serves its user without bounds, or not.
    pub(crate) fn trusts(&mut self, is_trusted: bool) {
        self.outbox.trusts(is_trusted);
    }

    /// It is watched from now on, with that token.
    pub(crate) fn watched_by(&mut self, poller: &Rc<Poller>, token: Token) -> io::Result<()> {
        poller.watch(&self.socket, token)?;
        self.outbox.watched_by(&self.socket, poller.clone(), token);
        Ok(())
    }
}

/// Who has connected a socket.
pub(crate) fn user_of(socket: &OwnedFd) -> Option<u32> {
    nix::sys::socket::getsockopt(socket, PeerCredentials).ok().map(|peer| peer.uid())
}

/// The next message of a control connection, if any.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Incoming {
    let mut bytes = [0u8; MESSAGE_MAX];
    // A client that ends with mail unread leaves ECONNRESET, once, before its last words.
    let mut receive = || sd_sys::msg::recv_whatever(socket.as_raw_fd(), &mut bytes, libc::MSG_DONTWAIT);
    let received = match receive() {
        Err(sd_sys::Errno::ECONNRESET) => receive(),
        other => other,
    };
    let got = match received {
        Ok(got) => got,
        Err(sd_sys::Errno::EAGAIN | sd_sys::Errno::EINTR) => return Incoming::Nothing,
        Err(_) => return Incoming::End,
    };
    let mut fds = Vec::new();
    got.fds.hand_over(|fd| fds.push(std_fd(fd)));
    // Zero: of a pid namespace that is not below ours.
    let sender = got.sender.map(|sender| (sender.pid.max(0) as u32, sender.uid));
    // An empty message looks like the end, but for what it may bring.
    if got.len == 0 && fds.is_empty() {
        return Incoming::End;
    }
    let (len, is_cut) = (got.len, got.is_cut);
    Incoming::Message(Box::new(Message {
        bytes,
        len,
        fds,
        sender,
        is_cut,
        listener: NOT_EXAMINED,
        connected: Err(Unfit),
    }))
}
