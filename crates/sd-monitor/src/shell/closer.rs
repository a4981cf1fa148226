//! Closes what cannot be trusted to close quickly.
//!
//! close(2) of a stranger's descriptor may take as long as the stranger likes (SO_LINGER, a file
//! system served by a process), and so may closing a socket in whose queue such descriptors lie.
//! A thread does it, which exists from the first such descriptor on; a monitor whose clients behave
//! never has it.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};

/// See the module.
#[derive(Default)]
pub(crate) struct Closer {
    queue: Option<Sender<OwnedFd>>,
}

impl Closer {
    /// Closes a descriptor some time. Those that wait count against our limit of descriptors, so
    /// the queue needs none of its own.
    pub(crate) fn close(&mut self, fd: OwnedFd) {
        if self.queue.is_none() {
            let (queue, waiting) = channel();
            let thread = std::thread::Builder::new().name("closer".into());
            match thread.spawn(move || waiting.into_iter().for_each(drop::<OwnedFd>)) {
                Ok(_) => self.queue = Some(queue),
                Err(error) => tracing::warn!("no thread for closing descriptors: {error}"),
            }
        }
        if let Some(queue) = &self.queue {
            let _ = queue.send(fd);
        }
    }
}
