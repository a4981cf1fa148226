//! Who waits for the place of an engine waits for its end, and does not try again and again.
//!
//! The engine of a monitor that is gone carries on, and comes back to the next one, which has started an engine of its own by then. That one cannot
//! listen at the address. It connects to a socket by which the other one can be found: when that process ends, the kernel
//! breaks the connection off, and nothing is ever said. The name is of no file (unix(7), abstract), and of one network namespace, as the address is.
//!
//! Who is waited for sees who waits: an engine of another file is another version of it, for which one makes room (`run/retire.rs`, ADR 122).

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

/// So many who have come are heard at once: they may be anybody's.
const HEARD_MAX: usize = 32;

/// For as long as it is there, others can wait for the end of the engine at this address.
pub(crate) struct Presence {
    listener: UnixListener,
    /// They wait until these are closed.
    waiting: Vec<UnixStream>,
}

impl Presence {
    /// `None`: somebody else has the name, and others try whether the address is free.
    pub(crate) fn hold(address: SocketAddr) -> Option<Presence> {
        let listener = name(address).and_then(|name| UnixListener::bind_addr(&name)).ok()?;
        listener.set_nonblocking(true).ok()?;
        Some(Presence { listener, waiting: Vec::new() })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// Some who have come since wait from now on: whether an engine of another file is among them.
    pub(crate) fn hear(&mut self) -> bool {
        self.waiting.retain(waits);
        let mut is_replaced = false;
        for _ in 0..HEARD_MAX {
            let Ok((stream, _)) = self.listener.accept() else { break };
            let Ok((pid, user)) = sd_sys::fd::peer(stream.as_raw_fd()) else { continue };
            if user == sd_sys::fd::geteuid() && stream.set_nonblocking(true).is_ok() {
                is_replaced |= is_of_another_file(pid);
                self.waiting.push(stream);
            }
        }
        is_replaced
    }
}

/// It has not ended; nobody says anything.
fn waits(stream: &UnixStream) -> bool {
    let mut stream = stream;
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// The process runs a program of another file than this one. Of one that cannot be seen nothing is known.
fn is_of_another_file(pid: i32) -> bool {
    let file = |path: &str| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    match (file("/proc/self/exe"), file(&format!("/proc/{pid}/exe"))) {
        (Ok(own), Ok(other)) => own != other,
        _ => false,
    }
}

fn name(address: SocketAddr) -> std::io::Result<net::SocketAddr> {
    net::SocketAddr::from_abstract_name(format!("socksdirect engine at {address}"))
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
        let mut held = Presence::hold(address).unwrap();
        assert!(Presence::hold(address).is_none(), "one at a time");
        let (ended, end) = mpsc::channel();
        let waiting = std::thread::spawn(move || ended.send(await_end(address)));
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(!held.hear(), "of the same file");
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err() && held.waiting.len() == 1);
        drop(held);
        assert_eq!(end.recv(), Ok(true));
        assert!(waiting.join().is_ok_and(|sent| sent.is_ok()));
    }

    #[test]
    fn who_has_ended_waits_no_more() {
        let address = SocketAddr::from(([127, 0, 0, 2], std::process::id() as u16));
        let mut held = Presence::hold(address).unwrap();
        for _ in 0..2 {
            let waiter = name(address).and_then(|name| UnixStream::connect_addr(&name)).unwrap();
            assert!(!held.hear() && held.waiting.len() == 1);
            drop(waiter);
        }
        assert!(!held.hear() && held.waiting.is_empty());
    }

    #[test]
    fn a_program_of_another_file_is_told_from_one_of_the_same() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let is_seen = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            is_of_another_file(other.id() as i32)
        });
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(is_seen && !is_of_another_file(std::process::id() as i32) && !is_of_another_file(0));
    }
}
