//! How an engine stands with another host's.

crate::numbered! {
/// Whether another host's engine is reached, or why not.
pub enum PeerState {
    /// That one calls, and has not.
    Awaited = 0,
    /// It is reached, and there is a session.
    Up = 1,
    /// This one calls, and nothing is known yet.
    Calling = 2,
    /// The kernel there refuses the connection.
    Refused = 3,
    /// The kernel here knows no way.
    NoRoute = 4,
    /// Nothing comes back.
    Silent = 5,
    /// One of the two shows another key than the other one awaits.
    OtherKey = 6,
    /// One says `plain`, `shared` or `key=`, and the other something else.
    NotAlike = 7,
    /// It ends the greeting without a word.
    Unwelcome = 8,
    /// It does not speak as an engine of this version does.
    Noise = 9,
    /// It was reached, and has ended.
    Ended = 10,
    /// The kernel's connection has failed.
    Broken = 11,
    /// This host has no key of the kind that the hosts file asks for.
    NoKey = 12,
}
or none
}

impl PeerState {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            PeerState::Up => "reached",
            PeerState::Awaited => "it has not called yet",
            PeerState::Calling => "it is called, and has not answered yet",
            PeerState::Refused => "nobody listens there",
            PeerState::NoRoute => "there is no way to it",
            PeerState::Silent => "it does not answer",
            PeerState::OtherKey => "one of the two has another key than the other one's hosts file says",
            PeerState::NotAlike => "the hosts files do not agree on plain, shared or key",
            PeerState::Unwelcome => "it ends the greeting",
            PeerState::Noise => "it does not speak as an engine of this version",
            PeerState::Ended => "it has ended the connection",
            PeerState::Broken => "the connection to it fails",
            PeerState::NoKey => "this host has no key of the kind that its hosts file asks for",
        }
    }
}

crate::numbered! {
/// What carries packets to another host's engine.
pub enum Carrier {
    /// A kernel's TCP connection.
    Trunk = 0,
    /// UDP, as the trunk suffers from loss or is not allowed.
    Datagram = 1,
    /// Writes into the other engine's memory, as both hosts have a device.
    Rdma = 2,
}
or none
}

impl Carrier {
    /// Its name.
    pub const fn text(self) -> &'static str {
        match self {
            Carrier::Trunk => "trunk",
            Carrier::Datagram => "datagram",
            Carrier::Rdma => "rdma",
        }
    }
}

crate::table::by_number!(Carrier::Trunk PeerState::Awaited);
