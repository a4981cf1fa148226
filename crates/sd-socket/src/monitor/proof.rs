//! Is a listener of another user's still there? Asked of the kernel for each connection that begins without the monitor,
//! which asks as well before it answers (ADR 43).
//!
//! Who has closed the kernel's listener has lost the port, whatever it keeps saying. Processes of our own user and of root
//! are believed, so between programs of one user this costs nothing; for others it is one question by sock_diag(7).

use crate::process::netlink;
use sd_proto::{Ip, Socket};
use sd_sys::netlink::{Found, Listener};

/// How to prove a listener.
#[derive(Clone, Copy)]
pub(crate) struct Proof {
    /// The listening process and its listener's index, as [`crate::route::target::Target`] has them.
    of: (u64, u32),
    socket: Listener,
}

impl Proof {
    /// That of a listener of another user's; others need none.
    pub(crate) fn needed((client, listener): (u64, u32), socket: &Socket, port: u16) -> Option<Proof> {
        let Socket { user, cookie, ip: Ip(ip) } = *socket;
        let is_believed = user == 0 || user == sd_sys::fd::geteuid();
        let socket = Listener { ip, port, cookie };
        (!is_believed).then_some(Proof { of: (client, listener), socket })
    }

    /// Whether it is for this one.
    pub(crate) fn is_of(&self, of: (u64, u32)) -> bool {
        self.of == of
    }

    /// The kernel says that it listens. If not, or if it cannot be asked, the monitor has to be.
    pub(crate) fn holds(&self) -> bool {
        let asked = netlink::SOCKETS.ask(|kernel| kernel.find(&self.socket));
        matches!(asked, Ok(Found::Listening(_)))
    }
}
