//! When bridges begin that were made for a process whose threads are still using the connections (see `separate`).

use libc::{POLLIN, pollfd};
use sd_sys::fd::Owned;
use sd_sys::{Errno, Result, fd};

/// Closed until its maker opens it, or ends.
pub(crate) struct Gate {
    /// An eventfd that nobody reads.
    opened: Owned,
    /// The maker; none where the kernel has no such descriptors.
    maker: Option<Owned>,
}

/// How often a bridge looks where it cannot see its maker's end.
const LOOK_MS: i32 = 1000;

impl Gate {
    pub(crate) fn new() -> Result<Gate> {
        let opened = fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        Ok(Gate { opened, maker: fd::pidfd_open(fd::getpid()).ok() })
    }

    /// Every bridge that waits goes on.
    pub(crate) fn open(self) {
        let _ = fd::write(self.opened.raw(), &1u64.to_ne_bytes());
    }

    /// The gate in another process, which was given its descriptors.
    pub(super) fn of(opened: Owned, maker: Option<Owned>) -> Gate {
        Gate { opened, maker }
    }

    /// The eventfd and the maker; -1: none.
    pub(super) fn numbers(&self) -> [i32; 2] {
        [self.opened.raw(), self.maker.as_ref().map_or(-1, Owned::raw)]
    }

    /// In the bridge: waits, once. This process's copies are closed then; where it is a fork, the frame that owns them is its
    /// maker's.
    pub(super) fn pass(&self) {
        let mut fds = self.numbers().map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
        let timeout_ms = if self.maker.is_none() { LOOK_MS } else { -1 };
        while fd::poll(&mut fds, timeout_ms) == Err(Errno::EINTR) {}
        self.numbers().into_iter().filter(|fd| *fd >= 0).for_each(fd::close);
    }
}
