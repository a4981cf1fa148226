//! Bytes that are received for nobody: a bridge has passed on what it only looked at, and the program behind it has read that.

use crate::data::iov::Pieces;
use crate::data::stream::{self, add, publish_credit};
use crate::data::urgent::{self, Meeting, Situation};
use crate::socket::apart;
use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, RX_KERNEL};
use core::sync::atomic::Ordering;
use sd_ring::Next;
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::Endpoint;

/// Takes so many bytes out of a connection of which `received` bytes were received when they were looked at. `None`: somebody has received
/// since, and nobody can tell what. Otherwise how many were taken, and how many were received by then. Between the look at that count and
/// the last byte nobody else receives.
pub(crate) fn discard(endpoint: &'static Endpoint, received: u64, wanted: u64) -> Option<(u64, u64)> {
    if road::is_by_kernel(endpoint, RX_KERNEL) {
        // Such bytes are not counted.
        return Some((discard_kernels(endpoint, wanted), received));
    }
    let mut half = endpoint.rx_token();
    let count = || endpoint.rx().bytes.load(Ordering::Relaxed);
    if count() != received {
        return None;
    }
    let rx = half.cursor();
    let mut taken = 0;
    while taken < wanted {
        match apart::next(endpoint, rx) {
            Ok(Next::Data { len, .. }) => {
                let len = u64::from(len).min(wanted - taken);
                rx.advance(len as u32);
                taken += len;
                add(&endpoint.rx().bytes, len);
                if let Some(consumed) = rx.credit_due(&GEOMETRY) {
                    publish_credit(endpoint, consumed);
                }
            }
            Ok(Next::Urgent) => {
                match urgent::meet(endpoint, rx, Situation { any: taken != 0, urged: false }) {
                    Meeting::Take => rx.admit_urgent(),
                    Meeting::Skip => {
                        rx.admit_urgent();
                        rx.advance(1);
                        add(&endpoint.rx().bytes, 1);
                    }
                    Meeting::Wait | Meeting::Urge | Meeting::Stop => break,
                }
            }
            _ => break,
        }
    }
    Some((taken, count()))
}

/// Those that come through the kernel's connection. Below this is all that a wait takes of the stack (ADR 118): hence few bytes at a time.
#[cold]
fn discard_kernels(endpoint: &'static Endpoint, wanted: u64) -> u64 {
    let (mut bytes, mut taken) = ([0u8; 256], 0);
    while taken < wanted {
        let len = (wanted - taken).min(bytes.len() as u64) as usize;
        match stream::recv(endpoint, Pieces::one(bytes.as_mut_ptr(), len), libc::MSG_DONTWAIT) {
            Ok(0) | Err(_) => break,
            Ok(got) => taken += got as u64,
        }
    }
    taken
}
