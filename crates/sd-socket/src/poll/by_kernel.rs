//! A poll of the kernel's, in a process of several threads, on connections that may be moved to shared memory: the thread is in a call on them
//! until it ends, as one that sleeps in recv is (`watched`), so none is moved while it could not be told of what comes in a ring.
//!
//! For one or two of them: clients with a connection for each thread wait like that, and Java and Python for each connection with a time-out. A longer
//! list would cost more than poll itself; its connections stay the kernel's (`watched::waits_elsewhere`).

use crate::fd::table::{self, Entry};
use crate::process::single_threaded;
use crate::setup::watched;
use libc::{c_int, pollfd};
use sd_sys::thread;

const MOST: usize = 2;

/// Before a poll. True: the kernel can be asked, and [`left`] follows.
pub(crate) fn enter(fds: &[pollfd]) -> bool {
    // A handler of a signal may poll while the thread does.
    if single_threaded() || thread::polled() != [0; MOST] {
        return false;
    }
    let Some(numbers) = numbers(fds) else { return false };
    for (at, &number) in numbers.iter().enumerate() {
        if number >= 0 && watched::enter(number, 0) {
            // Another thread has moved it just now.
            leave(numbers.iter().take(at));
            return false;
        }
    }
    thread::set_polled(numbers.map(|number| (number + 1) as u32));
    true
}

/// After it; it is not asked which numbers the list has now.
pub(crate) fn left() {
    let numbers = thread::polled();
    if numbers != [0; MOST] {
        thread::set_polled([0; MOST]);
        leave(numbers.map(|number| number as c_int - 1).iter());
    }
}

fn leave<'a>(numbers: impl Iterator<Item = &'a c_int>) {
    numbers.filter(|number| **number >= 0).for_each(|number| watched::left(*number, false));
}

/// The connections of a list that may be moved, -1 for none. `None`: it has none of them, too many, or others of ours.
fn numbers(fds: &[pollfd]) -> Option<[c_int; MOST]> {
    let (mut numbers, mut count) = ([-1; MOST], 0);
    for entry in fds.iter().filter(|entry| table::is_ours(entry.fd)) {
        let is_watched = match table::get(entry.fd) {
            Entry::Kernel(_) => watched::is_watched(entry.fd),
            Entry::First(_) | Entry::Early => true,
            Entry::Epoll(epoll) if crate::epoll::has_ours(epoll.epoll()) => return None,
            Entry::Socket(_) => return None,
            _ => false,
        };
        if is_watched {
            *numbers.get_mut(count)? = entry.fd;
            count += 1;
        }
    }
    (count != 0).then_some(numbers)
}
