//! Waking who watches an eventfd, and nothing else: a program can close a number of the library's past libc, and have something of its
//! own there when it is rung (ADR 67).
//!
//! What poll(2) is asked for anyway tells them apart without another call. An eventfd is writable by POLLOUT alone; files, sockets,
//! pipes and terminals add POLLWRNORM (`eventfd_poll` of fs/eventfd.c, `DEFAULT_POLLMASK`, `tcp_poll`, `pipe_poll`). Any other answer
//! is a reason for a look at the file. An eventfd of the program's own is not told apart: writing zero does not change it.

use crate::fd::poll_one;
use crate::{check, confine, syscall};

/// Wakes whoever watches an eventfd with [`crate::fd::EVENTFD_EDGE`]. False where the number is closed, or leads to something else.
///
/// Others share the file and may have filled it and made it blocking. Writing zero is an edge as any write is, and
/// needs no room; only at a counter that asynchronous I/O has driven to its very end (POLLERR) would it block, so that
/// is left alone: it was an edge itself, and whoever hears it makes an end of it.
pub fn signal_eventfd(fd: i32) -> bool {
    let events = poll_one(fd, libc::POLLOUT | libc::POLLWRNORM, 0).unwrap_or(libc::POLLOUT);
    if events != libc::POLLOUT {
        match odd(fd, events) {
            Odd::Lost => return false,
            Odd::Full => return true,
            Odd::Fills => {}
        }
    }
    let amount = 0u64;
    // SAFETY: the kernel reads eight bytes from `amount`.
    let _ = unsafe { syscall!(libc::SYS_write, fd, &amount as *const u64, 8) };
    true
}

/// [`signal_eventfd`], where it is open for certain, or of no consequence.
pub fn eventfd_signal(fd: i32) {
    signal_eventfd(fd);
}

/// What says more, or less, than that it can be written.
enum Odd {
    /// Closed, or no eventfd.
    Lost,
    /// At its very end.
    Full,
    /// Somebody has filled it, and zero still fits.
    Fills,
}

#[cold]
fn odd(fd: i32, events: i16) -> Odd {
    if events & libc::POLLNVAL != 0 || confine::allows(libc::SYS_fstat) && !is_anonymous(fd) {
        return Odd::Lost;
    }
    if events & libc::POLLERR != 0 { Odd::Full } else { Odd::Fills }
}

/// Whether the file is none that has a type, as an eventfd.
fn is_anonymous(fd: i32) -> bool {
    // SAFETY: an all-zero stat is valid; the kernel writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(syscall!(libc::SYS_fstat, fd, &raw mut found)).is_ok() && found.st_mode & libc::S_IFMT == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn who_watches_an_eventfd_is_woken_whatever_its_counter_says() {
        for filled in [0, 1, u64::MAX - 1] {
            let event = fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).unwrap();
            // SAFETY: the kernel reads eight bytes.
            assert!(filled == 0 || unsafe { libc::write(event.raw(), (&raw const filled).cast(), 8) } == 8);
            let watcher = fd::epoll_create().unwrap();
            fd::epoll_ctl(watcher.raw(), libc::EPOLL_CTL_ADD, event.raw(), fd::EVENTFD_EDGE, 0).unwrap();
            let is_woken = || {
                let mut told = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for one event.
                unsafe { fd::epoll_pwait(watcher.raw(), &mut told, 1, 0, std::ptr::null()) }.unwrap() == 1
            };
            assert!(is_woken(), "was added");
            assert!(!is_woken());
            assert!(signal_eventfd(event.raw()) && is_woken(), "{filled}");
        }
    }

    #[test]
    fn nothing_is_written_to_what_is_no_eventfd() {
        let file = fd::Owned::new(
            // SAFETY: a name, and no pointers besides.
            unsafe { libc::memfd_create(c"sd-test".as_ptr(), libc::MFD_CLOEXEC) },
        );
        assert!(!signal_eventfd(file.raw()));
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::lseek(file.raw(), 0, libc::SEEK_END) }, 0);
        let (mut one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        for fd in
            [other.as_raw_fd(), writer.as_raw_fd(), reader.as_raw_fd(), tcp.as_raw_fd(), null.as_raw_fd()]
        {
            assert!(!signal_eventfd(fd));
        }
        // One that could not take it now would hold the caller up.
        other.set_nonblocking(true).unwrap();
        while (&other).write(&[1; 4096]).is_ok() {}
        other.set_nonblocking(false).unwrap();
        assert!(!signal_eventfd(other.as_raw_fd()));
        drop((other, writer, tcp));
        let mut got = Vec::new();
        one.read_to_end(&mut got).unwrap();
        assert!(!got.contains(&0));
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_number_that_is_closed_is_lost() {
        let event = fd::eventfd(libc::EFD_CLOEXEC).unwrap();
        let high = fd::dup_above(event.raw(), 900).unwrap();
        let number = high.raw();
        assert!(signal_eventfd(number));
        drop(high);
        assert!(!signal_eventfd(number));
    }
}
