//! Channels that the monitor has made.

use crate::fd::hidden::Hidden;
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::process::PROCESS;
use sd_shm::channel::{Mapping, Side};
use sd_sys::msg;

/// Maps a channel that the monitor made: descriptors are segment, peer's page, peer's eventfd. Of the peer are known its
/// process id, and whether it is a stranger. Under `CONTROL`.
pub(crate) fn new_channel(
    id: u64,
    side: (Side, u32),
    (peer_pid, is_stranger): (u32, bool),
    got: msg::Received,
) -> Option<&'static Channel> {
    let &[segment, public, _] = got.fds.as_slice() else { return None };
    let peer_public = sd_shm::public::map_peer(public).ok()?;
    let Ok(map) = Mapping::map(segment) else {
        // SAFETY: just mapped, and nobody else knows of it.
        unsafe { sd_shm::public::unmap_peer(peer_public) };
        return None;
    };
    let [segment, _, event_fd] = got.fds.take()?;
    let (segment, event_fd) = (Hidden::of(segment), Hidden::of(event_fd));
    let peer = Peer::new(peer_pid, (Some(peer_public), event_fd), (id, side.0), is_stranger);
    PROCESS.add_channel(Channel::new(id, side, map, peer, segment))
}
