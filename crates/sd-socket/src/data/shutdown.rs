//! shutdown(2) on a connection.

use crate::socket::bell::notify;
use crate::socket::endpoint::{EndpointExt, FIN_SENT, SHUT_RD, SHUT_WR};
use crate::socket::road::{self, TX_KERNEL, TX_LEFT};
use core::sync::atomic::Ordering;
use sd_shm::channel::{FLAG_FIN, FLAG_READS_NO_MORE};
use sd_shm::slab::Endpoint;
use sd_sys::Errno;

/// shutdown(2) on a connection.
pub(crate) fn shutdown(endpoint: &'static Endpoint, how: i32) -> Result<(), Errno> {
    if crate::socket::kernel_socket::is_moved(endpoint) {
        // The words of its slot say nothing of it any more.
        return Err(crate::socket::kernel_socket::MOVED);
    }
    if crate::socket::names::is_over(endpoint) {
        return Err(Errno::ENOTCONN);
    }
    let is_by_kernel = crate::wait::by_kernel::directions(endpoint) != 0;
    let how = match is_by_kernel {
        false => how,
        true => crate::data::by_kernel::shutdown(endpoint, how)?,
    };
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        crate::socket::time_wait::note_shutdown(endpoint);
        let mut half = endpoint.tx_token();
        if crate::socket::kernel_socket::is_moved(endpoint) {
            return Err(crate::socket::kernel_socket::MOVED);
        }
        if half.cursor().is_parked() && road::is_by_kernel(endpoint, TX_KERNEL | TX_LEFT) {
            // Another thread has had it go back since.
            drop(half);
            return shutdown(endpoint, how);
        }
        half.cursor().finish(&endpoint.tx_mem(), crate::socket::bell::stamp(endpoint));
        endpoint.own_words().flags.fetch_or(FLAG_FIN, Ordering::AcqRel);
        endpoint.set_flag(SHUT_WR | FIN_SENT);
        notify(endpoint, crate::data::stream::RX_BITS);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        endpoint.own_words().flags.fetch_or(FLAG_READS_NO_MORE, Ordering::AcqRel);
        endpoint.set_flag(SHUT_RD);
    }
    if let Some(channel) = endpoint.channel_ref() {
        channel.tell(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    }
    match is_by_kernel {
        // What it is watched for is another thing now.
        true => crate::epoll::moved(endpoint),
        false => crate::epoll::look_again(endpoint),
    }
    Ok(())
}
