//! An end of a connection that roams: from process to process by fork, exec and SCM_RIGHTS, while the way that its bytes take
//! changes as well. Both ends roam, send and receive at random, and check every byte that comes.
//!
//! What an end has done stands in its note, so that it can be told afterwards, however it ended, what the other one must have got. The end
//! that connects waits for bytes as long as it takes, and never for room; the other one waits for room, and for bytes only a moment.
//! So one of them can always go on, unless something was lost.

use crate::pattern::Random;
use crate::wanderer::{receive_fd, send_fd};
use libc::{EPOLLET, EPOLLIN, EPOLLOUT, POLLIN};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Bytes of one end's stream begin here in the pattern.
const SHIFT: [usize; 2] = [0, 1_000_003];
/// Nothing for so long: something was lost.
const PATIENCE_MS: i32 = 20_000;

/// Words of a note, as `xtask/src/sharing/wander.rs` reads them.
mod word {
    /// Bytes that were, or may have been, given to send.
    pub(super) const INTENDED: u64 = 0;
    /// Bytes that send has taken.
    pub(super) const SENT: u64 = 1;
    pub(super) const RECEIVED: u64 = 2;
    pub(super) const END: u64 = 3;
    /// It is connected.
    pub(super) const BEGUN: u64 = 4;
}

/// How it ended, for the note.
#[derive(Clone, Copy)]
enum End {
    Eof = 1,
    Reset = 2,
    Failed = 3,
}

/// The byte at a place in every stream. Eight in a row say which place it is.
fn byte_at(place: usize) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45) as u8
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte_at).collect()
}

struct Roamer {
    stream: TcpStream,
    /// Of the pair of notes; the end's own is this with its number.
    path: String,
    note: File,
    connects: bool,
    /// How it may be handed on: letters of fork, exec, pass.
    moves: String,
    sent: usize,
    received: usize,
    /// So many more steps, then it ends what it sends.
    steps: u64,
    may_send: bool,
    /// A call that was no reading one has been told of the connection's reset, which is told once.
    was_reset: bool,
    random: Random,
    /// An epoll instance that has the connection, and whether it is edge-triggered.
    set: Option<(OwnedFd, bool)>,
}

fn note_of(path: &str, connects: bool) -> String {
    format!("{path}-{}", u8::from(connects))
}

/// `roamer (serve|PORT) PATH MOVES SEED STEPS`: prints its port, or connects there, and roams.
pub(crate) fn start(place: &str, path: &str, moves: &str, seed: u64, steps: u64) -> io::Result<()> {
    let connects = place != "serve";
    let stream = if let Ok(port) = place.parse::<u16>() {
        TcpStream::connect(("127.0.0.1", port))?
    } else {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("port {}", listener.local_addr()?.port());
        listener.accept()?.0
    };
    stream.set_nonblocking(true)?;
    let random = Random::new(seed * 2 + u64::from(connects));
    let roamer = Roamer::new(stream, (path, connects), moves, [0, 0, steps], random)?;
    roamer.say(word::BEGUN, 1)?;
    roamer.roam()
}

/// After exec: the connection is an inherited descriptor. `words` are those that [`Roamer::exec`] gives.
pub(crate) fn go_on(words: &[&str]) -> io::Result<()> {
    let [fd, path, connects, moves, numbers @ ..] = words else { return Err(ErrorKind::InvalidInput.into()) };
    let number = |at: usize| numbers.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let fd: RawFd = fd.parse().map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: the program that executed this one has left it open for us.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    let (counts, random) = ([number(0), number(1), number(2)], Random::new(number(3)));
    Roamer::new(stream, (path, *connects == "1"), moves, counts, random)?.roam()
}

impl Roamer {
    fn new(
        stream: TcpStream,
        (path, connects): (&str, bool),
        moves: &str,
        [sent, received, steps]: [u64; 3],
        random: Random,
    ) -> io::Result<Roamer> {
        let note = OpenOptions::new().write(true).open(note_of(path, connects))?;
        let (path, moves) = (path.to_owned(), moves.to_owned());
        let (sent, received) = (sent as usize, received as usize);
        let (may_send, was_reset, set) = (true, false, None);
        Ok(Roamer {
            stream,
            path,
            note,
            connects,
            moves,
            sent,
            received,
            steps,
            may_send,
            was_reset,
            random,
            set,
        })
    }

    fn say(&self, word: u64, value: usize) -> io::Result<()> {
        self.note.write_all_at(&(value as u64).to_ne_bytes(), word * 8)
    }

    /// What is done where, for the case that it goes wrong.
    fn log(&self, action: &str) -> io::Result<()> {
        let path = format!("{}.log", note_of(&self.path, self.connects));
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        write!(file, "{action}@{}/{} ", self.sent, self.received)
    }

    fn roam(mut self) -> io::Result<()> {
        let end = match self.steps() {
            Ok(()) if !self.was_reset => End::Eof,
            Ok(()) => End::Reset,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => End::Reset,
            Err(error) => {
                self.log(&format!("{error}"))?;
                End::Failed
            }
        };
        self.say(word::END, end as usize)
    }

    /// Until the other end's end.
    fn steps(&mut self) -> io::Result<()> {
        while self.steps > 0 && self.may_send {
            self.steps -= 1;
            let has_ended = match self.random.below(1000) {
                0..4 if self.moves.contains('f') => self.fork().map(|()| false),
                4..6 if self.moves.contains('e') => self.exec().map(|()| false),
                6..10 if self.moves.contains('p') => self.pass().map(|()| false),
                0..30 => {
                    std::thread::sleep(Duration::from_micros(self.random.below(3000)));
                    Ok(false)
                }
                30..500 => self.write().map(|()| false),
                _ => self.read(),
            }?;
            if has_ended {
                return Ok(());
            }
        }
        if self.may_send {
            self.log("shut")?;
            match self.stream.shutdown(Shutdown::Write) {
                // A reset has come, of which no call has been told, and none will be if bytes are left to be read.
                Err(error) if error.kind() == ErrorKind::NotConnected => self.was_reset = true,
                done => done?,
            }
            self.may_send = false;
        }
        while !self.read()? {}
        Ok(())
    }

    /// Mostly small pieces.
    fn size(&mut self) -> usize {
        let most = [100, 300, 300, 5_000, 60_000][self.random.below(5) as usize];
        self.random.below(most) as usize + 1
    }

    /// The accepting end may wait for room, since the other one never does.
    fn write(&mut self) -> io::Result<()> {
        let len = self.size();
        self.say(word::INTENDED, self.sent + len)?;
        let piece = bytes(SHIFT[usize::from(self.connects)] + self.sent, len);
        let blocks = !self.connects && self.random.below(4) == 0;
        if blocks {
            self.stream.set_nonblocking(false)?;
        }
        let done = self.stream.write(&piece);
        if blocks {
            self.stream.set_nonblocking(true)?;
        }
        match done {
            Ok(done) => self.sent += done,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // How the other end ended is what reading says.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                self.log(&format!("{:?}", error.kind()))?;
                self.may_send = false;
                self.was_reset |= error.kind() == ErrorKind::ConnectionReset;
                // What was taken of this piece nobody knows.
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.say(word::SENT, self.sent)?;
        self.say(word::INTENDED, self.sent)
    }

    /// Reads once; waits if there is nothing. True: the other end has ended.
    fn read(&mut self) -> io::Result<bool> {
        let mut got = vec![0; self.size()];
        let waits = self.connects || !self.may_send;
        let blocks = waits && self.random.below(4) == 0;
        if blocks {
            self.stream.set_nonblocking(false)?;
        }
        if self.random.below(16) == 0 {
            let peeked = self.stream.peek(&mut got[..1]);
            self.was_reset |= peeked.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        }
        let done = self.stream.read(&mut got);
        if blocks {
            self.stream.set_nonblocking(true)?;
        }
        match done {
            Ok(0) => {
                self.log("eof")?;
                return Ok(true);
            }
            Ok(len) => self.check(&got[..len])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let moment = self.random.below(3) as i32;
                self.wait(if waits { PATIENCE_MS } else { moment })?;
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    fn check(&mut self, got: &[u8]) -> io::Result<()> {
        let first = SHIFT[usize::from(!self.connects)] + self.received;
        let wrong = got.iter().enumerate().find(|(i, byte)| **byte != byte_at(first + i));
        if let Some((i, byte)) = wrong {
            let (at, rest) = (self.received + i, &got[i..]);
            let is_place =
                |from: &usize| rest.iter().take(8).zip(*from..).all(|(byte, at)| *byte == byte_at(at));
            let near = (0..first + (4 << 20)).find(is_place);
            let off = near.map(|place| place as i64 - (first + i) as i64);
            let shown = &rest[..rest.len().min(24)];
            return Err(io::Error::other(format!(
                "byte {at} is {byte}, of {} read from {}, off by {off:?}: {shown:?}",
                got.len(),
                self.received,
            )));
        }
        self.received += got.len();
        self.say(word::RECEIVED, self.received)
    }

    /// Waits for bytes.
    fn wait(&mut self, ms: i32) -> io::Result<()> {
        let fd = self.stream.as_raw_fd();
        let way = self.random.below(3);
        let count = if way == 0 {
            let mut entry = libc::pollfd { fd, events: POLLIN, revents: 0 };
            // SAFETY: one entry.
            unsafe { libc::poll(&mut entry, 1, ms) }
        } else {
            let set = self.set(way == 1)?;
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            let mut count = 0;
            // An edge for room is not what is waited for.
            while count >= 0 && !events.iter().any(|event| event.events & !(EPOLLOUT as u32) != 0) {
                // SAFETY: so many entries.
                count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, ms) };
                if count <= 0 {
                    break;
                }
            }
            count
        };
        match count {
            0 if ms == PATIENCE_MS => Err(io::Error::other(format!("nothing came (way {way})"))),
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// The epoll instance, of the wished kind; a fresh one tells of what is there already.
    fn set(&mut self, edge: bool) -> io::Result<RawFd> {
        if self.set.as_ref().is_none_or(|(_, is_edge)| *is_edge != edge) {
            // SAFETY: no memory is involved.
            let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            let events = if edge { EPOLLIN | EPOLLOUT | EPOLLET } else { EPOLLIN };
            let mut event = libc::epoll_event { events: events as u32, u64: 42 };
            // SAFETY: the event is valid during the call; the number is a new one, and nobody else's.
            unsafe {
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, self.stream.as_raw_fd(), &mut event);
                self.set = Some((OwnedFd::from_raw_fd(set), edge));
            }
        }
        self.set.as_ref().map(|(set, _)| set.as_raw_fd()).ok_or_else(|| ErrorKind::Other.into())
    }

    /// The child goes on, the parent ends.
    fn fork(&mut self) -> io::Result<()> {
        self.log("fork")?;
        self.set = None;
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            _ => std::process::exit(0),
        }
    }

    fn exec(&mut self) -> io::Result<()> {
        self.log("exec")?;
        let seed = self.random.next() >> 1;
        let fd = self.stream.as_raw_fd();
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        let numbers = [self.sent as u64, self.received as u64, self.steps, seed];
        let words =
            [fd.to_string(), self.path.clone(), u8::from(self.connects).to_string(), self.moves.clone()];
        let words = words.into_iter().chain(numbers.map(|number| number.to_string()));
        Err(Command::new("/proc/self/exe").arg("roam-on").args(words).exec())
    }

    /// A child that has closed its copy gets the connection as a message.
    fn pass(&mut self) -> io::Result<()> {
        self.log("pass")?;
        self.set = None;
        let mut pair = [0; 2];
        // SAFETY: the kernel writes two numbers.
        unsafe {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
        };
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } != 0 {
            send_fd(pair[0], self.stream.as_raw_fd())?;
            std::process::exit(0);
        }
        // SAFETY: closes our copies and puts what comes into the place of one; the old value's number may be the new one's.
        unsafe {
            libc::close(pair[0]);
            libc::close(self.stream.as_raw_fd());
            let stream = TcpStream::from_raw_fd(receive_fd(pair[1])?);
            libc::close(pair[1]);
            _ = std::mem::replace(&mut self.stream, stream).into_raw_fd();
        }
        Ok(())
    }
}
