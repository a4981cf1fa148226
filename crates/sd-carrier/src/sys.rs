//! The system calls of carriers, and all unsafe code of this crate.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It would have waited.
    Again,
    Errno(i32),
}

/// Bytes of control messages of one message: two numbers, and one more that we did not ask for.
const CONTROL: usize = 128;

/// What a call returned, or why it failed; `None`: to be called again.
fn outcome(result: isize) -> Option<Result<usize, Fault>> {
    if result >= 0 {
        return Some(Ok(result as usize));
    }
    match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) {
        libc::EINTR => None,
        libc::EAGAIN => Some(Err(Fault::Again)),
        errno => Some(Err(Fault::Errno(errno))),
    }
}

fn again(mut call: impl FnMut() -> isize) -> Result<usize, Fault> {
    loop {
        if let Some(outcome) = outcome(call()) {
            return outcome;
        }
    }
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: likewise.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the pointer is to an int of ours, and its length is told.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) })?;
    Ok(())
}

pub(crate) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes into an int of ours, and the length into `len`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    checked(result)?;
    Ok(value)
}

/// Connects a socket to the peer that it has: it looks for its route again.
pub(crate) fn connect_again(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: it is a structure of integers, for which 0 is a value.
    let mut peer: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let at: *mut libc::sockaddr = (&raw mut peer).cast();
    // SAFETY: the kernel writes at most `len` bytes into a structure of ours that is so long, and the length into `len`.
    checked(unsafe { libc::getpeername(fd.as_raw_fd(), at, &raw mut len) })?;
    // SAFETY: the kernel reads as many bytes as it just wrote there.
    checked(unsafe { libc::connect(fd.as_raw_fd(), at, len) })?;
    Ok(())
}

pub(crate) fn shutdown(fd: BorrowedFd<'_>) {
    // SAFETY: no memory is passed. That it is shut down already is no fault.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// send(2), without SIGPIPE.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Fault> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the slice.
    again(|| unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// recv(2).
pub(crate) fn receive(fd: BorrowedFd<'_>, place: &mut [u8]) -> Result<usize, Fault> {
    // SAFETY: the kernel writes into the slice, which is exclusively ours.
    let call =
        || unsafe { libc::recv(fd.as_raw_fd(), place.as_mut_ptr().cast(), place.len(), libc::MSG_DONTWAIT) };
    again(call)
}

/// Control messages need the alignment of their header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// What sendmmsg(2) and recvmmsg(2) are told; made once, since it is large. Its pointers are of meaning during a call only.
struct Headers {
    messages: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    controls: Box<[Control]>,
}

// SAFETY: each call writes all pointers that it uses before it uses them, so none outlives a borrow.
unsafe impl Send for Headers {}

impl Headers {
    fn new(count: usize) -> Headers {
        // SAFETY: it is a structure of integers and pointers, for which 0 is a value.
        let message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let piece = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Headers {
            messages: vec![message; count].into_boxed_slice(),
            pieces: vec![piece; count].into_boxed_slice(),
            controls: vec![Control([0; CONTROL]); count].into_boxed_slice(),
        }
    }

    /// Message `at` is about these bytes.
    fn set(&mut self, at: usize, bytes: *mut u8, len: usize, control_len: usize) {
        self.pieces[at] = libc::iovec { iov_base: bytes.cast(), iov_len: len };
        let header = &mut self.messages[at].msg_hdr;
        header.msg_iov = &raw mut self.pieces[at];
        header.msg_iovlen = 1;
        header.msg_control = self.controls[at].0.as_mut_ptr().cast();
        header.msg_controllen = control_len as _;
        header.msg_flags = 0;
    }
}

/// sendmmsg(2).
pub(crate) struct SendBatch(Headers);

impl SendBatch {
    pub(crate) fn new(count: usize) -> SendBatch {
        SendBatch(Headers::new(count))
    }

    /// Sends messages on a connected socket: bytes, and the length of the datagrams of which they are many. Returns how many of
    /// the messages the kernel took.
    pub(crate) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        messages: impl Iterator<Item = (&'a [u8], Option<u16>)>,
    ) -> Result<usize, Fault> {
        let mut count = 0;
        for (at, (bytes, segment)) in messages.take(self.0.messages.len()).enumerate() {
            let control_len = match segment {
                Some(segment) => put_segment(&mut self.0.controls[at], segment),
                None => 0,
            };
            // The kernel only reads them.
            self.0.set(at, bytes.as_ptr().cast_mut(), bytes.len(), control_len);
            count = at + 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let headers = self.0.messages.as_mut_ptr();
        // SAFETY: the first `count` headers were just set to pieces that live as long as `'a`, and to controls of ours.
        again(|| unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, count as u32, flags as _) as isize })
    }
}

/// Writes the one control message of a message that is many datagrams, and returns its length.
fn put_segment(control: &mut Control, segment: u16) -> usize {
    // SAFETY: it computes only.
    let (len, space) = unsafe { (libc::CMSG_LEN(2), libc::CMSG_SPACE(2)) };
    let header =
        libc::cmsghdr { cmsg_len: len as _, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
    const { assert!(size_of::<libc::cmsghdr>() + 8 <= CONTROL) };
    // SAFETY: the place is aligned for a header and has room for it and two bytes, as was just asserted.
    unsafe {
        let at: *mut libc::cmsghdr = control.0.as_mut_ptr().cast();
        at.write(header);
        libc::CMSG_DATA(at).cast::<u16>().write_unaligned(segment);
    }
    space as usize
}

/// What the kernel says of a message that it gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// The length of the datagrams that it has put together.
    pub(crate) segment: Option<usize>,
    pub(crate) traffic_class: u8,
}

/// recvmmsg(2).
pub(crate) struct ReceiveBatch(Headers);

impl ReceiveBatch {
    pub(crate) fn new(count: usize) -> ReceiveBatch {
        ReceiveBatch(Headers::new(count))
    }

    /// Reads messages, each into one of the places; returns how many.
    pub(crate) fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        places: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Fault> {
        let mut count = 0;
        for (at, place) in places.take(self.0.messages.len()).enumerate() {
            self.0.set(at, place.as_mut_ptr(), place.len(), CONTROL);
            count = at + 1;
        }
        let headers = self.0.messages.as_mut_ptr();
        let (count, flags) = (count as u32, libc::MSG_DONTWAIT);
        // SAFETY: the first `count` headers were just set to places that are exclusively borrowed for `'a`, and to controls of ours.
        again(|| unsafe {
            libc::recvmmsg(fd.as_raw_fd(), headers, count, flags as _, ptr::null_mut()) as isize
        })
    }

    /// Of message `at`: its length, and what the kernel says of it.
    pub(crate) fn about(&self, at: usize) -> (usize, About) {
        let message = &self.0.messages[at];
        let len = message.msg_hdr.msg_controllen.min(CONTROL);
        (message.msg_len as usize, about(&self.0.controls[at].0[..len]))
    }
}

/// Reads control messages (cmsg(3)): header, data, padding to the header's alignment.
fn about(mut control: &[u8]) -> About {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const ALIGN: usize = size_of::<usize>();
    let mut about = About::default();
    while control.len() >= HEADER {
        // SAFETY: so many bytes are there, and any of them make a header.
        let header: libc::cmsghdr = unsafe { control.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let len = header.cmsg_len.min(control.len());
        let Some(data) = control.get(HEADER..len) else { break };
        let int = || data.first_chunk::<4>().map(|bytes| i32::from_ne_bytes(*bytes));
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                about.segment = int().and_then(|len| usize::try_from(len).ok()).filter(|len| *len > 0)
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => about.traffic_class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                about.traffic_class = int().map_or(0, |class| class as u8)
            }
            _ => {}
        }
        control = control.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_read_whatever_they_are() {
        let mut control = Control([0; CONTROL]);
        let space = put_segment(&mut control, 1234);
        assert_eq!(about(&control.0[..space]), About::default(), "what is sent is not what comes");
        for len in [0, 1, 15, 16, 17, 24, 200, u64::MAX] {
            control.0[..8].copy_from_slice(&len.to_le_bytes());
            about(&control.0);
        }
        let word = |level: i32, kind: i32, value: i32| {
            let mut bytes = Vec::from(20u64.to_le_bytes());
            for number in [level, kind, value, 0] {
                bytes.extend(number.to_le_bytes());
            }
            bytes
        };
        let both = [word(libc::SOL_UDP, libc::UDP_GRO, 99), word(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 3)];
        assert_eq!(about(&both.concat()), About { segment: Some(99), traffic_class: 3 });
    }
}
