//! Questions to the kernel (`sd_sys::netlink`) by sockets that the process keeps: making one costs twice as much as a question.
//!
//! A kept socket answers for the network namespace in which it was made, and for one thread at a time. So a question has a socket of
//! its own where a thread of the process has gone to another namespace, and while another thread asks. A child of a fork makes its own:
//! the parent's answers are not for it. Where the program has a filter of its own, which such a socket could offend, nothing is asked.
//! A kept socket is closed under us only by a program that makes system calls past libc; its number may be another file's then, so
//! after an error it is neither asked nor closed again, and none is kept from then on.

use crate::fd::hidden::Hidden;
use crate::process::network;
use core::sync::atomic::{AtomicBool, Ordering};
use sd_sys::fd::Number;
use sd_sys::lock::Lock;
use sd_sys::netlink::Netlink;
use sd_sys::{Errno, Result};

/// About routes and addresses.
pub(crate) static ROUTES: Kept = Kept::new(Netlink::of_routes);
/// About listeners and connections.
pub(crate) static SOCKETS: Kept = Kept::new(Netlink::of_sockets);

/// A socket that is made for the first question.
pub(crate) struct Kept {
    open: fn() -> Result<Netlink>,
    socket: Lock<Option<Netlink<Hidden>>>,
    is_given_up: AtomicBool,
}

impl Kept {
    const fn new(open: fn() -> Result<Netlink>) -> Kept {
        Kept { open, socket: Lock::new(None), is_given_up: AtomicBool::new(false) }
    }

    /// Asks. An error: it cannot be known.
    pub(crate) fn ask<T>(&self, question: impl Fn(&Netlink<dyn Number>) -> Result<T>) -> Result<T> {
        if sd_sys::confine::is_on() {
            return Err(Errno(libc::EPERM));
        }
        let may_keep = !network::has_left() && !self.is_given_up.load(Ordering::Relaxed);
        match self.socket.try_lock().filter(|_| may_keep) {
            Some(mut kept) => self.ask_kept(&mut kept, question),
            None => question(&(self.open)()?),
        }
    }

    fn ask_kept<T>(
        &self,
        kept: &mut Option<Netlink<Hidden>>,
        question: impl Fn(&Netlink<dyn Number>) -> Result<T>,
    ) -> Result<T> {
        let socket = match kept {
            Some(socket) => socket,
            None => kept.insert((self.open)()?.held_by(Hidden::of)),
        };
        let answer = question(socket);
        if answer.is_err() {
            self.is_given_up.store(true, Ordering::Relaxed);
            let _ = kept.take().map(|socket| socket.into_fd().into_raw());
        }
        answer
    }

    fn forked(&self) {
        // SAFETY: the child has one thread.
        unsafe { self.socket.force_unlock() };
        self.close();
    }

    fn close(&self) {
        drop(self.socket.lock().take());
    }
}

/// In the child of a fork.
pub(crate) fn forked() {
    ROUTES.forked();
    SOCKETS.forked();
}

/// The process may be at another place when it asks next, as after a checkpoint.
pub(crate) fn separated() {
    ROUTES.close();
    SOCKETS.close();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const HERE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 9, 8, 7];

    fn number(kept: &Kept) -> Option<i32> {
        let mut socket = kept.socket.lock();
        let number = socket.take().map(|socket| socket.into_fd().into_raw());
        *socket = number.map(|number| Netlink::over(Hidden::from_raw(number)));
        number
    }

    #[test]
    fn one_socket_answers_all() {
        let kept = Kept::new(Netlink::of_routes);
        assert_eq!(kept.ask(|routes| routes.is_local(HERE)), Ok(true));
        let first = number(&kept);
        assert!(first.is_some());
        for _ in 0..3 {
            assert_eq!(kept.ask(|routes| routes.is_local(HERE)), Ok(true));
            assert_eq!(number(&kept), first);
        }
        kept.forked();
        assert_eq!(number(&kept), None);
    }

    #[test]
    fn a_question_beside_another_has_its_own() {
        let kept = Kept::new(Netlink::of_routes);
        let busy = kept.socket.lock();
        assert_eq!(kept.ask(|routes| routes.is_local(HERE)), Ok(true));
        assert!(busy.is_none());
    }

    #[test]
    fn one_that_fails_is_left_alone() {
        let kept = Kept::new(Netlink::of_routes);
        // Something of the program's has its number.
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        *kept.socket.lock() = Some(Netlink::over(Hidden::from_raw(other.as_raw_fd())));
        assert!(kept.ask(|routes| routes.is_local(HERE)).is_err() && number(&kept).is_none());
        assert!(other.local_addr().is_ok(), "it is open");
        assert_eq!(kept.ask(|routes| routes.is_local(HERE)), Ok(true));
        assert!(number(&kept).is_none());
    }
}
