//! The sequence numbers at which both streams of a TCP connection begin, asked of its socket by TCP_REPAIR.
//!
//! ```text
//!  A  number of the first byte sent     = write_seq - bytes written    ==  B  number of the first byte received
//!  A  number of the first byte received = rcv_nxt   - bytes received   ==  B  number of the first byte sent
//! ```
//! Both numbers are 32 bits that each kernel chooses at random when a connection begins. No translation of addresses changes them, and
//! whoever makes two connections of one (a proxy) gets others.
//!
//! # Who may ask
//! Who has CAP_NET_ADMIN over the socket's network namespace; others get [`Errno::EPERM`].
//!
//! # What it does to the connection
//! For the few microseconds that it takes, recv fails with EPERM and send with EINVAL, so nobody may be in a call on the socket. What
//! comes in is taken in and acknowledged as ever. TCP_REPAIR is switched off without a window probe, so nothing is sent. It changes
//! SO_REUSEADDR, which gets back its value right after. A socket with bytes that wait to be sent is not touched, as the kernel could take
//! them for sent.

use crate::fd::{getsockopt_int, setsockopt_int};
use crate::{Errno, Result, check, syscall};
use libc::{IPPROTO_TCP, SO_REUSEADDR, SOL_SOCKET};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origins {
    /// Number of the first byte sent; at the end that connected, that of its SYN, which the kernel counts among the bytes sent: one
    /// less.
    pub sent: u32,
    /// Number of the first byte received.
    pub received: u32,
}

// linux/tcp.h; the libc crate has some of them.
const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const ON: i32 = 1;
const OFF_NO_WINDOW_PROBE: i32 = -1;
const NO_QUEUE: i32 = 0;
const RECV_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;

/// Bytes that were written and not sent yet (linux/sockios.h).
const SIOCOUTQNSD: u64 = 0x894b;

/// Looks after which a count that changes all the time is given up.
const LOOKS_MAX: u32 = 64;

/// While it exists, TCP_REPAIR is on.
struct Repair {
    fd: i32,
    reuse: i32,
}

impl Repair {
    fn begin(fd: i32) -> Result<Repair> {
        let reuse = getsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR)?;
        if is_repaired(fd)? {
            return Err(Errno::EAGAIN);
        }
        setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR, ON)?;
        Ok(Repair { fd, reuse })
    }

    fn number(&self, queue: i32) -> Result<u32> {
        setsockopt_int(self.fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)?;
        getsockopt_int(self.fd, IPPROTO_TCP, TCP_QUEUE_SEQ).map(|number| number as u32)
    }
}

impl Drop for Repair {
    fn drop(&mut self) {
        // TCP_QUEUE_SEQ can be read as long as a queue is chosen, repair or not.
        let _ = setsockopt_int(self.fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, NO_QUEUE);
        let _ = setsockopt_int(self.fd, IPPROTO_TCP, TCP_REPAIR, OFF_NO_WINDOW_PROBE);
        let _ = setsockopt_int(self.fd, SOL_SOCKET, SO_REUSEADDR, self.reuse);
    }
}

/// Whether this process may ask about connections in its network namespace, as it is now.
pub fn may_ask() -> bool {
    let socket = crate::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    socket.is_ok_and(|socket| Repair::begin(socket.raw()).is_ok())
}

/// Those of an established connection on which nobody is in a call. [`Errno::EAGAIN`]: not now; [`Errno::ENOBUFS`]: not while bytes wait to be sent.
pub fn origins(fd: i32) -> Result<Origins> {
    if is_repaired(fd)? {
        return Err(Errno::EAGAIN);
    }
    if unsent(fd)? != 0 {
        return Err(Errno::ENOBUFS);
    }
    let repair = Repair::begin(fd)?;
    // Who wrote in between did what nobody may.
    if unsent(fd)? != 0 {
        return Err(Errno::ENOBUFS);
    }
    for _ in 0..LOOKS_MAX {
        let before = crate::tcp::info(fd)?;
        let (sent, received) = (repair.number(SEND_QUEUE)?, repair.number(RECV_QUEUE)?);
        let queued = crate::tcp::queued(fd)?;
        let after = crate::tcp::info(fd)?;
        if (before.acked, before.received) == (after.acked, after.received) {
            let written = after.acked.wrapping_add(queued);
            return Ok(Origins {
                sent: sent.wrapping_sub(written as u32),
                received: received.wrapping_sub(after.received as u32),
            });
        }
    }
    Err(Errno::EAGAIN)
}

/// Somebody saves, or restores, the connection.
fn is_repaired(fd: i32) -> Result<bool> {
    Ok(getsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR)? != 0)
}

fn unsent(fd: i32) -> Result<i32> {
    let mut bytes = 0i32;
    // SAFETY: the kernel writes an int.
    check(unsafe { syscall!(libc::SYS_ioctl, fd, SIOCOUTQNSD, &mut bytes as *mut i32) })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// `None` for who may not ask.
    fn ask(socket: &TcpStream) -> Option<Origins> {
        match origins(socket.as_raw_fd()) {
            Err(Errno::EPERM) => None,
            other => Some(other.unwrap()),
        }
    }

    fn is_mirrored(active: Origins, passive: Origins) -> bool {
        active.sent.wrapping_add(1) == passive.received && passive.sent == active.received
    }

    #[test]
    fn both_ends_have_the_numbers_of_one_connection() {
        let (near, far) = pair();
        let (Some(active), Some(passive)) = (ask(&near), ask(&far)) else { return };
        assert!(is_mirrored(active, passive), "{active:?} {passive:?}");
        let left = getsockopt_int(near.as_raw_fd(), IPPROTO_TCP, TCP_QUEUE_SEQ);
        assert_eq!(left, Err(Errno::EINVAL), "as on a socket that nobody looked at");
        let (other, another) = pair();
        let (other, another) = (ask(&other).unwrap(), ask(&another).unwrap());
        assert!(is_mirrored(other, another) && !is_mirrored(active, another) && !is_mirrored(other, passive));
    }

    #[test]
    fn what_was_read_and_what_waits_makes_no_difference() {
        let (mut near, mut far) = pair();
        let Some(before) = ask(&near) else { return };
        near.write_all(&[1; 5000]).unwrap();
        far.write_all(&[2; 3000]).unwrap();
        far.read_exact(&mut [0; 1234]).unwrap();
        near.read_exact(&mut [0; 77]).unwrap();
        assert_eq!(ask(&near), Some(before));
        assert!(is_mirrored(before, ask(&far).unwrap()));
    }

    #[test]
    fn options_stay_as_they_were() {
        let (near, far) = pair();
        for (socket, reuse) in [(&near, 0), (&far, 1)] {
            let fd = socket.as_raw_fd();
            setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, reuse).unwrap();
            let _ = ask(socket);
            assert_eq!(getsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR), Ok(reuse));
            assert_eq!(getsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR), Ok(0));
        }
    }

    #[test]
    fn a_socket_with_unsent_bytes_is_left_alone() {
        let (mut near, _far) = pair();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        assert!(unsent(near.as_raw_fd()).unwrap() > 0);
        assert_eq!(origins(near.as_raw_fd()), Err(Errno::ENOBUFS));
        assert_eq!(getsockopt_int(near.as_raw_fd(), IPPROTO_TCP, TCP_REPAIR), Ok(0));
    }

    #[test]
    fn a_socket_that_somebody_repairs_is_left_alone() {
        let (near, _far) = pair();
        let fd = near.as_raw_fd();
        if setsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR, ON).is_ok() {
            assert_eq!(origins(fd), Err(Errno::EAGAIN));
            assert_eq!(getsockopt_int(fd, IPPROTO_TCP, TCP_REPAIR), Ok(1));
        }
    }

    /// Bytes that each side sends in the test below.
    const TOTAL: usize = 3 << 20;

    fn byte(at: usize, salt: usize) -> u8 {
        (at.wrapping_mul(31) ^ at >> 8 ^ salt) as u8
    }

    /// Sends and receives until all has gone both ways, and keeps out of calls as the library does: by a lock.
    fn carry(socket: &TcpStream, turn: &Mutex<()>, (own, other): (usize, usize)) {
        socket.set_nonblocking(true).unwrap();
        let (mut sent, mut got, mut bytes) = (0, 0, vec![0u8; 40_000]);
        while sent < TOTAL || got < TOTAL {
            let len = (sent * 7 + 1) % 9000 + 1;
            let room = &mut bytes[..len.min(TOTAL - sent)];
            (0..).zip(room.iter_mut()).for_each(|(at, to)| *to = byte(sent + at, own));
            {
                let _inside = turn.lock().unwrap();
                match (&mut &*socket).write(room) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
            }
            let count = {
                let _inside = turn.lock().unwrap();
                match (&mut &*socket).read(&mut bytes) {
                    Ok(count) => count,
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                        0
                    }
                }
            };
            assert!(bytes[..count].iter().zip(got..).all(|(found, at)| *found == byte(at, other)));
            got += count;
            std::thread::yield_now();
        }
    }

    #[test]
    fn nothing_of_a_busy_connection_is_disturbed() {
        let (near, far) = pair();
        let (Some(active), Some(passive)) = (ask(&near), ask(&far)) else { return };
        let turns = [Mutex::new(()), Mutex::new(())];
        let asked = std::thread::scope(|scope| {
            let carriers = [
                scope.spawn(|| carry(&near, &turns[0], (1, 2))),
                scope.spawn(|| carry(&far, &turns[1], (2, 1))),
            ];
            let mut asked = 0;
            while carriers.iter().any(|carrier| !carrier.is_finished()) {
                for ((socket, turn), expected) in [&near, &far].into_iter().zip(&turns).zip([active, passive])
                {
                    let _nobody_inside = turn.lock().unwrap();
                    match origins(socket.as_raw_fd()) {
                        Ok(found) => {
                            asked += 1;
                            assert_eq!(found, expected);
                        }
                        Err(error) => assert!([Errno::EAGAIN, Errno::ENOBUFS].contains(&error)),
                    }
                }
                std::thread::yield_now();
            }
            asked
        });
        assert!(asked > 0);
        assert!(is_mirrored(active, passive));
    }
}
