//! What the monitor decides, without doing it: no system call, no clock, no shared memory.
//!
//! Everything here is a plain value or a table; the shell feeds it with what clients say and acts
//! on what it returns. So it is tested by itself, and a simulator can run it.

pub(crate) mod channels;
pub(crate) mod dispatch;
pub(crate) mod holdings;
pub(crate) mod listeners;
pub(crate) mod members;
pub(crate) mod offers;
pub(crate) mod policy;
pub(crate) mod ports;
pub(crate) mod quotas;
pub(crate) mod time_wait;

/// A registered process image; also names its slab, and so the family that shares the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// All tables.
pub(crate) struct Core {
    pub(crate) policy: policy::Policy,
    pub(crate) listeners: listeners::Listeners,
    pub(crate) leases: ports::Leases,
    pub(crate) members: members::Members,
    pub(crate) offers: offers::Offers,
    pub(crate) channels: channels::Channels,
    pub(crate) quotas: quotas::Quotas,
    pub(crate) time_waits: time_wait::TimeWaits,
}
