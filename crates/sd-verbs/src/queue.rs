//! Completions: what became of requests, and what has landed.

use crate::abi;
use crate::device::{Context, set_nonblocking};
use crate::error::Error;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A completion queue and its channel. Pairs that use it hold it; clones are the same one.
#[derive(Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Made>,
}

pub(crate) struct Made {
    context: Context,
    channel: NonNull<abi::Channel>,
    cq: NonNull<abi::Cq>,
}

// SAFETY: as for contexts: the library's functions on both are thread safe.
unsafe impl Send for Made {}
// SAFETY: as above.
unsafe impl Sync for Made {}

/// What has come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As the request was named.
    pub id: u64,
    /// The number of the pair.
    pub pair: u32,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(Done),
    /// The pair is in its error state, and all that follows is `Flushed`.
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A write is at the peer, and its memory here may be used again.
    Written,
    /// A peer's write has landed.
    Landed { immediate: u32, len: u32 },
    /// Something else, which was not asked for.
    Other(u32),
}

/// Why a request failed: `ibv_poll_cq(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not begun: the pair had failed, or was ended.
    Flushed,
    /// The peer has no such memory, or no right to it was given (IBV_WC_REM_ACCESS_ERR).
    RemoteAccess,
    /// The peer does not answer (IBV_WC_RETRY_EXC_ERR).
    NoAnswer,
    /// The peer has posted no place for it (IBV_WC_RNR_RETRY_EXC_ERR).
    NotReady,
    /// Another status of `enum ibv_wc_status`.
    Other(u32),
}

impl Failure {
    fn of(status: u32) -> Failure {
        match status {
            5 => Failure::Flushed,
            10 => Failure::RemoteAccess,
            12 => Failure::NoAnswer,
            13 => Failure::NotReady,
            other => Failure::Other(other),
        }
    }
}

impl Completion {
    fn of(said: &abi::WorkCompletion) -> Completion {
        let outcome = match (said.status, said.opcode) {
            (0, abi::WC_RDMA_WRITE) => Outcome::Done(Done::Written),
            (0, abi::WC_RECV_RDMA_WITH_IMM) => {
                Outcome::Done(Done::Landed { immediate: u32::from_be(said.immediate), len: said.byte_len })
            }
            (0, other) => Outcome::Done(Done::Other(other)),
            (status, _) => Outcome::Failed(Failure::of(status)),
        };
        Completion { id: said.id, pair: said.qp_number, outcome }
    }
}

/// Completions that are taken at once.
const BATCH: usize = 32;

impl Queue {
    /// With room for so many completions that were not taken yet. One that overflows is broken for good.
    pub fn new(context: &Context, completions: u32) -> Result<Queue, Error> {
        let library = context.library();
        // SAFETY: the context is open.
        let channel = unsafe { (library.create_channel)(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let entries = i32::try_from(completions.max(1)).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open and outlive the queue; a null pointer as its name is handed back to nobody.
        let cq =
            unsafe { (library.create_cq)(context.raw(), entries, std::ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = Error::last("ibv_create_cq");
            // SAFETY: no queue uses it.
            unsafe { (library.destroy_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Queue { inner: Arc::new(Made { context: context.clone(), channel, cq }) };
        set_nonblocking(queue.as_fd())?;
        Ok(queue)
    }

    pub(crate) fn raw(&self) -> *mut abi::Cq {
        self.inner.cq.as_ptr()
    }

    /// Hands over what is there; how many there were: fewer than 32 are all.
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<usize, Error> {
        let mut said = [abi::WorkCompletion::default(); BATCH];
        // SAFETY: the queue's context is open, and has the table that the header's inline functions use.
        let poll = unsafe { (*self.inner.context.raw()).poll_cq }
            .ok_or(Error::Verb { name: "ibv_poll_cq", errno: libc::ENOSYS })?;
        // SAFETY: at most `BATCH` entries are written, and so many are there.
        let count = unsafe { poll(self.raw(), BATCH as i32, said.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(Error::Verb { name: "ibv_poll_cq", errno: libc::EIO });
        };
        // What has landed is read behind its completion. The provider has the device's barrier; this is the compiler's.
        fence(Ordering::Acquire);
        let count = count.min(BATCH);
        said[..count].iter().map(Completion::of).for_each(&mut each);
        Ok(count)
    }

    /// Asks that the descriptor becomes readable with the next completion. What came before is to be looked for once more afterwards.
    pub fn arm(&self) -> Result<(), Error> {
        // SAFETY: as in `poll`.
        let arm = unsafe { (*self.inner.context.raw()).req_notify_cq }
            .ok_or(Error::Verb { name: "ibv_req_notify_cq", errno: libc::ENOSYS })?;
        // SAFETY: the queue is this value's.
        Error::check("ibv_req_notify_cq", unsafe { arm(self.raw(), 0) })
    }

    /// Takes the readable descriptor's event, if there is one.
    pub fn take_event(&self) -> bool {
        let library = self.inner.context.library();
        let (mut cq, mut name) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open, and does not block; two pointers are written.
        let taken =
            unsafe { (library.get_cq_event)(self.inner.channel.as_ptr(), &raw mut cq, &raw mut name) };
        if taken != 0 {
            return false;
        }
        // SAFETY: the one queue of the channel; each event is acknowledged once, or the queue could not be destroyed.
        unsafe { (library.ack_cq_events)(self.raw(), 1) };
        true
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and its descriptor with it, is open as long as this value lives.
        unsafe { BorrowedFd::borrow_raw((*self.inner.channel.as_ptr()).fd) }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let library = self.context.library();
        // SAFETY: pairs hold this value, so none uses the queue; all events were acknowledged, else this would wait.
        unsafe {
            (library.destroy_cq)(self.cq.as_ptr());
            (library.destroy_channel)(self.channel.as_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_say() {
        let said = |status, opcode| abi::WorkCompletion {
            id: 7,
            status,
            opcode,
            byte_len: 12,
            immediate: 0x0102_0304_u32.to_be(),
            ..Default::default()
        };
        let of = |status, opcode| Completion::of(&said(status, opcode)).outcome;
        assert_eq!(of(0, 1), Outcome::Done(Done::Written));
        assert_eq!(of(0, 129), Outcome::Done(Done::Landed { immediate: 0x0102_0304, len: 12 }));
        assert_eq!(of(0, 77), Outcome::Done(Done::Other(77)));
        assert_eq!(of(10, 1), Outcome::Failed(Failure::RemoteAccess));
        assert_eq!(of(u32::MAX, 1), Outcome::Failed(Failure::Other(u32::MAX)));
    }
}
