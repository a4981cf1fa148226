//! All states of the token's protocol (`sd_ring::token`), for three threads, each of which may die or be
//! stopped at every step, on a machine whose stores wait in a buffer (x86's TSO).
//!
//! Each arm of [`State::step`] is one access to shared memory, named as in the code. Checked:
//! never two inside; who comes after a death inside is told; nobody overtakes a waiter; and nobody waits for
//! ever (no fair cycle of the state graph in which a live thread only waits).
#![cfg(not(loom))]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Without optimisation the states of three take minutes; `cargo xtask test` looks at them.
const N: usize = if cfg!(debug_assertions) { 2 } else { 3 };
const NOBODY: u8 = 0xff;

/// Where a thread is. The comments name the access that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Outside,
    /// `enter`: inside = token.
    Announce,
    /// holder == me?
    AskHolder,
    InsideAsHolder,
    /// inside = 0, after the work or without.
    Withdraw {
        worked: bool,
    },
    /// `lock`: next == serving?
    AskLine,
    /// lock: 0 -> me.
    TryLock,
    /// next += 1.
    TakeTicket,
    /// serving == ticket?
    Wait,
    /// lock: 0 or a dead one -> me.
    TryTurn,
    /// serving: ticket -> ticket + 1.
    PassTurn,
    /// holder == nobody?
    AskBias,
    /// `revoke`: holder |= REVOKED.
    Revoke,
    /// membarrier.
    Fence,
    /// inside of the holder == token?
    WaitOutside,
    /// holder = nobody.
    Clear,
    InsideLocked,
    /// `unlock`: holder = me, or not.
    MakeHolder,
    /// lock = 0.
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Thread {
    at: At,
    dead: bool,
    stopped: bool,
    /// `inside`, as others see it, and a store to it that they do not see yet.
    inside: bool,
    buffer: Option<bool>,
    /// Ticket less `serving`.
    ticket: i8,
    /// `Before::Died` is what `lock` will return.
    told: bool,
    /// Threads whose present use began after this one took its ticket.
    later: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    threads: [Thread; N],
    holder: u8,
    revoked: bool,
    lock: u8,
    /// `next` less `serving`.
    line: i8,
    /// Somebody died inside, and nobody has been told.
    dirty: bool,
    deaths_left: u8,
    stops_left: u8,
}

/// What may happen besides the protocol's own steps.
#[derive(Clone, Copy)]
struct Rules {
    deaths: u8,
    stops: u8,
    /// A turn may be passed over although its thread could take it (it was only slow).
    hasty: bool,
}

impl State {
    fn new(rules: Rules) -> State {
        let thread = Thread {
            at: At::Outside,
            dead: false,
            stopped: false,
            inside: false,
            buffer: None,
            ticket: 0,
            told: false,
            later: 0,
        };
        State {
            threads: [thread; N],
            holder: NOBODY,
            revoked: false,
            lock: NOBODY,
            line: 0,
            dirty: false,
            deaths_left: rules.deaths,
            stops_left: rules.stops,
        }
    }

    fn is_dead(&self, thread: u8) -> bool {
        thread != NOBODY && self.threads[thread as usize].dead
    }

    fn store_inside(&mut self, me: usize, value: bool) {
        self.threads[me].buffer = Some(value);
    }

    /// A late store becomes visible: at any time, by a locked instruction of its processor's, by membarrier.
    fn flush(&mut self, me: usize) {
        let thread = &mut self.threads[me];
        thread.inside = thread.buffer.take().unwrap_or(thread.inside);
    }

    /// A thread is where it may change the half.
    fn arrive(&mut self, me: usize, at: At) {
        let told = std::mem::take(&mut self.threads[me].told) && at == At::InsideLocked;
        assert!(!self.dirty || told, "nobody was told of a death inside: {self:?}");
        self.dirty = false;
        self.threads[me].at = at;
        let inside = |t: &Thread| !t.dead && matches!(t.at, At::InsideAsHolder | At::InsideLocked);
        assert!(self.threads.iter().filter(|t| inside(t)).count() == 1, "two are inside: {self:?}");
    }

    fn pass_serving(&mut self) {
        self.line -= 1;
        for thread in &mut self.threads {
            thread.ticket = (thread.ticket - 1).max(-1);
        }
    }

    /// Whether the thread whose turn it is can be relied on to take it.
    fn turn_will_be_used(&self) -> bool {
        let waits = |t: &Thread| t.ticket == 0 && matches!(t.at, At::Wait | At::TryTurn | At::PassTurn);
        self.threads.iter().any(|t| waits(t) && !t.dead && !t.stopped)
    }

    /// The next step of a running thread; two where it has a choice.
    fn step(mut self, me: usize, hasty: bool) -> Vec<State> {
        let id = me as u8;
        let go = |mut state: State, at: At| {
            state.threads[me].at = at;
            vec![state]
        };
        match self.threads[me].at {
            At::Outside => {
                for thread in &mut self.threads {
                    thread.later |= 1 << me;
                }
                go(self, At::Announce)
            }
            At::Announce => {
                self.store_inside(me, true);
                go(self, At::AskHolder)
            }
            At::AskHolder if self.holder == id && !self.revoked => {
                self.arrive(me, At::InsideAsHolder);
                vec![self]
            }
            At::AskHolder => go(self, At::Withdraw { worked: false }),
            At::InsideAsHolder => go(self, At::Withdraw { worked: true }),
            At::Withdraw { worked } => {
                self.store_inside(me, false);
                go(self, if worked { At::Outside } else { At::AskLine })
            }
            At::AskLine => go(self, if self.line == 0 { At::TryLock } else { At::TakeTicket }),
            At::TryLock => {
                self.flush(me);
                let free = self.lock == NOBODY;
                self.lock = if free { id } else { self.lock };
                go(self, if free { At::AskBias } else { At::TakeTicket })
            }
            At::TakeTicket => {
                self.flush(me);
                self.threads[me].ticket = self.line;
                self.threads[me].later = 0;
                self.line += 1;
                go(self, At::Wait)
            }
            At::Wait => self.wait(me, hasty),
            At::TryTurn => {
                let dead = self.is_dead(self.lock);
                if self.lock != NOBODY && !dead {
                    return go(self, At::Wait);
                }
                self.threads[me].told = dead;
                self.lock = id;
                go(self, At::PassTurn)
            }
            At::PassTurn => {
                if self.threads[me].ticket == 0 {
                    self.pass_serving();
                }
                go(self, At::AskBias)
            }
            _ => self.step_locked(me),
        }
    }

    fn wait(mut self, me: usize, hasty: bool) -> Vec<State> {
        if self.threads[me].ticket <= 0 {
            let at = if self.threads[me].ticket == 0 { At::TryTurn } else { At::TakeTicket };
            self.threads[me].at = at;
            return vec![self];
        }
        let is_free = self.lock == NOBODY || self.is_dead(self.lock);
        let mut passed = self;
        passed.pass_serving();
        match (is_free, self.turn_will_be_used()) {
            // Sooner or later; by fairness every step that can be taken is taken.
            (true, false) => vec![passed],
            (true, true) if hasty => vec![self, passed],
            _ => vec![self],
        }
    }

    /// Steps of the thread that has the lock.
    fn step_locked(mut self, me: usize) -> Vec<State> {
        let id = me as u8;
        let mut at = At::Clear;
        match self.threads[me].at {
            At::AskBias if self.holder == NOBODY => {
                self.arrive_locked(me);
                return vec![self];
            }
            At::AskBias if self.holder == id => {}
            At::AskBias => at = At::Revoke,
            At::Revoke => {
                self.revoked = true;
                at = At::Fence;
            }
            At::Fence => {
                (0..N).for_each(|thread| self.flush(thread));
                at = At::WaitOutside;
            }
            At::WaitOutside => {
                let holder = self.threads[self.holder as usize];
                let died = holder.inside && holder.dead;
                self.threads[me].told |= died;
                at = if holder.inside && !died { At::WaitOutside } else { At::Clear };
            }
            At::Clear => {
                (self.holder, self.revoked) = (NOBODY, false);
                self.arrive_locked(me);
                return vec![self];
            }
            At::InsideLocked => at = At::MakeHolder,
            At::MakeHolder => {
                at = At::Unlock;
                if self.line == 0 {
                    let mut biased = self;
                    biased.holder = id;
                    biased.threads[me].at = at;
                    self.threads[me].at = at;
                    return vec![self, biased];
                }
            }
            At::Unlock => {
                self.flush(me);
                if self.lock == id {
                    self.lock = NOBODY;
                }
                at = At::Outside;
            }
            other => unreachable!("{other:?} is no step under the lock"),
        }
        self.threads[me].at = at;
        vec![self]
    }

    fn arrive_locked(&mut self, me: usize) {
        let waits = |t: &Thread| matches!(t.at, At::Wait | At::TryTurn) && t.ticket >= 0;
        let overtaken =
            self.threads.iter().find(|t| waits(t) && !t.dead && !t.stopped && t.later >> me & 1 != 0);
        assert!(overtaken.is_none() || self.stops_left == 0, "a waiter was overtaken: {self:?}");
        self.arrive(me, At::InsideLocked);
    }

    /// All that can happen next, and which thread does it; `N + i` is the buffer of thread `i`.
    fn successors(&self, rules: Rules) -> Vec<(usize, State)> {
        let mut all = Vec::new();
        for me in 0..N {
            let thread = self.threads[me];
            if thread.buffer.is_some() {
                let mut next = *self;
                next.flush(me);
                all.push((N + me, next));
            }
            if thread.dead {
                continue;
            }
            if self.deaths_left > 0 {
                let mut next = *self;
                next.deaths_left -= 1;
                next.threads[me].dead = true;
                next.dirty |= matches!(thread.at, At::InsideAsHolder | At::InsideLocked);
                all.push((usize::MAX, next));
            }
            if thread.stopped {
                continue;
            }
            if self.stops_left > 0 {
                let mut next = *self;
                next.stops_left -= 1;
                next.threads[me].stopped = true;
                all.push((usize::MAX, next));
            }
            // One late store is as bad as many; a full buffer makes its thread wait.
            if thread.buffer.is_some() && matches!(thread.at, At::Announce | At::Withdraw { .. }) {
                continue;
            }
            all.extend(self.step(me, rules.hasty).into_iter().map(|next| (me, next)));
        }
        all
    }
}

/// A quick hash for many small keys.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }
    fn write_u8(&mut self, byte: u8) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_isize(&mut self, discriminant: isize) {
        self.write_u8(discriminant as u8);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

struct Graph {
    states: Vec<State>,
    edges: Vec<Vec<(usize, u32)>>,
}

/// Every state that can be reached. Assertions of the steps hold on the way.
fn explore(rules: Rules) -> Graph {
    let first = State::new(rules);
    let mut numbers = HashMap::with_hasher(BuildHasherDefault::<Mix>::default());
    numbers.insert(first, 0u32);
    let mut graph = Graph { states: vec![first], edges: Vec::new() };
    while let Some(state) = graph.states.get(graph.edges.len()).copied() {
        let mut edges = Vec::new();
        for (who, next) in state.successors(rules) {
            let number = *numbers.entry(next).or_insert_with(|| {
                graph.states.push(next);
                graph.states.len() as u32 - 1
            });
            edges.push((who, number));
        }
        graph.edges.push(edges);
    }
    graph
}

impl Graph {
    /// Sets of states (strongly connected components) within `inside` in which a run may stay for ever, by Tarjan's
    /// algorithm without recursion.
    fn cycles(&self, inside: impl Fn(&State) -> bool, mut each: impl FnMut(&[u32])) {
        const NEW: u32 = u32::MAX;
        let (mut index, mut low) = (vec![NEW; self.states.len()], vec![0u32; self.states.len()]);
        let (mut on_stack, mut stack, mut count) = (vec![false; self.states.len()], Vec::new(), 0);
        for root in 0..self.states.len() as u32 {
            if index[root as usize] != NEW || !inside(&self.states[root as usize]) {
                continue;
            }
            let mut work = vec![(root, 0usize)];
            while let Some((node, edge)) = work.pop() {
                let at = node as usize;
                if edge == 0 {
                    (index[at], low[at], on_stack[at]) = (count, count, true);
                    count += 1;
                    stack.push(node);
                } else {
                    let child = self.edges[at][edge - 1].1 as usize;
                    if on_stack[child] {
                        low[at] = low[at].min(low[child]);
                    }
                }
                if let Some((_, next)) = self.edges[at].get(edge) {
                    work.push((node, edge + 1));
                    if index[*next as usize] == NEW && inside(&self.states[*next as usize]) {
                        work.push((*next, 0));
                    }
                    continue;
                }
                if low[at] == index[at] {
                    let from = stack.iter().rposition(|n| *n == node).expect("it was pushed");
                    each(&stack[from..]);
                    stack.drain(from..).for_each(|n| on_stack[n as usize] = false);
                }
            }
        }
    }

    /// Fails when thread 0 can wait for ever although all others get their turns.
    fn assert_nobody_starves(&self) {
        let waits = |state: &State| {
            let me = state.threads[0];
            let is_waiting = !matches!(me.at, At::Outside | At::InsideAsHolder | At::InsideLocked);
            let in_call = |t: &Thread| !matches!(t.at, At::Outside | At::Wait | At::TakeTicket);
            // Who is stopped in the middle of a send holds the others up (ADR 18).
            is_waiting && !me.dead && !me.stopped && !state.threads.iter().any(|t| t.stopped && in_call(t))
        };
        self.cycles(waits, |cycle| {
            let numbers: std::collections::HashSet<u32> = cycle.iter().copied().collect();
            let acts = |who: usize| {
                cycle.iter().any(|n| {
                    self.edges[*n as usize].iter().any(|(actor, to)| *actor == who && numbers.contains(to))
                })
            };
            let states = || cycle.iter().map(|n| &self.states[*n as usize]);
            let fair = (0..N).all(|who| {
                let rests = |t: &Thread| t.dead || t.stopped || t.at == At::Outside;
                (acts(who) || states().any(|s| rests(&s.threads[who])))
                    && (acts(N + who) || states().any(|s| s.threads[who].buffer.is_none()))
            });
            assert!(!fair, "thread 0 can wait for ever: {:?}", states().next());
        });
    }
}

#[test]
fn every_thread_gets_its_turn() {
    let graph = explore(Rules { deaths: 0, stops: 0, hasty: false });
    graph.assert_nobody_starves();
}

#[test]
fn a_death_anywhere_holds_nobody_up() {
    let graph = explore(Rules { deaths: 1, stops: 0, hasty: false });
    graph.assert_nobody_starves();
}

#[test]
fn a_stop_outside_of_calls_holds_nobody_up() {
    let graph = explore(Rules { deaths: 0, stops: 1, hasty: false });
    graph.assert_nobody_starves();
}

#[test]
fn a_death_and_hasty_passes_are_safe() {
    let graph = explore(Rules { deaths: 1, stops: 0, hasty: true });
    assert!(graph.states.len() > 10_000);
}
