//! Questions to a monitor that may be slow: stopped, swapped out, in a frozen cgroup, on a paused virtual machine.
//!
//! A slow monitor is not a dead one, and must not take us for dead: the control connection stays open, as its end is
//! this image's end. Answers come in the order of the questions, so it is enough to count those that are owed; until
//! they have come, nothing else is waited for, and new connections use the kernel. What has no answer, a fork above all,
//! is kept here while the socket's queue is full.

use super::{Control, LOST};
use crate::fd::hidden::Hidden;
use crate::monitor::sink::{SINK, take_in};
use crate::process::PROCESS;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering};
use sd_proto::{MESSAGE_MAX, Reply, Request};
use sd_sys::{Errno, msg};

/// Messages that are kept; a process that has more to say to a monitor that does not listen gives it up.
const KEPT_MAX: usize = 4096;
/// So often it is tried whether the monitor listens again.
const TRY_NS: u64 = 50_000_000;

/// What a monitor owes us, and what it has not heard yet.
pub(super) struct Slow {
    /// Answers that did not come in time.
    owed: u32,
    /// The connection can be used no longer: closed, or nonsense came.
    broken: bool,
    owes_welcome: bool,
    /// Not sent yet, with a descriptor of ours.
    kept: VecDeque<(Request, Option<Hidden>)>,
    /// A connection over which a Hello was sent that has not been answered.
    pub(super) greeted: Option<Hidden>,
}

impl Slow {
    pub(super) const fn new() -> Slow {
        Slow { owed: 0, broken: false, owes_welcome: false, kept: VecDeque::new(), greeted: None }
    }

    /// Another connection, or none.
    pub(super) fn forget(&mut self) {
        self.kept.clear();
        (self.owed, self.broken, self.owes_welcome) = (0, false, false);
    }

    /// The last question was a Hello, and has no answer.
    pub(super) fn note_greeting(&mut self) {
        self.owes_welcome = self.owed != 0;
    }

    /// A Hello is not answered yet.
    pub(super) fn owes_welcome(&self) -> bool {
        self.owes_welcome
    }

    /// Nothing is owed or kept.
    pub(super) fn is_idle(&self) -> bool {
        self.owed == 0 && self.kept.is_empty() && self.greeted.is_none()
    }

    /// That question failed as the connection is over, not as the monitor is slow.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }
}

fn send_with(fd: i32, request: &Request, fds: &[i32], flags: i32) -> sd_sys::Result<usize> {
    msg::send_as_effective(fd, request.encode(&mut [0u8; MESSAGE_MAX]), fds, flags)
}

/// Tells something that has no answer, now or when the monitor listens again; `None` when the connection is over.
pub(super) fn tell(control: &mut Control, fd: i32, request: &Request, fds: &[i32]) -> Option<()> {
    let is_sent = flush(control, fd)? && sent(send_with(fd, request, fds, libc::MSG_DONTWAIT))?;
    if is_sent {
        return Some(());
    }
    let own = match fds {
        [fd, ..] => Some(Hidden::of(sd_sys::fd::dup_above(*fd, 3).ok()?)),
        [] => None,
    };
    if control.slow.kept.len() >= KEPT_MAX {
        return None;
    }
    control.slow.kept.push_back((*request, own));
    // Sleepers try again.
    LOST.store(true, Ordering::Release);
    Some(())
}

/// Sends what was kept: whether nothing is left. `None` when the connection is over.
fn flush(control: &mut Control, fd: i32) -> Option<bool> {
    while let Some((request, own)) = control.slow.kept.front() {
        let own = own.as_ref().map(Hidden::raw);
        if !sent(send_with(fd, request, own.as_slice(), libc::MSG_DONTWAIT))? {
            return Some(false);
        }
        control.slow.kept.pop_front();
    }
    Some(true)
}

fn sent(result: sd_sys::Result<usize>) -> Option<bool> {
    match result {
        Ok(_) => Some(true),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM) => Some(false),
        Err(_) => None,
    }
}

/// Tries again what was kept: the pause until the next try; `None` when nothing is left, or the connection is over.
pub(super) fn try_again(control: &mut Control, fd: i32) -> Option<u64> {
    if flush(control, fd)? {
        LOST.store(false, Ordering::Release);
        return None;
    }
    Some(TRY_NS)
}

/// Asks and waits for the answer; mail that comes in between is kept, to be acted on by whoever drains
/// events next. The caller may hold locks that acting on it would take. `None`: there is none, see [`Slow::is_broken`].
pub(crate) fn ask(
    control: &mut Control,
    fd: i32,
    request: &Request,
    fds: &[i32],
) -> Option<(Reply, msg::Received)> {
    ask_within(control, fd, request, fds, None)
}

/// The same; after `patience_ms` without a message the answer is one that is owed.
pub(super) fn ask_within(
    control: &mut Control,
    fd: i32,
    request: &Request,
    fds: &[i32],
    patience_ms: Option<i32>,
) -> Option<(Reply, msg::Received)> {
    let answer = answer_within(control, fd, request, fds, patience_ms);
    if !control.mail.is_empty() {
        // The counter looks changed to the next one who drains, and a sleeper drains now.
        PROCESS.mail_seen.fetch_sub(1, Ordering::AcqRel);
        sd_sys::fd::eventfd_signal(crate::process::waker::own_event_fd());
    }
    answer
}

fn answer_within(
    control: &mut Control,
    fd: i32,
    request: &Request,
    fds: &[i32],
    patience_ms: Option<i32>,
) -> Option<(Reply, msg::Received)> {
    let _free = crate::monitor::spare::Free::now();
    take_late(control, fd);
    let is_slow = control.slow.owed != 0 || !matches!(flush(control, fd), Some(true));
    let changes_what_it_knows = matches!(request, Request::Listen { .. } | Request::Unlisten { .. });
    if is_slow && !changes_what_it_knows {
        return None;
    }
    let flags = if is_slow || patience_ms.is_some() { libc::MSG_DONTWAIT } else { 0 };
    match sent(send_with(fd, request, fds, flags)) {
        Some(true) => {}
        Some(false) => return None,
        None => {
            control.slow.broken = true;
            return None;
        }
    }
    if is_slow {
        control.slow.owed += 1;
        return None;
    }
    let has_come =
        || patience_ms.is_none_or(|ms| sd_sys::fd::poll_one(fd, libc::POLLIN, ms).is_ok_and(|got| got != 0));
    loop {
        match if has_come() { receive(fd, 0) } else { Err(Errno::EAGAIN) } {
            Ok((reply, got)) => {
                let answer = take_in(control, reply, got);
                if answer.is_some() {
                    return answer;
                }
            }
            Err(error) => {
                let is_late = error == Errno::EAGAIN;
                control.slow.owed += u32::from(is_late);
                control.slow.broken |= !is_late;
                return None;
            }
        }
    }
}

/// When a message came last.
static HEARD_AT: AtomicU64 = AtomicU64::new(0);

/// The monitor has said something within that time.
pub(crate) fn was_heard_within(ns: u64) -> bool {
    sd_sys::time::now_ns().saturating_sub(HEARD_AT.load(Ordering::Relaxed)) < ns
}

/// The next message.
pub(crate) fn receive(fd: i32, flags: i32) -> sd_sys::Result<(Reply, msg::Received)> {
    let mut buf = [0u8; MESSAGE_MAX];
    loop {
        let got = match msg::recv_with_fds(fd, &mut buf, flags) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        HEARD_AT.store(sd_sys::time::now_ns(), Ordering::Relaxed);
        let reply = buf.get(..got.len).and_then(|bytes| Reply::decode(bytes).ok());
        return reply.map(|reply| (reply, got)).ok_or(Errno::EPROTO);
    }
}

/// Takes in what has come, without waiting: mail, and answers that were owed.
pub(crate) fn take_late(control: &mut Control, fd: i32) {
    while let Ok((reply, got)) = receive(fd, libc::MSG_DONTWAIT) {
        let Some((reply, got)) = take_in(control, reply, got) else { continue };
        if control.slow.owed == 0 {
            return;
        }
        control.slow.owed -= 1;
        SINK.get().inspect(|sink| (sink.late)(fd, reply, got));
    }
}

/// An answer that was owed over this connection: `None` if it has not come, `Some(None)` if it never will.
pub(super) fn late_answer(control: &mut Control, fd: i32) -> Option<Option<(Reply, msg::Received)>> {
    loop {
        match receive(fd, libc::MSG_DONTWAIT) {
            Ok((reply, got)) => {
                if let Some(answer) = take_in(control, reply, got) {
                    return Some(Some(answer));
                }
            }
            Err(Errno::EAGAIN) => return None,
            Err(_) => return Some(None),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_call_that_must_not_wait_leaves_a_silent_monitor_at_once() {
        let (ours, _silent) = UnixDatagram::pair().unwrap();
        let mut control = Control::new();
        let mut ask =
            || ask_within(&mut control, ours.as_raw_fd(), &Request::Waiting { index: 0 }, &[], Some(0));
        // The socket has no time-out: who waited for an answer would stay here.
        assert!(ask().is_none() && ask().is_none());
        assert_eq!(control.slow.owed, 1, "what is owed is not asked for again");
        assert!(!control.slow.is_broken());
    }

    #[test]
    fn an_answer_that_comes_late_is_one_that_is_owed() {
        let (ours, monitor) = UnixDatagram::pair().unwrap();
        let mut control = Control::new();
        let fd = ours.as_raw_fd();
        assert!(ask_within(&mut control, fd, &Request::Waiting { index: 0 }, &[], Some(0)).is_none());
        monitor.send(Reply::Ok.encode(&mut [0; MESSAGE_MAX])).unwrap();
        take_late(&mut control, fd);
        assert!(control.slow.is_idle());
    }
}
