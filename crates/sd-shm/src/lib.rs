//! What lies in shared memory, and who may write it.
//!
//! | segment | made by | mapped by | holds |
//! |---|---|---|---|
//! | [`channel`] | the monitor | two processes (and their children), the monitor | connections' slots and rings |
//! | [`slab`] | a process | that process, its children, the monitor | its sockets: cursors, options, names |
//! | [`public`] | a process | that process; read-only its peers and the monitor | sleepers, listeners |
//!
//! Every segment is a memfd sealed against shrinking and growing before anybody else maps it, so a
//! mapping can never fault. Everything is made of atomics, because a hostile peer may write at any
//! time; what it writes is checked by whoever reads it. Layouts are proved at compile time.

pub mod channel;
pub mod public;
pub mod slab;

/// Changes whenever a layout here or a control message changes; both sides must agree.
pub const VERSION: u32 = 1;
