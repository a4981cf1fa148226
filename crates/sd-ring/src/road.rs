//! Which road the bytes of one direction take: the kernel's connection or the ring.
//!
//! Two ends have a TCP connection of the kernel's and, besides, a slot with two rings. Each direction moves by itself from
//! the kernel's connection to the ring, at an exact byte, and back. One life of a slot is one promotion, so
//! that nothing here needs an epoch:
//!
//! ```text
//!  sender     kernel ── SWITCHED, at P ──> ring ── marker, LEFT ──> kernel
//!  receiver   kernel ── has read P     ──> ring ── reads the marker ──> kernel
//! ```
//!
//! P counts bytes of the kernel's stream; nothing is put into that stream. What an end says stands in its [`RoadWord`], in
//! memory that both see. The word is the truth for all threads and processes that share the end: who dies between
//! two stores leaves a state from which the next one goes on.
//!
//! Pure: [`send`] and [`receive`] decide, the caller acts. `tests/road_model.rs` explores all orders in which two ends can
//! do what is decided here, with deaths in between; `tests/broken_model.rs` those of two ends at two hosts whose road breaks. Source: between two hosts the same question is
//! vSocket's hybrid connection set-up; SocksDirect §4.5.3 falls back at the beginning of a connection only.

use core::fmt;
use core::ops::BitOr;

/// What one end says about the roads of a connection, and about the direction it sends in. Bits are set and never cleared. The end
/// writes its own word, but for [`RoadWord::RESUME`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RoadWord(pub u32);

impl RoadWord {
    /// All waits of this end look at both roads.
    pub const ATTACHED: RoadWord = RoadWord(1);
    /// As sender: what follows byte P of the kernel's stream is in the ring. P was written before.
    pub const SWITCHED: RoadWord = RoadWord(2);
    /// As sender: the marker is the last that is, or will be, in the ring. Set by [`leaving`], so never beside RESUME.
    pub const LEAVING: RoadWord = RoadWord(4);
    /// As sender: what follows is in the kernel's stream, for as long as the slot lives. Without [`RoadWord::SWITCHED`]: this
    /// direction never was in the ring and never will be.
    pub const LEFT: RoadWord = RoadWord(8);
    /// The connection is to go back to the kernel, in both directions.
    pub const WANTS_KERNEL: RoadWord = RoadWord(16);
    /// Set by the receiver, by [`resuming`]: it reads no more from this end's ring. What lies there from byte Q on is to be sent
    /// again in the kernel's stream. Q was written before.
    pub const RESUME: RoadWord = RoadWord(32);
    /// Between hosts: it is known at this end that, and where, the other one has switched. Said by the engine of this end's host.
    pub const KNOWS: RoadWord = RoadWord(64);
    /// As the peer's: who carried the bytes of the rings is gone, or has let go of the slot for good. As an end's own: it has begun to say to the
    /// other one how far it has read ([`may_mend`]). Never carried to another host.
    pub const BROKEN: RoadWord = RoadWord(128);
    /// Between hosts: it is known at this end that the other one is attached. Said by the engine of this end's host.
    pub const HEARD: RoadWord = RoadWord(256);

    /// Whether all bits of `of` are set.
    #[inline]
    pub fn has(self, of: RoadWord) -> bool {
        self.0 & of.0 == of.0
    }
}

impl BitOr for RoadWord {
    type Output = RoadWord;

    fn bitor(self, other: RoadWord) -> RoadWord {
        RoadWord(self.0 | other.0)
    }
}

impl fmt::Debug for RoadWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            ["ATTACHED", "SWITCHED", "LEAVING", "LEFT", "WANTS_KERNEL", "RESUME", "KNOWS", "BROKEN", "HEARD"];
        let set = names.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| name);
        f.debug_list().entries(set).finish()
    }
}

/// What a sender does next. It holds the right to send, and looks again after each step but `Kernel` and `Ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Send {
    /// Write into the kernel's stream.
    Kernel,
    /// Write into the ring.
    Ring,
    /// Count the bytes written into the kernel's stream, store that as P, then set [`RoadWord::SWITCHED`] and ring the peer.
    Switch,
    /// Set [`RoadWord::LEFT`]: this direction stays in the kernel's stream.
    Decline,
    /// Set what [`leaving`] says, if the word is still the one that was looked at.
    Leave,
    /// Write the marker, if it is not yet the last in the ring, then set [`RoadWord::LEFT`] and ring the peer.
    Mark,
    /// Write what the ring holds from Q on into the kernel's stream; when all of it is there, set [`RoadWord::LEFT`].
    Resend,
}

/// What the sender at the end that says `own` does, where the other end says `peer`. `free`: nothing forbids a switch now, such
/// as an end of the stream or urgent data that went over the kernel.
#[inline]
pub fn send(own: RoadWord, peer: RoadWord, free: bool) -> Send {
    // No marker could follow what lies in the ring of a road that is gone.
    let is_broken = (own.0 | peer.0) & RoadWord::BROKEN.0 != 0;
    let is_wanted = (own.0 | peer.0) & RoadWord::WANTS_KERNEL.0 != 0;
    let wants = is_wanted && !is_broken || own.has(RoadWord::RESUME);
    let attached = own.has(RoadWord::ATTACHED) && peer.has(RoadWord::ATTACHED) && !is_broken;
    let on_ring = own.has(RoadWord::SWITCHED);
    match (own.has(RoadWord::LEFT), on_ring) {
        (true, _) => Send::Kernel,
        (false, false) if wants => Send::Decline,
        (false, false) if attached && free => Send::Switch,
        (false, false) => Send::Kernel,
        (false, true) if own.has(RoadWord::RESUME) => Send::Resend,
        (false, true) if own.has(RoadWord::LEAVING) => Send::Mark,
        (false, true) if wants => Send::Leave,
        (false, true) => Send::Ring,
    }
}

/// The words as the sender at an end takes them whose other end is another host's: bytes that it sends in the kernel's stream behind a switch overtake
/// the word of that, and would be taken for bytes in front of it. So nobody leaves the ring before the other end knows where he went there.
///
/// So does the end of the kernel's stream. Who knows that the other end is attached waits for what it says before he believes that; and nobody
/// goes to the ring before the other end knows that he is attached.
#[inline]
pub fn between_hosts(own: RoadWord, peer: RoadWord) -> [RoadWord; 2] {
    let is_untold = own.has(RoadWord::SWITCHED) && !peer.has(RoadWord::KNOWS);
    let hidden = if is_untold { RoadWord::WANTS_KERNEL.0 } else { 0 };
    let unheard = if peer.has(RoadWord::HEARD) { 0 } else { RoadWord::ATTACHED.0 };
    [RoadWord(own.0 & !hidden), RoadWord(peer.0 & !(hidden | unheard))]
}

/// What a receiver does next. It holds the right to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receive {
    /// Read at most so many bytes of the kernel's stream.
    Kernel(u64),
    /// Read the ring.
    Ring,
    /// Read the ring again, from so many bytes behind Q on: the peer was asked to send them again, and died before it did.
    Rest(u64),
    /// The peer says that it switched before a byte that has been read already.
    Lie,
}

/// What a receiver knows, besides what the sender says.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Bytes that lie in the kernel's stream, unread. **Asked before the peer's word is read**: what was there then was
    /// written before a switch that the word does not show yet. Bytes that come later may already stand behind the ring's.
    pub waiting: u64,
    /// Bytes read from the kernel's stream.
    pub read: u64,
    /// The peer's P; looked at only if it has switched.
    pub switched_at: u64,
    /// The marker was read from the ring.
    pub marker: bool,
    /// All of the kernel's stream was read, to its end. **Asked before the peer's word is read**: who lives says LEFT before the stream ends,
    /// or has sent all again that the ring holds.
    pub ended: bool,
}

/// What the receiver does, where the sender says `peer`.
#[inline]
pub fn receive(peer: RoadWord, at: Position) -> Receive {
    if at.ended && peer.has(RoadWord::RESUME | RoadWord::SWITCHED) && !peer.has(RoadWord::LEFT) {
        return at.read.checked_sub(at.switched_at).map_or(Receive::Lie, Receive::Rest);
    }
    if at.marker || peer.has(RoadWord::RESUME) || peer.has(RoadWord::LEFT) && !peer.has(RoadWord::SWITCHED) {
        return Receive::Kernel(u64::MAX);
    }
    if !peer.has(RoadWord::SWITCHED) {
        return Receive::Kernel(at.waiting);
    }
    match at.switched_at.checked_sub(at.read) {
        Some(0) => Receive::Ring,
        Some(left) => Receive::Kernel(left),
        None => Receive::Lie,
    }
}

/// The sender's word with [`RoadWord::LEAVING`]; `None` when the receiver was faster. To be put in by compare-and-exchange: exactly one
/// of a marker and a resumption ends what a ring carries, and both sides know which.
#[inline]
pub fn leaving(own: RoadWord) -> Option<RoadWord> {
    (!own.has(RoadWord::RESUME)).then_some(own | RoadWord::LEAVING)
}

/// The peer's word with [`RoadWord::RESUME`], set by the receiver that reads the ring no more; `None` when the sender is leaving
/// or has left: then the ring must be read up to the marker, by whoever goes on for this end. Compare-and-exchange, as [`leaving`].
#[inline]
pub fn resuming(peer: RoadWord) -> Option<RoadWord> {
    let declined = peer.has(RoadWord::LEFT) && !peer.has(RoadWord::SWITCHED);
    (declined || !peer.has(RoadWord::LEAVING)).then_some(peer | RoadWord::RESUME)
}

/// Whether an end has no more use for the slot: both directions are the kernel's for good, and it has read the ring to its
/// end. `marker`: it has read the marker.
#[inline]
pub fn is_over(own: RoadWord, peer: RoadWord, marker: bool) -> bool {
    let reads_stream = marker || peer.has(RoadWord::RESUME) || !peer.has(RoadWord::SWITCHED);
    own.has(RoadWord::LEFT) && peer.has(RoadWord::LEFT) && reads_stream
}

/// Whether an end whose road is gone may ask the other one, in the kernel's stream, how far that has read. Each end puts its own answer where
/// it has left that stream. So both must have left it, and each must know that the other one does not take what stands there for bytes of the
/// program. If not, the connection is reset.
#[inline]
pub fn may_mend(own: RoadWord, peer: RoadWord) -> bool {
    let over = RoadWord::ATTACHED | RoadWord::SWITCHED;
    let ends = RoadWord::LEAVING | RoadWord::LEFT | RoadWord::RESUME;
    own.has(over) && peer.has(over | RoadWord::KNOWS) && (own.0 | peer.0) & ends.0 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_hosts_nobody_leaves_a_ring_unknown() {
        let all = |bits: u32| (0..512).map(RoadWord).filter(move |word| word.0 & bits == 0);
        let decided = (RoadWord::LEAVING | RoadWord::LEFT | RoadWord::RESUME).0;
        for (own, peer) in all(decided).flat_map(|own| all(0).map(move |peer| (own, peer))) {
            let own = own | RoadWord::SWITCHED;
            let [told_own, told_peer] = between_hosts(own, peer);
            let next = send(told_own, told_peer, true);
            match peer.has(RoadWord::KNOWS) {
                false => assert_eq!(next, Send::Ring, "{own:?} {peer:?}"),
                true => assert_eq!(next, send(own, peer, true), "{own:?} {peer:?}"),
            }
        }
    }

    #[test]
    fn between_hosts_nobody_goes_to_a_ring_unheard() {
        let attached = RoadWord::ATTACHED;
        let next = |peer| {
            let [own, peer] = between_hosts(attached, peer);
            send(own, peer, true)
        };
        assert_eq!(
            next(attached),
            Send::Kernel,
            "an end of the kernel's stream would hide what is in the ring"
        );
        assert_eq!(next(attached | RoadWord::HEARD), Send::Switch);
        assert_eq!(next(attached | RoadWord::WANTS_KERNEL), Send::Decline);
    }
}
