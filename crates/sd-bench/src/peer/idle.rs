//! Many connections, each used once, on which nothing happens any more.

use super::link::{Link, Socket, result};
use super::socket::{Address, accept, connect_to, stream_socket};
use sd_cli::failure::{Context, Failure, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes that go each way over every connection before it idles.
const USED: usize = 64;

/// Opens the connections, reports, and sleeps until standard input ends.
pub(crate) fn call(address: &Address, count: usize) -> Result<()> {
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let mut link = connect_to(stream_socket(address).context("socket")?, address).context("connect")?;
        link.send_all(&[1; USED]).context("send")?;
        if !link.recv_all(&mut [0; USED]).context("recv")? {
            return Err(Failure::new("the peer is gone"));
        }
        links.push(link);
    }
    super::wait_for_go()?;
    sleep(&links)
}

/// Accepts them, and sleeps until standard input ends.
pub(crate) fn serve(listener: &OwnedFd, count: usize) -> Result<()> {
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let mut link = accept(listener)?;
        let mut bytes = [0; USED];
        if !link.recv_all(&mut bytes).context("recv")? {
            return Err(Failure::new("the peer is gone"));
        }
        link.send_all(&bytes).context("send")?;
        links.push(link);
    }
    sleep(&links)
}

/// Waits on everything at once; only standard input has something to say.
fn sleep(links: &[Socket]) -> Result<()> {
    // SAFETY: no pointers.
    let epoll = result(unsafe { libc::epoll_create1(0) } as isize).context("epoll_create1")?;
    // SAFETY: a fresh descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll as i32) };
    for fd in links.iter().map(|link| link.0.as_raw_fd()).chain([0]) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the kernel reads one event.
        let done = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        result(done as isize).context("epoll_ctl")?;
    }
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    loop {
        // SAFETY: room for one event.
        let n = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, -1) };
        match result(n as isize) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("epoll_wait"),
        }
    }
}
