//! Who waits for the place of an engine waits for its end, and does not try again and again.
//!
//! The engine of a monitor that is gone carries on, and comes back to the next one, which has started an engine of its own by then. That one cannot
//! listen at the address. It connects to a socket by which the other one can be found, and which nobody accepts at: when that process ends, the kernel
//! breaks the connection off. The name is of no file (unix(7), abstract), and of one network namespace, as the address is.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

fn name(address: SocketAddr) -> std::io::Result<net::SocketAddr> {
    net::SocketAddr::from_abstract_name(format!("socksdirect engine at {address}"))
}

/// For as long as it is held, others can wait for the end of the engine at this address. `None`: somebody else has the name, and they try.
pub(crate) fn hold(address: SocketAddr) -> Option<UnixListener> {
    name(address).and_then(|name| UnixListener::bind_addr(&name)).ok()
}

/// Waits for the end of the engine at an address. False: there is none that can be found, or it is another user's.
#[must_use]
pub fn await_end(address: SocketAddr) -> bool {
    let stream = name(address).and_then(|name| UnixStream::connect_addr(&name));
    let Some(mut stream) = stream.ok().filter(is_own) else { return false };
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return true,
        }
    }
}

/// The socket was made by a process of this user's: anybody may have taken the name.
fn is_own(stream: &UnixStream) -> bool {
    sd_sys::fd::peer(stream.as_raw_fd()).is_ok_and(|(_, user)| user == sd_sys::fd::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn who_waits_hears_of_the_end_and_not_before() {
        let address = SocketAddr::from(([127, 0, 0, 1], std::process::id() as u16));
        assert!(!await_end(address), "there is none");
        let held = hold(address);
        assert!(held.is_some() && hold(address).is_none(), "one at a time");
        let (ended, end) = mpsc::channel();
        let waiting = std::thread::spawn(move || ended.send(await_end(address)));
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err());
        drop(held);
        assert_eq!(end.recv(), Ok(true));
        assert!(waiting.join().is_ok_and(|sent| sent.is_ok()));
    }
}
