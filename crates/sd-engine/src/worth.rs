//! Whether connections are faster by the engine than they were as the kernel's: measured, for each service, when enough of its connections are
//! offered ([ADR 107](../../../docs/adr/0107-worth.md)). Pure: time and counts are parameters.
//!
//! ```text
//!  unknown --offered--> Before --a window--> Trial --twenty windows--> Kept
//!                                              | slower
//!     ^------------ after a minute, two, ... Left
//! ```
//! *Before*, the kernel is asked twice what some of them carry. In the *trial* the engine counts what the same ones carry. A service is an
//! address and port at another host, to which local processes have connected; it is forgotten with its last connection, unless it was left.

use sd_proto::Ip;
use std::collections::HashMap;
use std::collections::HashSet;

/// So long the kernel's rate is counted, and as long is a window of the trial.
pub(crate) const WINDOW_NS: u64 = 100_000_000;
/// Of so many connections.
const SAMPLE: usize = 64;
/// After so many windows of a trial, this many hundredths of the kernel's rate are too few: the slower, the sooner.
const BOUNDS: [(u32, f64); 3] = [(2, 0.60), (4, 0.80), (10, 0.95)];
/// So many windows are enough.
const WINDOWS: u32 = 20;
/// A trial without them ends after so long.
const TRIAL_NS: u64 = 20_000_000_000;
/// A window says nothing in which more than one of so many connections have joined, or wait to.
const JOINED_PART: usize = 8;
/// What was slower stays the kernel's for so long at first, and at last.
const PAUSES_NS: [u64; 2] = [60_000_000_000, 960_000_000_000];
/// Of more nothing is measured.
const SERVICES_MAX: usize = 1024;

/// The other engine, by its number, the tenant, and where local processes have connected to.
pub(crate) type Service = (usize, u32, Ip, u16);

/// Whether connections of a service may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    Come,
    /// The kernel's rate is being counted.
    Wait,
    /// It is to be counted: [`Worth::begin`].
    Unknown,
    /// They were slower by the engine.
    Stay,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the kernel's, or moves.
    Elsewhere,
    /// It is carried, and was so far with so many bytes of payload in both directions.
    Here(u64),
    Over,
}

/// How many connections of a service are carried, and wait for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) here: usize,
    pub(crate) waiting: usize,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// If it is slower, it is left for so long.
    pause: u64,
}

impl State {
    /// It is slower, from now on.
    fn left(&mut self, now: u64) -> Phase {
        let until = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSES_NS[1]);
        Phase::Left(until)
    }
}

#[derive(Debug)]
enum Phase {
    /// Since when, and what each had carried then.
    Before(u64, Vec<(u64, u64)>),
    Trial(Trial),
    Kept,
    Left(u64),
}

#[derive(Debug)]
struct Trial {
    /// When its window is over; when it is itself, whatever was seen.
    due: u64,
    until: u64,
    /// What the kernel carried of each in a nanosecond.
    rates: Vec<(u64, f64)>,
    /// When the window began, with what each had carried, and how many were there.
    window: Option<(u64, Vec<Place>, Count)>,
    windows: u32,
    /// What the kernel would have carried in these, and what was.
    expected: f64,
    got: f64,
}

/// Of all services.
#[derive(Debug, Default)]
pub(crate) struct Worth {
    services: HashMap<Service, State>,
    /// When the kernel is to be asked again; when a window of trials is over. Zero: there are none.
    measured_at: u64,
    look_at: u64,
}

impl Worth {
    /// Whether those that are offered may come; enough are.
    pub(crate) fn may_come(&self, service: Service, now: u64) -> May {
        match self.services.get(&service).map(|state| &state.phase) {
            None if self.services.len() >= SERVICES_MAX => May::Come,
            None => May::Unknown,
            Some(Phase::Before(..)) => May::Wait,
            Some(Phase::Trial(_) | Phase::Kept) => May::Come,
            Some(Phase::Left(until)) if now < *until => May::Stay,
            Some(Phase::Left(_)) => May::Unknown,
        }
    }

    /// They were slower.
    pub(crate) fn is_left(&self, service: Service, now: u64) -> bool {
        self.may_come(service, now) == May::Stay
    }

    /// These connections of it are offered. `carried` asks the kernel what each has carried, where that can be known.
    pub(crate) fn begin(
        &mut self,
        service: Service,
        now: u64,
        offered: impl Iterator<Item = u64>,
        mut carried: impl FnMut(u64) -> Option<u64>,
    ) {
        let sample: Vec<_> = offered.take(SAMPLE).filter_map(|id| Some((id, carried(id)?))).collect();
        let phase = if sample.is_empty() { Phase::Kept } else { Phase::Before(now, sample) };
        let state = self.services.entry(service).or_insert(State { phase: Phase::Kept, pause: PAUSES_NS[0] });
        state.phase = phase;
        self.reckon();
    }

    /// When the kernel is to be asked again.
    pub(crate) fn next_time(&self) -> Option<u64> {
        (self.measured_at != 0).then_some(self.measured_at)
    }

    /// Where the kernel's rate was counted for long enough, the trial begins.
    pub(crate) fn go_on(&mut self, now: u64, mut carried: impl FnMut(u64) -> Option<u64>) {
        for state in self.services.values_mut() {
            let Phase::Before(since, sample) = &state.phase else { continue };
            let passed = now.saturating_sub(*since);
            if passed < WINDOW_NS {
                continue;
            }
            let rate = |(id, before): &(u64, u64)| {
                let bytes = carried(*id)?.saturating_sub(*before);
                (bytes > 0).then_some((*id, bytes as f64 / passed as f64))
            };
            let rates: Vec<_> = sample.iter().filter_map(rate).collect();
            state.phase = if rates.is_empty() { Phase::Kept } else { Phase::Trial(Trial::new(now, rates)) };
        }
        self.reckon();
    }

    /// Whether [`Worth::look`] would find something.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.look_at != 0 && now >= self.look_at
    }

    /// A window is over: the services that are slower by the engine, and by how much (hundredths of the kernel's rate).
    pub(crate) fn look(
        &mut self,
        now: u64,
        counts: &HashMap<Service, Count>,
        mut place: impl FnMut(u64) -> Place,
    ) -> Vec<(Service, u32)> {
        let mut slower = Vec::new();
        for (service, state) in &mut self.services {
            let Phase::Trial(trial) = &mut state.phase else { continue };
            if now < trial.due {
                continue;
            }
            let count = counts.get(service).copied().unwrap_or_default();
            let Some(verdict) = trial.look(now, count, &mut place) else { continue };
            state.phase = match verdict {
                Verdict::Kept => Phase::Kept,
                Verdict::Slower => {
                    slower.push((*service, (100.0 * trial.got / trial.expected) as u32));
                    state.left(now)
                }
            };
        }
        self.reckon();
        slower
    }

    /// Its connections have gone back for another reason that will be theirs again.
    pub(crate) fn leave(&mut self, service: Service, now: u64) {
        let Some(state) = self.services.get_mut(&service) else { return };
        if !matches!(state.phase, Phase::Left(_)) {
            state.phase = state.left(now);
            self.reckon();
        }
    }

    /// When something is due. That is asked in each look of the engine, and changes seldom.
    fn reckon(&mut self) {
        let all = || self.services.values().map(|state| &state.phase);
        let before =
            |phase: &Phase| if let Phase::Before(since, _) = phase { Some(since + WINDOW_NS) } else { None };
        let trial = |phase: &Phase| if let Phase::Trial(trial) = phase { Some(trial.due) } else { None };
        let (measured_at, look_at) = (all().filter_map(before).min(), all().filter_map(trial).min());
        (self.measured_at, self.look_at) = (measured_at.unwrap_or(0), look_at.unwrap_or(0));
    }

    /// Those without connections are forgotten; those that were left, when they were not asked about for as long again.
    pub(crate) fn forget(&mut self, now: u64, used: &HashSet<Service>) {
        self.services.retain(|service, state| match state.phase {
            Phase::Left(until) => now < until + state.pause,
            _ => used.contains(service),
        });
        self.reckon();
    }
}

enum Verdict {
    Kept,
    Slower,
}

impl Trial {
    fn new(now: u64, rates: Vec<(u64, f64)>) -> Trial {
        Trial { due: now, until: now + TRIAL_NS, rates, window: None, windows: 0, expected: 0.0, got: 0.0 }
    }

    fn look(&mut self, now: u64, count: Count, mut place: impl FnMut(u64) -> Place) -> Option<Verdict> {
        self.due = now + WINDOW_NS;
        let places: Vec<Place> = self.rates.iter().map(|(id, _)| place(*id)).collect();
        let before = self.window.take();
        if let Some((since, before, count_then)) = before {
            let passed = now - since;
            // The engine has slept meanwhile: they have not much to say.
            let is_whole = passed <= 2 * WINDOW_NS;
            let moves = count.waiting.max(count.here.saturating_sub(count_then.here));
            if is_whole && moves * JOINED_PART <= count.here {
                self.add(passed, &before, &places);
            }
        }
        let living = places.iter().filter(|place| **place != Place::Over).count();
        let here = places.iter().filter(|place| matches!(place, Place::Here(_))).count();
        if (living - here) * JOINED_PART <= living {
            self.window = Some((now, places, count));
        }
        let ratio = self.got / self.expected;
        let is_slower = |(windows, bound): &(u32, f64)| self.windows >= *windows && ratio < *bound;
        if BOUNDS.iter().any(is_slower) {
            return Some(Verdict::Slower);
        }
        let is_over = self.windows >= WINDOWS || now >= self.until || 2 * living < self.rates.len();
        is_over.then_some(Verdict::Kept)
    }

    /// What those that were there from its beginning to its end carried in a window.
    fn add(&mut self, passed: u64, before: &[Place], now: &[Place]) {
        let (mut expected, mut got) = (0.0, 0.0);
        for ((_, rate), places) in self.rates.iter().zip(before.iter().zip(now)) {
            if let (Place::Here(before), Place::Here(now)) = places {
                expected += rate * passed as f64;
                got += now.saturating_sub(*before) as f64;
            }
        }
        if got > 0.0 && expected > 0.0 {
            self.windows += 1;
            self.expected += expected;
            self.got += got;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = (0, 0, Ip([7; 16]), 80);
    const SECOND: u64 = 1_000_000_000;
    /// A connection's bytes in a window as the kernel's.
    const KERNEL: u64 = 10_000;

    /// Connections of one service, all alike.
    struct World {
        now: u64,
        worth: Worth,
        carried: u64,
        count: Count,
    }

    impl World {
        fn new() -> World {
            let count = Count { here: 40, waiting: 0 };
            World { now: SECOND, worth: Worth::default(), carried: 0, count }
        }

        /// Forty are offered; the kernel carries them for a window.
        fn offer(&mut self) {
            assert_eq!(self.worth.may_come(SERVICE, self.now), May::Unknown);
            let carried = self.carried;
            self.worth.begin(SERVICE, self.now, 0..40, |_| Some(carried));
            assert_eq!(self.worth.may_come(SERVICE, self.now), May::Wait);
            assert_eq!(self.worth.next_time(), Some(self.now + WINDOW_NS));
            self.now += WINDOW_NS;
            self.carried += KERNEL;
            let carried = self.carried;
            self.worth.go_on(self.now, |_| Some(carried));
            assert_eq!((self.worth.may_come(SERVICE, self.now), self.worth.next_time()), (May::Come, None));
        }

        /// A window passes in which each carries so much. Whether they are to go back.
        fn carry(&mut self, bytes: u64) -> bool {
            self.now += WINDOW_NS;
            self.carried += bytes;
            let counts = HashMap::from([(SERVICE, self.count)]);
            let carried = self.carried;
            !self.worth.look(self.now, &counts, |_| Place::Here(carried)).is_empty()
        }

        /// In which window of these they are to go back, the first of which only begins.
        fn trial(&mut self, bytes: &[u64]) -> Option<usize> {
            self.offer();
            self.carry(KERNEL);
            bytes.iter().position(|bytes| self.carry(*bytes))
        }
    }

    #[test]
    fn what_is_faster_is_kept_for_good() {
        let mut world = World::new();
        assert_eq!(world.trial(&[3 * KERNEL; 20]), None);
        assert!(!world.worth.is_due(world.now + 9 * SECOND), "the trial is over");
        assert!(!world.carry(KERNEL / 9));
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Come);
    }

    #[test]
    fn the_slower_the_sooner() {
        let trial = |hundredths: u64| World::new().trial(&[KERNEL * hundredths / 100; 20]);
        assert_eq!(trial(50), Some(1));
        assert_eq!(trial(70), Some(3));
        assert_eq!(trial(85), Some(9));
        assert_eq!(trial(96), None);
    }

    #[test]
    fn one_bad_window_is_made_good_by_others() {
        assert_eq!(
            World::new().trial(&[&[KERNEL / 2, KERNEL, KERNEL, KERNEL * 3 / 2][..], &[KERNEL; 16]].concat()),
            None
        );
    }

    #[test]
    fn what_was_slower_stays_twice_as_long_each_time() {
        let mut world = World::new();
        for seconds in [60, 120, 240, 480, 960, 960] {
            assert_eq!(world.trial(&[KERNEL / 2; 2]), Some(1));
            world.now += (seconds - 1) * SECOND;
            assert!(world.worth.is_left(SERVICE, world.now));
            world.now += SECOND;
            world.worth.forget(world.now, &HashSet::new());
        }
        world.now += 961 * SECOND;
        world.worth.forget(world.now, &HashSet::new());
        assert_eq!(world.worth.services.len(), 0);
    }

    #[test]
    fn what_was_left_for_another_reason_stays_as_long() {
        let mut world = World::new();
        world.worth.leave(SERVICE, world.now);
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Unknown, "nothing of it has come");
        for seconds in [60, 120] {
            world.offer();
            world.worth.leave(SERVICE, world.now);
            let until = world.now + seconds * SECOND;
            world.now = until - 1;
            world.worth.leave(SERVICE, world.now);
            assert!(world.worth.is_left(SERVICE, world.now) && !world.worth.is_left(SERVICE, until));
            world.now = until;
        }
    }

    #[test]
    fn nobody_is_judged_while_others_join_or_wait() {
        let mut world = World::new();
        world.count = Count { here: 40, waiting: 6 };
        assert_eq!(world.trial(&[KERNEL / 9; 9]), None);
        for here in [50, 60, 70] {
            world.count = Count { here, waiting: 0 };
            assert!(!world.carry(KERNEL / 9));
        }
        assert!(!world.carry(KERNEL / 9) && world.carry(KERNEL / 9));
    }

    #[test]
    fn silence_and_sleep_say_nothing() {
        let mut world = World::new();
        assert_eq!(world.trial(&[0; 9]), None);
        world.now += SECOND;
        assert!(!world.carry(KERNEL / 9));
        assert!(!world.carry(KERNEL / 9) && world.carry(KERNEL / 9));
    }

    #[test]
    fn what_cannot_be_measured_may_come() {
        let mut world = World::new();
        world.worth.begin(SERVICE, world.now, 0..40, |_| None);
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Come);
        world.worth.forget(world.now, &HashSet::from([SERVICE]));
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Come);
        world.worth.forget(world.now, &HashSet::new());
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Unknown);
        world.worth.begin(SERVICE, world.now, 0..40, Some);
        // All are silent as the kernel's, too.
        world.worth.go_on(world.now + WINDOW_NS, Some);
        assert_eq!(world.worth.may_come(SERVICE, world.now), May::Come);
    }

    #[test]
    fn a_trial_whose_connections_close_is_over() {
        let mut world = World::new();
        world.offer();
        let half = |id| if id < 25 { Place::Over } else { Place::Here(0) };
        assert_eq!(world.worth.look(world.now + WINDOW_NS, &HashMap::new(), half), []);
        assert!(!world.worth.is_due(world.now + SECOND));
    }
}
