//! Listeners, and connections that wait to be accepted.
//!
//! ```text
//!  a slot is announced --> `arrivals` --> the listener's queue (`listener`) --> setup's accept
//!                                            `defer`: ripe when the first bytes are there
//! ```
//! Who watches a listener is told by folders above: [`arrivals::arrived`] says of which one.
//!
//! *Owns*: the records of listeners and their queues. *Uses*: `socket`, `link`, `monitor`, `process`. *Locks*: the registry of listeners
//! before a listener's queue.
//!
//! | task | place |
//! |---|---|
//! | the backlog, arrival of connections | `listener`, `arrivals`; what a process asks for at most: `link::outstanding` |
//! | TCP_DEFER_ACCEPT | `defer` |
//! | what waits at busy siblings | `beside`; complaints of clients: `setup::adopt` |

pub(crate) mod arrivals;
pub(crate) mod beside;
pub(crate) mod defer;
pub(crate) mod listener;
