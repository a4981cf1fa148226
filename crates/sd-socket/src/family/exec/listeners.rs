//! Listeners across an exec: what the next image is told of them, and what it makes of that.

use crate::backlog::arrivals::refuse;
use crate::backlog::listener::{Listener, Pending, REGISTRY, UNREGISTERED};
use crate::process::PROCESS;
use crate::setup::listen::adopt;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;

/// A listener for the next image of the process.
pub(crate) struct Exported {
    /// Its number with the monitor, or UNREGISTERED.
    pub(crate) index: u32,
    pub(crate) backlog: u32,
    pub(crate) waiting: Vec<Pending>,
}

/// Before exec: peers find the listeners closed and ask the monitor; who asked to connect before is taken in (SYNC POINT: end of a
/// listener, with `listener_is_gone` in crates/sd-socket/src/setup/connect.rs).
pub(crate) fn suspend() {
    set_generations(1);
    sd_ring::fence_full();
    crate::epoll::drain();
}

/// The exec has failed.
pub(crate) fn resume() {
    set_generations(0);
}

fn set_generations(ahead: u32) {
    for listener in REGISTRY.lock().iter() {
        let index = listener.index.load(Ordering::Relaxed);
        if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index as usize)) {
            let generation = listener.generation.load(Ordering::Relaxed).wrapping_add(ahead);
            page.generation.store(generation, Ordering::Release);
        }
    }
}

/// All listeners.
pub(crate) fn exported() -> Vec<(&'static Endpoint, Exported)> {
    let export = |listener: &&'static Listener| {
        let endpoint = listener.socket.lock().map(|socket| socket.endpoint);
        let exported = Exported {
            index: listener.index.load(Ordering::Relaxed),
            backlog: listener.backlog.load(Ordering::Relaxed),
            waiting: listener.queue.lock().iter().copied().collect(),
        };
        endpoint.map(|endpoint| (endpoint, exported))
    };
    REGISTRY.lock().iter().filter_map(export).collect()
}

/// In a new image that leaves the listener to the kernel: who waits goes there too, when [`crate::setup::withdrawn::cannot_take`] has
/// been called.
pub(crate) fn leave_to_kernel(exported: &Exported) {
    if exported.index != UNREGISTERED {
        crate::monitor::client::unlisten_before_hello(exported.index);
    }
    exported.waiting.iter().for_each(|pending| pending.channel.unused());
}

/// In a new image: a listener of the one before. Without `endpoint` the exec has closed it, and who waits is
/// refused; else it will be registered again when the program shows that it accepts.
pub(crate) fn import(exported: Exported, endpoint: Option<&'static Endpoint>) {
    let Exported { index, backlog, waiting, .. } = exported;
    if index != UNREGISTERED {
        crate::monitor::client::unlisten_before_hello(index);
    }
    match endpoint.and_then(adopt) {
        Some(listener) => {
            listener.set_backlog(backlog);
            for pending in &waiting {
                pending.channel.queued.add(pending.slot, pending.generation);
            }
            listener.queue.lock().extend(waiting);
        }
        None => {
            for Pending { channel, slot, generation, .. } in waiting {
                if index != UNREGISTERED {
                    refuse(channel, slot, generation);
                }
                channel.unused();
            }
        }
    }
}
