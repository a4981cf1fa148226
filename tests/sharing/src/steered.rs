//! A connection that carries messages when, and as fast as, whoever started it says, so that each state that it is in can be looked at.

use crate::wanderer::{receive_fd, send_fd};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// `steered serve`: at all addresses; sends back what comes on its connections, one after the other. `steered ADDRESS:PORT`: reads lines
/// `COUNT MS`, sends so many single bytes with such pauses, each after the answer to the one before, and says `done`. A line with a word
/// hands the connection over, with answers under way, and goes on: see [`hand_over`].
pub(crate) fn run(place: &str) -> io::Result<()> {
    if place != "serve" {
        let stream = TcpStream::connect(place)?;
        println!("connected");
        return obey(&stream);
    }
    let listener = TcpListener::bind("0.0.0.0:0")?;
    println!("port {}", listener.local_addr()?.port());
    loop {
        let mut stream = listener.accept()?.0;
        let mut byte = [0];
        while stream.read(&mut byte)? != 0 {
            stream.write_all(&byte)?;
        }
    }
}

/// Answers that lie unread while a connection is handed over.
const UNREAD: usize = 3000;

/// Whoever has got a connection: the number is its own, or of a socket in which it comes.
pub(crate) fn go_on(how: &str, number: RawFd) -> io::Result<()> {
    let number = if how == "pass" { receive_fd(number)? } else { number };
    // SAFETY: a descriptor that was left open for us, or has just come.
    let stream = unsafe { TcpStream::from_raw_fd(number) };
    if how == "exec-when-told" {
        println!("begun");
        await_line();
    }
    take_answers(&stream)?;
    obey(&stream)
}

/// Another line of the standard input, past the lock and the buffer of who reads its lines.
fn await_line() {
    let mut byte = [0u8];
    // SAFETY: one byte.
    while unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } == 1 && byte != *b"\n" {}
}

fn take_answers(mut stream: &TcpStream) -> io::Result<()> {
    let mut back = [1; UNREAD];
    stream.read_exact(&mut back)?;
    if back != [7; UNREAD] {
        return Err(io::Error::other("the answers are others"));
    }
    println!("done");
    Ok(())
}

/// `exec`: this process's next program has it; `exec-when-told`: after another line. `pass`: a child has, which gets it in a message. Neither loads the library. `leave`: this one
/// gives rights up, while a child has the connection too.
fn hand_over(mut stream: &TcpStream, how: &str) -> io::Result<()> {
    stream.write_all(&[7; UNREAD])?;
    while stream.peek(&mut [0; UNREAD])? < UNREAD {
        std::thread::sleep(Duration::from_millis(1));
    }
    let number = stream.as_raw_fd();
    let stranger = |number: RawFd| {
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
        let mut command = Command::new("/proc/self/exe");
        command.args(["steered-on", how, &number.to_string()]).env_remove("LD_PRELOAD");
        command
    };
    match how {
        "exec" => Err(stranger(number).exec()),
        "exec-when-told" => {
            println!("unread");
            await_line();
            Err(stranger(number).exec())
        }
        "pass" => {
            let mut pair = [0; 2];
            // SAFETY: the kernel writes two numbers.
            unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
            };
            let mut child = stranger(pair[1]).spawn()?;
            send_fd(pair[0], number)?;
            // SAFETY: nobody uses it any more.
            unsafe { libc::close(number) };
            child.wait().map(drop)
        }
        _ => {
            // SAFETY: this process has one thread; the child waits for its end.
            unsafe {
                if libc::fork() == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    loop {
                        libc::pause();
                    }
                }
                if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            take_answers(stream)
        }
    }
}

fn obey(mut stream: &TcpStream) -> io::Result<()> {
    for line in io::stdin().lines() {
        let line = line?;
        if line.starts_with(char::is_alphabetic) {
            hand_over(stream, &line)?;
            if line == "leave" {
                continue;
            }
            return Ok(());
        }
        let mut words = line.split(' ').map(|word| word.parse().unwrap_or(0u64));
        let (count, pause) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        for number in 0..count {
            let (sent, mut back) = ([number as u8], [0]);
            stream.write_all(&sent)?;
            stream.read_exact(&mut back)?;
            if sent != back {
                return Err(io::Error::other(format!("echo {number} is not what was sent")));
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        println!("done");
    }
    Ok(())
}
