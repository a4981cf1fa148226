//! Very many connections between two processes, used round-robin through epoll.

use super::clock::{Clock, ticks};
use super::link::{Link, Socket, result};
use super::{Options, Report};
use crate::failure::{Context, Failure, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Messages under way at a time, so that the figure is what a message costs and not how long one is waited for.
const WINDOW: usize = 16;
const EVENTS: usize = 64;
const SIZE: usize = 8;

/// Sends round-robin over all connections; messages that came back per second. Stays until standard input ends, so
/// that the connections can be looked at.
pub(crate) fn call(mut links: Vec<Socket>, options: &Options) -> Result<()> {
    let epoll = Epoll::over(&links)?;
    let mut next = 0;
    let mut send_next = |links: &mut [Socket]| {
        next = (next + 1) % links.len();
        links[next].send_all(&[7; SIZE]).context("send")
    };
    for _ in 0..WINDOW.min(links.len()) {
        send_next(&mut links)?;
    }
    // Every connection is used before the clock starts.
    let (mut back, mut counted) = (0usize, None);
    let mut warm_up = Clock::start(options.duration() / 5);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    loop {
        for event in epoll.wait(&mut events)? {
            let link = &mut links[event.u64 as usize];
            if !link.recv_all(&mut [0; SIZE]).context("recv")? {
                return Err(Failure::new("the peer is gone"));
            }
            back += 1;
            send_next(&mut links)?;
        }
        match counted {
            None if back >= links.len() && warm_up.is_over(ticks()) => {
                warm_up = Clock::start(options.duration());
                counted = Some(back);
            }
            Some(before) if warm_up.is_over(ticks()) => {
                let value = (back - before) as f64 / (warm_up.elapsed_ns() / 1e9);
                drain(&epoll, &mut links, &mut events)?;
                super::tell(&Report { value, ..Report::default() })?;
                return epoll.sleep_until_end();
            }
            _ => {}
        }
    }
}

/// Takes what is still under way, so that the connections are idle.
fn drain(epoll: &Epoll, links: &mut [Socket], events: &mut [libc::epoll_event; EVENTS]) -> Result<()> {
    let mut left = WINDOW.min(links.len());
    while left > 0 {
        for event in epoll.wait(events)? {
            links[event.u64 as usize].recv_all(&mut [0; SIZE]).context("recv")?;
            left -= 1;
        }
    }
    Ok(())
}

/// Sends everything back, until all connections are closed.
pub(crate) fn serve(links: Vec<Socket>) -> Result<()> {
    let epoll = Epoll::over(&links)?;
    let mut links: Vec<Option<Socket>> = links.into_iter().map(Some).collect();
    let mut open = links.len();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    while open > 0 {
        for event in epoll.wait(&mut events)? {
            let place = &mut links[event.u64 as usize];
            let Some(link) = place else { continue };
            let mut buf = [0; SIZE];
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

/// Raises the limit of descriptors to what the system allows, and returns that.
pub(crate) fn raise_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the kernel writes, then reads, one structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    limit.rlim_max as usize
}

struct Epoll(OwnedFd);

impl Epoll {
    /// An instance that tells a link's number when something has come.
    fn over(links: &[Socket]) -> Result<Epoll> {
        // SAFETY: no pointers.
        let fd = result(unsafe { libc::epoll_create1(0) } as isize).context("epoll_create1")?;
        // SAFETY: a fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        for (number, link) in links.iter().enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
            let (add, fd) = (libc::EPOLL_CTL_ADD, link.0.as_raw_fd());
            // SAFETY: the kernel reads one event.
            result(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd, &mut event) } as isize)
                .context("epoll_ctl")?;
        }
        Ok(Epoll(epoll))
    }

    /// Waits as an idle program does, until standard input ends.
    fn sleep_until_end(&self) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: u64::MAX };
        // SAFETY: the kernel reads one event.
        let added = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, 0, &mut event) };
        result(added as isize).context("epoll_ctl")?;
        let mut events = [event; EVENTS];
        while !self.wait(&mut events)?.iter().any(|event| event.u64 == u64::MAX) {}
        Ok(())
    }

    fn wait<'a>(&self, events: &'a mut [libc::epoll_event; EVENTS]) -> Result<&'a [libc::epoll_event]> {
        // SAFETY: room for so many events.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, -1) };
        Ok(&events[..result(n as isize).context("epoll_wait")?])
    }
}
