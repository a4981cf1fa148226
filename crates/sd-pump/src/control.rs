//! The connection of a pump, or of an engine, to the monitor.

use sd_proto::{ErrorCode, MESSAGE_MAX, Reply, Request, VERSION};
use sd_ring::sync::sleepers;
use sd_shm::channel::Side;
use sd_shm::public::Public;
use sd_shm::slab::Slab;
use sd_sys::fd::Owned;
use sd_sys::msg::{self, Received};
use sd_sys::ringer::Ringer;
use std::collections::VecDeque;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Why there is no pump.
#[derive(Debug)]
pub enum Error {
    /// A system call failed.
    System(&'static str, sd_sys::Errno),
    /// The monitor refused.
    Refused(Option<ErrorCode>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System(what, error) => {
                write!(f, "cannot {what}: {}", std::io::Error::from_raw_os_error(error.0))
            }
            Error::Refused(Some(code)) => write!(f, "the monitor wants no pump ({code:?})"),
            Error::Refused(None) => write!(f, "the monitor does not answer"),
        }
    }
}

impl std::error::Error for Error {}

/// An answer is waited for so long.
const ANSWER_MS: u32 = 2000;
/// A pump that never sleeps reads its socket after so many looks at what was announced: the monitor's end is not.
const LOOKS: u32 = 256;

/// What a process is to the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It carries connections between processes of this host.
    Pump,
    /// It carries them to other hosts.
    Engine,
}

/// See the module.
pub struct Control {
    role: Role,
    /// Its own public page.
    page: &'static Public,
    socket: Owned,
    slab: Slab,
    mail_seen: u32,
    looks: u32,
    notices: VecDeque<(Reply, Received)>,
    /// Answers that came too late to be waited for.
    owed: u32,
    ringer: Option<Ringer>,
    pub has_ended: bool,
    /// What peers ring.
    pub eventfd: Owned,
    /// Slab, page, and a socket that shows the network namespace.
    files: [Owned; 3],
}

impl Control {
    /// Registers with the monitor there.
    pub fn connect(path: &Path, role: Role) -> Result<Control, Error> {
        let system = |what| move |error| Error::System(what, error);
        let socket = reach(path)?;
        let pid = sd_sys::fd::getpid() as u32;
        let (slab_file, slab) = Slab::create(pid).map_err(system("make a slab"))?;
        let (page_file, page) = sd_shm::public::create(pid).map_err(system("make a page"))?;
        let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let eventfd = eventfd.map_err(system("make an eventfd"))?;
        let tcp = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let tcp = tcp.map_err(system("make a socket"))?;
        let mut control = Control {
            role,
            page,
            socket,
            slab,
            mail_seen: 0,
            looks: 0,
            notices: VecDeque::new(),
            owed: 0,
            ringer: Ringer::new().ok(),
            has_ended: false,
            eventfd,
            files: [slab_file, page_file, tcp],
        };
        control.register(false)?;
        Ok(control)
    }

    /// Registers with the monitor that is there now. It brings what it has.
    pub fn come_back(&mut self, path: &Path) -> Result<(), Error> {
        self.socket = reach(path)?;
        (self.has_ended, self.owed) = (false, 0);
        self.notices.clear();
        self.register(true).inspect_err(|_| self.has_ended = true)
    }

    fn register(&mut self, again: bool) -> Result<(), Error> {
        let [slab, page, tcp] = &self.files;
        let fds = [slab.raw(), page.raw(), self.eventfd.raw(), tcp.raw()];
        let hello = Request::Hello { version: VERSION, again };
        let role = match self.role {
            Role::Pump => Request::Pump { again },
            Role::Engine => Request::Engine,
        };
        for (request, fds) in [(&hello, &fds[..]), (&role, &[])] {
            match self.ask(request, fds) {
                Some((Reply::Welcome { .. } | Reply::Ok, _)) => {}
                Some((Reply::Error { code }, _)) => return Err(Error::Refused(Some(code))),
                _ => return Err(Error::Refused(None)),
            }
        }
        Ok(())
    }

    /// One whose monitor has ended: for tests and for fuzzing.
    #[doc(hidden)]
    pub fn deaf() -> Option<Control> {
        Control::pair().map(|(control, _)| Control { has_ended: true, ..control })
    }

    /// One that has not registered, and the monitor's end.
    fn pair() -> Option<(Control, Owned)> {
        let [socket, other] = msg::pair_with_credentials().ok()?;
        let (file, slab) = Slab::create(1).ok()?;
        let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).ok()?;
        let (page_file, page) = sd_shm::public::create(1).ok()?;
        let tcp = sd_sys::fd::dup(file.raw()).ok()?;
        let control = Control {
            role: Role::Pump,
            page,
            socket,
            slab,
            mail_seen: 0,
            looks: 0,
            notices: VecDeque::new(),
            owed: 0,
            ringer: None,
            has_ended: false,
            eventfd,
            files: [file, page_file, tcp],
        };
        Some((control, other))
    }

    /// The socket, for waiting.
    pub fn socket(&self) -> i32 {
        self.socket.raw()
    }

    /// Peers ring the eventfd from now on, or need not.
    pub fn says_it_sleeps(&self, sleeps: bool) {
        let word = std::iter::once(&self.page.sleepers);
        if sleeps { sleepers::enter(word) } else { sleepers::leave(word) }
    }

    /// Tells a new monitor of a channel, and who is at its other end.
    pub fn bring(&mut self, id: u64, ours: Side, peer_pid: u32, segment: &Owned) {
        let request = Request::Channel { id, side: ours as u32, peer_pid, adopter: 0 };
        let _ = self.send(&request, &[segment.raw()]);
    }

    /// Tells the monitor something that has no answer.
    pub fn tell(&mut self, request: &Request) {
        let _ = self.send(request, &[]);
    }

    fn send(&mut self, request: &Request, fds: &[i32]) -> Option<()> {
        let mut buf = [0u8; MESSAGE_MAX];
        msg::send_with_fds(self.socket.raw(), request.encode(&mut buf), fds, 0).ok().map(drop)
    }

    /// Asks the monitor. What it says unasked meanwhile is kept.
    pub fn ask(&mut self, request: &Request, fds: &[i32]) -> Option<(Reply, Received)> {
        if self.has_ended {
            return None;
        }
        self.send(request, fds)?;
        loop {
            let Some((reply, got)) = self.receive(0) else {
                self.owed += 1;
                return None;
            };
            if is_notice(&reply) {
                self.notices.push_back((reply, got));
            } else if self.owed == 0 {
                return Some((reply, got));
            } else {
                self.owed -= 1;
            }
        }
    }

    /// What the monitor has said unasked.
    pub fn notice(&mut self) -> Option<(Reply, Received)> {
        if let Some(first) = self.notices.pop_front() {
            return Some(first);
        }
        loop {
            let (reply, got) = self.receive(libc::MSG_DONTWAIT)?;
            if is_notice(&reply) {
                return Some((reply, got));
            }
            // An answer that nobody waits for any more.
            self.owed = self.owed.saturating_sub(1);
        }
    }

    /// Wakes who watches an eventfd. One of another user's could be made to hold the pump up by a write (`sd_sys::ringer`).
    pub fn ring(&mut self, eventfd: i32, (channel, side): (u64, Side), is_stranger: bool) {
        if !is_stranger {
            sd_sys::fd::eventfd_signal(eventfd);
        } else if self.ringer.as_ref().is_none_or(|ringer| ringer.ring(eventfd).is_err()) {
            self.tell(&Request::Ring { channel, side: side as u32 });
        }
    }

    /// It may have said something since the last call of this, or have ended.
    pub fn has_mail(&mut self) -> bool {
        let mail = self.slab.header().mail.load(Ordering::Acquire);
        self.looks = self.looks.wrapping_add(1);
        let has_news = std::mem::replace(&mut self.mail_seen, mail) != mail || !self.notices.is_empty();
        has_news || self.looks.is_multiple_of(LOOKS)
    }

    fn receive(&mut self, flags: i32) -> Option<(Reply, Received)> {
        if self.has_ended {
            return None;
        }
        let mut buf = [0u8; MESSAGE_MAX];
        match msg::recv_with_fds(self.socket.raw(), &mut buf, flags) {
            Ok(got) if got.len != 0 => match Reply::decode(buf.get(..got.len).unwrap_or(&[])) {
                Ok(reply) => Some((reply, got)),
                Err(_) => {
                    self.has_ended = true;
                    None
                }
            },
            Err(sd_sys::Errno(libc::EAGAIN | libc::EINTR)) => None,
            _ => {
                self.has_ended = true;
                None
            }
        }
    }
}

fn reach(path: &Path) -> Result<Owned, Error> {
    let socket = msg::connect_unix(path.as_os_str().as_bytes(), ANSWER_MS);
    socket.map_err(|error| Error::System("reach the monitor", error))
}

fn is_notice(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Twin { .. }
            | Reply::NewChannel { .. }
            | Reply::ChannelDead { .. }
            | Reply::PeerGone { .. }
            | Reply::Stranger { .. }
            | Reply::Emptied { .. }
            | Reply::Withdraw { .. }
            | Reply::Offer { .. }
            | Reply::Promote { .. }
            | Reply::Seek { .. }
            | Reply::Unseek { .. }
            | Reply::Hosts
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pump with work all the time looks whether there is mail, and never waits for anything.
    #[test]
    fn the_end_of_the_monitor_is_noticed_without_a_sleep() {
        let (mut control, monitor) = Control::pair().unwrap();
        let look = |control: &mut Control| {
            let has_mail = control.has_mail();
            has_mail.then(|| control.notice()).flatten();
            control.has_ended
        };
        assert!(!(0..2 * LOOKS).any(|_| look(&mut control)));
        drop(monitor);
        assert!((0..LOOKS).any(|_| look(&mut control)));
    }
}
