//! Descriptor numbers: what they lead to.
//!
//! `table` answers for each number in one load whether it is ours; `ops` is close, dup, fcntl and ioctl; `pin` keeps a listener
//! from going away under a call (the kernel's fget and fput).
//!
//! *Owns*: the table of numbers. *Uses*: nothing. *Locks*: the table has none; a number belongs to who opened it, as in the kernel.
//!
//! | task | place |
//! |---|---|
//! | close, dup, fcntl, ioctl | `ops` |
//! | what a number leads to | `table` |
//! | a listener closed under a call | `pin` |

pub(crate) mod ops;
pub(crate) mod pin;
pub(crate) mod table;
