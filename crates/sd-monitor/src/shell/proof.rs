//! Is a registered listener still there? Asked of the kernel each time that a connection would be given to it (ADR 43).
//!
//! A client proves once that it has a listener. What it registered is of use only as long as the kernel's socket exists: when
//! that is closed its port is free for others, whose connections must not go to whoever had it before. So the kernel is
//! asked, by the socket's address and cookie, through a netlink socket in the listener's network namespace:
//!
//! | when | whose |
//! |---|---|
//! | a route is answered | the listener that was chosen |
//! | a listener is registered | the others of its port; the listener itself, where its socket came before it listened |
//! | what waits is handed on | those of its port |
//!
//! Nothing is remembered from one request to the next. A namespace that the monitor may not enter cannot be asked: then
//! only processes of the listening process's own user are led there, and everybody where that process is root's.

use super::descriptors::{Owned, Unfit, std_fd};
use super::server::Server;
use crate::core::listeners::Listener;
use crate::core::offers::Facts;
use sd_proto::ErrorCode;
use sd_sys::netlink::{Found, Listed, Netlink};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

/// A descriptor of a socket's network namespace (sockios.h).
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The kernel's socket listens.
    Alive,
    /// It does not.
    Gone,
    /// The kernel cannot be asked.
    Unknown,
}

/// Where the kernel is asked about a network namespace.
struct Asked {
    sockets: Netlink,
    routes: Netlink,
}

impl Asked {
    /// Of the namespace of the calling thread.
    fn here() -> Option<Asked> {
        let sockets = Netlink::of_sockets().ok().filter(Netlink::knows_tcp)?;
        Some(Asked { sockets, routes: Netlink::of_routes().ok()? })
    }

    /// Of another one, by a thread that enters it and ends there.
    fn elsewhere(namespace: File) -> Option<Asked> {
        let enter = move || {
            // SAFETY: only the calling thread goes there, and has nothing of its own.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0;
            if entered { Asked::here() } else { None }
        };
        std::thread::Builder::new().spawn(enter).ok()?.join().ok()?
    }
}

/// The network namespaces of clients, by their cookies. None: it cannot be asked.
#[derive(Default)]
pub(crate) struct Namespaces(HashMap<u64, Option<Asked>>);

impl Namespaces {
    /// A client's socket shows its namespace. Cookie 0 is of a kernel that tells of none.
    pub(crate) fn learn(&mut self, netns: u64, socket: BorrowedFd<'_>) {
        if netns != 0 && self.0.get(&netns).is_none_or(Option::is_none) {
            let asked = match own_netns() == Some(netns) {
                true => Asked::here(),
                false => namespace_of(socket).and_then(Asked::elsewhere),
            };
            if asked.is_none() {
                tracing::debug!(netns, "the kernel cannot be asked about a network namespace");
            }
            self.0.insert(netns, asked);
        }
    }

    /// Keeps those that are needed.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(u64) -> bool) {
        self.0.retain(|netns, _| is_needed(*netns));
    }

    /// See the module.
    pub(crate) fn proof(&self, listener: &Listener) -> Proof {
        self.listens((listener.netns, listener.ip, listener.port), listener.cookie)
    }

    /// Whether the socket of a cookie listens at an address of a namespace's.
    pub(crate) fn listens(&self, (netns, ip, port): (u64, sd_proto::Ip, u16), cookie: u64) -> Proof {
        let Some(Asked { sockets, .. }) = self.asked(netns) else { return Proof::Unknown };
        match sockets.find(&sd_sys::netlink::Listener { ip: ip.0, port, cookie }) {
            Ok(Found::Listening(_)) => Proof::Alive,
            Ok(Found::Nobody) => Proof::Gone,
            // Several at one address, and it is not said which of them the kernel picks.
            Ok(Found::Another) | Err(_) => match cookies(sockets, port) {
                Some(all) if all.contains(&cookie) => Proof::Alive,
                Some(_) => Proof::Gone,
                None => Proof::Unknown,
            },
        }
    }

    /// Whether the kernel has a listener at an address: this one, if it is known.
    pub(crate) fn has_listener(&self, at: (u64, sd_proto::Ip, u16), cookie: Option<u64>) -> bool {
        let (netns, ip, port) = at;
        match cookie {
            Some(cookie) => self.listens(at, cookie) == Proof::Alive,
            None => self.asked(netns).is_some_and(|asked| {
                let any = sd_sys::netlink::Listener { ip: ip.0, port, cookie: 0 };
                matches!(asked.sockets.find(&any), Ok(Found::Listening(_) | Found::Another))
            }),
        }
    }

    /// Those of one port that are gone.
    fn gone(&self, all: &[Listener]) -> Vec<Listener> {
        let is_gone = |listener: &&Listener| self.proof(listener) == Proof::Gone;
        let Some(first) = all.first() else { return Vec::new() };
        if all.iter().all(|listener| listener.cookie == first.cookie) {
            return if is_gone(&first) { all.to_vec() } else { Vec::new() };
        }
        let Some(Asked { sockets, .. }) = self.asked(first.netns) else { return Vec::new() };
        let Some(alive) = cookies(sockets, first.port) else { return Vec::new() };
        all.iter().filter(|listener| !alive.contains(&listener.cookie)).copied().collect()
    }

    /// A listener as the kernel lists it. An MPTCP socket listens by a TCP socket of the kernel's, which has the same inode and owner: that
    /// one's cookie counts, as it is what others find at the address. Not changed where the kernel cannot be asked.
    pub(crate) fn as_listed(&self, owned: Owned) -> Result<Owned, Unfit> {
        let (Some(inode), Some(Asked { sockets, .. })) = (owned.mptcp_inode, self.asked(owned.netns)) else {
            return Ok(owned);
        };
        let mut cookie = None;
        let is_it = |it: &Listed| (it.inode, it.owner) == (inode, owned.owner);
        let listed = sockets.list(owned.port, |it| cookie = cookie.or(is_it(&it).then_some(it.cookie)));
        listed.map_err(|_| Unfit)?;
        cookie.map(|cookie| Owned { cookie, mptcp_inode: None, ..owned }).ok_or(Unfit)
    }

    /// Whether an address is one of the namespace's own. `None`: the kernel cannot be asked.
    pub(crate) fn is_local(&self, netns: u64, ip: sd_proto::Ip) -> Option<bool> {
        self.asked(netns)?.routes.is_local(ip.0).ok()
    }

    /// Whether the kernel still has the connection of an offer. `None`: it cannot be asked.
    pub(crate) fn is_connected(&self, facts: &Facts) -> Option<bool> {
        let Facts { netns, cookie, local, remote, .. } = *facts;
        let ends = [local, remote].map(|(ip, port)| (ip.0, port));
        let found = self.asked(netns)?.sockets.connection(ends[0], ends[1]).ok()?;
        Some(found == Some(cookie))
    }

    /// Whether the kernel can be asked about a namespace.
    pub(crate) fn can_ask(&self, netns: u64) -> bool {
        self.asked(netns).is_some()
    }

    fn asked(&self, netns: u64) -> Option<&Asked> {
        self.0.get(&netns)?.as_ref()
    }
}

/// Those of all sockets that listen on a port. `None`: the kernel does not say.
fn cookies(sockets: &Netlink, port: u16) -> Option<HashSet<u64>> {
    let mut found = HashSet::new();
    let listed = sockets.list(port, |it| _ = found.insert(it.cookie));
    listed.map(|()| found).inspect_err(|error| tracing::warn!("who listens is not known: {error:?}")).ok()
}

/// Cookie of the monitor's own network namespace.
pub(super) fn own_netns() -> Option<u64> {
    let fd = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).ok()?;
    let fd = std_fd(fd);
    super::descriptors::netns_of_tcp(fd.as_fd()).ok()
}

fn namespace_of(socket: BorrowedFd<'_>) -> Option<File> {
    // SAFETY: the call has no argument, and makes a descriptor.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    // SAFETY: a descriptor that the kernel has just made for us, close-on-exec.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

impl Server {
    /// The proof of a listener for connections of a user: where the kernel cannot be asked, a process of the user or of
    /// root is believed.
    pub(crate) fn proof_for(&self, listener: &Listener, user: u32) -> Proof {
        match self.namespaces.proof(listener) {
            Proof::Unknown if listener.user == user || listener.user == 0 => Proof::Alive,
            proof => proof,
        }
    }

    /// What was found of a listener, as the kernel lists that.
    pub(super) fn as_listed(&self, found: Result<Owned, Unfit>) -> Result<Owned, ErrorCode> {
        found.and_then(|owned| self.namespaces.as_listed(owned)).map_err(|_| ErrorCode::Descriptor)
    }

    /// Forgets those listeners of a port that are gone. What waits there is for the caller.
    pub(crate) fn prove(&mut self, netns: u64, port: u16) -> Vec<Listener> {
        let gone = self.namespaces.gone(self.core.listeners.of_port(netns, port));
        gone.iter().for_each(|listener| self.forget_listener(listener));
        gone
    }

    /// Ends the registration of a listener that is gone.
    pub(crate) fn forget_listener(&mut self, listener: &Listener) {
        tracing::debug!(client = listener.client.0, port = listener.port, "its listener is gone");
        let changed = self.core.listeners.remove(listener.client, listener.index);
        self.listeners_changed(listener.client, changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::listeners::tests::listener;
    use sd_proto::Ip;
    use std::net::TcpListener;

    /// Where the kernel has such sockets.
    #[test]
    fn an_mptcp_listener_is_known_by_the_tcp_socket_that_it_listens_by() {
        let Ok(fd) = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) else {
            return;
        };
        let socket = TcpListener::from(std_fd(fd));
        // SAFETY: no pointers. Without an address it is bound to any, and a free port.
        assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 4) }, 0);
        let owned = super::super::descriptors::check_listener(socket.as_fd()).unwrap();
        assert!(owned.mptcp_inode.is_some());
        let mut all = Namespaces::default();
        assert_eq!(all.as_listed(owned), Ok(owned), "the kernel cannot be asked");
        all.learn(owned.netns, socket.as_fd());
        let listed = all.as_listed(owned).unwrap();
        assert_ne!(listed.cookie, owned.cookie);
        let at = (owned.netns, owned.ip, owned.port);
        assert_eq!(all.listens(at, listed.cookie), Proof::Alive);
        assert_eq!(all.listens(at, owned.cookie), Proof::Gone);
        let other = Owned { mptcp_inode: owned.mptcp_inode.map(|inode| inode + 1), ..owned };
        assert_eq!(all.as_listed(other), Err(Unfit));
        drop(socket);
        assert_eq!(all.as_listed(owned), Err(Unfit));
    }

    #[test]
    fn a_listener_is_proved_while_it_listens() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let owned = super::super::descriptors::check_listener(socket.as_fd()).unwrap();
        let ip = Ip::v4([127, 0, 0, 1]);
        let mut all = Namespaces::default();
        let registered =
            Listener { netns: owned.netns, port: owned.port, cookie: owned.cookie, ..listener(1, 0, ip) };
        assert_eq!(all.proof(&registered), Proof::Unknown, "nobody is there yet");
        all.learn(owned.netns, socket.as_fd());
        assert_eq!(all.proof(&registered), Proof::Alive);
        assert_eq!(all.proof(&Listener { cookie: 1, ..registered }), Proof::Gone);
        assert_eq!(all.is_local(owned.netns, ip), Some(true));
        assert_eq!(all.is_local(owned.netns, Ip::v4([203, 0, 113, 9])), Some(false));
        drop(socket);
        assert_eq!(all.proof(&registered), Proof::Gone);
        all.retain(|netns| netns != owned.netns);
        assert_eq!(all.is_local(owned.netns, ip), None);
    }
}
