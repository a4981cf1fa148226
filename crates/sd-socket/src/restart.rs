//! Signals that interrupt a wait: restart, or EINTR (signal(7))?
//!
//! Linux restarts recv, send and accept without a time-out after a handler with SA_RESTART, and fails with EINTR
//! after one without. For a sleep on a single word the kernel decides so for us (`sd_sys::futex`). A sleep on an
//! epoll instance always ends with EINTR, and which handler ran cannot be asked. So where handlers of both kinds are
//! installed, those with SA_RESTART are held back during the sleep, and a signalfd in the set tells of them: they end
//! the sleep without EINTR, and run right after it.

use sd_sys::fd;

const SFD_FLAGS: i32 = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;

/// Unblocked signals with a handler, by its SA_RESTART; bit n-1 for signal n.
struct Handlers {
    blocked: u64,
    restarting: u64,
    others: u64,
}

impl Handlers {
    fn look() -> Handlers {
        let mut blocked = 0u64;
        // SAFETY: the kernel writes eight bytes.
        unsafe { sd_sys::syscall!(libc::SYS_rt_sigprocmask, 0, 0, &mut blocked as *mut u64, 8) };
        let (mut restarting, mut others) = (0, 0);
        for signal in (1..=64).filter(|s| blocked & 1 << (s - 1) == 0) {
            // The kernel's struct: handler, flags, restorer, mask.
            let mut action = [0u64; 4];
            // SAFETY: the kernel writes 32 bytes.
            unsafe { sd_sys::syscall!(libc::SYS_rt_sigaction, signal, 0, action.as_mut_ptr(), 8) };
            let [handler, flags, ..] = action;
            match (handler > 1, flags & libc::SA_RESTART as u64 != 0) {
                (true, true) => restarting |= 1 << (signal - 1),
                (true, false) => others |= 1 << (signal - 1),
                _ => {}
            }
        }
        Handlers { blocked, restarting, others }
    }
}

/// After EINTR from a sleep in which all handlers could run: whether the call goes on. Exact unless there are
/// handlers of both kinds.
#[cold]
pub(crate) fn restarts() -> bool {
    Handlers::look().others == 0
}

/// For one sleep on an epoll instance: the signal mask, and a signalfd for what it holds back.
pub(crate) struct Held {
    mask: u64,
    fd: i32,
}

impl Held {
    /// `None` when all handlers are of one kind, so [`restarts`] is exact.
    pub(crate) fn new() -> Option<Held> {
        let Handlers { blocked, restarting, others } = Handlers::look();
        if restarting == 0 || others == 0 {
            return None;
        }
        // SAFETY: the kernel reads eight bytes.
        let made = sd_sys::check(unsafe {
            sd_sys::syscall!(libc::SYS_signalfd4, usize::MAX, &restarting as *const u64, 8, SFD_FLAGS)
        });
        made.ok().map(|fd| Held { mask: blocked | restarting, fd: fd as i32 })
    }

    /// Readable when a signal is held back.
    pub(crate) fn fd(&self) -> i32 {
        self.fd
    }

    /// The mask for the sleep.
    pub(crate) fn mask(&self) -> *const libc::sigset_t {
        (&raw const self.mask).cast()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        fd::close(self.fd);
    }
}
