//! The monitor wants connections back in the kernel (`sd demote`, or another policy).

use crate::epoll;
use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use crate::socket::{history, life, names, road};
use core::sync::atomic::Ordering;
use sd_proto::Ip;
use sd_shm::slab::{Endpoint, Moved, State};

/// Those go back of which one end has this name; zero and an unspecified address stand for any. The caller holds no lock.
pub(super) fn asked((ip, port): (Ip, u16), at_once: bool, why: Moved) {
    for rec in PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire)) {
        let Some(slab) = rec.slab() else { continue };
        for index in 0..slab.header().high.load(Ordering::Acquire) as usize {
            let Some(endpoint) = slab.endpoint(index) else { break };
            let is_promoted = endpoint.state_now() == State::Connected && road::is_promoted(endpoint);
            if is_promoted && has_name(endpoint, (ip, port)) && life::retain_open(endpoint) {
                history::leaves_for(endpoint, why);
                if !at_once || !epoll::go_back_at_once(endpoint) {
                    epoll::go_back(endpoint);
                }
                life::release(endpoint);
                epoll::give_back(endpoint);
            }
        }
    }
}

fn has_name(endpoint: &Endpoint, (ip, port): (Ip, u16)) -> bool {
    let (local, peer) = names::of(endpoint);
    let is_it = |name: &crate::socket::addr::Name| {
        (port == 0 || port == name.port) && (ip.is_unspecified() || ip == name.ip)
    };
    [local, peer].iter().any(is_it)
}
