//! The first connections of a process, which may live for milliseconds (ADR 79).
//!
//! Who has not registered with a monitor pays for that with his first socket: a slab, two questions that he sleeps for, a channel, and
//! the end of all that. Where the monitor moves connections that last to shared memory (ADR 82), the first few are the kernel's. The process
//! registers, and offers one, once it has shown that it lives:
//!
//! ```text
//!  socket ── the monitor promotes? (the mode of its socket) ──> a kernel socket, Entry::First: its messages are counted
//!     │ 64 messages, the latest in a short time ──> taken up: Hello; Entry::Kernel, and offered at once. 512, if nearly all bytes go one way
//!     │ a fifth socket beside four, bind, listen, 64 messages on all so far ──> the next socket registers, as ever
//!     └ close ──> nobody was told of anything
//! ```
//! To register, to be introduced and to end cost what some 150 messages would have saved. A session of FTP has 24 and two connections.
//!
//! A connection is taken up before a fork and a duplicate as well, which others could use without counting. What goes to a program that is
//! started, or to another process in a message, stays the kernel's, as do sockets that are used in ways that are not looked after.
//!
//! Threads in calls on one are counted in its word; who takes it up closes the word, and hands the count over to the endpoint's.
//!
//! Tested by `cargo xtask sharing --only short-lived`.

use super::crowd::BUSY_MS;
use super::watched::MESSAGES;
use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::PROCESS;
use crate::socket::endpoint::{EndpointExt, NONBLOCK, OWN_SOCKET};
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::kernels_own;
use crate::socket::road::{now_ms, promotes, word};
use crate::socket::{inode, life, mptcp};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use libc::c_int;
use sd_ring::sync::uses::{self, Counted};
use sd_shm::slab::{Endpoint, Promotes, Reason};
use sd_sys::section::Section;

/// So many at a time.
const FIRSTS: usize = 4;
/// After so many messages it pays to register.
pub(super) const MESSAGES_MIN: u32 = 4 * MESSAGES;

/// After so many if nearly all bytes have gone one way.
const TRANSFER_MIN: u32 = 8 * MESSAGES_MIN;
const TRANSFER_RATIO: u64 = 256;

/// What is known of one.
struct First {
    /// The latest number that led to it; the table says whether it does.
    number: AtomicI32,
    /// Who is in a call on it, and whether it is to stay the kernel's: `sd_ring::sync::uses`.
    word: AtomicU32,
    messages: AtomicU32,
    looked_at_ms: AtomicU32,
}

static RECORDS: [First; FIRSTS] = [const {
    First {
        number: AtomicI32::new(-1),
        word: AtomicU32::new(0),
        messages: AtomicU32::new(0),
        looked_at_ms: AtomicU32::new(0),
    }
}; FIRSTS];

/// Messages on all that there were.
static SUM: AtomicU32 = AtomicU32::new(0);
/// The process makes no such socket any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Who looks while another thread takes one up looks again after so long.
const PAUSE_NS: u64 = 50_000;

fn record(fd: c_int) -> Option<(usize, &'static First)> {
    let Entry::First(at) = table::get(fd) else { return None };
    RECORDS.get(at).map(|first| (at, first))
}

/// No number leads to it.
fn is_free(first: &First) -> bool {
    record(first.number.load(Ordering::Relaxed)).is_none_or(|(_, other)| !core::ptr::eq(first, other))
}

/// Whether the next TCP socket may be such a one.
pub(super) fn may_begin() -> bool {
    PROCESS.slab_count.load(Ordering::Acquire) == 0
        && !IS_OVER.load(Ordering::Relaxed)
        && SUM.load(Ordering::Relaxed) < MESSAGES_MIN
        && RECORDS.iter().any(|first| is_free(first) && !uses::is_busy(&first.word))
        && !sd_sys::confine::is_on()
        && !client::is_closed_for_good()
        && crate::process::env::monitor_promotes()
        && table::init()
}

/// socket(2). Makes no calls but those that the program or its loader makes, so that no filter needs to be asked about.
pub(super) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> Outcome<c_int> {
    kernels_own(domain, ty, protocol).inspect(|fd| begin(*fd)).into()
}

/// Where other threads were faster, and have all records, the number's own word counts.
fn begin(fd: c_int) {
    let claims = |first: &First| uses::claim(&first.word, || is_free(first));
    let Some((at, first)) = RECORDS.iter().enumerate().find(|(_, first)| claims(first)) else {
        return super::unregistered::begin(fd);
    };
    first.number.store(fd, Ordering::Relaxed);
    first.messages.store(0, Ordering::Relaxed);
    first.looked_at_ms.store(now_ms(), Ordering::Relaxed);
    table::set_first(fd, at);
    uses::next(&first.word);
}

/// Counts in the record of a number, while that leads to one. Who takes the connection up closes the record, and hands what it has counted over to an endpoint.
fn counted(
    fd: c_int,
    count: impl Fn(&AtomicU32, &dyn Fn() -> bool) -> Counted,
) -> Option<(usize, &'static First)> {
    while let Some((at, first)) = record(fd) {
        match count(&first.word, &|| record(fd).is_some_and(|(now, _)| now == at)) {
            Counted::Done => return Some((at, first)),
            Counted::Closed => _ = sd_sys::time::sleep_ns(PAUSE_NS),
            Counted::Elsewhere => {}
        }
    }
    None
}

/// Before a call of the kernel's. True: it is such a connection, and the call is counted.
pub(super) fn enter(fd: c_int, is_odd: bool) -> bool {
    let mark = if is_odd { uses::MARK } else { 0 };
    counted(fd, |word, leads_here| uses::enter(word, mark, leads_here)).is_some()
}

/// What a call was made on.
pub(super) enum Left {
    /// Something else.
    Other,
    /// Such a connection.
    First,
    /// One that this call has made one of the process's kernel connections, to be offered.
    TakenUp(&'static Endpoint),
}

/// After the call.
pub(super) fn left(fd: c_int, is_message: bool) -> Left {
    let Some((at, first)) = counted(fd, |word, leads_here| uses::leave(word, leads_here)) else {
        return Left::Other;
    };
    let is_due = is_message && first.is_due() && first.is_worth_it(fd);
    let taken = if is_due { take_up(fd, at, first) } else { None };
    taken.map_or(Left::First, Left::TakenUp)
}

impl First {
    /// Whether it has shown that it lasts, now that one more message has gone over it.
    fn is_due(&self) -> bool {
        SUM.fetch_add(1, Ordering::Relaxed);
        let messages = self.messages.fetch_add(1, Ordering::Relaxed) + 1;
        if !messages.is_multiple_of(MESSAGES) {
            return false;
        }
        let now = now_ms();
        let since = now.wrapping_sub(self.looked_at_ms.swap(now, Ordering::Relaxed));
        messages >= MESSAGES_MIN && since <= BUSY_MS && !uses::is_marked(&self.word)
    }

    fn is_worth_it(&self, fd: c_int) -> bool {
        self.messages.load(Ordering::Relaxed) >= TRANSFER_MIN
            || sd_sys::tcp::info(fd).is_ok_and(|info| !is_one_way(&info))
    }
}

/// Whether nearly all bytes have gone one way: a transfer, which is over after a few more calls unless it is a long one.
fn is_one_way(info: &sd_sys::tcp::Info) -> bool {
    info.acked.min(info.received).saturating_mul(TRANSFER_RATIO) < info.acked.max(info.received)
}

/// Makes it one of the process's kernel connections; the process registers, unless it has.
#[cold]
fn take_up(fd: c_int, at: usize, first: &First) -> Option<&'static Endpoint> {
    // A handler of a signal would wait for this thread.
    let _section = Section::enter();
    let before = uses::close(&first.word, if mptcp::is_one(fd) { uses::MARK } else { 0 })?;
    let is_wanted = before & uses::MARK == 0
        && sd_sys::tcp::info(fd).is_ok_and(|info| info.state == sd_sys::tcp::ESTABLISHED)
        && client::connected().map(drop).is_some()
        && promotes() != Promotes::Nothing;
    let taken = if is_wanted { name(fd, at, before & uses::INSIDE) } else { None };
    if taken.is_some() {
        IS_OVER.store(true, Ordering::Relaxed);
        uses::next(&first.word);
    } else {
        uses::open(&first.word);
    }
    taken
}

/// An endpoint for it, which so many threads are in calls on.
fn name(fd: c_int, at: usize, inside: u32) -> Option<&'static Endpoint> {
    let endpoint = super::watched::endpoint_of(fd, Reason::Young, true)?;
    word(endpoint).inspect(|word| _ = word.fetch_add(inside, Ordering::AcqRel));
    if !table::end_first(fd, at, Entry::Kernel(endpoint)) {
        life::release(endpoint);
        return None;
    }
    Some(endpoint)
}

/// It is used in a way that is not looked after: it stays the kernel's, and the next socket registers.
pub(crate) fn stays(fd: c_int) {
    if let Some((at, _)) = record(fd) {
        IS_OVER.store(true, Ordering::Relaxed);
        table::end_first(fd, at, Entry::None);
    }
}

/// It is about to be told an option. What cannot be asked for later, or means more than the kernel can do, is for a socket of ours.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) {
    let is_one = matches!(table::get(fd), Entry::First(_) | Entry::Early);
    if is_one && !super::remember::is_recalled(level, name) {
        becomes_ours(fd);
    }
}

/// It is about to be bound, or to listen: it becomes a socket of ours, as if the process had registered before. Not if it is, or was,
/// connected.
pub(super) fn becomes_ours(fd: c_int) {
    let Some((at, first)) = record(fd) else { return super::unregistered::becomes_ours(fd) };
    if super::handed_on::is_brief() {
        table::end_first(fd, at, Entry::None);
        return;
    }
    // A handler of a signal would wait for this thread.
    let _section = Section::enter();
    let Some(before) = uses::close(&first.word, 0) else { return };
    let may_be_ours = before & uses::INSIDE == 0 && is_fresh(fd);
    if may_be_ours && own(fd, |endpoint| table::end_first(fd, at, Entry::Socket(endpoint))).is_some() {
        IS_OVER.store(true, Ordering::Relaxed);
        uses::next(&first.word);
    } else {
        uses::open(&first.word);
    }
}

/// Nothing was done with it yet that a socket of ours would have had to see, and there is a monitor.
pub(super) fn is_fresh(fd: c_int) -> bool {
    sd_sys::tcp::info(fd).is_ok_and(|info| info.state == sd_sys::tcp::CLOSE)
        && client::connected().map(drop).is_some()
        && crate::epoll::registrations(fd).is_some_and(|all| all.is_empty())
}

/// A socket of ours that has been the kernel's alone; `leads_to` puts it into the table.
pub(super) fn own(fd: c_int, leads_to: impl FnOnce(&'static Endpoint) -> bool) -> Option<()> {
    let domain = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let Socket { endpoint, .. } = life::allocate(domain)?;
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int;
    endpoint.set_flag(OWN_SOCKET | if flags & libc::O_NONBLOCK != 0 { NONBLOCK } else { 0 });
    endpoint.fd.store(fd, Ordering::Relaxed);
    super::remember::recall(endpoint, fd);
    if !leads_to(endpoint) {
        life::release(endpoint);
        return None;
    }
    inode::note(fd);
    Some(())
}

/// It is about to listen. Whether it was such a socket, which this process has made.
pub(super) fn listens(fd: c_int) -> bool {
    let was = record(fd).is_some();
    stays(fd);
    was
}

/// It gets another number: calls on that have to be counted too, so it is taken up. Else it stays the kernel's.
pub(crate) fn duplicated(fd: c_int) {
    if let Some((at, first)) = record(fd)
        && take_up(fd, at, first).is_none()
    {
        stays(fd);
    }
}

fn numbers() -> impl Iterator<Item = c_int> {
    RECORDS.iter().map(|first| first.number.load(Ordering::Relaxed)).filter(|fd| record(*fd).is_some())
}

/// Before a program is started in a way that no hook sees: it may find one, on a number that is open or among `duplicated`.
pub(crate) fn before_spawn(duplicated: &[c_int]) {
    numbers().filter(|fd| duplicated.contains(fd) || table::survives_exec(*fd)).for_each(stays);
}

/// Whether there is one.
pub(crate) fn are_there() -> bool {
    numbers().next().is_some()
}

/// Before a fork, while memory may be allocated: the child has them too.
pub(crate) fn before_fork() {
    numbers().for_each(duplicated);
}

/// In the child of a fork: another thread of the parent may have made one meanwhile, or was in a call on one.
pub(crate) fn forked() {
    numbers().for_each(stays);
    RECORDS.iter().for_each(|first| uses::reset(&first.word));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::vec::Vec;

    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn made<const N: usize>() -> [sd_sys::fd::Owned; N] {
        assert!(table::init());
        std::array::from_fn(|_| sd_sys::fd::eventfd(0).unwrap())
    }

    fn end(all: &[sd_sys::fd::Owned]) {
        for one in all {
            stays(one.raw());
            super::super::unregistered::stays(one.raw());
        }
    }

    /// Threads that make sockets at once all find room, and not all of them get a record.
    #[test]
    fn who_finds_no_record_is_counted_all_the_same() {
        let _alone = ALONE.lock().unwrap();
        let all = made::<{ FIRSTS + 1 }>();
        all.iter().for_each(|one| begin(one.raw()));
        let led = |is_it: fn(&Entry) -> bool| all.iter().filter(|one| is_it(&table::get(one.raw()))).count();
        assert_eq!(led(|entry| matches!(entry, Entry::First(_))), FIRSTS);
        assert_eq!(led(|entry| matches!(entry, Entry::Early)), 1);
        end(&all);
    }

    /// Of threads that make sockets at once each gets a record of its own, whatever word it has found there.
    #[test]
    #[cfg_attr(miri, ignore = "takes too long")]
    fn each_has_a_record_of_its_own() {
        let _alone = ALONE.lock().unwrap();
        for _ in 0..2000 {
            let all = made::<3>();
            let start = std::sync::Barrier::new(all.len());
            std::thread::scope(|scope| {
                for one in &all {
                    scope.spawn(|| {
                        start.wait();
                        begin(one.raw());
                    });
                }
            });
            let mut records: Vec<_> = all.iter().filter_map(|one| record(one.raw()).map(|it| it.0)).collect();
            records.sort_unstable();
            records.dedup();
            assert_eq!(records.len(), all.len());
            end(&all);
        }
    }
}
