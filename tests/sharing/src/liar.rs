//! A hostile peer that follows the protocol until it tells one lie, and dies of it: `kill -9`, so that its library puts
//! nothing right. What the other side has to find out then, no word of the channel says.

use crate::thief::{EVENTFD, SEGMENT, numbers, open};
use sd_shm::channel::{FLAG_FIN, Mapping, Side, SlotState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Lies that `run` knows.
const LIES: &str = "closed, free, closed-and-full, finished, unfinished, asking";

/// Long enough for the other side to fall asleep; that it did is what gives these lies their sting, not what is tested.
const A_WHILE: Duration = Duration::from_millis(100);

/// Talks with an echo server, or with a `sink`, that listens on the port.
pub(crate) fn run(port: u16, lie: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"a greeting")?;
    let mut back = [0; 10];
    stream.read_exact(&mut back)?;
    let map = segment()?;
    // The first connection on a channel that was made for it.
    let own = &map.slot(0).side[Side::A as usize];
    let (generation, state) = own.state();
    if generation != 1 || state != SlotState::Syn {
        return Err(io::Error::other("slot 0 is not that of the connection"));
    }
    std::thread::sleep(A_WHILE);
    match lie {
        "closed" => own.set_state(generation, SlotState::Closed),
        "free" => own.state.store(0, Ordering::Release),
        "closed-and-full" => {
            fill(&mut stream)?;
            own.set_state(generation, SlotState::Closed);
        }
        "finished" => drop(own.flags.fetch_or(FLAG_FIN, Ordering::AcqRel)),
        "unfinished" => {
            stream.shutdown(Shutdown::Write)?;
            own.flags.fetch_and(!FLAG_FIN, Ordering::AcqRel);
            own.set_state(generation, SlotState::Closed);
        }
        // A new connection at the slot that the server still uses, for a listener of a number that there is not: nobody can ever accept it.
        "asking" => {
            own.listener.store(77, Ordering::Relaxed);
            map.names(0).listener_gen.store(9, Ordering::Relaxed);
            own.set_state(generation + 1, SlotState::Syn);
        }
        _ => return Err(io::Error::other(format!("lies are: {LIES}"))),
    }
    std::thread::sleep(A_WHILE);
    // SAFETY: a system call without memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    Ok(())
}

/// Sends, and does not read, until the other side has no room for its echo and takes no more.
fn fill(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut rests = 0;
    while rests < 5 {
        match stream.write(&[7; 16 << 10]) {
            Ok(_) => rests = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(A_WHILE);
                rests += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The segment that our library shares with the server.
fn segment() -> io::Result<Mapping> {
    let own = std::process::id();
    let Some(number) = numbers(own, SEGMENT).into_iter().next() else {
        return Err(io::Error::other("no segment is shared with the server"));
    };
    let file = open(own, number)?;
    Mapping::map(file.as_raw_fd()).map_err(|error| io::Error::from_raw_os_error(error.0))
}

/// Reads every eventfd that this process has, again and again: its peers' are among them. Whoever sleeps there shall be
/// woken nevertheless by those who write them.
pub(crate) fn eat(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"a greeting")?;
    stream.read_exact(&mut [0; 10])?;
    let fds = numbers(std::process::id(), EVENTFD);
    if fds.is_empty() {
        return Err(io::Error::other("nobody's eventfd is known"));
    }
    println!("{} eventfds", fds.len());
    loop {
        for fd in &fds {
            let mut count = 0u64;
            // SAFETY: the kernel writes eight bytes.
            unsafe { libc::read(*fd, (&raw mut count).cast(), 8) };
        }
    }
}

/// Accepts connections, and reads each to its end, in a thread of its own that sleeps in read(2); returns the first ten
/// bytes, and says how it ended.
pub(crate) fn sink() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("port {}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let mut stream = stream?;
        std::thread::spawn(move || {
            let mut head = [0; 10];
            let greeted = stream.read_exact(&mut head).and_then(|()| stream.write_all(&head));
            let end = greeted.and_then(|()| io::copy(&mut stream, &mut io::sink()));
            println!("end after {end:?}");
        });
    }
    Ok(())
}
