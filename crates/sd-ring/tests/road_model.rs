//! All orders in which two ends can do what `sd_ring::road` decides: promoted and demoted at any byte, with threads that
//! die between two steps, processes that die, and one that becomes a program without the library.
//!
//! Bytes are numbers. Checked in every state: each receiver has got 0, 1, 2, ... and nothing else. And from every
//! state: when both ends go on, a living receiver gets all that was sent. Mutants show that the checks can fail.
#![cfg(not(loom))]

use sd_ring::road::{self, Position, Receive, RoadWord, Send};
use std::collections::{HashSet, VecDeque};

/// What the ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    Byte(u8),
    Marker,
}

/// Who uses an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum User {
    Library,
    /// A program without the library: it reads and writes the kernel's stream.
    Stranger,
    Dead,
}

/// Where the thread is that holds the right to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Receiving {
    Idle,
    /// It has asked how many bytes wait in the kernel's stream.
    Asked(usize),
    Decided(Receive),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    user: User,
    word: RoadWord,
    /// P and Q, as they stand beside the word.
    switched_at: u64,
    resume_at: usize,
    /// The direction from this end: what is under way, and how many items of the ring were ever consumed.
    stream: VecDeque<u8>,
    written: u64,
    ring: Vec<Item>,
    consumed: usize,
    /// Ring items sent again so far.
    resent: usize,
    /// Bytes that the program at this end has sent, and got.
    sent: u8,
    got: u8,
    read: u64,
    marker: bool,
    /// It has read the kernel's stream to its end, which is there when the other end is dead.
    ended: bool,
    /// It reads again from the ring what it had asked to be sent again.
    rest: bool,
    sending: Option<Send>,
    /// P was stored, SWITCHED is next; or the marker was written, LEFT is next.
    half_done: bool,
    receiving: Receiving,
    /// The slot is closed here: a kernel connection again.
    over: bool,
}

/// What is wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// P is one too small.
    Position,
    /// The receiver asks what waits in the kernel's stream after it has read the peer's word.
    AsksLate,
    /// LEFT without a marker.
    NoMarker,
    /// What the ring holds is not sent again.
    NoResend,
    /// What a dead end did not send again is not read from its ring.
    NoRest,
}

#[derive(Clone, Copy)]
struct Rules {
    /// Bytes that each end's program sends.
    bytes: [u8; 2],
    deaths: bool,
    /// An end may become a program without the library.
    strangers: bool,
    /// The end that receives may stop reading its ring, and go on with the library; the other one may die.
    in_a_hurry: bool,
    mutant: Mutant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ends: [End; 2],
}

impl End {
    fn new() -> End {
        End {
            user: User::Library,
            word: RoadWord::default(),
            switched_at: 0,
            resume_at: 0,
            stream: VecDeque::new(),
            written: 0,
            ring: Vec::new(),
            consumed: 0,
            resent: 0,
            sent: 0,
            got: 0,
            read: 0,
            marker: false,
            ended: false,
            rest: false,
            sending: None,
            half_done: false,
            receiving: Receiving::Idle,
            over: false,
        }
    }

    fn set(&mut self, bit: RoadWord) {
        self.word = self.word | bit;
    }

    fn write_stream(&mut self, byte: u8) {
        self.stream.push_back(byte);
        self.written += 1;
    }
}

impl State {
    /// The two ends, `me` first.
    fn both(&mut self, me: usize) -> (&mut End, &mut End) {
        let [a, b] = &mut self.ends;
        if me == 0 { (a, b) } else { (b, a) }
    }

    /// The program at `me` gets a byte.
    fn take(&mut self, me: usize, byte: u8) {
        let (end, _) = self.both(me);
        assert_eq!(byte, end.got, "a byte was lost, came twice or overtook another");
        end.got += 1;
    }

    /// One step of the sender at `me`. `None`: nothing to do.
    fn send(&self, me: usize, rules: Rules) -> Vec<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        let more = end.sent < rules.bytes[me];
        match (end.user, end.sending) {
            (User::Dead, _) => return vec![],
            (User::Stranger, _) if !more => return vec![],
            (User::Stranger, _) => {
                end.write_stream(end.sent);
                end.sent += 1;
                return vec![after];
            }
            (User::Library, None) => {
                let step = |free| if end.over { Send::Kernel } else { road::send(end.word, peer.word, free) };
                let steps = HashSet::from([step(true), step(false)]);
                let worth = |step: &Send| more || !matches!(step, Send::Kernel | Send::Ring);
                return steps.into_iter().filter(worth).map(|step| self.decided(me, step)).collect();
            }
            (User::Library, Some(step)) => {
                let done = act(end, peer, step, rules.mutant);
                end.half_done = !done;
                end.sending = (!done).then_some(step);
            }
        }
        vec![after]
    }

    fn decided(&self, me: usize, step: Send) -> State {
        let mut after = self.clone();
        after.ends[me].sending = Some(step);
        after
    }

    /// One step of the receiver at `me`.
    fn receive(&self, me: usize, rules: Rules) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        match (end.user, end.receiving) {
            (User::Dead, _) => return None,
            (User::Stranger, _) => end.receiving = Receiving::Decided(Receive::Kernel(u64::MAX)),
            (User::Library, Receiving::Idle) if end.over => {
                end.receiving = Receiving::Decided(Receive::Kernel(u64::MAX));
            }
            (User::Library, Receiving::Idle) if end.rest => end.receiving = Receiving::Decided(Receive::Ring),
            (User::Library, Receiving::Idle) => {
                end.receiving = Receiving::Asked(peer.stream.len());
                return Some(after);
            }
            (User::Library, Receiving::Asked(waiting)) => {
                let at = Position {
                    waiting: waiting as u64,
                    read: end.read,
                    switched_at: peer.switched_at,
                    marker: end.marker,
                    ended: end.ended,
                };
                let ended = at.ended && rules.mutant != Mutant::NoRest;
                let step = road::receive(peer.word, Position { ended, ..at });
                let late = rules.mutant == Mutant::AsksLate && matches!(step, Receive::Kernel(_));
                let unbounded = late && !peer.word.has(RoadWord::SWITCHED);
                end.receiving = Receiving::Decided(if unbounded { Receive::Kernel(u64::MAX) } else { step });
                return Some(after);
            }
            (User::Library, Receiving::Decided(_)) => {}
        }
        let Receiving::Decided(step) = end.receiving else { return None };
        end.receiving = Receiving::Idle;
        let byte = match step {
            Receive::Kernel(0) => None,
            Receive::Kernel(_) => {
                end.ended |= peer.stream.is_empty() && peer.user == User::Dead;
                peer.stream.pop_front().inspect(|_| end.read += 1)
            }
            Receive::Rest(behind) => {
                (peer.consumed, end.rest) = (end.resume_at + behind as usize, true);
                None
            }
            Receive::Ring => match peer.ring.get(peer.consumed).copied() {
                Some(Item::Byte(byte)) => {
                    peer.consumed += 1;
                    Some(byte)
                }
                Some(Item::Marker) => {
                    peer.consumed += 1;
                    end.marker = true;
                    None
                }
                None => None,
            },
            Receive::Lie => panic!("an honest peer is taken for a liar"),
        };
        end.over |= end.user == User::Library && road::is_over(end.word, peer.word, end.marker);
        if let Some(byte) = byte {
            after.take(me, byte);
        }
        Some(after)
    }

    /// The process at `me` becomes a program without the library. It holds both rights while it does this.
    fn become_stranger(&self, me: usize) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        let idle = end.sending.is_none() && end.receiving == Receiving::Idle;
        if end.user != User::Library || !idle {
            return None;
        }
        if !end.over {
            // As receiver: the peer sends again, or all that it left in the ring was read.
            match road::resuming(peer.word) {
                Some(word) => (end.resume_at, peer.word) = (peer.consumed, word),
                None if end.marker => {}
                None => return None,
            }
            // As sender: what the peer has asked for comes first.
            match road::leaving(end.word) {
                _ if end.word.has(RoadWord::LEFT) => {}
                Some(word) if end.word.has(RoadWord::SWITCHED) => {
                    if end.ring.last() != Some(&Item::Marker) {
                        end.ring.push(Item::Marker);
                    }
                    end.word = word;
                }
                None if end.word.has(RoadWord::SWITCHED) => return None,
                _ => {}
            }
            end.set(RoadWord::LEFT | RoadWord::WANTS_KERNEL);
        }
        end.user = User::Stranger;
        Some(after)
    }

    /// The process at `me` reads its ring no more, and goes on. It holds the right to receive while it does this.
    fn stop_reading(&self, me: usize) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        let can = end.user == User::Library && end.receiving == Receiving::Idle && !end.over && !end.marker;
        if !can || peer.word.has(RoadWord::RESUME) || peer.user == User::Dead {
            return None;
        }
        (end.resume_at, peer.word) = (peer.consumed, road::resuming(peer.word)?);
        end.set(RoadWord::WANTS_KERNEL);
        Some(after)
    }

    /// What the processes themselves decide.
    fn decisions(&self, me: usize, rules: Rules) -> Vec<State> {
        let mut all = Vec::new();
        let end = &self.ends[me];
        let mut with = |change: &dyn Fn(&mut End)| {
            let mut after = self.clone();
            change(&mut after.ends[me]);
            all.push(after);
        };
        if end.user == User::Library && !end.over {
            if !end.word.has(RoadWord::ATTACHED) {
                with(&|end| end.set(RoadWord::ATTACHED));
            } else if !end.word.has(RoadWord::WANTS_KERNEL) {
                with(&|end| end.set(RoadWord::WANTS_KERNEL));
            }
        }
        if end.user == User::Library && rules.deaths {
            // A thread dies, a relative has its right; or the process dies.
            with(&|end| (end.sending, end.half_done, end.receiving) = (None, false, Receiving::Idle));
            with(&|end| end.user = User::Dead);
        }
        if rules.strangers {
            all.extend(self.become_stranger(me));
        }
        if rules.in_a_hurry && me == 1 {
            all.extend(self.stop_reading(me));
        }
        if rules.in_a_hurry && me == 0 && end.user != User::Dead {
            let mut after = self.clone();
            after.ends[0].user = User::Dead;
            all.push(after);
        }
        all
    }

    /// What only grows.
    fn progress(&self) -> [(RoadWord, u8, u8, usize, bool, bool); 2] {
        self.ends.each_ref().map(|end| (end.word, end.sent, end.got, end.resent, end.marker, end.over))
    }

    fn successors(&self, rules: Rules) -> Vec<State> {
        let mut all = Vec::new();
        for me in 0..2 {
            all.extend(self.send(me, rules));
            all.extend(self.receive(me, rules));
            all.extend(self.decisions(me, rules));
        }
        all
    }

    /// Both ends go on, nobody decides anything new: all that was sent arrives.
    fn assert_arrives(&self, rules: Rules) {
        let mut state = self.clone();
        let rules = Rules { bytes: [self.ends[0].sent, self.ends[1].sent], ..rules };
        // What was half done is done after some rounds without progress.
        let mut quiet = 0;
        while quiet < 10 {
            let before = state.progress();
            for me in 0..2 {
                // A byte that was decided on is still to be sent.
                state = state.send(me, rules).pop().unwrap_or(state);
                state = state.receive(me, rules).unwrap_or(state);
            }
            quiet = if state.progress() == before { quiet + 1 } else { 0 };
        }
        for me in 0..2 {
            let (end, peer) = state.both(me);
            // Who dies before it has sent again what a stranger asked for takes that along; see ADR 82.
            let is_asked = peer.user == User::Dead && peer.word.has(RoadWord::RESUME);
            let took_along = is_asked && end.user == User::Stranger;
            if end.user != User::Dead && !took_along {
                assert_eq!(end.got, peer.sent, "never arrives, from {self:#?} to {end:#?} {peer:#?}");
            }
        }
    }
}

/// Does a part of what a sender decided; whether that was all.
fn act(end: &mut End, peer: &mut End, step: Send, mutant: Mutant) -> bool {
    match step {
        Send::Kernel => {
            end.write_stream(end.sent);
            end.sent += 1;
        }
        Send::Ring => {
            end.ring.push(Item::Byte(end.sent));
            end.sent += 1;
        }
        Send::Switch if !end.half_done => {
            end.switched_at = end.written - u64::from(mutant == Mutant::Position && end.written > 0);
            return false;
        }
        Send::Switch => end.set(RoadWord::SWITCHED),
        Send::Decline => end.set(RoadWord::LEFT),
        Send::Leave => end.word = road::leaving(end.word).unwrap_or(end.word),
        Send::Mark if !end.half_done => {
            if end.ring.last() != Some(&Item::Marker) && mutant != Mutant::NoMarker {
                end.ring.push(Item::Marker);
            }
            return false;
        }
        Send::Mark => end.set(RoadWord::LEFT),
        Send::Resend => {
            let from = peer.resume_at + end.resent;
            match end.ring.get(from).copied() {
                Some(item) if mutant != Mutant::NoResend => {
                    end.resent += 1;
                    if let Item::Byte(byte) = item {
                        end.write_stream(byte);
                    }
                }
                _ => end.set(RoadWord::LEFT),
            }
        }
    }
    true
}

/// Looks at every state that can be reached; how many, and in how many of them bytes lay in a ring, and both ends were over.
fn explore(rules: Rules) -> (usize, usize, usize) {
    let start = State { ends: [End::new(), End::new()] };
    let mut seen = HashSet::from([start.clone()]);
    let mut next = VecDeque::from([start]);
    let (mut rings, mut over) = (0, 0);
    while let Some(state) = next.pop_front() {
        state.assert_arrives(rules);
        rings += usize::from(state.ends.iter().any(|end| !end.ring.is_empty()));
        over += usize::from(state.ends.iter().all(|end| end.over));
        for after in state.successors(rules) {
            if seen.insert(after.clone()) {
                next.push_back(after);
            }
        }
    }
    (seen.len(), rings, over)
}

/// Without optimisation two bytes each way take minutes; `cargo xtask test` looks at them with it.
const BYTES: [u8; 2] = if cfg!(debug_assertions) { [1, 0] } else { [2, 1] };
const ONE_WAY: [u8; 2] = [2, 0];
const PLAIN: Rules =
    Rules { bytes: BYTES, deaths: false, strangers: false, in_a_hurry: false, mutant: Mutant::None };

#[test]
fn bytes_arrive_once_and_in_order() {
    let (states, rings, over) = explore(PLAIN);
    println!("{states} states, {rings} with bytes in a ring, {over} with both ends back in the kernel");
    assert!(rings > 0 && over > 0);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimisation")]
fn a_death_at_any_step_loses_nothing_that_was_sent() {
    let (states, ..) = explore(Rules { bytes: ONE_WAY, deaths: true, ..PLAIN });
    println!("{states} states");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimisation")]
fn a_program_without_the_library_gets_all() {
    let (states, ..) = explore(Rules { bytes: ONE_WAY, strangers: true, ..PLAIN });
    println!("{states} states");
}

#[test]
fn who_stops_reading_gets_all_from_one_that_dies() {
    let (states, ..) = explore(Rules { bytes: ONE_WAY, in_a_hurry: true, ..PLAIN });
    println!("{states} states");
}

#[test]
fn mutants_are_found() {
    let strangers = Rules { strangers: true, ..PLAIN };
    let hurried = Rules { bytes: ONE_WAY, in_a_hurry: true, ..PLAIN };
    for (mutant, rules) in [
        (Mutant::Position, PLAIN),
        (Mutant::AsksLate, PLAIN),
        (Mutant::NoMarker, PLAIN),
        (Mutant::NoResend, strangers),
        (Mutant::NoRest, hurried),
    ] {
        let found = std::panic::catch_unwind(|| explore(Rules { mutant, ..rules }));
        assert!(found.is_err(), "a mutant passes");
    }
}
