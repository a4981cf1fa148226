//! poll, select and epoll.

use std::mem;
use std::ptr;

use super::{Ret, epoll_mask, poll_mask, show};

pub(crate) fn pollfd(fd: i32, events: i16) -> libc::pollfd {
    // A revents that nobody wrote is seen in the transcript.
    libc::pollfd { fd, events, revents: 0x4000 }
}

pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: i32) -> Ret {
    call!(libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout))
}

pub(crate) fn poll_raw(fds: *mut libc::pollfd, count: u64, timeout: i32) -> Ret {
    call!(libc::poll(fds, count, timeout))
}

pub(crate) fn timespec(milliseconds: i64) -> libc::timespec {
    libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 }
}

/// `ppoll`; a negative time waits for ever.
pub(crate) fn ppoll(fds: &mut [libc::pollfd], milliseconds: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let time = timespec(milliseconds);
    let time = if milliseconds < 0 { ptr::null() } else { &raw const time };
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    call!(libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask))
}

/// `poll` of one descriptor.
pub(crate) fn poll_one(fd: i32, events: i16, timeout: i32) -> (Ret, i16) {
    let mut fds = [pollfd(fd, events)];
    let result = poll(&mut fds, timeout);
    (result, fds[0].revents)
}

/// Every event one can ask for.
pub(crate) const ALL: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;

/// Prints what `poll` tells at once about a descriptor, asked for everything.
pub(crate) fn show_poll(label: &str, fd: i32) {
    show_poll_for(label, fd, ALL, 0);
}

pub(crate) fn show_poll_for(label: &str, fd: i32, events: i16, timeout: i32) {
    let (result, revents) = poll_one(fd, events, timeout);
    say!("{label}: poll = {result} {}", poll_mask(revents));
}

/// Waits up to two seconds until a descriptor shows all of `wanted`, and complains if it does not.
pub(crate) fn await_events(fd: i32, wanted: i16) {
    for _ in 0..2000 {
        let (_, revents) = poll_one(fd, wanted, 1);
        if revents & wanted == wanted {
            return;
        }
        if revents != 0 {
            super::pause(1);
        }
    }
    say!("AWAIT {} FAILED, have {}", poll_mask(wanted), poll_mask(poll_one(fd, ALL, 0).1));
}

/// Waits until bytes or the end of the stream can be read.
pub(crate) fn await_readable(fd: i32) {
    await_events(fd, libc::POLLIN);
}

/// Waits until at least `count` bytes can be read.
pub(crate) fn await_bytes(fd: i32, count: i32) {
    for _ in 0..2000 {
        if super::fionread(fd) >= count {
            return;
        }
        super::pause(1);
    }
    say!("AWAIT {count} BYTES FAILED, have {}", super::fionread(fd));
}

/// A set of descriptors for `select`.
#[derive(Clone, Copy)]
pub(crate) struct FdSet(libc::fd_set);

impl FdSet {
    pub(crate) fn of(fds: &[i32]) -> FdSet {
        // SAFETY: all-zero bytes are an empty fd_set.
        let mut set: libc::fd_set = unsafe { mem::zeroed() };
        for fd in fds {
            // SAFETY: FD_SET checks nothing, so the callers keep descriptors below FD_SETSIZE; the assertion holds it.
            unsafe {
                assert!((0..libc::FD_SETSIZE as i32).contains(fd));
                libc::FD_SET(*fd, &raw mut set);
            }
        }
        FdSet(set)
    }

    pub(crate) fn has(&self, fd: i32) -> bool {
        // SAFETY: the set is initialised and fd was put in by `of`, so it is in range.
        unsafe { libc::FD_ISSET(fd, &raw const self.0) }
    }
}

/// `select` over the same descriptors for reading, writing and exceptions; prints which come back.
pub(crate) fn show_select(label: &str, fds: &[(&str, i32)], milliseconds: i64) {
    let numbers: Vec<i32> = fds.iter().map(|(_, fd)| *fd).collect();
    let count = numbers.iter().max().map_or(0, |fd| fd + 1);
    let (mut read, mut write, mut except) = (FdSet::of(&numbers), FdSet::of(&numbers), FdSet::of(&numbers));
    let mut time = libc::timeval { tv_sec: milliseconds / 1000, tv_usec: milliseconds % 1000 * 1000 };
    let result =
        call!(libc::select(count, &raw mut read.0, &raw mut write.0, &raw mut except.0, &raw mut time));
    if !result.ok() {
        say!("{label}: select = {result}");
        return;
    }
    let names = |set: &FdSet| {
        let members = fds.iter().filter(|(_, fd)| set.has(*fd)).map(|(name, _)| *name);
        members.collect::<Vec<_>>().join(",")
    };
    say!(
        "{label}: select = {result} read[{}] write[{}] except[{}]",
        names(&read),
        names(&write),
        names(&except)
    );
}

/// `select` for reading only.
pub(crate) fn select_read(count: i32, set: Option<&mut FdSet>, milliseconds: i64) -> Ret {
    let mut time = libc::timeval { tv_sec: milliseconds / 1000, tv_usec: milliseconds % 1000 * 1000 };
    let set = set.map_or(ptr::null_mut(), |set| &raw mut set.0);
    call!(libc::select(count, set, ptr::null_mut(), ptr::null_mut(), &raw mut time))
}

/// `pselect` for reading only.
pub(crate) fn pselect_read(count: i32, set: &mut FdSet, milliseconds: i64, mask: &libc::sigset_t) -> Ret {
    let time = timespec(milliseconds);
    call!(libc::pselect(count, &raw mut set.0, ptr::null_mut(), ptr::null_mut(), &raw const time, mask))
}

pub(crate) fn epoll_create1(flags: i32) -> Ret {
    call!(libc::epoll_create1(flags))
}

/// An epoll descriptor; failing is fatal.
pub(crate) fn epoll() -> i32 {
    let result = epoll_create1(libc::EPOLL_CLOEXEC);
    if !result.ok() {
        super::give_up(&format!("epoll_create1 = {result}"));
    }
    result.fd()
}

pub(crate) fn epoll_ctl(ep: i32, operation: i32, fd: i32, events: i32, data: u64) -> Ret {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    call!(libc::epoll_ctl(ep, operation, fd, &raw mut event))
}

pub(crate) fn epoll_ctl_null(ep: i32, operation: i32, fd: i32) -> Ret {
    call!(libc::epoll_ctl(ep, operation, fd, ptr::null_mut()))
}

/// Adds a descriptor; failing is worth a line.
pub(crate) fn epoll_add(ep: i32, fd: i32, events: i32, data: u64) {
    let result = epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, events, data);
    if !result.ok() {
        show("epoll_ctl ADD", result);
    }
}

/// Changes a registration; failing is worth a line.
pub(crate) fn epoll_mod(ep: i32, fd: i32, events: i32, data: u64) {
    let result = epoll_ctl(ep, libc::EPOLL_CTL_MOD, fd, events, data);
    if !result.ok() {
        show("epoll_ctl MOD", result);
    }
}

/// Removes a descriptor; failing is worth a line.
pub(crate) fn epoll_del(ep: i32, fd: i32) {
    let result = epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, fd);
    if !result.ok() {
        show("epoll_ctl DEL", result);
    }
}

/// `epoll_wait`; the events are (data, mask) in the order they came.
pub(crate) fn epoll_wait(ep: i32, max: usize, timeout: i32) -> (Ret, Vec<(u64, u32)>) {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let result = call!(libc::epoll_wait(ep, events.as_mut_ptr(), max as i32, timeout));
    events.truncate(result.count());
    (result, events.iter().map(|event| (event.u64, event.events)).collect())
}

pub(crate) fn epoll_wait_raw(ep: i32, events: *mut libc::epoll_event, max: i32, timeout: i32) -> Ret {
    call!(libc::epoll_wait(ep, events, max, timeout))
}

/// `epoll_pwait` for one event.
pub(crate) fn epoll_pwait(ep: i32, timeout: i32, mask: &libc::sigset_t) -> Ret {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call!(libc::epoll_pwait(ep, &raw mut event, 1, timeout, mask))
}

fn event_list(events: &[(u64, u32)]) -> String {
    let words = events.iter().map(|(data, mask)| format!("{data}:{}", epoll_mask(*mask)));
    words.collect::<Vec<_>>().join(", ")
}

/// Prints what `epoll_wait` tells at once, sorted by the registered data.
pub(crate) fn show_epoll(label: &str, ep: i32) {
    show_epoll_within(label, ep, 0);
}

pub(crate) fn show_epoll_within(label: &str, ep: i32, timeout: i32) {
    let (result, mut events) = epoll_wait(ep, 64, timeout);
    events.sort_unstable();
    say!("{label}: epoll_wait = {result} [{}]", event_list(&events));
}

/// Prints what `epoll_wait` tells at once, in the order in which it tells it.
pub(crate) fn show_epoll_order(label: &str, ep: i32, max: usize) {
    let (result, events) = epoll_wait(ep, max, 0);
    say!("{label}: epoll_wait = {result} [{}]", event_list(&events));
}
