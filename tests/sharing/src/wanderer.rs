//! A connection that wanders: it is written to by one process after the other, each of which got it by fork, exec or
//! SCM_RIGHTS. Only one writes at a time, and each notes what has been acknowledged, so the reader's count can be checked
//! however the last one ends.

use crate::pattern::{Random, bytes};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

struct Wanderer {
    stream: TcpStream,
    /// File of the count of acknowledged bytes.
    note: String,
    sent: usize,
    random: Random,
}

pub(crate) fn start(port: u16, note: &str, id: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"N")?;
    stream.write_all(&id.to_ne_bytes())?;
    Wanderer { stream, note: note.to_owned(), sent: 0, random: Random::new(id) }.wander()
}

/// After exec: the connection is an inherited descriptor.
pub(crate) fn go_on(fd: RawFd, note: &str, sent: usize, seed: u64) -> io::Result<()> {
    // SAFETY: the program that executed this one has left it open for us.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    Wanderer { stream, note: note.to_owned(), sent, random: Random::new(seed) }.wander()
}

impl Wanderer {
    fn wander(mut self) -> io::Result<()> {
        loop {
            let choice = self.random.below(40);
            self.log(match choice {
                0..=1 => "fork",
                2 => "exec",
                3..=4 => "pass",
                5 => "end",
                _ => "",
            })?;
            match choice {
                0..=1 => self.fork()?,
                2 => return self.exec(),
                3..=4 => self.pass()?,
                5 => return Ok(()),
                6..=8 => std::thread::sleep(Duration::from_micros(self.random.below(3000))),
                _ => self.write()?,
            }
        }
    }

    /// What is done where, for the case that it goes wrong.
    fn log(&self, action: &str) -> io::Result<()> {
        if action.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new().append(true).create(true).open(format!("{}.log", self.note))?;
        write!(file, "{action}@{} ", self.sent)
    }

    fn write(&mut self) -> io::Result<()> {
        let limit = [100, 3000, 20_000][self.random.below(3) as usize];
        let len = 1 + self.random.below(limit) as usize;
        let mut rest = bytes(self.sent, len);
        while !rest.is_empty() {
            let done = self.stream.write(&rest)?;
            rest.drain(..done);
            self.sent += done;
            let note = OpenOptions::new().write(true).open(&self.note)?;
            note.write_all_at(&(self.sent as u64).to_ne_bytes(), 0)?;
        }
        Ok(())
    }

    /// The child goes on, the parent ends.
    fn fork(&mut self) -> io::Result<()> {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            _ => std::process::exit(0),
        }
    }

    fn exec(mut self) -> io::Result<()> {
        let seed = self.random.next();
        let fd = self.stream.into_raw_fd();
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        let words = [fd.to_string(), self.note, self.sent.to_string(), seed.to_string()];
        Err(Command::new("/proc/self/exe").arg("go-on").args(words).exec())
    }

    /// A child that has closed its copy gets the connection as a message.
    fn pass(&mut self) -> io::Result<()> {
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
        // SAFETY: closes our copy and puts what comes into its place.
        unsafe {
            libc::close(pair[0]);
            libc::close(self.stream.as_raw_fd());
        }
        let fd = receive_fd(pair[1])?;
        // SAFETY: descriptors of ours; the old number is free.
        let stream = unsafe {
            libc::close(pair[1]);
            TcpStream::from_raw_fd(fd)
        };
        // The old value's number is closed already, and may be the new one's.
        std::mem::forget(std::mem::replace(&mut self.stream, stream));
        Ok(())
    }
}

/// Room for one descriptor, aligned for a cmsghdr.
type Control = [u64; 4];

fn message(iov: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (iov, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    message
}

/// Sends a descriptor.
pub(crate) fn send_fd(over: RawFd, fd: RawFd) -> io::Result<()> {
    let mut byte = 1u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control: Control = [0; 4];
    let header = libc::cmsghdr { cmsg_len: 20, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    // SAFETY: 20 bytes into a buffer of 32, aligned.
    unsafe {
        control.as_mut_ptr().cast::<libc::cmsghdr>().write(header);
        control.as_mut_ptr().cast::<i32>().add(4).write(fd);
    }
    let message = message(&mut iov, &mut control);
    // SAFETY: all pointers are valid during the call.
    match unsafe { libc::sendmsg(over, &message, 0) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives one.
pub(crate) fn receive_fd(over: RawFd) -> io::Result<RawFd> {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control: Control = [0; 4];
    let mut message = message(&mut iov, &mut control);
    // SAFETY: all pointers are valid during the call.
    let got = unsafe { libc::recvmsg(over, &mut message, libc::MSG_CMSG_CLOEXEC) };
    if got != 1 || message.msg_controllen < 20 {
        return Err(io::Error::other("no descriptor came"));
    }
    // SAFETY: the kernel has written a cmsghdr and a number.
    Ok(unsafe { control.as_ptr().cast::<i32>().add(4).read() })
}
