//! Which network namespace a thread is in, and doing something in another (`family::network` takes note of moves).

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use sd_sys::fd::Owned;

pub(crate) static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// Some thread of the process is, or was, in another network namespace than the process began in.
#[inline]
pub(crate) fn has_left() -> bool {
    HAS_LEFT.load(Ordering::Relaxed)
}

/// `linux/sockios.h`: a descriptor of the network namespace that a socket belongs to.
const SIOCGSKNS: usize = 0x894c;

/// Does something in the network that a socket belongs to, on this thread; `None` where it may not go there
/// (CAP_SYS_ADMIN, which is also what lets it come back).
pub(crate) fn within<T>(socket: c_int, action: impl FnOnce() -> T) -> Option<T> {
    let network = |socket: c_int| {
        // SAFETY: no pointers.
        let opened = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_ioctl, socket, SIOCGSKNS, 0) });
        opened.ok().map(|fd| Owned::new(fd as c_int))
    };
    let here = sd_sys::fd::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
    let namespaces = [network(here.ok()?.raw()), network(socket)];
    let go = |namespace: &Owned| {
        // SAFETY: no pointers.
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_setns, namespace.raw(), libc::CLONE_NEWNET) })
    };
    match &namespaces {
        [Some(own), Some(its)] if go(its).is_ok() => {
            let done = action();
            let _ = go(own);
            Some(done)
        }
        _ => None,
    }
}
