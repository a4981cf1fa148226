//! Something that one thread at a time does for all: who wants it while another is at it leaves it to that one.
//!
//! ```text
//!  wants it                       does it
//!  changes what it is about       says that it is at it; or leaves it to who is
//!  want: WANTED                   takes WANTED away, does it
//!  run: at it already? leaves it  says that it is not at it; was it WANTED again? begins anew
//! ```
//! All change the same word, so nothing that was wanted is left to somebody who has looked already.

use crate::facade::{AtomicU32, Ordering};

const WANTED: u32 = 1;
const AT_IT: u32 = 2;

/// See the module.
pub struct Errand(AtomicU32);

impl Errand {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Errand {
        Errand(AtomicU32::new(0))
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Errand {
        Errand(AtomicU32::new(0))
    }

    /// It is to be done: for what the caller has changed before.
    pub fn want(&self) {
        self.0.fetch_or(WANTED, Ordering::AcqRel);
    }

    /// A cheap look.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }

    /// Does it until it is not wanted any more; at least once, unless somebody is at it, who then does it again.
    pub fn run(&self, mut work: impl FnMut()) {
        while self.0.fetch_or(AT_IT, Ordering::AcqRel) & AT_IT == 0 {
            self.0.fetch_and(!WANTED, Ordering::AcqRel);
            work();
            if self.0.fetch_and(!AT_IT, Ordering::AcqRel) & WANTED == 0 {
                return;
            }
        }
    }

    /// Nothing is wanted, and nobody is at it: in the child of a fork, or where it has no object any more. Also where the fork was made by a handler
    /// that interrupted the work, which then ends.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_meanwhile_is_done_again() {
        let errand = Errand::new();
        let mut done = 0;
        errand.want();
        errand.run(|| {
            done += 1;
            if done < 3 {
                errand.want();
                errand.run(|| unreachable!("one at a time"));
            }
        });
        assert_eq!(done, 3);
        assert!(!errand.is_wanted());
        errand.run(|| done += 1);
        assert_eq!(done, 4, "though nobody had wanted it");
    }

    #[test]
    fn work_ends_in_the_child_of_a_handler() {
        let errand = Errand::new();
        let mut done = 0;
        errand.run(|| {
            done += 1;
            errand.reset();
        });
        errand.run(|| done += 1);
        assert_eq!(done, 2, "each once");
    }
}
