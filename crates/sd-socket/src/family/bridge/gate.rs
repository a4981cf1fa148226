//! When bridges begin that were made for a process whose threads are still using the connections (see `separate`).

use libc::{POLLIN, pollfd};
use sd_sys::{Errno, Result, fd};

/// Closed until its maker opens it, or ends.
pub(crate) struct Gate {
    /// An eventfd that nobody reads.
    opened: i32,
    /// The maker; -1 where the kernel has no such descriptors.
    maker: i32,
}

/// How often a bridge looks where it cannot see its maker's end.
const LOOK_MS: i32 = 1000;

impl Gate {
    pub(crate) fn new() -> Result<Gate> {
        let opened = fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        Ok(Gate { opened, maker: fd::pidfd_open(fd::getpid()).unwrap_or(-1) })
    }

    /// Every bridge that waits goes on.
    pub(crate) fn open(self) {
        let _ = fd::write(self.opened, &1u64.to_ne_bytes());
        self.numbers().into_iter().filter(|fd| *fd >= 0).for_each(fd::close);
    }

    /// The gate in another process, which was given its descriptors.
    pub(super) fn of(opened: i32, maker: i32) -> Gate {
        Gate { opened, maker }
    }

    pub(super) fn numbers(&self) -> [i32; 2] {
        [self.opened, self.maker]
    }

    /// In the bridge: waits, once.
    pub(super) fn pass(&self) {
        let mut fds = self.numbers().map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
        let timeout_ms = if self.maker < 0 { LOOK_MS } else { -1 };
        while fd::poll(&mut fds, timeout_ms) == Err(Errno::EINTR) {}
        self.numbers().into_iter().filter(|fd| *fd >= 0).for_each(fd::close);
    }
}
