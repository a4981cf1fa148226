//! Two ends at two hosts, whose rings engines carry, and whose road breaks at any moment: all orders in which they can go over to
//! the rings, notice the break, each for itself, and go back to the kernel's connection (`sd_ring::road`, ADR 101).
//!
//! Bytes are numbers. Checked in every state: each receiver has got 0, 1, 2, ... and nothing else, no frame is taken for a byte, and who is told
//! of an end has got all. And from every state: when both ends go on, both get all, or both are reset. Mutants show that the checks can fail.
//!
//! An end that dies before the other one knows that it has switched is left out where the road breaks besides: its bytes are lost, as they were
//! before. Where the road holds, it may die at any moment, and the engines tell of that behind its bytes.
#![cfg(not(loom))]

use sd_ring::road::{self, Position, Receive, RoadWord, Send};
use std::collections::{HashSet, VecDeque};

/// What the kernel's stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    Byte(u8),
    /// So much of the ring has come.
    Answer(usize),
    /// So many bytes follow again.
    Again(u64),
}

/// How the kernel's stream ends that comes from an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Open,
    Fin,
    Reset,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    word: RoadWord,
    /// The other end's word and P, as the engines have brought them.
    seen: RoadWord,
    seen_at: u64,
    switched_at: u64,
    stream: VecDeque<Item>,
    written: u64,
    fate: Fate,
    /// What this end has put into its ring; what has come in the one that it reads, and was read there.
    ring: Vec<u8>,
    come: usize,
    consumed: usize,
    sent: u8,
    got: u8,
    read: u64,
    /// It reads the ring; or has left that.
    arrived: bool,
    left_ring: bool,
    /// What the other end's answer said, and the second frame.
    resume_at: usize,
    end_at: Option<u64>,
    asked: Option<u64>,
    is_dead: bool,
    is_reset: bool,
    /// The engines have said that the other end is dead.
    is_told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// An end goes over that does not know whether the other one has heard of it.
    SwitchesUnheard,
    /// An end answers that does not know whether the other one expects it.
    AnswersUnasked,
    /// An end of the stream is believed in any case.
    BelievesEnds,
    /// What came in the ring after the answer is read, too.
    ReadsOn,
    /// The answer says what the program has read, and it reads on to what has come.
    AnswersEarly,
}

#[derive(Clone, Copy)]
struct Rules {
    bytes: [u8; 2],
    deaths: bool,
    /// The road does not break, and ends die. Only then it is waited for that each has heard of the other: it makes no difference else, but for the
    /// number of states.
    holds: bool,
    mutant: Mutant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ends: [End; 2],
    is_up: bool,
}

impl End {
    fn new() -> End {
        End {
            word: RoadWord::default(),
            seen: RoadWord::default(),
            seen_at: 0,
            switched_at: 0,
            stream: VecDeque::new(),
            written: 0,
            fate: Fate::Open,
            ring: Vec::new(),
            come: 0,
            consumed: 0,
            sent: 0,
            got: 0,
            read: 0,
            arrived: false,
            left_ring: false,
            resume_at: 0,
            end_at: None,
            asked: None,
            is_dead: false,
            is_reset: false,
            is_told: false,
        }
    }

    fn set(&mut self, bits: RoadWord) {
        self.word = self.word | bits;
    }

    fn write(&mut self, item: Item) {
        self.stream.push_back(item);
        self.written += 1;
    }

    fn can_act(&self) -> bool {
        !self.is_dead && !self.is_reset
    }

    fn reset(&mut self) {
        (self.is_reset, self.fate) = (true, Fate::Reset);
    }

    /// One step of the sender; false: nothing to do.
    fn send(&mut self, most: u8, rules: Rules) -> bool {
        let more = self.sent < most;
        let is_waited_for = rules.holds && rules.mutant != Mutant::SwitchesUnheard;
        let heard = if is_waited_for { RoadWord::default() } else { RoadWord::HEARD };
        let [own, seen] = road::between_hosts(self.word, self.seen | heard);
        match road::send(own, seen, true) {
            Send::Kernel if more => {
                self.write(Item::Byte(self.sent));
                self.sent += 1;
            }
            Send::Ring if more => {
                self.ring.push(self.sent);
                self.sent += 1;
            }
            Send::Switch => {
                self.switched_at = self.written;
                self.set(RoadWord::SWITCHED);
            }
            Send::Resend => {
                let done = self.written - self.switched_at;
                let left = self.ring.get(self.resume_at..).unwrap_or_default();
                match done.checked_sub(2) {
                    None if done == 1 => self.write(Item::Again(left.len() as u64)),
                    None => return false,
                    Some(sent) => match left.get(sent as usize).copied() {
                        Some(byte) => self.write(Item::Byte(byte)),
                        None => self.set(RoadWord::LEFT),
                    },
                }
            }
            _ => return false,
        }
        true
    }
}

impl State {
    fn both(&mut self, me: usize) -> (&mut End, &mut End) {
        let [a, b] = &mut self.ends;
        if me == 0 { (a, b) } else { (b, a) }
    }

    /// The engines carry one thing from `me`: a byte, or else the word, or else that it is dead.
    fn carry(&self, me: usize, rules: Rules) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        let is_carried = self.is_up && !peer.seen.has(RoadWord::BROKEN);
        let known = |of, says| if end.seen.has(of) { says } else { RoadWord::default() };
        let heard = known(RoadWord::ATTACHED, RoadWord::HEARD).0 * u32::from(rules.holds);
        let knows = known(RoadWord::SWITCHED, RoadWord::KNOWS) | RoadWord(heard);
        let said = RoadWord(end.word.0 & !RoadWord::BROKEN.0) | knows;
        if !is_carried {
            return None;
        }
        if peer.come < end.ring.len() {
            peer.come += 1;
        } else if peer.seen != said {
            (peer.seen, peer.seen_at) = (said, end.switched_at);
        } else if end.is_dead && !peer.is_told {
            peer.is_told = true;
        } else {
            return None;
        }
        Some(after)
    }

    /// One step of the receiver.
    fn receive(&self, me: usize, mutant: Mutant) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        if !end.can_act() {
            return None;
        }
        if end.arrived && !end.left_ring {
            let byte = peer.ring.get(end.consumed).copied().filter(|_| end.consumed < end.come);
            match byte {
                Some(byte) => {
                    assert_eq!(byte, end.got, "a byte was lost, or came twice");
                    (end.consumed, end.got) = (end.consumed + 1, end.got + 1);
                }
                // The marker that this end has put there itself.
                None if end.end_at.is_some() => end.left_ring = true,
                None if end.is_told && self.is_up => end.ends(peer, mutant),
                None => return None,
            }
            return Some(after);
        }
        let waiting = peer.stream.len() as u64;
        let at = Position {
            waiting,
            read: end.read,
            switched_at: end.seen_at,
            marker: end.left_ring,
            ended: false,
        };
        match road::receive(end.seen, at) {
            Receive::Ring => end.arrived = true,
            Receive::Kernel(most) => match peer.stream.front().copied().filter(|_| most > 0) {
                Some(Item::Byte(byte)) => {
                    assert_eq!(byte, end.got, "a byte was lost, or came twice");
                    peer.stream.pop_front();
                    (end.read, end.got) = (end.read + 1, end.got + 1);
                }
                Some(frame) => panic!("{frame:?} is taken for a byte"),
                None if self.is_up && end.is_untold() => return None,
                None if peer.stream.is_empty() && peer.fate != Fate::Open => end.ends(peer, mutant),
                None => return None,
            },
            step => panic!("{step:?} of honest ends"),
        }
        Some(after)
    }

    /// An end whose road is gone does what it can, as `sd-socket/src/socket/broken.rs`.
    fn mend(&self, me: usize, mutant: Mutant) -> Option<State> {
        let mut after = self.clone();
        let (end, peer) = after.both(me);
        if !end.can_act() || !end.seen.has(RoadWord::BROKEN) {
            return None;
        }
        if !end.word.has(RoadWord::BROKEN) {
            let knows = if mutant == Mutant::AnswersUnasked { RoadWord::KNOWS } else { RoadWord::default() };
            match road::may_mend(end.word, end.seen | knows) {
                true => end.set(RoadWord::BROKEN),
                false => end.reset(),
            }
        } else if end.written == end.switched_at {
            let last = if mutant == Mutant::AnswersEarly { end.consumed } else { end.come };
            end.write(Item::Answer(last));
        } else if !end.word.has(RoadWord::RESUME) {
            let ahead = end.seen_at - end.read;
            match peer.stream.get(ahead as usize).copied() {
                Some(Item::Answer(at)) => {
                    end.resume_at = at;
                    end.set(RoadWord::RESUME);
                }
                Some(item) => panic!("{item:?} in the place of an answer"),
                None if peer.fate != Fate::Open => end.reset(),
                None => return None,
            }
        } else if end.end_at.is_none() && end.read >= end.seen_at {
            end.arrived = true;
            match (peer.stream.front().copied(), end.asked) {
                (Some(Item::Answer(_)), None) => {
                    peer.stream.pop_front();
                    end.read += 1;
                    end.asked = Some(end.read);
                }
                (Some(Item::Again(bytes)), Some(_)) => {
                    peer.stream.pop_front();
                    end.read += 1;
                    end.end_at = Some(end.read + bytes);
                }
                (None, _) if peer.fate != Fate::Open => end.reset(),
                (None, _) => return None,
                (item, _) => panic!("{item:?} in the place of a frame"),
            }
        } else {
            return None;
        }
        Some(after)
    }

    fn decisions(&self, me: usize, rules: Rules) -> Vec<State> {
        let mut all = vec![];
        let mut with = |change: &dyn Fn(&mut End, &mut End)| {
            let mut after = self.clone();
            let (end, peer) = after.both(me);
            change(end, peer);
            all.push(after);
        };
        let end = &self.ends[me];
        if end.can_act() && !end.word.has(RoadWord::ATTACHED) && !end.seen.has(RoadWord::BROKEN) {
            with(&|end, _| end.set(RoadWord::ATTACHED));
        }
        if !self.is_up && !end.seen.has(RoadWord::BROKEN) && end.can_act() {
            with(&|end, _| end.seen = end.seen | RoadWord::BROKEN);
        }
        if rules.mutant == Mutant::ReadsOn
            && end.seen.has(RoadWord::BROKEN)
            && end.come < self.ends[1 - me].ring.len()
        {
            with(&|end, _| end.come += 1);
        }
        let is_known = self.ends[1 - me].seen.has(RoadWord::SWITCHED) || !end.word.has(RoadWord::SWITCHED);
        if end.can_act() && (rules.deaths && !self.is_up && is_known || rules.holds) {
            with(&|end, _| (end.is_dead, end.fate) = (true, Fate::Fin));
        }
        // A reset may overtake what was sent before it.
        if end.fate == Fate::Reset && !end.stream.is_empty() {
            with(&|end, _| end.stream.clear());
        }
        all
    }

    fn successors(&self, rules: Rules) -> Vec<State> {
        let mut all = vec![];
        for me in 0..2 {
            let mut sends = self.clone();
            if sends.ends[me].can_act() && sends.ends[me].send(rules.bytes[me], rules) {
                all.push(sends);
            }
            all.extend(self.carry(me, rules));
            all.extend(self.receive(me, rules.mutant));
            all.extend(self.mend(me, rules.mutant));
            all.extend(self.decisions(me, rules));
        }
        if self.is_up && !rules.holds {
            all.push(State { is_up: false, ..self.clone() });
        }
        all
    }

    /// Both ends go on, and the road stays as it is: all arrives, or both are reset.
    fn assert_settles(&self, rules: Rules) {
        let mut state = self.clone();
        for me in 0..2 {
            let is_late = !state.is_up && state.ends[me].can_act();
            let bit = if is_late { RoadWord::BROKEN } else { RoadWord::default() };
            state.ends[me].seen = state.ends[me].seen | bit;
        }
        loop {
            let before = state.clone();
            for me in 0..2 {
                if state.ends[me].can_act() {
                    let most = self.ends[me].sent;
                    state.ends[me].send(most, rules);
                }
                state = state.carry(me, rules).unwrap_or(state);
                state = state.receive(me, rules.mutant).unwrap_or(state);
                state = state.mend(me, rules.mutant).unwrap_or(state);
            }
            if state == before {
                break;
            }
        }
        let [a, b] = &state.ends;
        let all_came = a.got == b.sent && b.got == a.sent;
        let is_over = a.fate != Fate::Open || b.fate != Fate::Open;
        let both_know = [a, b].iter().all(|end| !end.can_act());
        assert!(if is_over { both_know } else { all_came }, "from {self:#?} to {state:#?}");
    }
}

impl End {
    /// As in `sd-socket/src/socket/broken.rs`.
    fn is_untold(&self) -> bool {
        let is_there = self.seen.has(RoadWord::ATTACHED);
        is_there && !self.seen.has(RoadWord::SWITCHED) && !self.seen.has(RoadWord::LEFT) && !self.is_told
    }

    /// The kernel's stream has ended.
    fn ends(&mut self, peer: &End, mutant: Mutant) {
        let is_cut = self.word.has(RoadWord::BROKEN) && self.end_at.is_none_or(|end| self.read < end);
        if peer.fate == Fate::Reset || is_cut && mutant != Mutant::BelievesEnds {
            self.reset();
            return;
        }
        assert_eq!(self.got, peer.sent, "an end was told, and bytes are missing");
        // Its program closes it then.
        (self.is_dead, self.fate) = (true, Fate::Fin);
    }
}

/// Looks at every state that can be reached; how many, and in how many of them both ends were back in the kernel's stream.
fn explore(rules: Rules) -> (usize, usize) {
    let start = State { ends: [End::new(), End::new()], is_up: true };
    let mut seen = HashSet::from([start.clone()]);
    let mut next = VecDeque::from([start]);
    let mut back = 0;
    while let Some(state) = next.pop_front() {
        state.assert_settles(rules);
        back += usize::from(state.ends.iter().all(|end| end.left_ring && end.word.has(RoadWord::LEFT)));
        for after in state.successors(rules) {
            if seen.insert(after.clone()) {
                next.push_back(after);
            }
        }
    }
    (seen.len(), back)
}

const BYTES: [u8; 2] = if cfg!(debug_assertions) { [1, 1] } else { [3, 2] };
const PLAIN: Rules = Rules { bytes: BYTES, deaths: false, holds: false, mutant: Mutant::None };

#[test]
fn bytes_arrive_once_and_in_order() {
    let (states, back) = explore(PLAIN);
    println!("{states} states, {back} with both ends back in the kernel");
    assert!(back > 0);
}

#[test]
fn a_death_is_no_end_that_hides_bytes() {
    let (states, _) = explore(Rules { deaths: true, bytes: [2, 1], ..PLAIN });
    println!("{states} states");
}

#[test]
fn an_end_overtakes_nothing_while_the_road_holds() {
    let (states, _) = explore(Rules { holds: true, ..PLAIN });
    println!("{states} states");
    let rules = Rules { holds: true, mutant: Mutant::SwitchesUnheard, ..PLAIN };
    assert!(std::panic::catch_unwind(|| explore(rules)).is_err(), "the mutant passes");
}

#[test]
fn mutants_are_found() {
    for mutant in [Mutant::AnswersUnasked, Mutant::BelievesEnds, Mutant::ReadsOn, Mutant::AnswersEarly] {
        let rules = Rules { bytes: [2, 1], deaths: true, holds: false, mutant };
        let found = std::panic::catch_unwind(|| explore(rules));
        assert!(found.is_err(), "a mutant passes");
    }
}
