//! Descriptor numbers: what they lead to.
//!
//! `table` answers for each number in one load whether it is ours; `hidden` owns descriptors of the library's own.
//!
//! *Owns*: the table of numbers. *Uses*: nothing. *Locks*: the table has none; a number belongs to who opened it, as in the kernel.

pub(crate) mod hidden;
pub(crate) mod table;
