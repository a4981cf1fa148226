//! By which carrier packets go to another engine: the trunk, or datagrams while the trunk suffers from loss.
//!
//! ```text
//!            the kernel has sent again, or the trunk is gone:      datagrams are asked
//!   TRUNK ─────────────────────────────── they answer ──────────────────────────────> DATAGRAMS
//!         <── they answer no questions any more; or they lost nothing for a while ───
//! ```
//! A loss on a trunk stops all connections that are on it until the kernel has mended it, one on datagrams stops those whose bytes were in it. Without
//! loss the trunk is the better one: more goes with a system call, and the kernel acknowledges it. So a trunk is used until it shows loss. That it shows none
//! when nothing goes by it says nothing: after a while without loss on datagrams it is tried, and if it suffers again, the next while is twice as long.
//!
//! Each engine chooses for what it sends. No I/O and no clock: what was seen goes in, what to do comes out.

use sd_keys::hosts::Carriers as Allowed;
use sd_link::Health;
use sd_proto::Carrier;

/// An answer by the trunk that takes longer is late: it comes within a round trip and the millisecond for which an engine gathers acknowledgements.
const STALL_NS: u64 = 20_000_000;
/// A trunk is looked at so often while something goes by it.
const EVERY_NS: u64 = 10_000_000;
/// Segments that were sent again are counted over so long.
const WINDOW_NS: u64 = 1_000_000_000;
/// So many of them, and one in so many of all, are loss: less costs a trunk nothing that could be measured.
const AGAIN_MIN: u64 = 3;
const AGAIN_PART: u64 = 1_000;
/// Datagrams without loss: fewer than one in so many.
const CLEAN_PART: u64 = 4_000;
/// Questions without an answer, each after twice as long, after which datagrams do not arrive: some 60 ms.
const SILENT: u32 = 6;
/// Datagrams are asked again after this, and then after twice as long, up to the second.
const ASKS_NS: [u64; 2] = [20_000_000, 1_000_000_000];
/// They are used for so long at first, and at last.
const HOLDS_NS: [u64; 2] = [5_000_000_000, 600_000_000_000];
/// A trunk that suffers within so long after it was tried was tried too early.
const EARLY_NS: u64 = 30_000_000_000;

/// What carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Trunk,
    Datagrams,
    /// Not chosen here: where it is open, all goes by it.
    Rdma,
}

impl Way {
    pub(crate) fn carrier(self) -> Carrier {
        match self {
            Way::Trunk => Carrier::Trunk,
            Way::Datagrams => Carrier::Datagram,
            Way::Rdma => Carrier::Rdma,
        }
    }
}

/// What was seen of both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// If there is one.
    pub(crate) trunk: Option<TrunkSeen>,
    /// If they can be sent.
    pub(crate) datagrams: Option<Health>,
}

/// See [`Seen`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrunkSeen {
    pub(crate) health: Health,
    /// Of the kernel, since the trunk was made.
    pub(crate) segments: u64,
    pub(crate) again: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Stay,
    /// Datagrams are to be asked for an answer.
    Ask,
    Use(Way),
}

/// What was counted when a window began.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: u64,
    all: u64,
    bad: u64,
}

impl Window {
    /// How many since then; nothing if another trunk or session counts.
    fn since(&self, all: u64, bad: u64) -> (u64, u64) {
        (all.saturating_sub(self.all), bad.saturating_sub(self.bad))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Choice {
    way: Way,
    allowed: Allowed,
    due: u64,
    /// When the kernel was last seen to have sent again, and how often it had.
    again_at: u64,
    again: u64,
    window: Window,
    /// When there was too much of it.
    lossy_at: Option<u64>,
    /// When datagrams were asked last, and first, for this reason; the time to the next question.
    asked: Option<(u64, u64)>,
    pause: u64,
    hold: u64,
    /// When the trunk was tried again.
    tried_at: Option<u64>,
}

impl Choice {
    pub(crate) fn new(allowed: Allowed) -> Choice {
        Choice {
            way: Way::Trunk,
            allowed,
            due: 0,
            again_at: 0,
            again: 0,
            window: Window::default(),
            lossy_at: None,
            asked: None,
            pause: ASKS_NS[0],
            hold: HOLDS_NS[0],
            tried_at: None,
        }
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// When it is to be looked at though nothing else happens: `waits_since` as of the trunk.
    pub(crate) fn next_time(&self, waits_since: Option<u64>) -> Option<u64> {
        if self.allowed == Allowed::Trunk {
            return None;
        }
        let on_trunk = || waits_since.filter(|_| self.way == Way::Trunk).map(|since| since + STALL_NS);
        let next = self.asked.map(|(last, _)| last + self.pause).or_else(on_trunk);
        // Before it is due nothing would be done.
        next.map(|at| at.max(self.due))
    }

    /// Something is under way: datagrams are used, or asked.
    pub(crate) fn is_busy(&self) -> bool {
        self.way == Way::Datagrams || self.asked.is_some() || self.allowed == Allowed::Datagrams
    }

    /// Something has come by datagrams: perhaps an answer.
    pub(crate) fn may_be_answered(&mut self) {
        if self.asked.is_some() {
            self.due = 0;
        }
    }

    /// Whether [`Choice::look`] would find something new.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.due && self.allowed != Allowed::Trunk
    }

    pub(crate) fn look(&mut self, now: u64, seen: &Seen) -> Advice {
        self.due = now + EVERY_NS;
        let advice = match self.way {
            Way::Trunk => self.on_trunk(now, seen),
            Way::Datagrams => self.on_datagrams(now, seen),
            Way::Rdma => Advice::Stay,
        };
        if let Advice::Use(way) = advice {
            (self.way, self.asked, self.pause) = (way, None, ASKS_NS[0]);
            self.window = Window { began: now, ..Window::default() };
            let trunk = seen.trunk.map(|trunk| (trunk.segments, trunk.again));
            let datagrams = seen.datagrams.map(|health| (health.packets_sent, health.packets_lost));
            let counted = if way == Way::Trunk { trunk } else { datagrams };
            (self.window.all, self.window.bad) = counted.unwrap_or_default();
            self.lossy_at = None;
        }
        advice
    }

    fn on_trunk(&mut self, now: u64, seen: &Seen) -> Advice {
        let suffers = match &seen.trunk {
            Some(trunk) => self.suffers(now, trunk),
            None => true,
        };
        let Some(datagrams) = seen.datagrams.filter(|_| suffers || self.allowed == Allowed::Datagrams) else {
            (self.asked, self.pause) = (None, ASKS_NS[0]);
            return Advice::Stay;
        };
        let Some((last, first)) = self.asked else {
            return self.ask(now, now);
        };
        if datagrams.heard_at >= first {
            let was_early = self.tried_at.take().is_some_and(|at| now - at < EARLY_NS);
            self.hold = if was_early { (2 * self.hold).min(HOLDS_NS[1]) } else { HOLDS_NS[0] };
            return Advice::Use(Way::Datagrams);
        }
        if now < last + self.pause {
            return Advice::Stay;
        }
        self.pause = (2 * self.pause).min(ASKS_NS[1]);
        self.ask(now, first)
    }

    fn ask(&mut self, now: u64, first: u64) -> Advice {
        self.asked = Some((now, first));
        Advice::Ask
    }

    /// The kernel sends again what goes by the trunk.
    fn suffers(&mut self, now: u64, trunk: &TrunkSeen) -> bool {
        if trunk.again != self.again {
            (self.again, self.again_at) = (trunk.again, now);
        }
        if now - self.window.began > WINDOW_NS || trunk.segments < self.window.all {
            self.window = Window { began: now, all: trunk.segments, bad: trunk.again };
        }
        let (all, again) = self.window.since(trunk.segments, trunk.again);
        if again >= AGAIN_MIN && again * AGAIN_PART >= all {
            self.lossy_at = Some(now);
        }
        let is_lossy = self.lossy_at.is_some_and(|at| now - at <= WINDOW_NS);
        let stalls = trunk.health.waits_since.is_some_and(|since| {
            let waits = now.saturating_sub(since);
            waits >= STALL_NS && (self.again_at >= since || waits >= 10 * STALL_NS)
        });
        is_lossy || stalls
    }

    fn on_datagrams(&mut self, now: u64, seen: &Seen) -> Advice {
        let Some(health) = seen.datagrams.filter(|health| health.questions < SILENT) else {
            return if seen.trunk.is_some() { Advice::Use(Way::Trunk) } else { Advice::Stay };
        };
        if now - self.window.began < self.hold || self.allowed == Allowed::Datagrams || seen.trunk.is_none() {
            return Advice::Stay;
        }
        let (all, lost) = self.window.since(health.packets_sent, health.packets_lost);
        if lost * CLEAN_PART <= all {
            self.tried_at = Some(now);
            return Advice::Use(Way::Trunk);
        }
        self.window = Window { began: now, all: health.packets_sent, bad: health.packets_lost };
        Advice::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Both carriers as they are at a moment, and what follows.
    struct World {
        now: u64,
        choice: Choice,
        seen: Seen,
        /// Datagrams are answered.
        answers: bool,
        switches: Vec<(u64, Way)>,
    }

    impl World {
        fn new(allowed: Allowed) -> World {
            let seen = Seen { trunk: Some(TrunkSeen::default()), datagrams: Some(Health::default()) };
            World {
                now: 1_000 * MILLI,
                choice: Choice::new(allowed),
                seen,
                answers: true,
                switches: Vec::new(),
            }
        }

        /// Time passes: each millisecond `segments` go by what is used, of which each `lost`th is sent again.
        fn pass(&mut self, millis: u64, segments: u64, lost: Option<u64>) {
            for _ in 0..millis {
                self.now += MILLI;
                let (trunk, datagrams) =
                    (self.seen.trunk.as_mut().unwrap(), self.seen.datagrams.as_mut().unwrap());
                let lost = |sum: u64| lost.map_or(0, |each| (sum + segments) / each - sum / each);
                match self.choice.way() {
                    Way::Trunk => {
                        trunk.again += lost(trunk.segments);
                        trunk.segments += segments;
                    }
                    Way::Rdma => panic!("it is not chosen"),
                    Way::Datagrams => {
                        datagrams.packets_lost += lost(datagrams.packets_sent);
                        datagrams.packets_sent += segments;
                        datagrams.questions += u32::from(!self.answers);
                    }
                }
                if self.choice.is_due(self.now) {
                    self.look();
                }
            }
        }

        fn look(&mut self) -> Advice {
            let advice = self.choice.look(self.now, &self.seen);
            let datagrams = self.seen.datagrams.as_mut().unwrap();
            match advice {
                Advice::Ask if self.answers => {
                    (datagrams.heard_at, datagrams.questions) = (self.now + 1, 0);
                    self.choice.may_be_answered();
                }
                Advice::Use(way) => self.switches.push((self.now, way)),
                _ => {}
            }
            advice
        }

        fn ways(&self) -> Vec<Way> {
            self.switches.iter().map(|(_, way)| *way).collect()
        }
    }

    #[test]
    fn a_trunk_without_loss_stays() {
        let mut world = World::new(Allowed::Either);
        world.pass(10_000, 50, None);
        world.pass(10_000, 50, Some(100_000));
        assert_eq!(world.ways(), []);
    }

    #[test]
    fn loss_brings_datagrams_within_a_second_and_clean_ones_the_trunk() {
        let mut world = World::new(Allowed::Either);
        world.pass(1_000, 5, Some(100));
        assert_eq!(world.ways(), [Way::Datagrams]);
        world.pass(20_000, 5, Some(100));
        assert_eq!(world.ways(), [Way::Datagrams], "as long as they lose");
        world.pass(11_000, 5, None);
        assert_eq!(world.ways(), [Way::Datagrams, Way::Trunk]);
    }

    #[test]
    fn a_trunk_that_always_suffers_is_tried_more_and_more_seldom() {
        let mut world = World::new(Allowed::Either);
        for _ in 0..400_000 {
            let lossy = (world.choice.way() == Way::Trunk).then_some(50);
            world.pass(1, 5, lossy);
        }
        let tried: Vec<u64> =
            world.switches.iter().filter(|(_, way)| *way == Way::Trunk).map(|(at, _)| *at).collect();
        assert!((4..=7).contains(&tried.len()), "{tried:?}");
        assert!(tried.windows(3).all(|at| at[2] - at[1] > 3 * (at[1] - at[0]) / 2), "{tried:?}");
    }

    #[test]
    fn what_stands_still_though_the_kernel_has_sent_again_goes_by_datagrams() {
        let mut world = World::new(Allowed::Either);
        world.pass(100, 5, None);
        let trunk = world.seen.trunk.as_mut().unwrap();
        trunk.health.waits_since = Some(world.now);
        world.pass(15, 0, None);
        assert_eq!(world.ways(), [], "it may be slow");
        world.seen.trunk.as_mut().unwrap().again += 1;
        world.pass(30, 0, None);
        assert_eq!(world.ways(), [Way::Datagrams]);
    }

    #[test]
    fn an_engine_that_is_slow_stays_on_the_trunk() {
        let mut world = World::new(Allowed::Either);
        world.pass(100, 5, None);
        world.seen.trunk.as_mut().unwrap().health.waits_since = Some(world.now);
        world.pass(150, 0, None);
        assert_eq!(world.ways(), []);
        world.pass(100, 0, None);
        assert_eq!(world.ways(), [Way::Datagrams], "after so long it is no matter");
    }

    #[test]
    fn datagrams_that_nobody_answers_are_not_used_and_asked_seldom() {
        let mut world = World::new(Allowed::Either);
        world.answers = false;
        let mut asked = 0;
        for _ in 0..10_000 {
            world.now += MILLI;
            let trunk = world.seen.trunk.as_mut().unwrap();
            (trunk.segments, trunk.again) = (trunk.segments + 5, trunk.again + 1);
            if world.choice.is_due(world.now) {
                asked += u32::from(world.look() == Advice::Ask);
            }
            let next = world.choice.next_time(None);
            assert!(next.is_none_or(|at| world.choice.is_due(at)), "it wakes for nothing: {next:?}");
        }
        assert_eq!(world.ways(), []);
        assert!((10..20).contains(&asked), "{asked}");
    }

    #[test]
    fn datagrams_that_stop_arriving_bring_the_trunk() {
        let mut world = World::new(Allowed::Either);
        world.pass(1_000, 5, Some(100));
        world.answers = false;
        world.pass(50, 5, None);
        assert_eq!(world.ways(), [Way::Datagrams, Way::Trunk]);
        world.pass(10_000, 5, None);
        assert_eq!(world.ways().len(), 2);
    }

    #[test]
    fn without_a_trunk_datagrams_go_on() {
        let mut world = World::new(Allowed::Either);
        world.seen.trunk = None;
        assert_eq!(world.look(), Advice::Ask);
        world.now += MILLI;
        assert_eq!(world.look(), Advice::Use(Way::Datagrams));
        world.seen.datagrams.as_mut().unwrap().questions = 9;
        world.now += MILLI;
        assert_eq!(world.look(), Advice::Stay, "there is nothing better");
    }

    #[test]
    fn the_operator_may_choose() {
        let mut world = World::new(Allowed::Trunk);
        world.pass(5_000, 5, Some(10));
        assert_eq!(world.ways(), []);
        assert_eq!(world.choice.next_time(Some(5)), None);
        let mut world = World::new(Allowed::Datagrams);
        world.pass(30_000, 5, None);
        assert_eq!(world.ways(), [Way::Datagrams]);
    }
}
