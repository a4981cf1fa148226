//! SIGURG and SIGIO (socket(7), "Signals"): who wants them, and how they come.
//!
//! `sender's library --Signal--> monitor --signal--> process`
//!
//! The receiver's endpoint says to which process of its family signals go, with which number, and its words of the slot
//! that there is such a wish. The sender asks the monitor, since it may not be allowed to send signals to the other,
//! which reads the endpoint (a peer can write the words, and would have us killed), and sends only to processes that
//! share the connection. The kernel keeps F_SETOWN's and
//! F_SETSIG's values for us, with its checks, on a socket of the endpoint's own.

use crate::process::PROCESS;
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, HAS_SIGNALS};
use core::sync::atomic::Ordering;
use libc::c_int;
use sd_proto::Request;
use sd_ring::doorbell::{self, RX_SIGNAL, TX_SIGNAL};
use sd_shm::channel::ColdWords;
use sd_shm::slab::{Endpoint, State};

/// fcntl(2); not in the libc crate.
pub(crate) const F_SETSIG: c_int = 10;
pub(crate) const F_GETSIG: c_int = 11;
pub(crate) const F_SETOWN_EX: c_int = 15;
pub(crate) const F_GETOWN_EX: c_int = 16;
/// Kinds of owners.
const OWNER_GROUP: c_int = 2;

/// Which signals are wanted, or whether any are, was changed at the number's kernel socket, or by O_ASYNC.
pub(crate) fn changed(endpoint: &'static Endpoint, fd: c_int) {
    endpoint.set_flag(HAS_SIGNALS);
    publish(endpoint, fd);
}

/// Tells the peer, and the monitor, what signals are wanted.
pub(crate) fn publish(endpoint: &'static Endpoint, fd: c_int) {
    if endpoint.state_now() != State::Connected || !endpoint.flag(HAS_SIGNALS) {
        return;
    }
    let own = endpoint.own_words();
    let signal = sd_sys::fd::fcntl(fd, F_GETSIG, 0).unwrap_or(0);
    let owner = owner(fd);
    cold::change(endpoint, |cold| {
        cold.signal.store(signal as u16 & 0xff, Ordering::Relaxed);
        cold.owner.store(owner, Ordering::Release);
    });
    let number = PROCESS.locate(endpoint).filter(|_| owner != 0).map_or(0, |(_, index)| index as u64 + 1);
    own.make_cold().wants_signals.store(number, Ordering::Release);
    if is_async(endpoint) {
        doorbell::arm(&own.wait, RX_SIGNAL);
    } else {
        own.wait.fetch_and(!(RX_SIGNAL | TX_SIGNAL), Ordering::AcqRel);
    }
}

fn is_async(endpoint: &Endpoint) -> bool {
    crate::socket::cold::other_flags(endpoint) & libc::O_ASYNC as u32 != 0
}

/// What F_SETOWN named: kind and number.
fn owner_in_kernel(fd: c_int) -> Option<[c_int; 2]> {
    let mut owner = [0 as c_int; 2];
    // SAFETY: the kernel writes two ints.
    let asked =
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_fcntl, fd, F_GETOWN_EX, owner.as_mut_ptr()) });
    asked.is_ok_and(|_| owner[1] != 0).then_some(owner)
}

/// The process that F_SETOWN named; zero when there is none. A thread or group of ours is this process.
fn owner(fd: c_int) -> u32 {
    let Some([kind, id]) = owner_in_kernel(fd) else { return 0 };
    let me = sd_sys::fd::getpid();
    let mine = match kind {
        // SAFETY: no pointers.
        OWNER_GROUP => unsafe { sd_sys::syscall!(libc::SYS_getpgid, 0) == id as isize },
        // SAFETY: signal 0 only probes.
        _ => unsafe { sd_sys::syscall!(libc::SYS_tgkill, me, id, 0) == 0 },
    };
    if mine { me as u32 } else { id as u32 }
}

/// F_SETOWN's and F_SETSIG's values, for another kernel socket of the endpoint's.
pub(crate) struct Wishes {
    owner: Option<[c_int; 2]>,
    signal: usize,
}

impl Wishes {
    pub(crate) fn of(fd: c_int) -> Wishes {
        Wishes { owner: owner_in_kernel(fd), signal: sd_sys::fd::fcntl(fd, F_GETSIG, 0).unwrap_or(0) }
    }

    pub(crate) fn give_to(self, fd: c_int) {
        if let Some(owner) = self.owner {
            // SAFETY: the kernel reads two ints.
            unsafe { sd_sys::syscall!(libc::SYS_fcntl, fd, F_SETOWN_EX, owner.as_ptr()) };
        }
        if self.signal != 0 {
            let _ = sd_sys::fd::fcntl(fd, F_SETSIG, self.signal);
        }
    }
}

/// The program met a full ring: with O_ASYNC it wants a signal when there is room.
pub(crate) fn want_room(endpoint: &Endpoint) {
    if endpoint.flag(HAS_SIGNALS) && is_async(endpoint) {
        doorbell::arm(&endpoint.own_words().wait, TX_SIGNAL);
    }
}

/// Asks for the peer's signal, if it wants any.
pub(crate) fn tell(endpoint: &Endpoint, urgent: bool) {
    let wants = |words: &ColdWords| words.wants_signals.load(Ordering::Acquire) != 0;
    if !endpoint.peer_words().cold().is_some_and(wants) {
        return;
    }
    crate::monitor::client::hint(&Request::Signal {
        channel: endpoint.channel_id.load(Ordering::Relaxed),
        slot: u32::from(endpoint.slot.load(Ordering::Relaxed)),
        side: u32::from(endpoint.side.load(Ordering::Relaxed)),
        urgent,
    });
}
