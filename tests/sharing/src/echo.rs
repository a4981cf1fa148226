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
pub(crate) fn serve(port: u16, address: Option<&&str>) -> io::Result<()> {
    serve_and((address.unwrap_or(&"127.0.0.1"), port), |_| {})
}

/// Serves until it is killed; `each` is told its highest number after each event.
pub(crate) fn serve_and((address, port): (&str, u16), mut each: impl FnMut(RawFd)) -> io::Result<()> {
    let mut server = Server::listen(address, port)?;
    loop {
        for fd in server.wait() {
            if fd == server.listener.as_raw_fd() {
                server.accept()?;
            } else if server.echo(fd).is_err() {
                server.conns.remove(&fd);
            }
            each(server.conns.keys().copied().max().unwrap_or(server.set).max(server.set));
        }
    }
}

/// A listener, its connections and what each still has to be sent, on one epoll instance.
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) set: RawFd,
    pub(crate) conns: HashMap<RawFd, (TcpStream, Vec<u8>)>,
}

impl Server {
    /// Says its port.
    pub(crate) fn listen(address: &str, port: u16) -> io::Result<Server> {
        let listener = TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        println!("port {}", listener.local_addr()?.port());
        // SAFETY: no memory is involved.
        let set = unsafe { libc::epoll_create1(0) };
        control(set, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), libc::EPOLLIN);
        Ok(Server { listener, set, conns: HashMap::new() })
    }

    /// The numbers that something is to be done with.
    pub(crate) fn wait(&self) -> Vec<RawFd> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the slice is valid during the call.
        let count = unsafe { libc::epoll_wait(self.set, events.as_mut_ptr(), 64, -1) };
        events.iter().take(count.max(0) as usize).map(|event| event.u64 as RawFd).collect()
    }

    /// Takes all that wait.
    pub(crate) fn accept(&mut self) -> io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            self.serves(stream)?;
        }
        Ok(())
    }

    /// Makes a connection, on which it serves.
    pub(crate) fn dial(&mut self, address: &str) -> io::Result<()> {
        self.serves(TcpStream::connect(address)?)
    }

    fn serves(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        control(self.set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), libc::EPOLLIN);
        self.conns.insert(stream.as_raw_fd(), (stream, Vec::new()));
        Ok(())
    }

    /// Does what can be done with a connection. An error: it is over.
    pub(crate) fn echo(&mut self, fd: RawFd) -> io::Result<()> {
        let Some((stream, owed)) = self.conns.get_mut(&fd) else { return Ok(()) };
        match echo(self.set, stream, owed) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            done => done,
        }
    }
}

fn echo(set: RawFd, stream: &mut TcpStream, owed: &mut Vec<u8>) -> io::Result<()> {
    let mut buf = vec![0; 32 << 10];
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
