//! What the kernel says of a TCP connection of its own.

use crate::{Errno, Result, check, syscall};

/// Some of `struct tcp_info`.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// As in the kernel's tcp_states.h; 1: established.
    pub state: u8,
    /// Probes of a silent connection, or of a closed window, that were not answered; of one that has ended, too.
    pub probes: u8,
    /// TCPI_OPT_*.
    pub options: u8,
    /// Bytes that the other end has acknowledged; the active end's SYN counts as one.
    pub acked: u64,
    /// Bytes that have come; the other end's FIN counts as one.
    pub received: u64,
    /// The smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Segments that were sent, with those.
    pub segments_sent: u32,
}

/// There is no connection yet, or none any more: after both ends' FINs, while the socket is open; or after a reset, whose error was not told yet.
pub const CLOSE: u8 = 7;
/// Both directions are open.
pub const ESTABLISHED: u8 = 1;
/// States in which the other end's FIN has come: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const AFTER_FIN: [u8; 4] = [6, 8, 9, 11];
/// Of [`Info::options`]: data came, or went, with the SYN.
pub const SYN_DATA: u8 = 32;

/// TCP_INFO.
pub fn info(fd: i32) -> Result<Info> {
    // Up to tcpi_segs_out; the kernel gives as much as is asked for.
    const LEN: usize = 140;
    let mut bytes = [0u8; LEN];
    let mut len = LEN as u32;
    // SAFETY: the kernel writes at most `len` bytes.
    check(unsafe {
        syscall!(
            libc::SYS_getsockopt,
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr(),
            &mut len as *mut u32
        )
    })?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(word)
    };
    let [state, _, _, probes, _, options, ..] = bytes;
    let half = |at: usize| word(at) as u32;
    let (rtt_us, retransmitted, segments_sent) = (half(68), half(100), half(136));
    let (acked, received) = (word(120), word(128));
    Ok(Info { state, probes, options, acked, received, rtt_us, retransmitted, segments_sent })
}

/// Whether the kernel changes the bytes on their way (TCP_ULP: TLS), so that a stream of it has others than are written and read. A kernel that
/// does not say has none.
pub fn has_layer(fd: i32) -> bool {
    // As long as a name can be.
    let (mut name, mut len) = ([0u8; 16], 16u32);
    // SAFETY: the kernel writes at most `len` bytes.
    let asked = check(unsafe {
        let (name, len) = (name.as_mut_ptr(), &mut len as *mut u32);
        syscall!(libc::SYS_getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_ULP, name, len)
    });
    asked.is_ok() && len != 0
}

/// Looks after which a count that changes all the time is given up.
const LOOKS_MAX: u32 = 1000;

/// Bytes that were written and not acknowledged yet (SIOCOUTQ).
pub fn queued(fd: i32) -> Result<u64> {
    const SIOCOUTQ: u64 = 0x5411;
    let mut queued = 0i32;
    // SAFETY: the kernel writes an int.
    check(unsafe { syscall!(libc::SYS_ioctl, fd, SIOCOUTQ, &mut queued as *mut i32) })?;
    Ok(queued.max(0) as u64)
}

/// Bytes that have come and were not read yet (SIOCINQ).
pub fn unread(fd: i32) -> Result<u64> {
    const SIOCINQ: u64 = 0x541b;
    let mut queued = 0i32;
    // SAFETY: the kernel writes an int.
    check(unsafe { syscall!(libc::SYS_ioctl, fd, SIOCINQ, &mut queued as *mut i32) })?;
    Ok(queued.max(0) as u64)
}

/// Looks at a count of bytes that have passed and at what is queued, until both are of one moment.
fn steady(fd: i32, passed: impl Fn(&Info) -> (u64, u8), request: u64) -> Result<(Info, u64)> {
    for _ in 0..LOOKS_MAX {
        let before = info(fd)?;
        let mut queued = 0i32;
        // SAFETY: the kernel writes an int.
        check(unsafe { syscall!(libc::SYS_ioctl, fd, request, &mut queued as *mut i32) })?;
        let after = info(fd)?;
        if passed(&before) == passed(&after) {
            return Ok((after, queued.max(0) as u64));
        }
    }
    Err(Errno::EAGAIN)
}

/// Whether the other end's FIN has come.
pub fn has_ended(fd: i32) -> bool {
    info(fd).is_ok_and(|info| has_fin(fd, &info))
}

/// The connection is over in both directions, and nothing of it is left.
pub fn is_closed(fd: i32) -> bool {
    info(fd).map_or(true, |info| info.state == CLOSE)
}

fn has_fin(fd: i32, info: &Info) -> bool {
    let is_reset = || crate::fd::poll_one(fd, 0, 0).is_ok_and(|events| events & libc::POLLERR != 0);
    AFTER_FIN.contains(&info.state) || info.state == CLOSE && !is_reset()
}

/// Bytes that were written so far, in a call that nobody else writes in; `active`: this end has connected.
pub fn sent(fd: i32, active: bool) -> Result<u64> {
    const SIOCOUTQ: u64 = 0x5411;
    let (info, queued) = steady(fd, |info| (info.acked, info.state), SIOCOUTQ)?;
    Ok((info.acked + queued).wrapping_sub(u64::from(active)))
}

/// Bytes that were read so far, in a call that nobody else reads in, of a stream of which the other end has said that it went on elsewhere
/// behind byte `left_at`. `counted`: the lower half of what the caller has counted, which may be wrong if somebody died before he counted.
///
/// Behind a reset the kernel does not say whether a FIN had come before, and who takes the error has the socket look as behind two FINs. But the kernel's
/// count is one more than the caller's then. And a FIN comes behind all bytes, so if it was counted there is more than `left_at`.
pub fn read(fd: i32, left_at: u64, counted: u32) -> Result<u64> {
    const SIOCINQ: u64 = 0x541b;
    let (info, queued) = steady(fd, |info| (info.received, info.state), SIOCINQ)?;
    let passed = info.received.wrapping_sub(queued);
    // The queue's length does not count it.
    let fin = match (info.state, (passed as u32).wrapping_sub(counted)) {
        (CLOSE, fin @ (0 | 1)) => fin == 1,
        (CLOSE, _) => info.received > left_at && has_fin(fd, &info),
        (state, _) => AFTER_FIN.contains(&state),
    };
    Ok(passed.wrapping_sub(u64::from(fin)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// Somebody died before he counted what he had read.
    const UNKNOWN: u32 = 7_000_000;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn positions_are_those_of_the_bytes_also_behind_a_fin() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        let positions = |a: &TcpStream, b: &TcpStream| {
            let (a, b) = (a.as_raw_fd(), b.as_raw_fd());
            let (by_a, by_b) = (sent(a, true).unwrap(), sent(b, false).unwrap());
            [by_a, read(b, by_a, 0).unwrap(), by_b, read(a, by_b, 0).unwrap()]
        };
        assert_eq!(positions(&a, &b), [0; 4]);
        a.write_all(&[1; 100]).unwrap();
        b.write_all(&[1; 7]).unwrap();
        b.read_exact(&mut [0; 40]).unwrap();
        assert_eq!(positions(&a, &b), [100, 40, 7, 0]);
        let was_sent = sent(a.as_raw_fd(), true).unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        b.read_exact(&mut [0; 10]).unwrap();
        assert_eq!((was_sent, read(b.as_raw_fd(), 100, 50).unwrap()), (100, 50), "the FIN has come");
        assert_eq!((has_ended(a.as_raw_fd()), has_ended(b.as_raw_fd())), (false, true));
        b.read_exact(&mut [0; 50]).unwrap();
        assert_eq!(read(b.as_raw_fd(), 100, 100).unwrap(), 100);
        assert_eq!(b.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(read(b.as_raw_fd(), 100, 100).unwrap(), 100, "and was read");
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_plain_connection_has_no_layer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!has_layer(near.as_raw_fd()));
        let name = c"tls";
        // SAFETY: the kernel reads three bytes.
        let set = check(unsafe {
            syscall!(
                libc::SYS_setsockopt,
                near.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_ULP,
                name.as_ptr(),
                3
            )
        });
        // Where there is no TLS in the kernel, nothing is there.
        assert_eq!(has_layer(near.as_raw_fd()), set.is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn positions_behind_both_fins() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        b.write_all(&[1; 7]).unwrap();
        b.shutdown(Shutdown::Write).unwrap();
        a.write_all(&[1; 100]).unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        a.read_exact(&mut [0; 3]).unwrap();
        b.read_exact(&mut [0; 40]).unwrap();
        for (end, so_far, left_at) in [(&a, 3, 7), (&b, 40, 100)] {
            while info(end.as_raw_fd()).unwrap().state != CLOSE {
                std::thread::yield_now();
            }
            for counted in [so_far as u32, UNKNOWN] {
                assert_eq!(read(end.as_raw_fd(), left_at, counted).unwrap(), so_far);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn positions_behind_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        b.write_all(&[1; 7]).unwrap();
        a.write_all(&[1; 100]).unwrap();
        b.read_exact(&mut [0; 40]).unwrap();
        drop(a);
        while info(b.as_raw_fd()).unwrap().state != CLOSE {
            std::thread::yield_now();
        }
        let is_right = |b: &TcpStream| {
            // The other end went elsewhere behind all of it, or came back, and has sent some of it then.
            for left_at in [100, 80] {
                assert_eq!(read(b.as_raw_fd(), left_at, 40).unwrap(), 40);
            }
        };
        is_right(&b);
        assert_eq!(read(b.as_raw_fd(), 100, UNKNOWN).unwrap(), 40, "a closed with something unread");
        assert!(b.take_error().unwrap().is_some());
        is_right(&b);
        assert_eq!(read(b.as_raw_fd(), 100, UNKNOWN).unwrap(), 40, "and that was told");
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn positions_behind_a_fin_and_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        a.write_all(&[1; 100]).unwrap();
        b.read_exact(&mut [0; 40]).unwrap();
        drop(a);
        // What nobody reads is answered by a reset.
        b.write_all(&[1; 7]).unwrap();
        while info(b.as_raw_fd()).unwrap().state != CLOSE {
            std::thread::yield_now();
        }
        // Before the error is told, and after that.
        for _ in 0..2 {
            for left_at in [100, 80] {
                assert_eq!(read(b.as_raw_fd(), left_at, 40).unwrap(), 40);
            }
            let _ = b.take_error();
        }
    }
}
