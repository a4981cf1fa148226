//! Clients that are many: processes with a connection each, and a process with many connections again and again.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Processes that start at a time: what the monitor has to tell a server of more might not fit into its socket.
const BATCH: u64 = 50;

/// As many processes, each with a connection that it has used; they stay until they are killed.
pub(crate) fn crowd(port: u16, count: u64) -> io::Result<()> {
    let (mut news, mut teller) = io::pipe()?;
    for number in 1..=count {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                drop(news);
                // SAFETY: no memory is involved.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let _connection = used(port)?;
                teller.write_all(b"!")?;
                drop(teller);
                stay();
            }
            _ => {}
        }
        if number % BATCH == 0 || number == count {
            let mut answers = vec![0; ((number - 1) % BATCH + 1) as usize];
            news.read_exact(&mut answers)?;
        }
    }
    println!("all");
    stay()
}

/// As many processes, which all connect as soon as there is a monitor at this path, and somebody listens. They stay until
/// they are killed. `-`: no monitor.
pub(crate) fn herd(path: &str, port: u16, count: u64) -> io::Result<()> {
    let (mut news, mut teller) = io::pipe()?;
    for number in 0..count {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                drop(news);
                // SAFETY: no memory is involved.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                if number % 2 == 0 {
                    // Some have looked for a monitor before.
                    drop(TcpStream::connect(("127.0.0.1", 1)));
                }
                while path != "-" && !is_served(path)? {
                    std::thread::sleep(Duration::from_micros(200));
                }
                let mut connection = retried(port)?;
                speak(&mut connection)?;
                teller.write_all(b"!")?;
                drop(teller);
                stay();
            }
            _ => {}
        }
    }
    drop(teller);
    news.read_exact(&mut vec![0; count as usize])?;
    println!("all");
    stay()
}

/// Connections for so long, at least one, one after the other, with a server that is always there. Says how many.
pub(crate) fn dial(port: u16, time: Duration) -> io::Result<()> {
    let begin = Instant::now();
    let mut number = 0;
    while number == 0 || begin.elapsed() < time {
        let spoken =
            TcpStream::connect(("127.0.0.1", port)).and_then(|mut connection| speak(&mut connection));
        spoken.map_err(|error| io::Error::new(error.kind(), format!("connection {number}: {error}")))?;
        number += 1;
    }
    println!("{number}");
    Ok(())
}

/// What an echo server and one for HTTP both answer.
fn speak(connection: &mut TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: herd\r\n\r\n")?;
    connection.read_exact(&mut [0])
}

/// Whether a monitor would take a connection.
fn is_served(path: &str) -> io::Result<bool> {
    // SAFETY: the descriptor was just made, and is owned once.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)) };
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in name.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the address has that length.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ECONNREFUSED)) => Ok(false),
            error => Err(error),
        },
    }
}

fn retried(port: u16) -> io::Result<TcpStream> {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::thread::sleep(Duration::from_micros(200));
            }
            done => return done,
        }
    }
}

/// So many connections, used and closed on both sides; as many times. Stays until it is killed.
pub(crate) fn waves(port: u16, count: u64, times: u64) -> io::Result<()> {
    for _ in 0..times {
        let all: Vec<TcpStream> = (0..count).map(|_| used(port)).collect::<io::Result<_>>()?;
        for mut connection in all {
            connection.shutdown(Shutdown::Write)?;
            let left = connection.read(&mut [0])?;
            if left != 0 {
                return Err(io::Error::other("more than what was sent came back"));
            }
        }
    }
    println!("all");
    stay()
}

fn used(port: u16) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.write_all(b"?")?;
    let mut answer = [0];
    connection.read_exact(&mut answer)?;
    if answer == *b"?" { Ok(connection) } else { Err(io::Error::other("the answer is not what was sent")) }
}

/// Until it is killed.
pub(crate) fn stay() -> ! {
    loop {
        // SAFETY: no memory is involved.
        unsafe { libc::pause() };
    }
}
