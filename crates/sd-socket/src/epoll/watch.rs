//! From what happened at a socket to the instances that watch it.

use super::told::Known;
use super::*;
use crate::process::Priv;
use crate::socket::endpoint::{self, EOF, NO_SPACE, PeerEnd, RESET, WATCHED};
use crate::socket::handle::Socket;
use alloc::vec::Vec;
use libc::{EPOLLIN, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM};
use sd_ring::doorbell;

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
/// A change of state, which concerns every registration.
const ANY: u32 = u32::MAX;

const STRIPES: usize = 64;

#[repr(align(128))]
struct Stripe(Lock<()>);

static WATCH: [Stripe; STRIPES] = [const { Stripe(Lock::new(())) }; STRIPES];

/// All locks of lists of watchers of sockets, in a fixed order.
pub(super) fn stripes() -> impl Iterator<Item = &'static Lock<()>> {
    WATCH.iter().map(|stripe| &stripe.0)
}

/// Guards the list of those who watch the socket.
fn stripe(endpoint: &Endpoint) -> &'static Lock<()> {
    let number = core::ptr::from_ref(endpoint) as usize / core::mem::size_of::<Endpoint>();
    let [first, ..] = &WATCH;
    &WATCH.get(number % STRIPES).unwrap_or(first).0
}

/// The head of the list of those who watch the socket.
#[inline(always)]
fn head(private: &Priv) -> &AtomicPtr<Item> {
    // SAFETY: a word that holds a pointer, null or to an `Item`: only this file changes it, by this reference.
    unsafe { &*(&raw const private.watchers).cast::<AtomicPtr<Item>>() }
}

/// Runs `each` with the head of the source's list of watchers, under its lock.
pub(super) fn with_list<T>(source: Source, each: impl FnOnce(&AtomicPtr<Item>) -> T) -> Option<T> {
    match source {
        Source::Socket(endpoint) => {
            let private = PROCESS.private(endpoint)?;
            let _lock = stripe(endpoint).lock();
            Some(each(head(private)))
        }
        Source::Nested(inner) => {
            let _lock = NESTING.lock();
            Some(each(&inner.outers))
        }
    }
}

/// Exclusive registrations go last, in the order of their making, as in the kernel's wait queue.
pub(super) fn link(item: &'static Item) {
    if let Source::Socket(endpoint) = item.source() {
        endpoint.set_flag(WATCHED);
        crate::socket::thread_waker::displace(endpoint);
    }
    let exclusive = |i: &Item| i.events() & libc::EPOLLEXCLUSIVE as u32 != 0;
    with_list(item.source(), |head| {
        let mut at = head;
        // SAFETY: the list's items are live under its lock.
        while let Some(next) = unsafe { at.load(Ordering::Relaxed).as_ref() } {
            if !exclusive(item) {
                break;
            }
            at = &next.next_watcher;
        }
        item.next_watcher.store(at.load(Ordering::Relaxed), Ordering::Relaxed);
        at.store(core::ptr::from_ref(item).cast_mut(), Ordering::Release);
    });
}

/// The registration of a number, which leads to `source`, in an instance; under the lock of its interest list.
pub(super) fn find(epoll: &Epoll, fd: i32, source: Source) -> Option<&'static Item> {
    with_list(source, |head| {
        let mut at = head;
        // SAFETY: the list's items are live under its lock, and those of the instance under that of its interest list.
        while let Some(item) = unsafe { at.load(Ordering::Relaxed).as_ref() } {
            if item.fd() == fd && core::ptr::eq(item.epoll(), epoll) {
                return Some(item);
            }
            at = &item.next_watcher;
        }
        None
    })?
}

pub(super) fn unlink(item: &Item) {
    with_list(item.source(), |head| {
        let mut at = head;
        // SAFETY: the list's items are live under its lock.
        while let Some(next) = unsafe { at.load(Ordering::Relaxed).as_ref() } {
            if core::ptr::eq(next, item) {
                at.store(item.next_watcher.load(Ordering::Relaxed), Ordering::Release);
                return;
            }
            at = &next.next_watcher;
        }
    });
}

/// How the connection has ended so far, each told once to every registration: a bit for the end of
/// the peer's stream, one for a reset.
pub(super) fn ends(endpoint: &'static Endpoint) -> u8 {
    if endpoint.state_now() != State::Connected {
        return 0;
    }
    let reset = endpoint.flag(RESET) || endpoint::peer_end(endpoint) == PeerEnd::Reset;
    u8::from(endpoint::peer_finished(endpoint) || endpoint.flag(EOF)) | u8::from(reset) << 1
}

/// What a registration did with the news.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// EPOLLONESHOT has fired: a MOD will look.
    Disabled,
    /// They do not concern it.
    No,
    /// It stands on its ready list.
    Yes {
        /// A thread waits there that nothing before has woken.
        wakes: bool,
    },
}

/// Puts an item on its ready list if the news concern it: some event of `key`, or an end that it was not
/// told of. `stamp` is the time of the news.
fn offer(item: &Item, key: u32, ends: u8, stamp: u64) -> Taken {
    let epoll = item.epoll();
    let wakes;
    {
        let mut ready_list = epoll.ready_list.lock();
        let news = ends & !item.told.fetch_or(ends, Ordering::Relaxed);
        if item.is_disabled() {
            return Taken::Disabled;
        }
        if key & item.events() & !PRIVATE == 0 && news == 0 {
            return Taken::No;
        }
        // Before it is woken and leaves. What stood on the list has woken one each.
        wakes = epoll.waiters.load(Ordering::SeqCst) as usize > ready_list.queue.len();
        epoll.push(&mut ready_list, item, stamp);
    }
    sleep_fd::wake_one(epoll);
    Taken::Yes { wakes }
}

/// Tells the instances around one that something of it is ready; under `NESTING`.
fn propagate(inner: &Epoll) {
    let mut at = inner.outers.load(Ordering::Acquire);
    // SAFETY: the list's items are live under `NESTING`; loops were refused by the kernel.
    while let Some(item) = unsafe { at.as_ref() } {
        offer(item, IN, 0, 0);
        propagate(item.epoll());
        at = item.next_watcher.load(Ordering::Relaxed);
    }
}

fn tell_outers(inner: &Epoll) {
    if inner.has_outers() {
        let _nesting = NESTING.lock();
        propagate(inner);
    }
}

/// Offers news of a socket to all that watch it. False when one of them, not being concerned, will
/// not arm the socket by itself.
fn deliver(endpoint: &'static Endpoint, private: &Priv, key: u32, ends: u8, stamp: u64) -> bool {
    let _lock = stripe(endpoint).lock();
    let mut settled = true;
    let mut served = false;
    let mut at = head(private).load(Ordering::Acquire);
    // SAFETY: the list's items are live under its lock.
    while let Some(item) = unsafe { at.as_ref() } {
        at = item.next_watcher.load(Ordering::Relaxed);
        let exclusive = item.events() & libc::EPOLLEXCLUSIVE as u32 != 0;
        if exclusive && served {
            continue;
        }
        let taken = offer(item, key, ends, stamp);
        settled &= taken != Taken::No;
        served |= exclusive && taken == Taken::Yes { wakes: true };
        if matches!(taken, Taken::Yes { .. }) && item.epoll().has_outers() {
            // Instances around this one may be edge-triggered: they hear of everything.
            ready::arm(endpoint, OUT);
            tell_outers(item.epoll());
        }
    }
    settled
}

/// Threads in poll, select and accept are not in any list (SYNC POINT: loose sleepers, with `take` in
/// crates/sd-socket/src/wait/sleep_set.rs).
pub(super) fn wake_loose() {
    if crate::wait::sleep_set::has_loose_sleepers() {
        sd_sys::fd::eventfd_signal(crate::process::waker::own_event_fd());
    }
}

/// The socket's state changed, now: whoever watches it shall look.
pub(crate) fn endpoint_event(endpoint: &'static Endpoint) {
    Socket::of(endpoint).into_iter().for_each(|socket| state_event(socket, 0));
}

/// The socket's state changed at a time (zero: now).
pub(crate) fn state_event(socket: Socket, stamp: u64) {
    let Socket { endpoint, private, .. } = socket;
    if !head(private).load(Ordering::Acquire).is_null() {
        deliver(endpoint, private, ANY, ends(endpoint), stamp);
    }
    crate::socket::thread_waker::wake(endpoint);
    wake_loose();
}

/// There is something to read without the peer's having done anything.
pub(crate) fn readable_event(endpoint: &'static Endpoint) {
    if let Some(private) = PROCESS.private(endpoint)
        && !head(private).load(Ordering::Acquire).is_null()
    {
        deliver(endpoint, private, IN, 0, 0);
    }
    crate::socket::thread_waker::wake(endpoint);
    wake_loose();
}

/// The peer rang for a connection, at a time (zero: now). The thread that takes this in need not be the one that waits.
pub(crate) fn peer_event(endpoint: &'static Endpoint, stamp: u64) {
    if crate::socket::way_back::is_begun(endpoint) || crate::socket::way_back::is_half_there(endpoint) {
        way_back::look(endpoint);
    }
    if let Some(private) = PROCESS.private(endpoint)
        && !head(private).load(Ordering::Acquire).is_null()
    {
        let (key, end) = (news(endpoint), ends(endpoint));
        if !deliver(endpoint, private, key, end, stamp) {
            ready::arm(endpoint, OUT);
            let (later, ends_later) = (news(endpoint), ends(endpoint));
            if later != 0 || ends_later != end {
                deliver(endpoint, private, later, ends_later, stamp);
            }
        }
    }
    wake_loose();
}

/// What the announcements that the peer has answered since the last time were about.
fn news(endpoint: &'static Endpoint) -> u32 {
    if endpoint.state_now() != State::Connected {
        return ANY;
    }
    let news = doorbell::take_news(&endpoint.own_words().wait);
    // Behind the end comes nothing that could be read; a close after a shutdown is no news.
    let data = news & doorbell::RX_NEWS != 0 && !endpoint::peer_finished(endpoint);
    let mut key = if data { IN } else { 0 };
    // Linux tells of room only when there is enough of it.
    if endpoint.flag(NO_SPACE) && news & doorbell::TX_NEWS != 0 && has_room(endpoint) {
        key |= OUT;
    }
    key
}

/// There is room to write again, for those who were told that there was none; armed if not.
fn has_room(endpoint: &'static Endpoint) -> bool {
    let mut room = ready::is_writable(endpoint);
    if !room {
        ready::arm(endpoint, OUT);
        room = ready::is_writable(endpoint);
    }
    if room {
        endpoint.clear_flag(NO_SPACE);
    }
    room
}

/// There may be room without the peer's having done anything.
pub(crate) fn room_event(endpoint: &'static Endpoint) {
    if endpoint.flag(NO_SPACE)
        && has_room(endpoint)
        && let Some(private) = PROCESS.private(endpoint)
    {
        deliver(endpoint, private, OUT, 0, 0);
    }
    crate::socket::thread_waker::wake(endpoint);
    wake_loose();
}

/// The program met a full ring: its instances want to know when there is room.
pub(crate) fn no_space(endpoint: &'static Endpoint) {
    endpoint.set_flag(NO_SPACE);
    doorbell::arm(&endpoint.own_words().wait, doorbell::TX_EVENT);
    if ready::is_polled(endpoint) {
        forget_room(endpoint);
    }
    if ready::is_writable(endpoint)
        && let Some(private) = PROCESS.private(endpoint)
    {
        endpoint.clear_flag(NO_SPACE);
        deliver(endpoint, private, OUT, 0, 0);
    }
}

/// Who looks himself (`collect::has_edge`) has looked before and after the ring was full, perhaps, and is to see that there is room again.
#[cold]
fn forget_room(endpoint: &'static Endpoint) {
    let Some(private) = PROCESS.private(endpoint) else { return };
    let _lock = stripe(endpoint).lock();
    let mut at = head(private).load(Ordering::Acquire);
    // SAFETY: the list's items are live under its lock.
    while let Some(item) = unsafe { at.as_ref() } {
        item.told.fetch_and(!collect::ROOM, Ordering::Relaxed);
        at = item.next_watcher.load(Ordering::Relaxed);
    }
}

/// A new or changed registration: armed, and on the ready list if it is ready already.
pub(super) fn look_now(item: &Item) {
    let epoll = item.epoll();
    if let Source::Socket(endpoint) = item.source() {
        ready::arm(endpoint, item.events());
        if item.is_edge() {
            // How the connection ended before is no edge later.
            item.told.fetch_or(ends(endpoint), Ordering::Relaxed);
        }
    }
    let ready = {
        let _nesting = collect::nesting(epoll);
        let mut ready_list = epoll.ready_list.lock();
        let ready = item.place() != QUEUED && !item.is_disabled() && collect::mask(item) != 0;
        if ready {
            epoll.push(&mut ready_list, item, 0);
        }
        ready
    };
    if ready {
        sleep_fd::wake_one(epoll);
        tell_outers(epoll);
        wake_loose();
    }
}

/// What is left of a registration.
pub(crate) struct Removed {
    pub(super) epoll: &'static Epoll,
    pub(super) fd: i32,
    pub(super) events: u32,
    pub(super) data: u64,
}

impl Removed {
    /// The number that was watched.
    pub(crate) fn fd(&self) -> i32 {
        self.fd
    }

    fn of(item: &Item) -> Removed {
        // What was not asked for is not in the kernel's list either, unless nothing else is left.
        let events = if item.is_disabled() { item.events() } else { item.events() & !ALWAYS };
        Removed { epoll: item.epoll(), fd: item.fd(), events, data: item.data.load(Ordering::Relaxed) }
    }

    /// The registration of `fd`, which is not ours yet, in the kernel's instance. `number` leads to that.
    pub(crate) fn of_kernel(epoll: &'static Epoll, number: i32, fd: i32) -> sd_sys::Result<Option<Removed>> {
        let known = match told::about(epoll, fd) {
            Known::This(known) => Some(known),
            Known::Nothing => None,
            Known::Unknown => listed::registration(epoll, number, fd)?,
        };
        Ok(known.map(|known| Removed { epoll, fd, events: known.events, data: known.data }))
    }

    /// Whether it is one of this instance's.
    pub(crate) fn is_in(&self, epoll: &Epoll) -> bool {
        core::ptr::eq(self.epoll, epoll)
    }

    /// Registers the number in the kernel's instance.
    pub(crate) fn into_kernel(self) {
        let Removed { epoll, fd, events, data } = self;
        if sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Takes away all registrations of a source; `each` gets every one.
fn detach(source: Source, from_kernel: bool, mut each: impl FnMut(Removed)) {
    loop {
        let first = with_list(source, |head| {
            // SAFETY: the list's items are live under its lock.
            unsafe { head.load(Ordering::Relaxed).as_ref() }.map(|item| (item.epoll(), item.fd()))
        });
        let Some((epoll, fd)) = first.flatten() else { return };
        let mut interest = epoll.interest.lock();
        // Another thread may have been faster.
        if let Some(item) = find(epoll, fd, source) {
            let removed = Removed::of(item);
            control::remove(epoll, &mut interest, item, from_kernel);
            each(removed);
        }
    }
}

/// The last descriptor of this process is closed. `WATCHED` stays: it is for all processes that have the socket, and an instance of another
/// may watch it still, as the parent's of a child that closes all numbers. A record that is used anew has no flags.
pub(crate) fn forget_endpoint(socket: Socket) {
    // The kernel forgets a closed number by itself, when no other process has it.
    detach(Source::Socket(socket.endpoint), false, |_| {});
}

/// The instance's last descriptor of this process is closed.
pub(super) fn forget_instance(epoll: &'static Epoll) {
    detach(Source::Nested(epoll), false, |_| {});
}

/// The endpoint became a listener: the kernel instances watch its number from now on.
pub(crate) fn became_listener(endpoint: &'static Endpoint) {
    with_list(Source::Socket(endpoint), |head| {
        let mut at = head.load(Ordering::Relaxed);
        // SAFETY: the list's items are live under its lock.
        while let Some(item) = unsafe { at.as_ref() } {
            Removed::of(item).into_kernel();
            item.epoll().has_both.store(true, Ordering::Relaxed);
            at = item.next_watcher.load(Ordering::Relaxed);
        }
    });
    endpoint_event(endpoint);
}

/// The endpoint is a kernel socket from now on: so are its registrations.
pub(crate) fn to_kernel(endpoint: &'static Endpoint) {
    // Relatives may have registered, changed or removed it.
    super::life::catch_up_all();
    detach(Source::Socket(endpoint), true, Removed::into_kernel);
}

/// The endpoint is a kernel socket from now on, but to this process only: its relatives' registrations stay. Those of a
/// listener, which the kernel's instances watch already.
pub(crate) fn leave_to_kernel(endpoint: &'static Endpoint) -> Vec<Removed> {
    let (is_listener, mut left) = (endpoint.state_now() == State::Listen, Vec::new());
    detach(Source::Socket(endpoint), false, |removed| {
        let is_unused = removed.epoll.inherited.load(Ordering::Relaxed);
        match is_listener {
            true => left.push(removed),
            // In an instance that only relatives use it would be an event of theirs.
            false if is_unused => {}
            false => removed.into_kernel(),
        }
    });
    left
}

/// Threads of ours that wait on the socket must look again.
pub(crate) fn look_again(endpoint: &'static Endpoint) {
    crate::socket::bell::wake_sleepers(endpoint);
    endpoint_event(endpoint);
}
