//! What a bridge does all the time: it copies bytes, and ends, both ways.

use super::lent::Programs;
use super::others::{Others, is_sole_holder};
use crate::data::iov::Pieces;
use crate::data::{shutdown, stream};
use crate::socket::{kernel_socket, way_back};
use alloc::boxed::Box;
use core::ffi::c_void;
use libc::POLLOUT;
use sd_shm::slab::Endpoint;
use sd_sys::{Errno, Result, check, syscall};

/// Bytes under way in each direction.
const BUFFER: usize = 64 << 10;
/// A program that takes nothing for so long is not waited for when the other side is broken.
const PATIENCE_MS: i32 = 100;

/// One direction's bytes under way.
pub(super) struct Flow {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
    /// The source has ended.
    pub(super) ended: bool,
    /// The end has been passed on.
    pub(super) closed: bool,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow { bytes: vec![0; BUFFER].into_boxed_slice(), from: 0, to: 0, ended: false, closed: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to
    }

    pub(super) fn has_moved(&self) -> bool {
        self.to != 0 || self.ended
    }

    fn pending(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.from..self.to).unwrap_or(&mut [])
    }

    /// Fills the empty buffer; an error ends the direction.
    fn fill(&mut self, receive: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<()> {
        if !self.is_empty() || self.ended {
            return Ok(());
        }
        match receive(&mut self.bytes) {
            Ok(0) => self.ended = true,
            Ok(n) => (self.from, self.to) = (0, n),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Passes on what is there, then the end; an error ends the direction.
    fn drain(&mut self, send: impl FnOnce(&mut [u8]) -> Result<usize>, close: impl FnOnce()) -> Result<()> {
        if !self.is_empty() {
            match send(self.pending()) {
                Ok(n) => self.from += n,
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        if self.is_empty() && self.ended && !self.closed {
            self.closed = true;
            close();
        }
        Ok(())
    }
}

/// What copying has come to.
pub(super) enum Copied {
    On,
    /// The program's side is broken.
    Broken,
    /// The connection is: it was reset.
    Reset,
    /// The program has closed its socket, and others have the connection.
    Left,
    /// The peer takes nothing any more, and the program has all that it had sent before it ended.
    Ended,
}

const QUIET: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Copies what there is, both ways.
pub(super) fn copy(
    endpoint: &'static Endpoint,
    inner: i32,
    (out, back): (&mut Flow, &mut Flow),
    (others, reads): (&mut Others, bool),
) -> Copied {
    let receive = |bytes: &mut [u8]| kernel_io(libc::SYS_recvfrom, inner, bytes, 0);
    let send = |bytes: &mut [u8]| stream::send(endpoint, Pieces::one(bytes.as_mut_ptr(), bytes.len()), QUIET);
    // First: for a program that has closed its socket nothing is taken which others would read.
    if back.fill(receive).is_err() {
        return Copied::Broken;
    }
    let mut is_left = false;
    let gone = back.drain(send, || {
        is_left = !is_sole_holder(endpoint) && !Programs::of(inner).is_some_and(|it| it.is_open());
        if !is_left && shutdown::shutdown(endpoint, libc::SHUT_WR) == Err(kernel_socket::MOVED) {
            way_back::shut_kernels(endpoint, libc::SHUT_WR);
        }
    });
    match gone {
        Ok(()) if is_left => return Copied::Left,
        Ok(()) => {}
        // Where the reset is behind the end, the end is what the program reads.
        Err(errno) if reads && give_rest(endpoint, inner, (out, errno == Errno::EPIPE), others) => {
            return Copied::Ended;
        }
        Err(_) => return Copied::Reset,
    }
    if reads && out.fill(|bytes| others.read(endpoint, bytes, QUIET)).is_err() {
        return Copied::Reset;
    }
    if give(inner, out).is_err() {
        // What the program had sent before it broke off goes on, as far as there is room.
        while back.fill(receive).is_ok()
            && !back.is_empty()
            && back.drain(send, || {}).is_ok()
            && back.is_empty()
        {}
        return Copied::Broken;
    }
    Copied::On
}

/// What has come for the program goes to it, and the end behind that.
fn give(inner: i32, out: &mut Flow) -> Result<()> {
    out.drain(
        |bytes| kernel_io(libc::SYS_sendto, inner, bytes, QUIET),
        || {
            // SAFETY: no pointers.
            unsafe { syscall!(libc::SYS_shutdown, inner, libc::SHUT_WR) };
        },
    )
}

/// The peer has answered with a reset. What it had sent before is the program's still, as far as that reads it: whether that is all, to the end, if
/// the program is to see one.
fn give_rest(
    endpoint: &'static Endpoint,
    inner: i32,
    (out, ends): (&mut Flow, bool),
    others: &mut Others,
) -> bool {
    while !out.closed {
        let come = out.fill(|bytes| others.read(endpoint, bytes, QUIET));
        let was_empty = out.is_empty();
        if was_empty && out.ended && !ends {
            return false;
        }
        if come.and_then(|()| give(inner, out)).is_err() || was_empty && !out.closed {
            return false;
        }
        let has_room = || sd_sys::fd::poll_one(inner, POLLOUT, PATIENCE_MS).is_ok_and(|found| found != 0);
        if !out.is_empty() && !has_room() {
            return false;
        }
    }
    // A socket that has something unread is closed with a reset, and what it has not sent yet is lost.
    (0..PATIENCE_MS).any(|_| {
        let mut unsent = 0i32;
        // SAFETY: the kernel writes an int.
        let asked = check(unsafe { syscall!(libc::SYS_ioctl, inner, libc::TIOCOUTQ, &raw mut unsent) });
        let is_there = asked.is_err() || unsent == 0;
        if !is_there {
            let _ = sd_sys::time::sleep_ns(1_000_000);
        }
        is_there
    })
}

/// recv(2) or send(2) on the kernel's side.
fn kernel_io(call: i64, fd: i32, bytes: &mut [u8], flags: i32) -> Result<usize> {
    let base = bytes.as_mut_ptr() as *mut c_void;
    // SAFETY: the kernel reads or writes the slice.
    check(unsafe { syscall!(call, fd, base, bytes.len(), flags, 0, 0) })
}
