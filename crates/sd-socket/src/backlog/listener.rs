//! Listeners of this process, and the connections that wait at them.

use crate::backlog::defer::{Since, is_ripe};
use crate::link::channel::Channel;
use crate::process::{LISTENER, PROCESS, Priv};
use crate::socket::addr;
use crate::socket::handle::Socket;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sd_proto::{Ip, Request};
use sd_shm::public::{LISTENERS, MPTCP};
use sd_shm::slab::{End, Endpoint};
use sd_sys::lock::Lock;

/// A connection that waits for accept.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) channel: &'static Channel,
    pub(crate) slot: usize,
    pub(crate) generation: u32,
    /// When it came, where TCP_DEFER_ACCEPT is set.
    pub(crate) since: Since,
}

/// Private record of a listener; recycled, never freed, since a thread may be inside accept.
pub(crate) struct Listener {
    pub(crate) socket: Lock<Option<Socket>>,
    /// Index in the public page; LISTENERS when not registered.
    pub(crate) index: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) backlog: AtomicU32,
    /// The largest that it was.
    pub(crate) backlog_most: AtomicU32,
    /// The monitor may deal connections to us.
    pub(crate) accepting: AtomicBool,
    /// accept, poll or epoll was called for it in this process.
    pub(crate) interested: AtomicBool,
    /// TCP_DEFER_ACCEPT, in seconds.
    pub(crate) defer: AtomicU32,
    pub(crate) queue: Lock<VecDeque<Pending>>,
    pub(crate) spin: AtomicU32,
    /// The address that it was bound to, which accept compares with each connection's.
    pub(crate) address: [AtomicU64; 2],
}

impl Listener {
    /// Its address, whatever it is by now.
    pub(crate) fn ip(&self) -> Ip {
        addr::load(&self.address)
    }

    pub(crate) fn set_backlog(&self, backlog: u32) {
        self.backlog_most.fetch_max(backlog, Ordering::Relaxed);
        self.backlog.store(backlog, Ordering::Relaxed);
    }

    /// As it stands in the public page.
    pub(crate) fn public_backlog(&self) -> u32 {
        let is_mptcp = self.socket.lock().is_some_and(|socket| socket.endpoint.is_mptcp());
        self.backlog.load(Ordering::Relaxed) | if is_mptcp { MPTCP } else { 0 }
    }

    /// What others have accepted meanwhile does not wait here any more.
    pub(super) fn drop_taken(&self) {
        let mut queue = self.queue.lock();
        queue.retain(|pending| {
            let waits = pending.waits();
            if !waits {
                pending.taken();
            }
            waits
        });
        publish_pending(self, queue.len());
    }

    pub(crate) fn note_address(&self, endpoint: &Endpoint) {
        let halves = crate::socket::cold::ip(endpoint, End::Local).halves();
        self.address.iter().zip(halves).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
    }
}

pub(crate) static REGISTRY: Lock<Vec<&'static Listener>> = Lock::new(Vec::new());
pub(crate) const UNREGISTERED: u32 = LISTENERS as u32;

/// The listener record of an endpoint.
pub(crate) fn record(endpoint: &Endpoint) -> Option<&'static Listener> {
    PROCESS.private(endpoint)?.listener()
}

/// How many connections may wait at a listener of ours.
pub(crate) fn backlog(endpoint: &Endpoint) -> Option<u32> {
    record(endpoint).map(|listener| listener.backlog.load(Ordering::Relaxed))
}

/// For one that is not registered yet.
pub(crate) fn set_backlog(endpoint: &Endpoint, backlog: u32) {
    if let Some(listener) = record(endpoint) {
        listener.set_backlog(backlog);
    }
}

/// How many wait, as clients see it. What came beyond the backlog, when several processes asked at the same time, waits behind it,
/// as in Linux a handshake that ends when the queue is full.
pub(crate) fn publish_pending(listener: &Listener, pending: usize) {
    let index = listener.index.load(Ordering::Relaxed) as usize;
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index)) {
        page.pending.store(pending as u32, Ordering::Release);
    }
}

/// How many of our connections wait for accept at the listener's socket, in this process and others: as the monitor knows, which
/// sees also what they have not looked at, or as this process does, which has just taken in what was announced.
pub(crate) fn waiting(endpoint: &Endpoint) -> u32 {
    let Some(listener) = record(endpoint) else { return 0 };
    let index = listener.index.load(Ordering::Relaxed);
    let asks = index != UNREGISTERED && crate::monitor::client::is_there();
    match asks.then(|| crate::monitor::client::question(&Request::Waiting { index }, &[])).flatten() {
        Some((sd_proto::Reply::Waiting { count }, _)) => count,
        _ => {
            listener.drop_taken();
            listener.queue.lock().len() as u32
        }
    }
}

/// Whether a connection waits in our backlog that nobody else has accepted meanwhile.
pub(crate) fn has_pending(endpoint: &Endpoint) -> bool {
    record(endpoint).is_some_and(|listener| {
        let mut queue = listener.queue.lock();
        while let Some(first) = queue.front().filter(|first| !first.waits()) {
            first.taken();
            queue.pop_front();
            publish_pending(listener, queue.len());
        }
        queue.iter().any(|pending| is_ripe(&listener.defer, pending))
    })
}

impl Pending {
    /// Nobody has accepted it, or taken it back.
    pub(crate) fn waits(&self) -> bool {
        let [a, b] = &self.channel.map.slot(self.slot).side;
        a.state().0 == self.generation && b.state().0 != self.generation
    }

    /// It is in no backlog any more.
    pub(crate) fn taken(&self) {
        self.channel.queued.remove(self.slot, self.generation);
        self.channel.unused();
    }
}

impl Priv {
    /// Its listener record.
    #[inline]
    pub(crate) fn listener(&self) -> Option<&'static Listener> {
        let role = self.role.load(Ordering::Acquire);
        let record = role.map_addr(|address| address & !LISTENER).cast::<Listener>();
        // SAFETY: set by `set_listener` to a record that is never freed.
        if role.addr() & LISTENER != 0 { unsafe { record.as_ref() } } else { None }
    }

    pub(crate) fn set_listener(&self, listener: &'static Listener) {
        let record = core::ptr::from_ref(listener).cast_mut().cast::<u8>();
        self.role.store(record.map_addr(|address| address | LISTENER), Ordering::Release);
    }

    /// Takes its listener record away.
    pub(crate) fn take_listener(&self) -> Option<&'static Listener> {
        let listener = self.listener()?;
        let record = core::ptr::from_ref(listener).cast_mut().cast::<u8>();
        let role = record.map_addr(|address| address | LISTENER);
        let none = core::ptr::null_mut();
        self.role.compare_exchange(role, none, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| listener)
    }
}
