//! The thread that answers who asks for metrics. Its descriptors never block; what it waits for are poll(2) and the main
//! thread's next look around, both with an end.

use super::http::{self, Asked, REQUEST_MAX};
use super::sums::Sums;
use crate::shell::descriptors::std_fd;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockFlag, accept4, recv, send};
use prometheus_client::registry::Registry;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was seen within that time is good enough for the next who asks.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// For a request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the main thread to look around.
const LOOK: Duration = Duration::from_secs(2);
/// Who comes then takes the place of the oldest.
const VISITORS_MAX: usize = 16;
/// After an accept that failed for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
const STACK: usize = 256 << 10;

/// What both threads have.
#[derive(Debug)]
pub(super) struct Shared {
    /// The main thread is to look around.
    pub(super) bell: OwnedFd,
    /// It has done so.
    pub(super) done: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sums: Sums,
    seen: Option<Instant>,
    is_asked: bool,
}

impl Shared {
    pub(super) fn new() -> io::Result<Shared> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        let made = || sd_sys::fd::eventfd(flags).map_err(|error| io::Error::from_raw_os_error(error.0));
        Ok(Shared { bell: std_fd(made()?), done: std_fd(made()?), state: Mutex::default() })
    }

    /// What the main thread has seen.
    pub(super) fn has_seen(&self, sums: Sums) {
        *self.lock() = State { sums, seen: Some(Instant::now()), is_asked: false };
        ring(&self.done);
    }

    /// What was seen last.
    pub(super) fn sums(&self) -> Sums {
        self.lock().sums.clone()
    }

    /// True when that is fresh; else the main thread is asked.
    fn is_fresh(&self) -> bool {
        let mut state = self.lock();
        if state.seen.is_some_and(|seen| seen.elapsed() < FRESH) {
            return true;
        }
        if !std::mem::replace(&mut state.is_asked, true) {
            ring(&self.bell);
        }
        false
    }

    /// No lock is held for longer than a copy takes, on either side.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It does not block, and what it counts is never read apart from zero.
fn ring(eventfd: &OwnedFd) {
    let _ = nix::unistd::write(eventfd, &1u64.to_ne_bytes());
}

/// Starts the thread.
pub(super) fn start(listener: OwnedFd, registry: Registry, shared: Arc<Shared>) -> io::Result<()> {
    let mut desk = Desk { listener, registry, shared, visitors: Vec::new(), closed_until: None };
    let thread = std::thread::Builder::new().name("metrics".into()).stack_size(STACK);
    thread.spawn(move || {
        loop {
            desk.turn();
        }
    })?;
    Ok(())
}

enum Stage {
    /// What has come of its request.
    Asks(Vec<u8>),
    /// For the main thread.
    Waits {
        has_body: bool,
    },
    /// What it gets, and how much of that it has.
    Takes(Vec<u8>, usize),
    Over,
}

struct Visitor {
    socket: OwnedFd,
    stage: Stage,
    until: Instant,
}

struct Desk {
    listener: OwnedFd,
    registry: Registry,
    shared: Arc<Shared>,
    visitors: Vec<Visitor>,
    /// Nobody is let in before.
    closed_until: Option<Instant>,
}

impl Desk {
    /// Waits until there is something to do, and does it.
    fn turn(&mut self) {
        let now = Instant::now();
        let is_open = self.closed_until.is_none_or(|until| until <= now);
        let wakes = self.visitors.iter().map(|visitor| visitor.until);
        let wake = wakes.chain(self.closed_until.filter(|_| !is_open)).min();
        let timeout = wake.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let door = if is_open { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut watched = vec![
            PollFd::new(self.listener.as_fd(), door),
            PollFd::new(self.shared.done.as_fd(), PollFlags::POLLIN),
        ];
        watched.extend(self.visitors.iter().map(|it| PollFd::new(it.socket.as_fd(), it.stage.wants())));
        let outcome = poll(&mut watched, timeout);
        let ready: Vec<bool> = watched.iter().map(|it| it.any().unwrap_or(true)).collect();
        if let Err(error) = outcome
            && error != Errno::EINTR
        {
            tracing::warn!("metrics: poll: {error}");
            std::thread::sleep(PAUSE);
            return;
        }
        if ready.get(1) == Some(&true) {
            let _ = nix::unistd::read(self.shared.done.as_fd(), &mut [0; 8]);
            self.answer_all();
        }
        let now = Instant::now();
        let mut those = ready.iter().skip(2);
        for visitor in &mut self.visitors {
            if those.next() == Some(&true) {
                visitor.go_on(&self.shared, &self.registry);
            }
            visitor.mind_the_time(now);
        }
        self.visitors.retain(|visitor| !matches!(visitor.stage, Stage::Over));
        if is_open && ready.first() == Some(&true) {
            self.let_in();
        }
    }

    fn let_in(&mut self) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let until = Instant::now() + PATIENCE;
        match accept4(self.listener.as_raw_fd(), flags) {
            Ok(fd) => {
                if self.visitors.len() >= VISITORS_MAX {
                    self.visitors.remove(0);
                }
                // SAFETY: the kernel has just made this descriptor for us.
                let socket = unsafe { OwnedFd::from_raw_fd(fd) };
                self.visitors.push(Visitor { socket, stage: Stage::Asks(Vec::new()), until });
            }
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                self.closed_until = Some(Instant::now() + PAUSE);
            }
            // It has gone away again.
            Err(_) => {}
        }
    }

    /// The main thread has looked around.
    fn answer_all(&mut self) {
        for visitor in &mut self.visitors {
            if let Stage::Waits { has_body } = visitor.stage {
                visitor.take(page(&self.registry, has_body));
            }
        }
    }
}

fn page(registry: &Registry, has_body: bool) -> Vec<u8> {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => http::page(&text, has_body),
        Err(_) => http::refusal(503),
    }
}

impl Stage {
    fn wants(&self) -> PollFlags {
        match self {
            Stage::Asks(_) => PollFlags::POLLIN,
            Stage::Takes(..) => PollFlags::POLLOUT,
            // Hang-ups and errors are told anyway.
            Stage::Waits { .. } | Stage::Over => PollFlags::empty(),
        }
    }
}

impl Visitor {
    /// Its socket is ready for what it wants, or at its end.
    fn go_on(&mut self, shared: &Shared, registry: &Registry) {
        match &mut self.stage {
            Stage::Asks(bytes) => {
                let mut room = [0; REQUEST_MAX];
                let left = REQUEST_MAX.saturating_sub(bytes.len());
                match recv(
                    self.socket.as_raw_fd(),
                    room.get_mut(..left).unwrap_or_default(),
                    MsgFlags::empty(),
                ) {
                    Ok(len @ 1..) => bytes.extend(room.iter().take(len)),
                    Err(Errno::EAGAIN | Errno::EINTR) => return,
                    Ok(0) | Err(_) => return self.stage = Stage::Over,
                }
                match http::parse(bytes) {
                    Asked::More => {}
                    Asked::Other(status) => self.take(http::refusal(status)),
                    Asked::Page { has_body } if shared.is_fresh() => self.take(page(registry, has_body)),
                    Asked::Page { has_body } => {
                        self.stage = Stage::Waits { has_body };
                        self.until = Instant::now() + LOOK;
                    }
                }
            }
            Stage::Takes(..) => self.send(),
            Stage::Waits { .. } => self.stage = Stage::Over,
            Stage::Over => {}
        }
    }

    /// It gets this.
    fn take(&mut self, bytes: Vec<u8>) {
        self.stage = Stage::Takes(bytes, 0);
        self.until = Instant::now() + PATIENCE;
        self.send();
    }

    /// As much as there is room for.
    fn send(&mut self) {
        let Stage::Takes(bytes, sent) = &mut self.stage else { return };
        match send(self.socket.as_raw_fd(), bytes.get(*sent..).unwrap_or_default(), MsgFlags::MSG_NOSIGNAL) {
            Ok(len) => *sent += len,
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(_) => return self.stage = Stage::Over,
        }
        if *sent >= bytes.len() {
            self.stage = Stage::Over;
        }
    }

    fn mind_the_time(&mut self, now: Instant) {
        match self.stage {
            _ if now < self.until => {}
            Stage::Waits { .. } => self.take(http::refusal(503)),
            _ => self.stage = Stage::Over,
        }
    }
}
