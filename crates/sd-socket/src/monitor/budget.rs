//! Files of memory, for segments: made here, or by the monitor where this process may not make files so large
//! (RLIMIT_FSIZE). Many programs that confine themselves may make none.

use crate::monitor::client::{self, Control};
use core::ffi::CStr;
use sd_proto::{Reply, Request};
use sd_sys::Errno;
use sd_sys::fd::Owned;
use sd_sys::mem::memfd_sealed;

/// A memfd of `len` zeros that neither grows nor shrinks; under `CONTROL`. `monitor` is a connection to it.
pub(super) fn file(control: &mut Control, monitor: i32, name: &CStr, len: usize) -> Option<Owned> {
    match memfd_sealed(name, len) {
        Err(Errno::EFBIG) => made_by_monitor(control, monitor, len),
        made => made.ok(),
    }
}

/// As `file`, for a process that may not be registered.
pub(crate) fn file_now(name: &CStr, len: usize) -> Option<Owned> {
    let mut control = crate::monitor::client::CONTROL.lock();
    file(&mut control, client::image_fd(), name, len)
}

#[cold]
fn made_by_monitor(control: &mut Control, monitor: i32, len: usize) -> Option<Owned> {
    if monitor < 0 {
        return None;
    }
    client::set_timeouts(monitor);
    let (reply, got) = client::ask(control, monitor, &Request::Memory { len: len as u64 }, &[])?;
    match reply {
        Reply::Memory => got.fds.take().map(|[memory]| memory),
        _ => None,
    }
}
