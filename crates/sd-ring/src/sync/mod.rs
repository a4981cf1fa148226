//! Where two sides each say something and then look at what the other has said, so that one of them sees the other: the
//! protocols without their places. The words lie in shared memory, or in statics of a process; who uses them gives them.
//!
//! | SYNC POINT | one side | the other |
//! |---|---|---|
//! | [`events`] | a peer announces a slot | the process takes what was announced |
//! | [`sleepers`] | a thread says that it sleeps, looks, sleeps | a peer publishes, and wakes who sleeps |
//! | [`loose_sleepers`] | a thread says that it sleeps on a set, looks | another one takes an event in, and wakes it |
//! | [`thread_waker`] | a thread names its own eventfd | a peer rings that one; another thread displaces it |
//! | [`wake_target`] | a process says that it alone is to be woken | a peer wakes it, or whoever shares the connection |
//! | [`slot_state`] | a side declares a state, after all that belongs to it | the other side reads it |
//! | [`starving`] | the monitor says that connections wait, looks who is idle | a worker says that it is idle, looks |
//! | [`cancel`] | a thread is marked, sleepers are woken | a sleeper arms its word, looks whether it is marked |
//! | [`will_listen`] | a connect on its way to the kernel is noted | who is about to listen voids routes, looks at notes |
//! | [`reclaim`] | a thread counts itself, finds records | another one takes a record out, looks who is counted |
//! | [`roads`] | an end says which way its bytes go from here on | the other end looks, and reads what belongs to that |
//! | [`caretaker`] | a thread says that it will be back | another one that sleeps leaves the work to it |
//! | [`errand`] | a thread is at something | another one that wants it leaves it to that one |
//! | [`uses`] | a record gets another number, or its number leads elsewhere | a call on a number is counted in the record's word |
//! | [`copies`] | all numbers of a socket are turned to lead elsewhere | another thread makes one more of them |
//! | [`gone`] | a thread hears that the other side is gone, marks what is bound | another one binds a slot, looks |
//! | [`lent`] | a side lends a ring's memory to a device | the other one gives memory back to the system |
//!
//! Each has a loom model of its name in `tests/points`, which runs this code; `cargo xtask tidy` asks for it, and that each end
//! in the program names the others. The ring's own points are [`crate::doorbell`] and [`crate::token`].

pub mod cancel;
pub mod caretaker;
pub mod copies;
pub mod errand;
pub mod events;
pub mod gone;
pub mod lent;
pub mod loose_sleepers;
pub mod reclaim;
pub mod roads;
pub mod sleepers;
pub mod slot_state;
pub mod starving;
pub mod thread_waker;
pub mod uses;
pub mod wake_target;
pub mod will_listen;
