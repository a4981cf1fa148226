//! Very many connections between two processes, used through epoll: round-robin, a few at a time, or all of them at a time.
//!
//! The client does a turn whenever the driver says so: each connection is used once at least, and again until the time is
//! over. Between turns both sides sleep, so that the connections can be looked at, or another pair of processes can run.

use super::clock::{Clock, ticks};
use super::link::{Link, Socket, result};
use super::{Options, Report, Work};
use sd_cli::failure::{Context, Failure, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Messages under way at a time, where not on each connection, so that the figure is what a message costs and not how long one is waited for.
const WINDOW: usize = 16;
const EVENTS: usize = 64;
/// Connections between two processes that share descriptors of the library's, and how many those are.
const CHANNEL: usize = sd_shm::channel::SLOTS;
const FDS_OF_CHANNEL: usize = 2;
/// Other descriptors that are not connections.
const OTHER_FDS: usize = 100;
/// Connections that are used in one turn: memory of those that were used has to be given back before all others can be.
pub(crate) const PER_TURN: usize = 1_000_000;
/// Connections to one address: they use as many ports, which all pairs of processes have in common.
pub(super) const PER_ADDRESS: usize = 256;

/// Says that all is connected, then does a turn at each word of the driver's, until standard input ends.
pub(crate) fn call(links: Vec<Socket>, options: &Options) -> Result<()> {
    let epoll = Epoll::over(&links)?;
    sd_cli::failure::print("connected\n")?;
    let message = vec![7; options.size];
    let mut caller = Caller { links, epoll, next: 0, message, is_together: options.work == Work::Together };
    while caller.is_told()? {
        super::tell(&caller.turn(options.duration())?)?;
    }
    Ok(())
}

struct Caller {
    links: Vec<Socket>,
    epoll: Epoll,
    /// The connection after the one that was used last.
    next: usize,
    message: Vec<u8>,
    /// A message is under way on each.
    is_together: bool,
}

impl Caller {
    /// Waits for the driver's word, as an idle program does; false at the end.
    fn is_told(&self) -> Result<bool> {
        self.epoll.change(libc::EPOLL_CTL_ADD, libc::STDIN_FILENO, u64::MAX)?;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        while !self.epoll.wait(&mut events)?.iter().any(|event| event.u64 == u64::MAX) {}
        self.epoll.change(libc::EPOLL_CTL_DEL, libc::STDIN_FILENO, u64::MAX)?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).context("standard input")?;
        Ok(!line.is_empty())
    }

    /// Messages that went there and back per second, in turn over all connections, or the next million of them.
    fn turn(&mut self, time: Duration) -> Result<Report> {
        let count = self.links.len().min(PER_TURN);
        let window = if self.is_together { count } else { WINDOW.min(count) };
        let mut answer = vec![0; self.message.len()];
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let clock = Clock::start(time);
        let (mut sent, mut back, mut waits) = (0, 0, 0u64);
        while sent < window {
            self.send_next()?;
            sent += 1;
        }
        while back < sent {
            waits += 1;
            for event in self.epoll.wait(&mut events)? {
                let link = self.links.get_mut(event.u64 as usize);
                let link = link.ok_or_else(|| Failure::new("the driver speaks too early"))?;
                if !link.recv_all(&mut answer).context("recv")? {
                    return Err(Failure::new("the peer is gone"));
                }
                back += 1;
                if sent < count || !clock.is_over(ticks()) {
                    match self.is_together {
                        true => link.send_all(&self.message).context("send")?,
                        false => self.send_next()?,
                    }
                    sent += 1;
                }
            }
        }
        let value = back as f64 / (clock.elapsed_ns() / 1e9);
        let items = [("messages per wait".to_owned(), back as f64 / waits as f64)].into();
        Ok(Report { value, count: Some(back as u64), items, ..Report::default() })
    }

    #[inline(always)]
    fn send_next(&mut self) -> Result<()> {
        self.next = (self.next + 1) % self.links.len();
        self.links[self.next].send_all(&self.message).context("send")
    }
}

/// Sends everything back, until all connections are closed.
pub(crate) fn serve(links: Vec<Socket>, size: usize) -> Result<()> {
    let epoll = Epoll::over(&links)?;
    let mut links: Vec<Option<Socket>> = links.into_iter().map(Some).collect();
    let mut open = links.len();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    let mut buf = vec![0; size];
    while open > 0 {
        for event in epoll.wait(&mut events)? {
            let place = &mut links[event.u64 as usize];
            let Some(link) = place else { continue };
            match link.recv(&mut buf) {
                Ok(n) if n > 0 => link.send_all(&buf[..n]).context("send")?,
                // A peer that has gone with everything read may also reset.
                _ => {
                    *place = None;
                    open -= 1;
                }
            }
        }
    }
    Ok(())
}

/// Raises the limit of descriptors for so many connections, and returns for how many it is enough.
pub(crate) fn raise_limit(count: usize) -> usize {
    let wanted = (count + count.div_ceil(CHANNEL) * FDS_OF_CHANNEL + OTHER_FDS) as u64;
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the kernel writes one structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let highest = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap_or_default();
    let highest = highest.trim().parse().unwrap_or(limit.rlim_max);
    // More than the hard limit takes a privilege.
    for most in [wanted.clamp(limit.rlim_max, highest.max(limit.rlim_max)), limit.rlim_max] {
        let raised = libc::rlimit { rlim_cur: most, rlim_max: most };
        let helps = limit.rlim_cur < wanted.min(most);
        // SAFETY: the kernel reads one structure.
        if helps && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            limit = raised;
        }
    }
    let room = (limit.rlim_cur as usize).saturating_sub(OTHER_FDS);
    let (channels, rest) = (room / (CHANNEL + FDS_OF_CHANNEL), room % (CHANNEL + FDS_OF_CHANNEL));
    (channels * CHANNEL + rest.saturating_sub(FDS_OF_CHANNEL)).clamp(1, count.max(1))
}

struct Epoll(OwnedFd);

impl Epoll {
    /// An instance that tells a link's number when something has come.
    fn over(links: &[Socket]) -> Result<Epoll> {
        // SAFETY: no pointers.
        let fd = result(unsafe { libc::epoll_create1(0) } as isize).context("epoll_create1")?;
        // SAFETY: a fresh descriptor.
        let epoll = Epoll(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        for (number, link) in links.iter().enumerate() {
            epoll.change(libc::EPOLL_CTL_ADD, link.0.as_raw_fd(), number as u64)?;
        }
        Ok(epoll)
    }

    fn change(&self, operation: i32, fd: i32, number: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: the kernel reads one event.
        let changed = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) };
        result(changed as isize).context("epoll_ctl").map(drop)
    }

    fn wait<'a>(&self, events: &'a mut [libc::epoll_event; EVENTS]) -> Result<&'a [libc::epoll_event]> {
        // SAFETY: room for so many events.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, -1) };
        Ok(&events[..result(n as isize).context("epoll_wait")?])
    }
}
