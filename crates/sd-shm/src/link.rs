//! What stands behind a side of a channel: a process that has mapped it, or a *pump*, which plays the side and moves the bytes
//! elsewhere (ADR 72).
//!
//! A word for each side, in the channel's header. Zero is a process of this host that looks at the channel itself; each bit says
//! what is different. The monitor writes it before anybody has the channel, and whoever maps the channel reads it once. The other side can
//! write it too: with any value there, who believes it wakes more often, keeps memory longer, or tells more than needed.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(u32);

impl Link {
    /// A process of this host.
    pub const LOCAL: Link = Link(0);
    /// A pump on this host, between two processes of it.
    pub const PUMP: Link = Link(Link::NO_SLEEPERS | Link::MUST_BE_TOLD | Link::NO_THREADS);
    /// One that is as prompt as the kernel's loopback.
    pub const PROMPT_PUMP: Link = Link(Link::PUMP.0 | Link::ANSWERS);

    /// The engine of this host, behind which is another one.
    pub const ENGINE: Link = Link(Link::MUST_BE_TOLD | Link::NO_THREADS | Link::SENDS_ONCE);

    const NO_SLEEPERS: u32 = 1;
    const MUST_BE_TOLD: u32 = 2;
    const NO_THREADS: u32 = 4;
    const KEEPS_MEMORY: u32 = 8;
    const NO_PID: u32 = 16;
    const ANSWERS: u32 = 32;
    const SENDS_ONCE: u32 = 64;

    /// What a word of a header says; bits that are not known say nothing.
    pub fn of(word: u32) -> Link {
        Link(word)
    }

    /// As it stands in the header.
    pub fn word(self) -> u32 {
        self.0
    }

    /// The public page that came with the channel says whether somebody sleeps there. If not it is another's page, that of
    /// the process which listens, and the eventfd is to be rung each time.
    pub fn says_who_sleeps(self) -> bool {
        self.0 & Link::NO_SLEEPERS == 0
    }

    /// It looks only when it is rung: what others would find by looking has to be announced.
    pub fn must_be_told(self) -> bool {
        self.0 & Link::MUST_BE_TOLD != 0
    }

    /// Its single threads can be woken.
    pub fn wakes_threads(self) -> bool {
        self.0 & Link::NO_THREADS == 0
    }

    /// Memory of rings that were read may be given back. Not where a device reads and writes it, which would go on with the old pages.
    /// The loopback pump gives its own back too.
    pub fn gives_memory_back(self) -> bool {
        self.0 & Link::KEEPS_MEMORY == 0
    }

    /// Who rings waits a moment, until the other side has looked ([`Header::rung`](crate::channel::Header::rung)): what was
    /// published has come to the other end then, as with the kernel's loopback, on whose promptness some programs rely.
    pub fn answers(self) -> bool {
        self.0 & Link::ANSWERS != 0
    }

    /// A receiver may stop reading and ask that the rest be sent again through the kernel ([`RoadWord::RESUME`](sd_ring::road::RoadWord)). That needs a
    /// word that both ends change at the same place, so that the sender does not leave at that moment: two hosts have none.
    pub fn sends_again(self) -> bool {
        self.0 & Link::SENDS_ONCE == 0
    }

    /// The process id that comes with the channel tells whether the other end lives.
    pub fn has_pid(self) -> bool {
        self.0 & Link::NO_PID == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_process_that_can_everything() {
        let local = Link::of(0);
        assert_eq!(local, Link::LOCAL);
        assert!(
            local.says_who_sleeps() && local.wakes_threads() && local.gives_memory_back() && local.has_pid()
        );
        assert!(!local.must_be_told() && !local.answers() && local.sends_again());
    }

    #[test]
    fn a_pump_is_rung_each_time_and_told_of_all() {
        let pump = Link::of(Link::PUMP.word());
        assert!(pump.must_be_told() && !pump.says_who_sleeps() && !pump.wakes_threads());
        assert!(pump.gives_memory_back() && pump.has_pid() && !pump.answers());
        assert!(Link::PROMPT_PUMP.answers() && Link::PROMPT_PUMP.must_be_told() && pump.sends_again());
        assert!(Link::ENGINE.says_who_sleeps() && !Link::ENGINE.sends_again());
    }
}
