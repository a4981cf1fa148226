//! A bridge where the process that has the connection may start none (RLIMIT_NPROC, pids.max, a filter): the monitor does.
//!
//! ```text
//!  sender  --Bridge: one end of a pair of sockets--> monitor --starts, as the sender's user--> helper
//!  sender  --the bridge's end of the TCP pair, what a bridge is told; endpoint, slab, segment, eventfds--> helper
//!  helper  --one byte--> sender                   it holds the connection too, and is the bridge
//! ```
//! The helper takes the connection as a receiver of SCM_RIGHTS does (see `handover`). It has fewer rights than the sender: no
//! capabilities, and a filter that leaves it the calls that a bridge makes, none of which reaches a file or a process. It
//! does all of that before it reads what the sender says; `sd` does it, whose hidden command this is.
//!
//! Not guaranteed: that there is one. A sender gives up after `HELPER_MS`, and each of the two knows then who has the
//! connection, as in a hand-over.

use super::{Gate, Reads, run};
use crate::family::handover;
use crate::fd::hidden::Hidden;
use crate::monitor::client;
use alloc::vec::Vec;
use sd_shm::slab::Endpoint;
use sd_sys::fd::Owned;
use sd_sys::{fd, msg};

/// So long the sender waits, in which a process starts and registers with the monitor.
const HELPER_MS: u32 = 2000;
/// Helpers that are asked for, one after the other: where the segment has to be mapped something else of a helper's may lie.
const HELPERS_MAX: u32 = 3;

impl Reads {
    const ALL: [Reads; 2] = [Reads::AtOnce, Reads::AsRead];

    fn number(self) -> u8 {
        Reads::ALL.iter().position(|reads| *reads == self).unwrap_or_default() as u8
    }

    fn of(number: u8) -> Option<Reads> {
        Reads::ALL.get(usize::from(number)).copied()
    }
}

/// What a bridge is told beside the connection: a listener for receivers, and when it begins.
type Told<'a> = (Option<i32>, Option<&'a Gate>);

/// In the sender: the connection has a bridge, at the other end of whose pair `inner` is. `None`: it has not, and nothing has
/// changed.
pub(super) fn ask(endpoint: &'static Endpoint, reads: Reads, inner: i32, told: Told<'_>) -> Option<()> {
    let began = sd_sys::time::now_ns();
    let has_time = || sd_sys::time::now_ns().saturating_sub(began) < u64::from(HELPER_MS) * 1_000_000 / 2;
    (0..HELPERS_MAX)
        .find_map(|tried| (tried == 0 || has_time()).then(|| ask_one(endpoint, reads, inner, told)).flatten())
}

fn ask_one(endpoint: &'static Endpoint, reads: Reads, inner: i32, told: Told<'_>) -> Option<()> {
    let [helpers, ours] = msg::pair_with_credentials().ok()?;
    let is_asked = client::ask_for_helper(helpers.raw());
    drop(helpers);
    if is_asked { give(ours.raw(), endpoint, reads, inner, told) } else { None }
}

/// How to read, then which descriptors come along: one byte each, and the bridge's end of the pair always.
const PLAN_LEN: usize = 4;

fn give(
    ours: i32,
    endpoint: &'static Endpoint,
    reads: Reads,
    inner: i32,
    (listener, gate): Told<'_>,
) -> Option<()> {
    msg::set_timeout(ours, HELPER_MS).ok()?;
    let [opened, maker] = gate.map_or([-1; 2], Gate::numbers);
    let optional = [listener.unwrap_or(-1), opened, maker];
    let [a, b, c] = optional.map(|fd| u8::from(fd >= 0));
    let mut fds = vec![inner];
    fds.extend(optional.into_iter().filter(|fd| *fd >= 0));
    let plan: [u8; PLAN_LEN] = [reads.number(), a, b, c];
    msg::send_with_fds(ours, &plan, &fds, 0).ok()?;
    handover::offer(ours, endpoint, fd::getpid())
}

/// In the helper, whose sockets these are: to who sends the connection, and to the monitor. Before any other thread is there.
/// Returns when there is nothing to do.
pub fn serve(sender: i32, monitor: i32) {
    if !crate::fd::table::init() {
        return;
    }
    crate::process::fence::ask_for();
    client::set_image_fd(Hidden::of(Owned::new(monitor)));
    let Some(Plan { reads, inner, listener, gate }) = plan(sender) else { return };
    if let Some(endpoint) = handover::take_over(sender) {
        // The bridge closes them itself, as one that is a fork of the sender does.
        let gate = core::mem::ManuallyDrop::new(gate);
        run(endpoint, reads, inner.into_raw(), (listener.map(Owned::into_raw), gate.as_ref()));
    }
}

struct Plan {
    reads: Reads,
    inner: Owned,
    listener: Option<Owned>,
    gate: Option<Gate>,
}

/// What the sender says first.
fn plan(sender: i32) -> Option<Plan> {
    msg::set_timeout(sender, HELPER_MS).ok()?;
    let mut plan = [0; PLAN_LEN];
    let got = msg::recv_with_fds(sender, &mut plan, 0).ok()?;
    let [reads, has_listener, has_gate, has_maker] = plan;
    let reads = Reads::of(reads).filter(|_| got.len == PLAN_LEN)?;
    let mut fds = Vec::new();
    got.fds.hand_over(|fd| fds.push(fd));
    let mut fds = fds.into_iter();
    let mut next = |is_there| if is_there == 0 { None } else { fds.next() };
    let inner = next(1)?;
    let (listener, opened, maker) = (next(has_listener), next(has_gate), next(has_maker));
    let gate = opened.map(|opened| Gate::of(opened, maker));
    Some(Plan { reads, inner, listener, gate })
}
