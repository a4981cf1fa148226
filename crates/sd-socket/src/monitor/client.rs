//! The control path: registration with the monitor, questions to it, its mail to us.
//!
//! Never on the data path. A monitor that is absent, slow or of another version only means that
//! new connections use the kernel; it is asked again after a pause that doubles up to two seconds.

mod absent;
mod births;
mod look;
mod resume;
mod separate;
mod slow;

use crate::fd::hidden::{Hidden, HiddenCell};
use crate::monitor::sink::SINK;
use crate::process::PROCESS;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sd_proto::{MESSAGE_MAX, Reply, Request};
use sd_shm::slab::Slab;
use sd_sys::lock::{Guard, Lock};
use sd_sys::{msg, trust};
pub(crate) use separate::{
    close_for_good, forget, forget_connection, is_closed_for_good, is_ending, leave_for_checkpoint,
    set_ending,
};

use absent::RETRY_MIN_NS;
pub(crate) use absent::{has_listened, listens, may_come, wait_for_monitor};
pub(crate) use births::{before_fork, parent_after_fork};
pub(crate) use look::{check_mail, glance, has_ended, has_mail, look_at_socket, mail_pause};
use resume::checked;
pub(crate) use resume::{losses, noticed_loss};
use slow::Slow;
pub(crate) use slow::{ask, take_late, was_heard_within};

/// Descriptor of the control socket, -1 when there is none; for waiting on its end.
pub(crate) static CONTROL_FD: HiddenCell = HiddenCell::empty();
/// Raised when the monitor was lost: somebody should reconnect.
pub(super) static LOST: AtomicBool = AtomicBool::new(false);

/// In a process that has not registered: the control socket that the parent made for its child (see `fork`),
/// or that an earlier image of the process had (see `exec`), which also tells the monitor of its end. In the parent
/// while it forks: the child's socket.
static BIRTH_FD: HiddenCell = HiddenCell::empty();

/// Counts registrations: a new one has a new control socket.
pub(crate) static REGISTRATIONS: AtomicU32 = AtomicU32::new(0);

/// This registration, as the monitor counts; it means nothing to another monitor.
static CLIENT: AtomicU64 = AtomicU64::new(0);

/// The monitor knows of all channels that this process has connections on, inherited ones too.
static KNOWS_CHANNELS: AtomicBool = AtomicBool::new(false);

/// A monitor that does not answer for so long is slow (see `slow`).
const ANSWER_TIMEOUT_MS: u32 = 2000;
/// So long a connect waits while others that the monitor has not accepted yet fill its backlog.
const CONNECT_MS: u32 = 50;

/// The control path's lock.
pub(crate) static CONTROL: Lock<Control> = Lock::new(Control::new());

/// What the monitor said unasked, when it is more than to be noted.
#[derive(Clone, Copy)]
pub(crate) enum Mail {
    /// A channel's other side is gone for good.
    Dead(u64),
    /// A channel's other side is gone for good, and connections wait there.
    Gone(u64),
    /// A channel's other side is another user's from now on.
    Stranger(u64),
    /// Nobody will accept the connection at a slot, of that generation, of a channel.
    Withdraw(u64, u32, u32),
    /// Connections on a channel, which we have as this adopter, are for the listener of that index; the channel is marked as used.
    Offer((u64, u32), u32),
    /// The other end of a connection that was offered, by this name, is on a channel, which is ours on this side; and the ticket.
    Promote((u64, u64), sd_shm::channel::Side, u64, Counts),
    /// Connections that were promoted, with this name at an end, are to go back; at once; why.
    Demote((sd_proto::Ip, u16), bool, sd_shm::slab::Moved),
    /// The process is about to be checkpointed.
    Detach,
}

/// What the monitor says of the numbers of a connection's bytes: see [`Reply::Promote`].
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) behind: u32,
    pub(crate) began: Option<(u32, u32)>,
}

/// State of the control path; under `CONTROL`.
pub(crate) struct Control {
    retry_at: u64,
    /// By the last monitor that was asked.
    is_refused: bool,
    retry_ns: u64,
    seen: Option<absent::Seen>,
    registered_before: bool,
    /// The own slab's number, which its record has; -1: none yet.
    slab_fd: i32,
    public_fd: Option<Hidden>,
    /// Taken from the socket but not acted on yet (see `sink::Sink::deliver`).
    pub(crate) mail: VecDeque<Mail>,
    slow: Slow,
    /// The connection over which the monitor was greeted last is the one that the parent made.
    greets_by_birth: bool,
}

impl Control {
    /// Before anything has happened.
    pub(crate) const fn new() -> Control {
        Control {
            retry_at: 0,
            is_refused: false,
            retry_ns: RETRY_MIN_NS,
            seen: None,
            registered_before: false,
            slab_fd: -1,
            public_fd: None,
            mail: VecDeque::new(),
            slow: Slow::new(),
            greets_by_birth: false,
        }
    }

    /// In the child of a fork: the parent's connection is not ours; `BIRTH_FD` is.
    pub(crate) fn forked(&mut self) {
        CONTROL_FD.close();
        sd_sys::witness::forked();
        *self = Control::new();
        LOST.store(false, Ordering::Relaxed);
    }
}

/// A connection to the monitor, made if need be; `None` when there is none to be had now.
pub(crate) fn connected() -> Option<Guard<'static, Control>> {
    if crate::process::env::is_forbidden() {
        return None;
    }
    let mut control = crate::monitor::client::CONTROL.lock();
    if separate::is_ending() {
        return None;
    }
    if checked(&mut control) >= 0 {
        return Some(control);
    }
    if separate::is_ending() {
        return None;
    }
    let now = sd_sys::time::now_ns();
    let has_come = absent::has_come(&mut control);
    if now < control.retry_at && !has_come {
        return None;
    }
    control.is_refused = false;
    match register(&mut control) {
        Some(()) => {
            control.retry_ns = RETRY_MIN_NS;
            control.retry_at = 0;
            LOST.store(false, Ordering::Release);
            Some(control)
        }
        None => {
            control.retry_at = now + control.retry_ns;
            control.retry_ns = absent::next_pause(control.retry_ns, control.is_refused);
            None
        }
    }
}

/// The monitor was lost, and there is none since.
#[inline]
pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// After the monitor was lost: tries again when it is time. The pause until the next try, if one
/// is due, so that a sleeper can limit its sleep.
pub(crate) fn retry_if_lost() -> Option<u64> {
    if !is_lost() {
        return None;
    }
    let before = REGISTRATIONS.load(Ordering::Acquire);
    if let Some(mut control) = connected() {
        let pause = slow::try_again(&mut control, CONTROL_FD.raw());
        drop(control);
        SINK.get().inspect(|sink| (sink.is_back)());
        // Whoever is about to sleep does not watch the new socket yet.
        let is_new = REGISTRATIONS.load(Ordering::Acquire) != before;
        return if is_new { Some(1) } else { pause };
    }
    let control = crate::monitor::client::CONTROL.lock();
    Some(control.retry_at.saturating_sub(sd_sys::time::now_ns()).max(1_000_000))
}

fn register(control: &mut Control) -> Option<()> {
    let inherits = PROCESS.slab_count.load(Ordering::Acquire) != 0;
    // What tells of a child's end stays open where the child cannot register, and it may have something else to say.
    if inherits && BIRTH_FD.raw() >= 0 && control.slab_fd < 0 {
        let fd = BIRTH_FD.raw();
        set_timeouts(fd);
        prepare(control, fd)?;
    }
    let birth = BIRTH_FD.take();
    control.greets_by_birth |= birth.is_some();
    let known = match birth {
        Some(fd) => introduce(control, fd),
        None => greeted(control),
    };
    let by_birth = known.is_some() && control.greets_by_birth;
    if control.slow.greeted.is_some() {
        return None;
    }
    let fd = known.or_else(|| {
        control.greets_by_birth = false;
        introduce(control, connect()?)
    })?;
    let number = fd.raw();
    resume::note(number);
    CONTROL_FD.put(fd);
    REGISTRATIONS.fetch_add(1, Ordering::AcqRel);
    let knows = !control.registered_before && (by_birth || !inherits);
    KNOWS_CHANNELS.store(knows, Ordering::Release);
    let was_registered = core::mem::replace(&mut control.registered_before, true);
    SINK.get().inspect(|sink| (sink.registered)(control, number, was_registered));
    Some(())
}

/// A connection to the monitor's socket.
fn connect() -> Option<Hidden> {
    reach().map(Hidden::of)
}

/// A connection whose number is not hidden yet. Somebody else's socket at that place gets nothing, and holds nobody up.
fn reach() -> Option<sd_sys::fd::Owned> {
    let mut path = [0u8; 108];
    let (path, is_named) = crate::process::env::monitor_path(&mut path)?;
    trust::way_to(path, is_named).ok()?;
    let fd = msg::connect_unix(path, CONNECT_MS).ok()?;
    // The first descriptor of ours: only a table that exists keeps it from a program that closes all numbers.
    if !crate::fd::table::init() {
        return None;
    }
    Some(fd).filter(|fd| trust::other_end(fd.raw(), is_named).is_ok())
}

/// The connection, when the monitor has welcomed us over it; otherwise it is closed, unless the monitor is slow: it will
/// welcome us, and then not find us gone.
fn introduce(control: &mut Control, fd: Hidden) -> Option<Hidden> {
    set_timeouts(fd.raw());
    control.slow.forget();
    if prepare(control, fd.raw()).and_then(|()| hello(control, fd.raw())).is_some() {
        return Some(fd);
    }
    if control.slow.owes_welcome() {
        control.slow.greeted = Some(fd);
    } else {
        control.is_refused = true;
    }
    None
}

/// The connection that the monitor was greeted over, when it has answered by now.
fn greeted(control: &mut Control) -> Option<Hidden> {
    let number = control.slow.greeted.as_ref()?.raw();
    let welcome = slow::late_answer(control, number)?;
    let fd = control.slow.greeted.take();
    control.slow.forget();
    welcome.and_then(|(reply, got)| welcomed(reply, &got)).and(fd)
}

/// The socket whose closing tells the monitor of this process's end; -1 when there is none.
pub(crate) fn image_fd() -> i32 {
    match CONTROL_FD.raw() {
        -1 => BIRTH_FD.raw(),
        fd => fd,
    }
}

/// In a new image: the socket that the one before had.
pub(crate) fn set_image_fd(fd: Hidden) {
    BIRTH_FD.put(fd);
}

/// Tells the monitor, over the socket of the image before, that its listener takes no connections any more: what
/// waits there this image has taken over.
pub(crate) fn unlisten_before_hello(index: u32) {
    let fd = BIRTH_FD.raw();
    if fd >= 0 {
        let _ = send(fd, &Request::Accepting { index, accepting: false }, &[]);
    }
}

/// Whether the monitor will see the end of this image by its socket.
pub(crate) fn end_is_seen() -> bool {
    image_fd() >= 0
}

/// What a process needs once: table, slab, public page, eventfd, a placeholder.
fn prepare(control: &mut Control, fd: i32) -> Option<()> {
    if control.slab_fd >= 0 {
        return Some(());
    }
    if sd_sys::mem::pages_may_be_refused() || !crate::fd::table::init() {
        return None;
    }
    let pid = sd_sys::fd::getpid();
    PROCESS.pid.store(pid, Ordering::Relaxed);
    // One shows the monitor which network this is; the other is made for the first socket of its kind.
    let has_one = || PROCESS.placeholders.iter().any(HiddenCell::is_some);
    for (placeholder, domain) in PROCESS.placeholders.iter().zip([libc::AF_INET, libc::AF_INET6]) {
        if !has_one()
            && let Ok(fd) = sd_sys::fd::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
        {
            placeholder.put(Hidden::of(fd));
        }
    }
    let event_fd = Hidden::of(sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).ok()?);
    let public_fd = crate::monitor::budget::file(control, fd, c"sd-public", sd_shm::public::LEN)?;
    let public = sd_shm::public::create_in(public_fd.raw(), pid as u32).ok()?;
    let slab_fd = Hidden::of(crate::monitor::budget::file(control, fd, c"sd-slab", sd_shm::slab::LEN)?);
    let (slab, number) = (Slab::create_in(slab_fd.raw(), pid as u32).ok()?, slab_fd.raw());
    let _alloc = PROCESS.alloc.lock();
    if !PROCESS.add_slab(slab, slab_fd) || !crate::process::waker::add_own(public, event_fd) {
        return None;
    }
    PROCESS.public.store(core::ptr::from_ref(public).cast_mut(), Ordering::Release);
    PROCESS.mail_seen.store(0, Ordering::Relaxed);
    control.public_fd = Some(Hidden::of(public_fd));
    control.slab_fd = number;
    Some(())
}

/// No answer is waited for without an end.
pub(super) fn set_timeouts(fd: i32) {
    let _ = msg::set_timeout(fd, ANSWER_TIMEOUT_MS);
}

fn hello(control: &mut Control, fd: i32) -> Option<()> {
    let request = Request::Hello { version: sd_proto::VERSION, again: control.registered_before };
    let placeholder = PROCESS.placeholders.iter().map(HiddenCell::raw).find(|&p| p >= 0)?;
    let public_fd = control.public_fd.as_ref()?.raw();
    let witness = if sd_sys::confine::is_on() { None } else { sd_sys::witness::make().ok() };
    let own = [control.slab_fd, public_fd, crate::process::waker::own_event_fd(), placeholder];
    let mut fds = Vec::from(own);
    fds.extend(witness.as_ref().map(sd_sys::fd::Owned::raw));
    // Mail for an earlier image of the process may come before the answer.
    match ask(control, fd, &request, &fds) {
        Some((reply, got)) => welcomed(reply, &got),
        None => {
            control.slow.note_greeting();
            None
        }
    }
}

fn welcomed(reply: Reply, got: &msg::Received) -> Option<()> {
    let Reply::Welcome { client } = reply else { return None };
    CLIENT.store(client, Ordering::Release);
    sd_sys::time::calibrate();
    SINK.get().inspect(|sink| (sink.welcomed)(got));
    Some(())
}

pub(crate) fn send(fd: i32, request: &Request, fds: &[i32]) -> Option<()> {
    let mut buf = [0u8; MESSAGE_MAX];
    msg::send_as_effective(fd, request.encode(&mut buf), fds, 0).ok().map(drop)
}

/// Asks the monitor; `None` when it is not there (any more).
pub(crate) fn question(request: &Request, fds: &[i32]) -> Option<(Reply, msg::Received)> {
    question_and(request, fds, |reply, got| (reply, got))
}

/// Asks for a call that must not wait: a monitor that has not answered after so long is slow.
pub(crate) fn question_within(request: &Request, patience_ms: i32) -> Option<(Reply, msg::Received)> {
    let mut control = connected()?;
    let answer = slow::ask_within(&mut control, CONTROL_FD.raw(), request, &[], Some(patience_ms));
    if answer.is_none() {
        unanswered(&mut control);
    }
    answer
}

/// Asks the monitor; `take` gets the answer before anybody else asks, a handler of a signal included.
pub(crate) fn question_and<T>(
    request: &Request,
    fds: &[i32],
    take: impl FnOnce(Reply, msg::Received) -> T,
) -> Option<T> {
    let mut control = connected()?;
    let fd = CONTROL_FD.raw();
    let answer = ask(&mut control, fd, request, fds);
    if answer.is_none() {
        unanswered(&mut control);
    }
    answer.map(|(reply, got)| take(reply, got))
}

/// Becomes a member of the family whose slab this is. `add` notes the number while this process cannot fork.
pub(crate) fn share(slab_fd: i32, add: impl FnOnce(u32) -> Option<()>) -> Option<()> {
    let mut control = connected()?;
    match ask(&mut control, CONTROL_FD.raw(), &Request::Share, &[slab_fd]) {
        Some((Reply::Shared { member }, _)) => add(member),
        Some(_) => None,
        None => {
            unanswered(&mut control);
            None
        }
    }
}

/// A question has no answer: the connection is over, or the monitor is slow.
fn unanswered(control: &mut Control) {
    if control.slow.is_broken() {
        lost(control);
    }
}

/// The number by which the monitor can tell others of this process; `None` without one that knows all its channels.
pub(crate) fn client() -> Option<u64> {
    let knows = is_there() && KNOWS_CHANNELS.load(Ordering::Acquire);
    knows.then(|| CLIENT.load(Ordering::Acquire))
}

/// There is a monitor, as far as known.
pub(crate) fn is_there() -> bool {
    CONTROL_FD.raw() >= 0
}

/// Tells the monitor something that has no answer.
pub(crate) fn tell(request: &Request, fds: &[i32]) {
    let mut control = crate::monitor::client::CONTROL.lock();
    let fd = checked(&mut control);
    if fd >= 0 && slow::tell(&mut control, fd, request, fds).is_none() {
        lost(&mut control);
    }
}

/// As [`tell`], where no thread talks with the monitor now, this one included: whether there is one to be told.
pub(crate) fn tell_if_free(request: &Request) -> Option<bool> {
    let mut control = crate::monitor::client::CONTROL.try_lock()?;
    let fd = CONTROL_FD.raw();
    let is_told = fd >= 0 && slow::tell(&mut control, fd, request, &[]).is_some();
    if fd >= 0 && !is_told {
        lost(&mut control);
    }
    Some(is_told)
}

/// Asks for a process that takes over the connection which it is offered over the other end of this socket. Without an answer: if
/// there is none, the socket is closed.
pub(crate) fn ask_for_helper(socket: i32) -> bool {
    if image_fd() < 0 {
        drop(connected());
    }
    let mut control = crate::monitor::client::CONTROL.lock();
    let fd = image_fd();
    fd >= 0 && slow::tell(&mut control, fd, &Request::Bridge, &[socket]).is_some()
}

/// Tells the monitor something of no consequence: not while it is busy or another thread talks with it.
pub(crate) fn hint(request: &Request) {
    let Some(_control) = connected() else { return };
    try_send(CONTROL_FD.raw(), request);
}

/// Sends it unless the socket's queue is full; under `CONTROL`.
pub(crate) fn try_send(fd: i32, request: &Request) {
    let mut buf = [0u8; MESSAGE_MAX];
    let _ = msg::send_as_effective(fd, request.encode(&mut buf), &[], libc::MSG_DONTWAIT);
}

/// The connection is of no use any more; under `CONTROL`.
fn lost(control: &mut Control) {
    // A filter of the program's forbade to ask; the monitor takes the end of the connection for the process's.
    if sd_sys::confine::is_on() {
        return;
    }
    CONTROL_FD.close();
    control.slow.forget();
    LOST.store(true, Ordering::Release);
    SINK.get().inspect(|sink| (sink.lost)());
}
