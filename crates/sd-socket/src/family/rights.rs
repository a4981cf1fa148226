//! Sockets that travel in a message of the program's (SCM_RIGHTS).

use crate::Outcome;
use crate::data::calls::CMSG_COMPAT;
use crate::fd::table;
use crate::socket::endpoint::EndpointExt;
use alloc::vec::Vec;
use libc::{c_int, msghdr, ssize_t};
use sd_shm::slab::State;
use sd_sys::fd::Owned;
use sd_sys::libcs::{length, next_control};
use sd_sys::{Errno, user};

/// More control data than the kernel takes of a message, whatever its limits are set to.
const CONTROL_MAX: usize = 1 << 24;

/// sendmsg on a kernel socket. Connections of ours among the descriptors that it passes on travel as kernel sockets
/// (see `bridge::passable`); `None` when there are none.
///
/// # Safety
/// `msg` is what sendmsg(2) wants.
pub(crate) unsafe fn pass(fd: c_int, msg: *const msghdr, flags: c_int) -> Option<Outcome<ssize_t>> {
    // SAFETY: as the caller says; the copy of the control data is as long and as well aligned.
    unsafe {
        let is_ours = flags & CMSG_COMPAT == 0 && table::is_active();
        if !is_ours || !user::seems_readable(msg, size_of::<msghdr>()) || (*msg).msg_control.is_null() {
            return None;
        }
        let len = length((*msg).msg_controllen);
        if len > CONTROL_MAX || !user::seems_readable((*msg).msg_control, len) {
            // The kernel's to refuse.
            return None;
        }
        let mut control = vec![0u64; len.div_ceil(8)];
        core::ptr::copy_nonoverlapping((*msg).msg_control.cast::<u8>(), control.as_mut_ptr().cast(), len);
        let mut copy = *msg;
        copy.msg_control = control.as_mut_ptr().cast();
        (copy.msg_controllen, copy.msg_iovlen) = (len, length(copy.msg_iovlen));
        let end = copy.msg_control as usize + len;
        let mut passed = Vec::new();
        let mut at = libc::CMSG_FIRSTHDR(&copy);
        while !at.is_null() {
            (*at).cmsg_len = length((*at).cmsg_len);
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
                let fds = libc::CMSG_DATA(at) as *mut c_int;
                for i in 0..(bytes / 4).min(253) {
                    match kernel_socket_for(fds.add(i).read_unaligned()) {
                        Ok(Some(outer)) => {
                            fds.add(i).write_unaligned(outer.raw());
                            passed.push(outer);
                        }
                        Ok(None) => {}
                        Err(errno) => return Some(Outcome::Errno(errno)),
                    }
                }
            }
            at = next_control(at, end);
        }
        if passed.is_empty() {
            return None;
        }
        let sent = sd_sys::check(sd_sys::syscall!(libc::SYS_sendmsg, fd, &raw const copy, flags));
        Some(sent.map(|len| len as ssize_t).into())
    }
}

/// What travels instead of a connection of ours; `None` when the descriptor can travel itself. An errno when there can
/// be no bridge: nothing has changed, and nothing may travel, since a placeholder would be a dead socket.
fn kernel_socket_for(fd: c_int) -> Result<Option<Owned>, Errno> {
    let Some(endpoint) = table::socket(fd) else {
        if let table::Entry::Epoll(epoll) = table::get(fd) {
            crate::epoll::others_look(epoll.epoll());
        }
        crate::setup::watched::never(fd);
        return if table::socket(fd).is_some() { kernel_socket_for(fd) } else { Ok(None) };
    };
    if crate::epoll::hand_over(endpoint) {
        return Ok(None);
    }
    if endpoint.state_now() == State::Connected {
        // EAGAIN would mean to wait until the other end has read.
        return super::bridge::passable(endpoint).map(Some).map_err(|errno| match errno {
            Errno::EAGAIN => Errno::ENOMEM,
            other => other,
        });
    }
    // The placeholder is shared with other sockets.
    crate::socket::kernel_socket::materialize(endpoint).map(|()| None)
}
