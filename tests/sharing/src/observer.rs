//! The peer of a process that is killed: it must get what was acknowledged, an end, and never hang.
//!
//! The first byte of an accepted connection says what its peer wants: `S` to be read, `R` to be sent
//! [`PRESENT`] bytes, `B` to be read in blocks of [`BLOCK`] equal bytes, `E` to get every byte back, `N` with eight bytes more to be read and reported under that number.
//! Commands come on standard input:
//!
//! - `connect PORT`: connects there, says five bytes, and reads to the end.
//! - `dial PORT:COUNT`: connects so often to another observer, as one that wants to be read, and reads to the end.
//! - `send BYTES`: sends so many more on each connection that was dialled.
//! - `shut`: ends what is sent on each of them.
//! - `report`: when no connection is open any more, or after three seconds, a line for each and then `done`.

use crate::pattern::{byte_at, bytes};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Bytes that an `R` connection is sent.
pub(crate) const PRESENT: usize = 100_000;

/// A message of a `B` connection.
pub(crate) const BLOCK: usize = 64;

/// A connection is given so long to end before it counts as hung.
const TIMEOUT: Duration = Duration::from_secs(3);

struct Conn {
    /// `None` after its end, so that thousands can be seen in one life.
    stream: Option<TcpStream>,
    mode: u8,
    /// First bytes, until it is known what the peer wants.
    head: Vec<u8>,
    id: u64,
    got: usize,
    is_intact: bool,
    to_send: Vec<u8>,
    /// What was asked to be sent on one that was dialled.
    sent: Option<usize>,
    /// The byte that the current block consists of.
    block: u8,
    end: Option<String>,
}

impl Conn {
    fn new(stream: TcpStream, mode: u8) -> io::Result<Conn> {
        stream.set_nonblocking(true)?;
        Ok(Conn {
            stream: Some(stream),
            mode,
            head: Vec::new(),
            id: 0,
            got: 0,
            is_intact: true,
            to_send: Vec::new(),
            sent: None,
            block: 0,
            end: None,
        })
    }

    /// Reads and writes what can be done now.
    fn attend(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        let mut buf = [0; 16 << 10];
        while self.end.is_none() {
            match stream.read(&mut buf) {
                Ok(0) => self.end = Some("EOF".to_owned()),
                Ok(len) => self.take(&buf[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => self.end = Some(name_of(&error)),
            }
        }
        while self.end.is_none() && !self.to_send.is_empty() {
            match stream.write(&self.to_send) {
                Ok(len) => drop(self.to_send.drain(..len)),
                // How the peer ended is what reading says.
                Err(error) if error.kind() != ErrorKind::WouldBlock => self.to_send.clear(),
                Err(_) => break,
            }
        }
        self.stream = self.end.is_none().then_some(stream);
    }

    fn take(&mut self, mut bytes_: &[u8]) {
        while self.mode == 0
            && let Some((first, rest)) = bytes_.split_first()
        {
            self.head.push(*first);
            bytes_ = rest;
            match self.head.as_slice() {
                [b'N', id @ ..] if id.len() == 8 => {
                    self.id = u64::from_ne_bytes(id.try_into().unwrap_or_default());
                    self.mode = b'N';
                }
                [b'N', ..] => {}
                [mode, ..] => self.mode = *mode,
                [] => {}
            }
            if self.mode == b'R' {
                self.to_send = bytes(0, PRESENT);
            }
        }
        if self.mode == b'E' {
            self.to_send.extend_from_slice(bytes_);
        }
        let first = self.got;
        let is_expected = |(i, byte): (usize, &u8)| match self.mode {
            // The first of a block says what the others are.
            b'B' if (first + i).is_multiple_of(BLOCK) => {
                self.block = *byte;
                true
            }
            b'B' => *byte == self.block,
            _ => *byte == byte_at(first + i),
        };
        self.is_intact &= bytes_.iter().enumerate().all(is_expected);
        self.got += bytes_.len();
    }

    fn events(&self) -> i16 {
        if self.to_send.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT }
    }
}

fn name_of(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset => "RESET".to_owned(),
        ErrorKind::ConnectionRefused => "REFUSED".to_owned(),
        _ => format!("{error}").replace(' ', "_"),
    }
}

struct Observer {
    listener: TcpListener,
    conns: Vec<Conn>,
    report_by: Option<Instant>,
}

pub(crate) fn run() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("port {}", listener.local_addr()?.port());
    let mut observer = Observer { listener, conns: Vec::new(), report_by: None };
    while observer.round()? {}
    Ok(())
}

impl Observer {
    /// Waits for something and acts on it; false at the end of standard input.
    fn round(&mut self) -> io::Result<bool> {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![entry(0, libc::POLLIN), entry(self.listener.as_raw_fd(), libc::POLLIN)];
        let open = self.conns.iter().filter_map(|c| Some(entry(c.stream.as_ref()?.as_raw_fd(), c.events())));
        fds.extend(open);
        let timeout = if self.report_by.is_some() { 20 } else { -1 };
        // SAFETY: the slice is valid during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.conns.push(Conn::new(stream, 0)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.conns.iter_mut().for_each(Conn::attend);
        if fds[0].revents != 0 && !self.obey()? {
            return Ok(false);
        }
        self.report();
        Ok(true)
    }

    fn obey(&mut self) -> io::Result<bool> {
        let mut stdin = io::stdin().lock();
        // All that was said so far, as nothing else tells of the rest.
        let said = String::from_utf8_lossy(stdin.fill_buf()?).into_owned();
        stdin.consume(said.len());
        for line in said.lines() {
            match line.split_once(' ') {
                Some(("connect", port)) => self.connect(port),
                Some(("dial", place)) => self.dial(place)?,
                Some(("send", len)) => self.send(len.parse().unwrap_or(0)),
                None if line == "shut" => self.shut()?,
                _ => self.report_by = Some(Instant::now() + TIMEOUT),
            }
        }
        Ok(!said.is_empty())
    }

    fn connect(&mut self, port: &str) {
        let hello = |port: &str| {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
            stream.write_all(&bytes(0, 5))?;
            Conn::new(stream, b'S')
        };
        match hello(port) {
            Ok(conn) => self.conns.push(conn),
            Err(error) => println!("cannot connect: {}", name_of(&error)),
        }
    }

    fn dial(&mut self, place: &str) -> io::Result<()> {
        let (port, count) = place.split_once(':').unwrap_or((place, "1"));
        for _ in 0..count.parse().unwrap_or(1) {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
            stream.write_all(b"S")?;
            self.conns.push(Conn { sent: Some(0), ..Conn::new(stream, b'S')? });
        }
        Ok(())
    }

    fn send(&mut self, len: usize) {
        for conn in &mut self.conns {
            if let Some(sent) = &mut conn.sent {
                conn.to_send.extend(bytes(*sent, len));
                *sent += len;
            }
            conn.attend();
        }
    }

    fn shut(&mut self) -> io::Result<()> {
        let dialled = self.conns.iter().filter(|conn| conn.sent.is_some());
        dialled
            .filter_map(|conn| conn.stream.as_ref())
            .try_for_each(|stream| stream.shutdown(Shutdown::Write))
    }

    /// Something may still be on its way in while the listener is empty: a connection is waited for until it ends.
    fn report(&mut self) {
        let Some(by) = self.report_by else { return };
        let is_over = self.conns.iter().all(|conn| conn.end.is_some());
        if !is_over && Instant::now() < by {
            return;
        }
        for conn in self.conns.drain(..) {
            let end = conn.end.as_deref().unwrap_or("HUNG");
            let intact = if conn.is_intact { "intact" } else { "CORRUPT" };
            println!("conn {} {intact} {end} {}", conn.got, conn.id);
        }
        println!("done");
        self.report_by = None;
    }
}
