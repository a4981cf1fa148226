//! sendfile(2) and splice(2) with a socket of ours. What the page cache has of a file is read into the ring itself, all
//! else comes through a buffer: a slow disk must not keep others from the sending half.

use crate::Outcome;
use crate::data::calls::NOWHERE;
use crate::data::claim::Claim;
use crate::data::iov::Pieces;
use crate::data::stream;
use crate::fd::table;
use crate::setup::unconnected;
use crate::socket::bell::notify;
use crate::socket::endpoint::{EndpointExt, NONBLOCK, PeerEnd, RESET, SHUT_WR, peer_end};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use libc::{c_int, off_t, size_t, ssize_t};
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{Endpoint, State};
use sd_sys::Errno;
use sd_sys::scratch;

/// So much of a file is read for a socket that may have no room for it.
const LITTLE: usize = 4096;
/// The peer can begin to read after so much.
const PART: usize = 64 << 10;

fn connected(fd: c_int) -> Option<&'static Endpoint> {
    table::socket(fd).filter(|e| e.state_now() == State::Connected)
}

/// sendfile(2).
///
/// # Safety
/// `offset` is null or valid.
pub(crate) unsafe fn sendfile(
    out_fd: c_int,
    in_fd: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Outcome<ssize_t> {
    if connected(in_fd).is_none() && connected(out_fd).is_none() {
        // SAFETY: as the caller says.
        let again = |_| unsafe { sendfile(out_fd, in_fd, offset, count) };
        // SAFETY: no address.
        return unsafe { unconnected::send(out_fd, 0, NOWHERE, again) };
    }
    // SAFETY: as the caller says.
    if let Err(errno) = unsafe { check_source(in_fd, offset, count) } {
        return Outcome::Errno(errno);
    }
    if let Some(from) = connected(in_fd) {
        return match check_pipe(out_fd, libc::O_WRONLY, offset, core::ptr::null_mut()) {
            Ok(()) => socket_to_pipe(from, out_fd, count, false),
            Err(errno) => Outcome::Errno(errno),
        };
    }
    let Some(endpoint) = connected(out_fd).filter(|_| table::socket(in_fd).is_none()) else {
        return Outcome::Errno(Errno::EINVAL);
    };
    // SAFETY: as the caller says.
    let at = if offset.is_null() { None } else { Some(unsafe { offset.read_unaligned() }) };
    let (sent, errno) = file_to_socket(in_fd, at, endpoint, count);
    if let Some(at) = at {
        if !sd_sys::user::is_writable(offset, size_of::<off_t>()) {
            return Outcome::Errno(Errno::EFAULT);
        }
        // SAFETY: `at` is only set when `offset` is not null.
        unsafe { offset.write_unaligned(at + sent as off_t) };
    }
    match errno {
        Some(errno) if sent == 0 => Outcome::Errno(errno),
        _ => Outcome::Done(sent as ssize_t),
    }
}

/// The number of bytes sent, and why there are not more.
fn file_to_socket(
    file: c_int,
    start: Option<off_t>,
    endpoint: &'static Endpoint,
    count: usize,
) -> (usize, Option<Errno>) {
    let most = if endpoint.flag(NONBLOCK) { LITTLE } else { scratch::LEN };
    let mut sent = 0;
    loop {
        let at = |sent: usize| start.map(|start| start + sent as off_t);
        sent += read_into_ring(endpoint, file, at(sent), count - sent);
        // What else there is: no room, an error, the end of the file.
        let want = (count - sent).min(most);
        if want == 0 {
            return (sent, None);
        }
        let (done, goes_on) = scratch::with(want, |room| send_part(file, at(sent), endpoint, room));
        sent += done;
        if let ControlFlow::Break(errno) = goes_on {
            return (sent, errno);
        }
    }
}

/// Sends as much of a file as fits into `room`: the number of bytes, and why there are not more.
fn send_part(
    file: c_int,
    at: Option<off_t>,
    endpoint: &'static Endpoint,
    room: &mut [u8],
) -> (usize, ControlFlow<Option<Errno>>) {
    // SAFETY: so many bytes are there.
    let got = match unsafe { read_at(file, room.as_mut_ptr(), room.len(), at) } {
        Ok(0) => return (0, ControlFlow::Break(None)),
        Ok(got) => got,
        // What is no file cannot be sent.
        Err(Errno::EISDIR) => return (0, ControlFlow::Break(Some(Errno::EINVAL))),
        Err(errno) => return (0, ControlFlow::Break(Some(errno))),
    };
    let result = stream::send(endpoint, Pieces::one(room.as_mut_ptr(), got), 0);
    let done = result.unwrap_or(0);
    if done == got {
        return (done, ControlFlow::Continue(()));
    }
    if at.is_none() {
        // What was read but not sent goes back.
        // SAFETY: no pointers.
        unsafe { sd_sys::syscall!(libc::SYS_lseek, file, done as i64 - got as i64, libc::SEEK_CUR) };
    }
    (done, ControlFlow::Break(result.err()))
}

/// From the file's own position without `at`.
///
/// # Safety
/// `to` has room for `len` bytes.
unsafe fn read_at(fd: c_int, to: *mut u8, len: usize, at: Option<off_t>) -> sd_sys::Result<usize> {
    sd_sys::check(match at {
        // SAFETY: as the caller says.
        Some(at) => unsafe { sd_sys::syscall!(libc::SYS_pread64, fd, to, len, at) },
        // SAFETY: as the caller says.
        None => unsafe { sd_sys::syscall!(libc::SYS_read, fd, to, len) },
    })
}

/// Reads from a file what need not be waited for (RWF_NOWAIT of preadv2(2), which not every file system has).
///
/// # Safety
/// As for `read_at`.
unsafe fn read_cached(fd: c_int, to: *mut u8, len: usize, at: Option<off_t>) -> sd_sys::Result<usize> {
    if !sd_sys::confine::allows(libc::SYS_preadv2) {
        return Err(Errno::EPERM);
    }
    let piece = libc::iovec { iov_base: to.cast(), iov_len: len };
    // SAFETY: one piece, in which the caller has promised room.
    sd_sys::check(unsafe {
        sd_sys::syscall!(libc::SYS_preadv2, fd, &raw const piece, 1, at.unwrap_or(-1), 0, libc::RWF_NOWAIT)
    })
}

/// Reads a file into the ring itself, while there is room and nothing is amiss; the number of bytes sent.
fn read_into_ring(endpoint: &'static Endpoint, file: c_int, at: Option<off_t>, count: usize) -> usize {
    let mut half = endpoint.tx_token();
    let has_ended = endpoint.flag(SHUT_WR | RESET) || peer_end(endpoint) != PeerEnd::Open;
    if has_ended || crate::socket::way_back::is_wanted_by_peer(endpoint) || Claim::NONE.is_barred(endpoint) {
        return 0;
    }
    let mem = endpoint.tx_mem();
    let tx = half.cursor();
    if tx.is_parked() {
        // The kernel's.
        return 0;
    }
    let effort = stream::effort(endpoint, endpoint.flag(NONBLOCK));
    let mut sent = 0;
    while sent < count && tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire)).is_ok() {
        let want = (count - sent).min(PART) as u32;
        let Some(grant) = tx.reserve(&GEOMETRY, &mem, want, effort) else { break };
        let at = at.map(|at| at + sent as off_t);
        // SAFETY: the grant is room in our ring that the peer does not read yet.
        let got = unsafe { read_cached(file, mem.at(grant.region, grant.off), grant.len as usize, at) };
        let Ok(got @ 1..) = got else { break };
        tx.commit(&mem, got as u32, crate::socket::bell::stamp(endpoint));
        stream::add(&endpoint.tx().bytes, got as u64);
        notify(endpoint, stream::RX_BITS);
        sent += got;
    }
    sent
}

/// What sendfile refuses of its source, in the order in which Linux looks.
///
/// # Safety
/// `offset` is null, valid, or an address that can be no memory.
unsafe fn check_source(in_fd: c_int, offset: *mut off_t, count: size_t) -> Result<(), Errno> {
    if !offset.is_null() && !sd_sys::user::is_readable(offset, size_of::<off_t>()) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: no pointers.
    let position = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_lseek, in_fd, 0, libc::SEEK_CUR) });
    match position {
        Err(Errno::ESPIPE) if !offset.is_null() => Err(Errno::ESPIPE),
        Err(Errno::ESPIPE) if table::socket(in_fd).is_none() => Err(Errno::EINVAL),
        Err(errno) if errno != Errno::ESPIPE => Err(errno),
        _ if (count as isize) < 0 => Err(Errno::EINVAL),
        // SAFETY: not null, and no bad address.
        _ if !offset.is_null() && unsafe { offset.read_unaligned() } < 0 => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// splice(2) between a pipe and a socket of ours.
///
/// # Safety
/// The offsets are null or valid.
pub(crate) unsafe fn splice(
    fd_in: c_int,
    off_in: *mut off_t,
    fd_out: c_int,
    off_out: *mut off_t,
    len: size_t,
    flags: u32,
) -> Outcome<ssize_t> {
    if flags & !0xf != 0 && (connected(fd_in).is_some() || connected(fd_out).is_some()) {
        return Outcome::Errno(Errno::EINVAL);
    }
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0;
    match (connected(fd_in), connected(fd_out)) {
        (None, None) => {
            // SAFETY: as the caller says.
            let again = || unsafe { splice(fd_in, off_in, fd_out, off_out, len, flags) };
            // SAFETY: no address.
            match unsafe { unconnected::send(fd_out, 0, NOWHERE, |_| again()) } {
                Outcome::Kernel => unconnected::recv(fd_in, 0, again),
                outcome => outcome,
            }
        }
        (Some(_), Some(_)) => Outcome::Errno(Errno::EINVAL),
        (Some(from), None) => match check_pipe(fd_out, libc::O_WRONLY, off_out, off_in) {
            Ok(()) => socket_to_pipe(from, fd_out, len, nonblock),
            Err(errno) => Outcome::Errno(errno),
        },
        (None, Some(to)) => match check_pipe(fd_in, libc::O_RDONLY, off_in, off_out) {
            Ok(()) => pipe_to_socket(fd_in, to, len, nonblock),
            Err(errno) => Outcome::Errno(errno),
        },
    }
}

/// Bytes that a pipe certainly takes or holds without blocking.
fn pipe_room(fd: c_int) -> Option<usize> {
    let size = sd_sys::fd::fcntl(fd, libc::F_GETPIPE_SZ, 0).ok()?;
    let mut held = 0i32;
    // SAFETY: the kernel writes one int.
    unsafe { sd_sys::syscall!(libc::SYS_ioctl, fd, libc::FIONREAD, &mut held as *mut i32) };
    Some(size.saturating_sub(held as usize))
}

/// What splice refuses of the pipe and of both offsets; a socket of ours is the other end.
fn check_pipe(pipe: c_int, mode: c_int, pipe_offset: *mut off_t, offset: *mut off_t) -> Result<(), Errno> {
    let flags = sd_sys::fd::fcntl(pipe, libc::F_GETFL, 0)? as c_int;
    if flags & libc::O_ACCMODE != mode && flags & libc::O_ACCMODE != libc::O_RDWR {
        return Err(Errno::EBADF);
    }
    if sd_sys::fd::fcntl(pipe, libc::F_GETPIPE_SZ, 0).is_err() {
        return Err(Errno::EINVAL);
    }
    match (pipe_offset.is_null(), offset.is_null()) {
        (false, _) => Err(Errno::ESPIPE),
        (_, false) if !sd_sys::user::is_readable(offset, size_of::<off_t>()) => Err(Errno::EFAULT),
        (_, false) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// An empty pipe that nobody writes to.
fn is_at_end(pipe: c_int) -> bool {
    let ends = libc::POLLIN | libc::POLLHUP;
    sd_sys::fd::poll_one(pipe, libc::POLLIN, 0).is_ok_and(|events| events & ends == libc::POLLHUP)
}

fn socket_to_pipe(from: &'static Endpoint, pipe: c_int, len: usize, nonblock: bool) -> Outcome<ssize_t> {
    let Some(room) = pipe_room(pipe) else { return Outcome::Errno(Errno::EINVAL) };
    let flags = if nonblock { libc::MSG_DONTWAIT } else { 0 };
    // Pages that are partly filled make a pipe hold less than its size; a page at a time is safe.
    let want = len.min(scratch::LEN).min(room.max(sd_sys::mem::page_size()));
    if room == 0 && (nonblock || from.flag(NONBLOCK)) {
        return Outcome::Errno(Errno::EAGAIN);
    }
    if crate::socket::ring_view::is_at_mark(from) {
        // Linux does not splice beyond it, nor waits.
        let says_so = (nonblock || from.flag(NONBLOCK)) && !crate::socket::endpoint::peer_finished(from);
        return if says_so { Outcome::Errno(Errno::EAGAIN) } else { Outcome::Done(0) };
    }
    scratch::with(want, |room| match stream::recv(from, Pieces::one(room.as_mut_ptr(), room.len()), flags) {
        Ok(got) => write_whole(pipe, room.get(..got).unwrap_or(&[])),
        Err(errno) => Outcome::Errno(errno),
    })
}

/// Writes all to a pipe, which blocks where that has less room.
fn write_whole(pipe: c_int, bytes: &[u8]) -> Outcome<ssize_t> {
    let mut written = 0;
    while let Some(rest @ [_, ..]) = bytes.get(written..) {
        match sd_sys::fd::write(pipe, rest) {
            Ok(n) => written += n,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let _ = sd_sys::fd::poll_one(pipe, libc::POLLOUT, -1);
            }
            Err(e) => return Outcome::Errno(e),
        }
    }
    Outcome::Done(written as ssize_t)
}

fn pipe_to_socket(pipe: c_int, to: &'static Endpoint, len: usize, nonblock: bool) -> Outcome<ssize_t> {
    if is_at_end(pipe) {
        return Outcome::Done(0);
    }
    let flags = if nonblock { libc::MSG_DONTWAIT } else { 0 };
    if let Err(errno) =
        crate::socket::errors::before_send(to, 0).and_then(|()| crate::data::space::wait(to, flags))
    {
        return Outcome::Errno(errno);
    }
    if nonblock && sd_sys::fd::poll_one(pipe, libc::POLLIN, 0) == Ok(0) {
        return Outcome::Errno(Errno::EAGAIN);
    }
    // Small enough to be taken whole by a writable socket: nothing can be put back into a pipe.
    scratch::with(len.min(16 << 10), |room| match sd_sys::fd::read(pipe, room) {
        Ok(0) => Outcome::Done(0),
        Ok(got) => match stream::send_all(to, Pieces::one(room.as_mut_ptr(), got)) {
            Ok(sent) => Outcome::Done(sent as ssize_t),
            Err(errno) => Outcome::Errno(errno),
        },
        Err(errno) => Outcome::Errno(errno),
    })
}
