//! All TCP sockets of a namespace, but for connections that only wait until their numbers may be used again: of these a busy host has hundreds of
//! thousands, and the files below /proc have a line of each.

use super::{DIAG_MSG, DUMP_ROOM, Listener, Netlink, SOCK_DIAG_BY_FAMILY, TCP_TIME_WAIT, diag_request};
use crate::Result;
use crate::fd::Number;
use core::net::{IpAddr, SocketAddr};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// TCP_ESTABLISHED and so on.
    pub state: u8,
    /// Its own address.
    pub local: SocketAddr,
    /// The peer's; no address and port 0 where there is none.
    pub peer: SocketAddr,
    /// Bytes to be received, or connections to be accepted.
    pub rx_queue: u32,
    /// Bytes that the peer has not acknowledged; of a listener its backlog.
    pub tx_queue: u32,
    /// The socket's inode; 0: no descriptor leads to it.
    pub inode: u32,
}

/// All that there are (net/tcp_states.h).
const STATES: u32 = 0xfff & !(1 << TCP_TIME_WAIT);

impl<F: Number + ?Sized> Netlink<F> {
    /// Tells `take` of each.
    pub fn tcp(&self, mut take: impl FnMut(Tcp)) -> Result<()> {
        let mut buf = [0; DUMP_ROOM];
        for family in [libc::AF_INET, libc::AF_INET6] {
            let body = diag_request(family, STATES, &Listener { ip: [0; 16], port: 0, cookie: 0 });
            self.ask(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP as u16, &body, &mut buf, |answer| {
                answer.first_chunk().and_then(read).into_iter().for_each(&mut take);
                false
            })?;
        }
        Ok(())
    }
}

/// struct inet_diag_msg.
fn read(answer: &[u8; DIAG_MSG]) -> Option<Tcp> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let address = |port: usize, ip: usize| {
        let port = u16::from_be_bytes(*answer.get(port..)?.first_chunk()?);
        let ip = match i32::from(*answer.first()?) {
            libc::AF_INET => IpAddr::from(*answer.get(ip..)?.first_chunk::<4>()?),
            _ => IpAddr::from(*answer.get(ip..)?.first_chunk::<16>()?),
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(Tcp {
        state: *answer.get(1)?,
        local: address(4, 8)?,
        peer: address(6, 24)?,
        rx_queue: word(56)?,
        tx_queue: word(60)?,
        inode: word(68)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn sockets_are_told_of_and_those_that_wait_are_not() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let address = listener.local_addr().unwrap();
            let (first, second) =
                (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
            let (accepted, last) = (listener.accept().unwrap().0, second.local_addr().unwrap());
            // It waits now, as it was closed first.
            drop(second);
            drop(listener.accept().unwrap());
            let mut found = Vec::new();
            Netlink::of_sockets().unwrap().tcp(|tcp| found.push(tcp)).unwrap();
            let of = |local: SocketAddr| found.iter().filter(move |tcp| tcp.local == local);
            let states: Vec<u8> = of(address).map(|tcp| tcp.state).collect();
            assert!(states.contains(&1) && states.contains(&10), "{states:?}");
            let own = of(first.local_addr().unwrap()).next().unwrap();
            assert_eq!((own.state, own.peer), (1, address));
            assert!(own.inode != 0);
            assert_eq!(of(last).count(), 0, "waits");
            drop(accepted);
        }
    }
}
