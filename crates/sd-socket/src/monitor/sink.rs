//! What becomes of what the monitor says, and of the connection to it: done by folders above (`setup::mail`).

use super::client::Control;
use crate::process::above::Above;
use sd_proto::Reply;
use sd_sys::msg::Received;

/// See the module. Each but [`Sink::deliver`] is called under `CONTROL`.
pub(crate) struct Sink {
    /// Notes what was said unasked; an answer is returned, with what came along.
    pub(crate) take_in: fn(&mut Control, Reply, Received) -> Option<(Reply, Received)>,
    /// Acts on what was noted; under no lock that a peer's event could need.
    pub(crate) deliver: fn(),
    /// An answer that nobody waits for any more, over this connection.
    pub(crate) late: fn(i32, Reply, Received),
    /// The monitor has welcomed this process, with these descriptors.
    pub(crate) welcomed: fn(&Received),
    /// The process has registered over this connection; whether it had registered before.
    pub(crate) registered: fn(&mut Control, i32, bool),
    /// There is no monitor any more.
    pub(crate) lost: fn(),
    /// There is one again; under no lock.
    pub(crate) is_back: fn(),
    /// The program has closed the library's descriptors past libc.
    pub(crate) closed: Closed,
}

/// What becomes of the descriptors of channels and sockets that were closed past libc (see `client::resume`).
pub(crate) struct Closed {
    /// Whether there is none that nobody can give back.
    pub(crate) can_be_given_back: fn() -> bool,
    /// Those are forgotten that are asked for again when they are needed.
    pub(crate) forget: fn(),
    /// The others are asked for, over this connection, and put back; `None` when that cannot be done.
    pub(crate) restore: fn(&mut Control, i32) -> Option<()>,
}

/// Filled in at start-up.
pub(crate) static SINK: Above<Sink> = Above::empty();

/// See [`Sink::take_in`].
pub(super) fn take_in(control: &mut Control, reply: Reply, got: Received) -> Option<(Reply, Received)> {
    match SINK.get() {
        Some(sink) => (sink.take_in)(control, reply, got),
        None => Some((reply, got)),
    }
}
