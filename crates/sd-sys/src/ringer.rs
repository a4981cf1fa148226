//! Wakes whoever watches an eventfd, without ever waiting for its owner.
//!
//! write(2) to an eventfd blocks where others have made its file blocking and its counter full, and what poll(2) said a
//! moment before may be over: asynchronous I/O of the owner's can lift the counter in between. The kernel's own
//! signal never waits, adds one or nothing, and makes an edge either way. So it is the kernel that signals: a read of
//! nothing, of a file of ours, that names the eventfd to be told of its completion (io_submit(2), IOCB_FLAG_RESFD) is
//! complete before the call returns.
//!
//! A context belongs to one address space: a forked child has none, nor its memory, and makes its own.

use crate::fd::Owned;
use crate::{Errno, Result, check, syscall};
use core::sync::atomic::{AtomicU32, Ordering};

/// So many are asked for, of `fs.aio-max-nr` for all processes; the kernel's ring has room for some hundred. They are taken
/// out when it is full.
const EVENTS: usize = 4;
/// Size of `struct io_event`.
const EVENT: usize = 32;
/// `linux/aio_abi.h`.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// What is asked of the kernel; `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// The first words of what the kernel maps for a context (`struct aio_ring` of `fs/aio.c`).
#[repr(C)]
struct Ring {
    id: AtomicU32,
    count: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: AtomicU32,
}

/// Says that the ring has the form above.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// See the module.
pub struct Ringer {
    context: usize,
    file: Owned,
}

impl Ringer {
    /// Fails where asynchronous I/O is not to be had: a filter, `fs.aio-max-nr`, a kernel without.
    pub fn new() -> Result<Ringer> {
        let file = crate::mem::memfd_sealed(c"sd-nothing", 0)?;
        Ok(Ringer { context: Ringer::new_context()?, file })
    }

    /// A context of this address space.
    pub fn new_context() -> Result<usize> {
        let mut context = 0usize;
        // SAFETY: the kernel writes one word.
        check(unsafe { syscall!(libc::SYS_io_setup, EVENTS, &raw mut context) })?;
        // SAFETY: as in `empty`.
        let ring = unsafe { &*(context as *const Ring) };
        if ring.magic.load(Ordering::Relaxed) == RING_MAGIC {
            let len = 32 + ring.count.load(Ordering::Relaxed) as usize * EVENT;
            // SAFETY: the mapping stays as it is, and a child has no use for it.
            let _ = unsafe {
                syscall!(
                    libc::SYS_madvise,
                    context,
                    len.next_multiple_of(crate::mem::page_size()),
                    libc::MADV_DONTFORK
                )
            };
        }
        Ok(context)
    }

    /// Of a context, and a file to read nothing from; both are the ringer's from now on.
    pub fn of_parts(context: usize, file: i32) -> Ringer {
        Ringer { context, file: Owned::new(file) }
    }

    /// Wakes whoever watches the eventfd. EINVAL when it is none.
    pub fn ring(&self, eventfd: i32) -> Result<()> {
        match self.submit(eventfd) {
            Err(Errno::EAGAIN) => {
                self.empty();
                self.submit(eventfd)
            }
            done => done,
        }
    }

    fn submit(&self, eventfd: i32) -> Result<()> {
        let request = Iocb {
            opcode: IOCB_CMD_PREAD,
            file: self.file.raw() as u32,
            flags: IOCB_FLAG_RESFD,
            eventfd: eventfd as u32,
            ..Iocb::default()
        };
        let list = [&raw const request];
        // SAFETY: the kernel reads one pointer and what it leads to; nothing is read from the file, so nothing is
        // written to the buffer, which is null.
        check(unsafe { syscall!(libc::SYS_io_submit, self.context, 1, list.as_ptr()) }).map(drop)
    }

    /// Takes the completions out, of which nothing is of interest.
    fn empty(&self) {
        // SAFETY: the kernel has mapped the ring there, writable, until io_destroy; it is a page at least.
        let ring = unsafe { &*(self.context as *const Ring) };
        if ring.magic.load(Ordering::Relaxed) == RING_MAGIC {
            ring.head.store(ring.tail.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        // SAFETY: the context is ours, and nobody uses it any more.
        let _ = unsafe { syscall!(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::{EVENTFD_EDGE, epoll_create, epoll_ctl, epoll_pwait, eventfd, write};

    fn has_edge(watcher: i32) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { epoll_pwait(watcher, &mut event, 1, 0, core::ptr::null()) == Ok(1) }
    }

    #[test]
    fn each_signal_is_an_edge_whatever_the_counter_is() {
        let ringer = Ringer::new().unwrap();
        // A blocking one.
        let (eventfd, instance) = (eventfd(0).unwrap(), epoll_create().unwrap());
        let (event, watcher) = (eventfd.raw(), instance.raw());
        epoll_ctl(watcher, libc::EPOLL_CTL_ADD, event, EVENTFD_EDGE, 0).unwrap();
        assert!(has_edge(watcher));
        for _ in 0..1000 {
            assert!(!has_edge(watcher));
            assert_eq!(ringer.ring(event), Ok(()));
            assert!(has_edge(watcher));
        }
        write(event, &(u64::MAX - 1 - 1000).to_ne_bytes()).unwrap();
        assert!(has_edge(watcher));
        // From here on write(2) would block: the first signal drives the counter to its very end.
        for _ in 0..100 {
            assert_eq!(ringer.ring(event), Ok(()));
            assert!(has_edge(watcher) && !has_edge(watcher));
        }
    }

    #[test]
    fn a_child_has_nothing_of_it() {
        let ringer = Ringer::new().unwrap();
        let eventfd = eventfd(libc::EFD_NONBLOCK).unwrap();
        let event = eventfd.raw();
        // SAFETY: a child that makes system calls only, and a plain wait.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_mapped =
                    check(syscall!(libc::SYS_msync, ringer.context, crate::mem::page_size(), libc::MS_ASYNC))
                        .is_ok();
                let has_context = ringer.ring(event).is_ok();
                libc::_exit(i32::from(is_mapped) + 2 * i32::from(has_context));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!(status, 0);
        assert_eq!(ringer.ring(event), Ok(()));
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let ringer = Ringer::new().unwrap();
        let pair = crate::msg::pair_with_credentials().unwrap();
        for fd in [pair[0].raw(), ringer.file.raw(), -1] {
            assert!(ringer.ring(fd).is_err(), "{fd}");
        }
    }

    /// Not a test: `cargo test --release -p sd-sys ringer -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_beside_write() {
        const ROUNDS: u32 = 1_000_000;
        let (ringer, eventfd) = (Ringer::new().unwrap(), eventfd(libc::EFD_NONBLOCK).unwrap());
        let event = eventfd.raw();
        let per_round = |what: &dyn Fn()| {
            let start = std::time::Instant::now();
            (0..ROUNDS).for_each(|_| what());
            start.elapsed() / ROUNDS
        };
        let rings = per_round(&|| ringer.ring(event).unwrap());
        let writes = per_round(&|| crate::fd::eventfd_signal(event));
        println!("io_submit {rings:?}, poll and write {writes:?}");
    }
}
