//! What the engine's road is worth to a connection (ADR 103): the only place that decides it. Pure; time and counts are parameters.
//!
//! ```text
//!  not asked about   too few are offered and carried, or it is bulk                [`may_come`], [`Load::is_bulk`]
//!  goes back         few of those between the two hosts talk                        [`Crowd`]
//!                    all it carries is bulk; a few messages a second                [`Habit`]
//!                    each message wakes somebody in a process at one of its ends    [`Wakes`]
//! ```
//! What is found is advice: the ends go back by themselves, in order, as after `sd demote` ([`crate::connection::Connection::advise`]). Windows
//! follow each other while the engine is awake anyway; nothing is found out about who is silent, and nothing is lost by him. Those of wakes are
//! shorter than the others'.
//!
//! Nothing flaps: what is asked for a way there is more than what is kept there, a window alone decides nothing, and a library offers what has
//! gone back after a pause that doubles each time (a minute at once, behind bulk).

use sd_shm::promotion::Advice;

/// A window, at least.
pub(crate) const WINDOW_NS: u64 = 1_000_000_000;
/// So many windows, one behind the other, have to say the same.
const WINDOWS: u32 = 3;
/// A message each so often is sparse, if it is no large one. Libraries offer what has ten times as many (16 in 80 ms).
const SPARSE_NS: u64 = 50_000_000;
const SPARSE_MESSAGE: u64 = 4 << 10;
/// Messages of that size, on average, are bulk, and so many bytes a window at least.
const BULK_MESSAGE: u64 = 32 << 10;
const BULK_BYTES: u64 = 1 << 20;

/// So many of ten messages to a process wake somebody there: nothing goes together, as where a thread, or a process, waits for each connection. Such a
/// process has a third of what the kernel gives it, so this is found out sooner than the rest.
const WOKEN_TENTHS: u64 = 6;
/// A window of wakes, at least; and for each connection, as all of them are looked at.
const WAKES_NS: u64 = 10_000_000;
const WAKES_EACH_NS: u64 = 4_000;
/// It goes on until so many messages have come. Processes for which fewer come are judged together, as where each connection has one of its own.
const WOKEN_MIN: u64 = 100;
/// While more than one of so many connections have joined in a window, it says nothing: the first ones find a process that has little to do yet.
const JOINED_PART: u64 = 8;

/// What a connection has carried, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Load {
    fn since(self, before: Load) -> Load {
        Load {
            messages: self.messages.saturating_sub(before.messages),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    /// All of it is bulk. Such a connection stays the kernel's where it is offered.
    pub(crate) fn is_bulk(self) -> bool {
        self.bytes >= BULK_BYTES && self.bytes / self.messages.max(1) >= BULK_MESSAGE
    }
}

impl Load {
    fn is_sparse(self, window_ns: u64) -> bool {
        self.messages.saturating_mul(SPARSE_NS) < window_ns
            && self.bytes <= self.messages.saturating_mul(SPARSE_MESSAGE)
    }
}

/// Where one connection is enough to come, the operator wants all there: nothing is left, and nothing goes back.
pub(crate) fn judges(least: usize) -> bool {
    least > 1
}

/// Whether what is offered may come where so many are offered, or carried, between the two hosts.
pub(crate) fn may_come(crowd: usize, least: usize) -> bool {
    crowd >= least
}

/// So many of all are enough to speak for the rest.
pub(crate) fn are_nearly_all(some: usize, all: usize) -> bool {
    some > 0 && (all - some) * JOINED_PART as usize <= all
}

/// What a connection has done in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Silent,
    Sparse,
    Bulk,
    Busy,
}

/// Of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habit {
    before: Load,
    /// Windows that said the same.
    sparse: u32,
    bulk: u32,
}

impl Habit {
    /// A window of that length is over, up to which the connection has carried all that. Besides: what it is better off without the engine for.
    pub(crate) fn look(&mut self, all: Load, window_ns: u64) -> (Pace, Option<Advice>) {
        let load = all.since(self.before);
        self.before = all;
        let pace = match load.messages {
            0 => return (Pace::Silent, None),
            _ if load.is_bulk() => Pace::Bulk,
            _ if load.is_sparse(window_ns) => Pace::Sparse,
            _ => Pace::Busy,
        };
        let count = |before: u32, is_it| if is_it { before + 1 } else { 0 };
        self.sparse = count(self.sparse, pace == Pace::Sparse);
        self.bulk = count(self.bulk, pace == Pace::Bulk);
        let advice = match pace {
            Pace::Bulk if self.bulk >= WINDOWS => Some(Advice::Bulk),
            Pace::Sparse if self.sparse >= WINDOWS => Some(Advice::Sparse),
            _ => None,
        };
        (pace, advice)
    }
}

/// Of all connections between two hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crowd {
    few: u32,
}

impl Crowd {
    /// A window is over, in which connections have done this: whether all are to go back.
    pub(crate) fn look(&mut self, paces: impl Iterator<Item = Pace>, least: usize) -> bool {
        let (mut busy, mut talk) = (0, 0);
        for pace in paces {
            busy += usize::from(pace == Pace::Busy);
            talk += usize::from(pace != Pace::Silent);
        }
        match (talk, busy >= keeps(least)) {
            (0, _) => {}
            (_, true) => self.few = 0,
            (_, false) => self.few += 1,
        }
        let goes = self.few >= WINDOWS;
        if goes {
            self.few = 0;
        }
        goes
    }
}

/// What a process was woken for, in a window or a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(crate) messages: u64,
    pub(crate) wakes: u64,
    /// Connections that have come.
    pub(crate) joined: u64,
}

impl Woken {
    pub(crate) fn is_few(self) -> bool {
        self.messages < WOKEN_MIN
    }

    /// Nothing goes together: the kernel wakes once for each message, too, and nobody else is woken for it.
    pub(crate) fn is_each(self) -> bool {
        self.messages > 0 && 10 * self.wakes >= WOKEN_TENTHS * self.messages
    }
}

impl std::ops::AddAssign for Woken {
    fn add_assign(&mut self, more: Woken) {
        self.messages += more.messages;
        self.wakes += more.wakes;
        self.joined += more.joined;
    }
}

/// A window of wakes where there are so many connections.
pub(crate) fn wakes_window_ns(connections: usize) -> u64 {
    WAKES_NS.max(connections as u64 * WAKES_EACH_NS)
}

/// Of all connections with a local process, or with all processes for which few messages come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wakes {
    window: Woken,
    /// Windows that said the same.
    windows: u32,
}

impl Wakes {
    /// So much more, of so many connections. Whether they are to go back.
    pub(crate) fn look(&mut self, part: Woken, there: usize) -> bool {
        self.window += part;
        if self.window.joined * JOINED_PART > there as u64 {
            *self = Wakes::default();
        }
        if self.window.is_few() {
            return false;
        }
        let windows = if self.window.is_each() { self.windows + 1 } else { 0 };
        let goes = windows >= WINDOWS;
        *self = Wakes { windows: if goes { 0 } else { windows }, ..Wakes::default() };
        goes
    }
}

/// So many busy ones keep each other there, where `least` are needed to come.
fn keeps(least: usize) -> usize {
    least * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load = Load { messages: 2000, bytes: 128_000 };
    const SPARSE: Load = Load { messages: 6, bytes: 384 };
    const BULK: Load = Load { messages: 1500, bytes: 1_500 << 20 };

    /// The load of each window: in which one which advice is given.
    fn advice(windows: &[(Load, u64)]) -> Vec<(usize, Advice)> {
        let (mut habit, mut all, mut found) = (Habit::default(), Load::default(), vec![]);
        for (at, (load, window_ns)) in windows.iter().enumerate() {
            all = Load { messages: all.messages + load.messages, bytes: all.bytes + load.bytes };
            found.extend(habit.look(all, *window_ns).1.map(|advice| (at, advice)));
        }
        found
    }

    #[test]
    fn what_lasts_is_told_and_what_does_not_is_not() {
        let each = |loads: &[Load]| loads.iter().map(|load| (*load, WINDOW_NS)).collect::<Vec<_>>();
        assert_eq!(advice(&each(&[BUSY; 9])), []);
        assert_eq!(advice(&each(&[BULK, BULK, BULK])), [(2, Advice::Bulk)]);
        assert_eq!(advice(&each(&[SPARSE, SPARSE, SPARSE])), [(2, Advice::Sparse)]);
        assert_eq!(advice(&each(&[BULK, BULK, BUSY, BULK, BULK, SPARSE, BUSY, SPARSE, SPARSE])), []);
        // Silence says nothing, and does not interrupt.
        let silence = Load::default();
        assert_eq!(advice(&each(&[silence; 9])), []);
        assert_eq!(advice(&each(&[SPARSE, silence, SPARSE, silence, SPARSE])), [(4, Advice::Sparse)]);
        // A burst behind an hour without any, while the engine slept.
        assert_eq!(advice(&[(BUSY, WINDOW_NS), (BUSY, 3600 * WINDOW_NS), (BUSY, WINDOW_NS)]), []);
    }

    #[test]
    fn what_is_large_alone_is_not_bulk() {
        assert!(BULK.is_bulk() && !Load { messages: 3, bytes: 300_000 }.is_bulk());
        assert!(!Load { messages: 100_000, bytes: 1 << 30 }.is_bulk());
        assert!(Load { messages: 0, bytes: 1 << 30 }.is_bulk());
        // A slow way, on which a few large messages are all that goes.
        assert!(SPARSE.is_sparse(WINDOW_NS) && !Load { messages: 6, bytes: 600_000 }.is_sparse(WINDOW_NS));
    }

    /// For each window, how many are busy, sparse and silent: in which ones all go back.
    fn goes(least: usize, windows: &[(usize, usize, usize)]) -> Vec<usize> {
        let mut crowd = Crowd::default();
        let mut look = |(busy, sparse, silent): (usize, usize, usize)| {
            let kinds = [(Pace::Busy, busy), (Pace::Sparse, sparse), (Pace::Silent, silent)];
            crowd.look(kinds.into_iter().flat_map(|(pace, count)| std::iter::repeat_n(pace, count)), least)
        };
        windows.iter().enumerate().filter(|(_, window)| look(**window)).map(|(at, _)| at).collect()
    }

    #[test]
    fn few_go_back_and_many_stay() {
        assert_eq!(goes(32, &[(32, 0, 0); 9]), []);
        assert_eq!(goes(32, &[(24, 0, 0); 9]), []);
        assert_eq!(goes(32, &[(40, 0, 0), (23, 0, 0), (2, 0, 0), (2, 9, 30)]), [3]);
        // One window is not enough, nor are two.
        assert_eq!(goes(32, &[(2, 0, 0), (2, 0, 0), (40, 0, 0), (2, 0, 0), (2, 0, 0), (24, 0, 0)]), []);
        // Nobody talks: nobody loses.
        assert_eq!(goes(32, &[(0, 0, 40); 9]), []);
        assert_eq!(goes(32, &[(0, 1, 40), (0, 0, 40), (0, 1, 40), (0, 0, 40), (0, 1, 40)]), [4]);
        // Where one is enough to come, one is enough to stay.
        assert_eq!(goes(1, &[(1, 0, 0); 9]), []);
    }

    /// In which windows, of so many messages and wakes, and connections that join forty, all go back.
    fn woken(windows: &[(u64, u64, u64)]) -> Vec<usize> {
        let mut habit = Wakes::default();
        let mut look =
            |&(messages, wakes, joined): &(u64, u64, u64)| habit.look(Woken { messages, wakes, joined }, 40);
        windows.iter().enumerate().filter(|(_, part)| look(part)).map(|(at, _)| at).collect()
    }

    #[test]
    fn who_is_woken_for_each_message_gains_nothing() {
        assert_eq!(woken(&[(10_000, 9_000, 0); 5]), [2]);
        assert_eq!(woken(&[(100_000, 5_000, 0); 9]), []);
        assert_eq!(
            woken(&[(10_000, 9_000, 0), (10_000, 9_000, 0), (10_000, 900, 0), (10_000, 9_000, 0)]),
            []
        );
        // Of few messages a window is longer.
        assert_eq!(woken(&[(50, 50, 0); 9]), [5]);
        assert_eq!(woken(&[(50, 50, 0), (50, 0, 0), (50, 50, 0), (50, 0, 0), (50, 50, 0)]), []);
        assert_eq!(woken(&[(900, 900, 0), (9, 9, 0), (900, 900, 0), (0, 0, 0), (900, 900, 0)]), [4]);
    }

    #[test]
    fn while_connections_join_nobody_is_judged_by_wakes() {
        assert_eq!(woken(&[(900, 900, 6); 9]), []);
        assert_eq!(woken(&[(900, 900, 20), (900, 900, 6), (900, 900, 5), (900, 900, 1), (900, 900, 0)]), [4]);
    }

    #[test]
    fn windows_of_wakes_are_short_and_cost_little() {
        assert_eq!(wakes_window_ns(50), WAKES_NS);
        assert_eq!(wakes_window_ns(10_000), 40_000_000);
    }

    #[test]
    fn seven_eighths_speak_for_the_rest() {
        assert!(are_nearly_all(7, 8) && !are_nearly_all(6, 8));
        assert!(are_nearly_all(1, 1) && !are_nearly_all(0, 0));
    }

    /// What comes is kept: no count that lets connections come has them go back.
    #[test]
    fn who_may_come_may_stay() {
        for least in 0..200 {
            assert!(keeps(least) <= least);
            assert!(may_come(least, least) && (least == 0 || !may_come(least - 1, least)));
            assert_eq!(goes(least, &[(least, 0, 0); 9]), [0usize; 0]);
        }
    }
}
