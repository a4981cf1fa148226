//! An echo server on epoll, and a client that checks what comes back.

use crate::pattern::bytes;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// A client whose echo takes longer has been hung.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn control(set: RawFd, op: i32, fd: RawFd, events: i32) {
    let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
    // SAFETY: the event is valid during the call.
    unsafe { libc::epoll_ctl(set, op, fd, &mut event) };
}

/// Serves until it is killed.
pub(crate) fn serve(port: u16) -> io::Result<()> {
    serve_and(port, |_| {})
}

/// Serves until it is killed; `each` is told its highest number after each event.
pub(crate) fn serve_and(port: u16, mut each: impl FnMut(RawFd)) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    println!("port {}", listener.local_addr()?.port());
    // SAFETY: no memory is involved.
    let set = unsafe { libc::epoll_create1(0) };
    control(set, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN);
    let mut conns: HashMap<RawFd, (TcpStream, Vec<u8>)> = HashMap::new();
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the slice is valid during the call.
        let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, -1) };
        for event in events.iter().take(count.max(0) as usize) {
            let fd = event.u64 as RawFd;
            if fd == listener.as_raw_fd() {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    control(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), libc::EPOLLIN);
                    conns.insert(stream.as_raw_fd(), (stream, Vec::new()));
                }
            } else if let Some((stream, owed)) = conns.get_mut(&fd)
                && let Err(error) = echo(set, stream, owed)
                && error.kind() != ErrorKind::WouldBlock
            {
                conns.remove(&fd);
            }
            each(conns.keys().copied().max().unwrap_or(set).max(set));
        }
    }
}

pub(crate) fn echo(set: RawFd, stream: &mut TcpStream, owed: &mut Vec<u8>) -> io::Result<()> {
    let mut buf = [0; 4096];
    if owed.is_empty() {
        let len = stream.read(&mut buf)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        owed.extend_from_slice(&buf[..len]);
    }
    let done = stream.write(owed);
    if let Ok(len) = done {
        owed.drain(..len);
    }
    let events = if owed.is_empty() { libc::EPOLLIN } else { libc::EPOLLOUT };
    control(set, libc::EPOLL_CTL_MOD, stream.as_raw_fd(), events);
    done.map(drop)
}

/// Sends messages of all sizes, and checks each echo; a new connection now and then. With a pause the server falls
/// asleep between them.
pub(crate) fn chat(port: u16, count: u64, pause: Duration) -> io::Result<()> {
    let mut stream = dial(port)?;
    let mut longest = Duration::ZERO;
    for i in 0..count {
        if i % 97 == 96 {
            stream = dial(port)?;
        }
        let len = [1, 8, 100, 1000, 5000, 70_000][(i % 6) as usize];
        let (message, mut back) = (bytes(i as usize, len), vec![0; len]);
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut back)?;
        longest = longest.max(start.elapsed());
        std::thread::sleep(pause);
        if message != back {
            return Err(io::Error::other(format!("echo {i} is not what was sent")));
        }
    }
    println!("{count} echoes, the slowest took {} ms", longest.as_millis());
    Ok(())
}

pub(crate) fn dial(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
