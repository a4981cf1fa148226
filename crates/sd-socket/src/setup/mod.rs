//! From nothing to a connection: bind, connect, listen, accept.
//!
//! ```text
//!  connect --SYN in a free slot--> backlog (the listener's queue) --> `accept`
//!     `syn_sent` until answered        `adopt`: another process of the listener's takes it
//! ```
//! `first_contact` and `withdrawn` are the ways to and from the kernel; `before_monitor` is a listener without a monitor;
//! `admission` asks whether the policy lets the other side in; `time_wait` keeps ports; `unconnected` calls on sockets that are none yet.
//!
//! `mail` acts on what the monitor says unasked; `restored` takes back what the program has closed past libc; `remember` notes the options of a socket.
//!
//! *Owns*: connects that wait. *Uses*: every folder below.
//!
//! | task | place |
//! |---|---|
//! | connect | `connect`; a full backlog: `syn_sent`; fall-back to the kernel: `to_kernel` |
//! | listen; a connect that meets a listen | `listen`; `first_contact`; the monitor's `shell/soon.rs` |
//! | listen without a monitor; who is expected to listen | `before_monitor`, `monitor::client::absent`; the monitor's `shell/expected.rs` (ADR 53) |
//! | accept | `accept`; the backlog: folder `backlog` |
//! | which ports are in use, TIME-WAIT | `time_wait`; the monitor's `shell/bind.rs` |
//! | what the monitor sends unasked | `mail` |
//! | descriptors of channels that the program closed past libc | `restored`; `monitor::client::resume` |
//! | send and recv without a connection | `unconnected` |
//! | connections that go to a sibling | `adopt`, `listen::offered`; the monitor's `shell/rescue.rs`, `shell/parked.rs` |
//! | connections of the kernel's that go over to shared memory | which: `watched`, `crowd`; who is in a call on one: `counted`; how: `promote`, and those that wait for it in `offers`; afterwards: `socket::road` |
//! | and back, when the monitor says so | `demote`; how: `socket::way_back`, `epoll::way_back` |
//! | all of them, as the process is about to be checkpointed | `detach`; by what they are known afterwards: `began`; the rest: `family::detach` |
//! | one that a parent has accepted for its child | `inherited` |
//! | the same, of a server that has left its monitor | `handed_on`; how it leaves: `family::hands_on` (ADR 94) |
//! | the first connection of a process, which may not live for long | `first` (ADR 79) |
//! | connections that are made while there is no monitor | `unregistered` (ADR 85) |
//! | connections that nobody accepts go to the kernel | `withdrawn`; the monitor's `shell/withdrawal.rs` |

pub(crate) mod accept;
pub(crate) mod admission;
pub(crate) mod adopt;
mod before_monitor;
pub(crate) mod began;
pub(crate) mod bind;
pub(crate) mod connect;
pub(crate) mod counted;
mod crowd;
mod demote;
mod detach;
pub(crate) mod first;
mod first_contact;
pub(crate) mod handed_on;
pub(crate) mod inherited;
pub(crate) mod listen;
pub(crate) mod mail;
mod offering;
mod offers;
pub(crate) mod promote;
pub(crate) mod remember;
mod restored;
pub(crate) mod syn_sent;
mod time_wait;
mod to_kernel;
pub(crate) mod unconnected;
pub(crate) mod unregistered;
pub(crate) mod watched;
pub(crate) mod withdrawn;
