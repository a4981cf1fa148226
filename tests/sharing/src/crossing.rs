//! Both ends of a connection that carries known bytes both ways, in pieces of random sizes with random pauses, while the way that they
//! take changes. Each end checks every byte, and that the other's end comes when all have come.

use crate::pattern::{Random, byte_at, bytes};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How an end waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Takes turns with the other end, in calls that block.
    Turns,
    /// The same in a process of two threads, as with a time-out: in poll before each piece is received.
    Polled,
    /// A thread that sends and one that receives, in calls that block.
    Threads,
    /// In poll, by calls that do not block.
    Poll,
    /// In epoll, level-triggered.
    Level,
    /// In epoll, edge-triggered.
    Edge,
}

/// Bytes of one end's stream begin here in the pattern.
const SHIFT: [usize; 2] = [0, 1_000_003];
/// Nothing for so long: something was lost.
const PATIENCE_MS: i32 = 20_000;

/// `crossing (serve|serve-all|PORT|ADDRESS:PORT) WAY SEED BYTES`: carries so many bytes each way, says so, and stays. `serve-all`: at all
/// addresses.
pub(crate) fn run(place: &str, way: &str, seed: u64, total: usize) -> io::Result<()> {
    let way = match way {
        "turns" => Way::Turns,
        "polled" => Way::Polled,
        "threads" => Way::Threads,
        "poll" => Way::Poll,
        "level" => Way::Level,
        "edge" => Way::Edge,
        _ => return Err(io::Error::other("no such way")),
    };
    let is_client = !place.starts_with("serve");
    let stream = match (place, place.parse::<u16>()) {
        (_, Ok(port)) => TcpStream::connect(("127.0.0.1", port))?,
        ("serve" | "serve-all", _) => {
            let listener = TcpListener::bind(if place == "serve" { "127.0.0.1:0" } else { "0.0.0.0:0" })?;
            println!("port {}", listener.local_addr()?.port());
            listener.accept()?.0
        }
        (address, _) => TcpStream::connect(address)?,
    };
    let end =
        End { stream, own: SHIFT[usize::from(is_client)], other: SHIFT[usize::from(!is_client)], total };
    let random = Random::new(seed * 2 + u64::from(is_client));
    match way {
        Way::Turns => end.take_turns(is_client, seed, || Ok(())),
        Way::Polled => {
            std::thread::spawn(std::thread::park);
            end.take_turns(is_client, seed, || end.wait_readable())
        }
        Way::Threads => std::thread::scope(|scope| {
            let receiver = scope.spawn(|| end.receive_all(Random::new(seed * 3 + u64::from(is_client))));
            end.send_all(random)?;
            receiver.join().unwrap_or_else(|_| Err(io::Error::other("the receiver panicked")))
        }),
        way => end.by_events(way, random),
    }?;
    println!("carried {total}");
    // Whoever looks at the connection ends this.
    loop {
        std::thread::park();
    }
}

/// `bursts (serve|PORT) SEED COUNT`: so many connections, one after the other. On each the ends take turns for a while; then the server sends a lot
/// and closes at once, and the client gets all of it, and then the end.
pub(crate) fn bursts(place: &str, seed: u64, count: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let listener = if place == "serve" { Some(TcpListener::bind("127.0.0.1:0")?) } else { None };
    if let Some(listener) = &listener {
        println!("port {}", listener.local_addr()?.port());
    }
    for _ in 0..count {
        let stream = match &listener {
            Some(listener) => listener.accept()?.0,
            None => TcpStream::connect(("127.0.0.1", place.parse().map_err(io::Error::other)?))?,
        };
        let is_client = listener.is_none();
        let own = SHIFT[usize::from(is_client)];
        let end = End { stream, own, other: SHIFT[usize::from(!is_client)], total: 0 };
        let (turns, burst) = (3000 + random.below(20_000) as usize, random.below(200_000) as usize + 1);
        let end = End { total: turns, ..end };
        end.take_turns(is_client, seed, || Ok(()))?;
        if !is_client {
            (&end.stream).write_all(&bytes(end.own, burst))?;
            continue;
        }
        let mut got = Vec::new();
        (&end.stream).read_to_end(&mut got)?;
        end.check(0, &got)?;
        if got.len() != burst {
            return Err(io::Error::other(format!("{} bytes of {burst}", got.len())));
        }
    }
    println!("carried {count}");
    loop {
        std::thread::park();
    }
}

struct End {
    stream: TcpStream,
    own: usize,
    other: usize,
    total: usize,
}

/// Mostly small pieces.
fn size(random: &mut Random) -> usize {
    let most = if random.below(10) == 0 { 100_000 } else { 300 };
    random.below(most) as usize + 1
}

fn pause(random: &mut Random) {
    if random.below(50) == 0 {
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

impl End {
    fn check(&self, at: usize, got: &[u8]) -> io::Result<()> {
        match got.iter().enumerate().find(|(i, byte)| **byte != byte_at(self.other + at + i)) {
            None => Ok(()),
            Some((i, byte)) => {
                Err(io::Error::other(format!("byte {} is {byte}, which was not sent there", at + i)))
            }
        }
    }

    fn is_all(&self, received: usize) -> io::Result<()> {
        if received == self.total {
            return Ok(());
        }
        Err(io::Error::other(format!("the end came after {received} bytes of {}", self.total)))
    }

    fn take_turns(&self, is_client: bool, seed: u64, wait: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let (mut random, mut at) = (Random::new(seed), 0);
        while at < self.total {
            let len = (random.below(300) as usize + 1).min(self.total - at);
            for sends in [is_client, !is_client] {
                if sends {
                    (&self.stream).write_all(&bytes(self.own + at, len))?;
                } else {
                    let (mut got, mut done) = (vec![0; len], 0);
                    while done < len {
                        wait()?;
                        match (&self.stream).read(&mut got[done..])? {
                            0 => return self.is_all(at),
                            more => done += more,
                        }
                    }
                    self.check(at, &got)?;
                }
            }
            at += len;
        }
        Ok(())
    }

    fn wait_readable(&self) -> io::Result<()> {
        let mut list = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the list is valid during the call.
        match unsafe { libc::poll(&mut list, 1, PATIENCE_MS) } {
            1 => Ok(()),
            _ => Err(io::Error::other("nothing comes")),
        }
    }

    fn send_all(&self, mut random: Random) -> io::Result<()> {
        let mut at = 0;
        while at < self.total {
            let len = size(&mut random).min(self.total - at);
            (&self.stream).write_all(&bytes(self.own + at, len))?;
            at += len;
            pause(&mut random);
        }
        self.stream.shutdown(Shutdown::Write)
    }

    fn receive_all(&self, mut random: Random) -> io::Result<()> {
        let mut at = 0;
        loop {
            let mut got = vec![0; size(&mut random)];
            match (&self.stream).read(&mut got)? {
                0 => return self.is_all(at),
                len => {
                    self.check(at, &got[..len])?;
                    at += len;
                }
            }
            pause(&mut random);
        }
    }

    fn by_events(&self, way: Way, mut random: Random) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        // SAFETY: no memory is involved.
        let set = unsafe { libc::epoll_create1(0) };
        let edge = if way == Way::Edge { libc::EPOLLET } else { 0 };
        if way != Way::Poll {
            self.register(set, libc::EPOLL_CTL_ADD, libc::EPOLLIN | libc::EPOLLOUT | edge);
        }
        let (mut sent, mut received, mut has_ended, mut has_sent) = (0, 0, false, false);
        while !has_ended || !has_sent {
            let (may_read, may_write) = self.wait(way, set, !has_sent)?;
            while may_write && !has_sent {
                let len = size(&mut random).min(self.total - sent);
                match (&self.stream).write(&bytes(self.own + sent, len)) {
                    Ok(len) => sent += len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
                if sent == self.total {
                    has_sent = true;
                    self.stream.shutdown(Shutdown::Write)?;
                    if way == Way::Level {
                        self.register(set, libc::EPOLL_CTL_MOD, libc::EPOLLIN);
                    }
                }
                pause(&mut random);
                if way != Way::Edge {
                    break;
                }
            }
            while may_read && !has_ended {
                let mut got = vec![0; size(&mut random)];
                match (&self.stream).read(&mut got) {
                    Ok(0) => has_ended = true,
                    Ok(len) => {
                        self.check(received, &got[..len])?;
                        received += len;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
                pause(&mut random);
                if way != Way::Edge {
                    break;
                }
            }
        }
        self.is_all(received)
    }

    fn register(&self, set: i32, op: i32, events: i32) {
        let mut event = libc::epoll_event { events: events as u32, u64: 42 };
        // SAFETY: the event is valid during the call.
        unsafe { libc::epoll_ctl(set, op, self.stream.as_raw_fd(), &mut event) };
    }

    /// Whether it can be read, and written, perhaps.
    fn wait(&self, way: Way, set: i32, writes: bool) -> io::Result<(bool, bool)> {
        let events = if way == Way::Poll {
            let wanted = libc::POLLIN | if writes { libc::POLLOUT } else { 0 };
            let mut entry = libc::pollfd { fd: self.stream.as_raw_fd(), events: wanted, revents: 0 };
            // SAFETY: one entry.
            match unsafe { libc::poll(&mut entry, 1, PATIENCE_MS) } {
                1 => i32::from(entry.revents),
                _ => return Err(io::Error::other("nothing came, and nothing went")),
            }
        } else {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: so many entries.
            let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, PATIENCE_MS) };
            if count <= 0 || events.iter().take(count as usize).any(|event| event.u64 != 42) {
                return Err(io::Error::other("no event came, or another one"));
            }
            events.iter().take(count as usize).fold(0, |all, event| all | event.events as i32)
        };
        let reads = libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR;
        Ok((events & reads != 0, events & libc::EPOLLOUT != 0))
    }
}
