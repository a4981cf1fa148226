//! A two-way byte stream, as the measurements use it, and the kernel's: sockets and pipes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// One end of a stream. Every method is one call of the system that is measured.
pub(crate) trait Link {
    /// Sends at least one byte.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Receives at least one byte; zero is the end of the stream.
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Ends the stream that this side sends.
    fn finish(&mut self) -> io::Result<()>;

    /// Sends all of it.
    #[inline(always)]
    fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = self.send(bytes)?;
        while sent < bytes.len() {
            sent += self.send(&bytes[sent..])?;
        }
        Ok(())
    }

    /// Fills the buffer; false at the end of the stream.
    #[inline(always)]
    fn recv_all(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < bytes.len() {
            match self.recv(&mut bytes[got..])? {
                0 => return Ok(false),
                n => got += n,
            }
        }
        Ok(true)
    }
}

/// A connected stream socket of any family.
pub(crate) struct Socket(pub(crate) OwnedFd);

impl Socket {
    /// As `send`, also for those who share the socket.
    #[inline(always)]
    pub(crate) fn send_shared(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the slice is valid for reads of its length.
        result(unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) })
    }

    /// What is there; `None` when nothing is.
    #[inline(always)]
    pub(crate) fn recv_now(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: the slice is valid for writes of its length.
        match result(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other.map(Some),
        }
    }
}

impl Link for Socket {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_shared(bytes)
    }

    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            // SAFETY: the slice is valid for writes of its length.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match result(n) {
                // A blocking socket in a BPF map of sockets says so when it was woken for nothing.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        // SAFETY: no pointers.
        result(unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) } as isize).map(drop)
    }
}

/// Two pipes, one each way.
pub(crate) struct Pipes {
    pub(crate) input: OwnedFd,
    pub(crate) output: Option<OwnedFd>,
}

impl Link for Pipes {
    #[inline(always)]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(output) = &self.output else { return Err(io::ErrorKind::BrokenPipe.into()) };
        // SAFETY: the slice is valid for reads of its length.
        result(unsafe { libc::write(output.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
    }

    #[inline(always)]
    fn recv(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the slice is valid for writes of its length.
        result(unsafe { libc::read(self.input.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output = None;
        Ok(())
    }
}

/// libc's -1 as an error.
#[inline(always)]
pub(crate) fn result(value: isize) -> io::Result<usize> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value as usize) }
}
