//! Single operations on connections from this process to itself, for counting their instructions.
//!
//! Nothing ever waits, so each run executes the same instructions. Run under callgrind (`cargo xtask instructions`),
//! which counts between two toggles and writes what it has counted under the operation's name:
//!
//! ```text
//! toggle, operation x BURST, toggle, make room again   x BURSTS
//! dump NAME
//! ```
//! Elsewhere the requests to callgrind do nothing.

use super::link::{Link, Socket, result};
use super::socket::{Address, accept, connect_to, listen_on, stream_socket};
use sd_cli::failure::{Context, Failure, Result, print};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Messages of 8 bytes that fit into the smallest ring.
const BURST: u64 = 16;
const BURSTS: u64 = 64;
const WARM_UP_BURSTS: u64 = 16;

/// Counts all operations, and prints how often each one was counted.
pub(crate) fn run() -> Result<()> {
    let (listener, address) = listen_on("127.0.0.1:0")?;
    let address = Address::parse(&address)?;
    let [mut here, mut there] = connected(&listener, &address)?;
    send_and_recv(c"send", c"recv", &mut here, &mut there)?;
    here.send(&[1]).context("send")?;
    let epoll = watch(&there)?;
    count(c"epoll_wait", || wait(&epoll), || Ok(()))?;
    let fd = here.0.as_raw_fd();
    // SAFETY: no pointers.
    let flags = || result(unsafe { libc::fcntl(fd, libc::F_GETFL) } as isize).map(drop).context("fcntl");
    count(c"fcntl", flags, || Ok(()))?;
    count(c"connect+accept+close", || connected(&listener, &address).map(drop), || Ok(()))?;
    there.recv(&mut [0]).context("recv")?;
    super::socket::second_thread();
    send_and_recv(c"send, with tokens", c"recv, with tokens", &mut here, &mut there)
}

fn send_and_recv(send: &CStr, recv: &CStr, here: &mut Socket, there: &mut Socket) -> Result<()> {
    let receive = |there: &mut Socket| match there.recv(&mut [0; 8]).context("recv")? {
        8 => Ok(()),
        _ => Err(Failure::new("not what was sent")),
    };
    let drain = |there: &mut Socket| (0..BURST).try_for_each(|_| receive(there));
    count(send, || here.send(&[7; 8]).map(drop).context("send"), || drain(there))?;
    let mut fill = || (0..BURST).try_for_each(|_| here.send(&[7; 8]).map(drop).context("send"));
    fill()?;
    count(recv, || receive(there), fill)?;
    drain(there)
}

/// A connection to ourselves.
pub(crate) fn connected(listener: &OwnedFd, address: &Address) -> Result<[Socket; 2]> {
    let here = connect_to(stream_socket(address).context("socket")?, address).context("connect")?;
    Ok([here, accept(listener)?])
}

fn watch(socket: &Socket) -> Result<OwnedFd> {
    // SAFETY: no pointers.
    let epoll = result(unsafe { libc::epoll_create1(0) } as isize).context("epoll_create1")?;
    // SAFETY: a fresh descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll as i32) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    let (add, fd) = (libc::EPOLL_CTL_ADD, socket.0.as_raw_fd());
    // SAFETY: the kernel reads one event.
    result(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd, &mut event) } as isize)
        .context("epoll_ctl")?;
    Ok(epoll)
}

fn wait(epoll: &OwnedFd) -> Result<()> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    match result(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, -1) } as isize) {
        Ok(1) => Ok(()),
        Ok(_) => Err(Failure::new("nothing is ready")),
        Err(error) => Err(error).context("epoll_wait"),
    }
}

/// Counts an operation; between bursts, and uncounted, `restore` makes it possible again.
fn count(
    name: &CStr,
    mut operation: impl FnMut() -> Result<()>,
    mut restore: impl FnMut() -> Result<()>,
) -> Result<()> {
    for burst in 0..WARM_UP_BURSTS + BURSTS {
        if burst == WARM_UP_BURSTS {
            request(Request::Zero, 0);
        }
        request(Request::Toggle, 0);
        for _ in 0..BURST {
            operation()?;
        }
        request(Request::Toggle, 0);
        restore()?;
    }
    request(Request::DumpAt, name.as_ptr() as u64);
    print(&format!("counted {} {}\n", BURST * BURSTS, name.to_string_lossy()))
}

/// valgrind/callgrind.h: `VG_USERREQ__*`, which begin at 'C' << 24 | 'T' << 16.
#[derive(Clone, Copy)]
enum Request {
    Zero = 0x4354_0001,
    Toggle = 0x4354_0002,
    DumpAt = 0x4354_0003,
}

/// valgrind/valgrind.h: rotations that together change nothing, followed by an exchange of a register with
/// itself, are seen by valgrind; `rax` points at the request and its arguments.
#[inline(always)]
fn request(request: Request, argument: u64) {
    let arguments = [request as u64, argument, 0, 0, 0, 0];
    // SAFETY: changes no register but rdx, and no memory of ours.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") arguments.as_ptr(), inout("rdx") 0u64 => _,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over the kernel, as no library is loaded here: every operation can be done as often as it says.
    #[test]
    fn operations_never_wait() {
        run().unwrap();
    }
}
