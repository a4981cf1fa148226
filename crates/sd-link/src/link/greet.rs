//! How two engines find each other, and notice that one of them was started anew.
//!
//! Each has a nonce for the session that is to be. Who hears it back knows that whoever answers is there now, so a greeting
//! that was long under way, of an engine that is no more, changes nothing. A session's tag and keys follow from both nonces and
//! epochs; so packets of any other session are foreign.
//!
//! A greeting shows who it is from by its signature ([`crate::seal::Seal::sign`]), where the seal has keys: those of a handshake
//! that was before the link.

use crate::Nanos;
use crate::seal::{Random, Session, hash_words};
use crate::wire::Hello;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug)]
struct Peer {
    epoch: u64,
    nonce: u64,
    /// Ours, of this session.
    own: u64,
    /// It has the session as well.
    is_sure: bool,
}

/// What is to be done after a greeting was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    /// A session begins; the one before, if any, is over.
    Begin,
}

/// What a session is known by: tags of both directions, and what its keys are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) send_tag: u64,
    pub(super) receive_tag: u64,
    pub(super) session: Session,
}

#[derive(Debug)]
pub(super) struct Greeting {
    epoch: u64,
    random: Random,
    nonce: u64,
    peer: Option<Peer>,
    next: Option<Nanos>,
    /// What is to be said on each path: the echo and whether a session is there.
    due: Vec<Option<(u64, u64, bool)>>,
    pub(super) names: Names,
}

impl Greeting {
    pub(super) fn new(epoch: u64, mut random: Random, paths: usize) -> Greeting {
        let nonce = random.next();
        let due = alloc::vec![None; paths];
        Greeting { epoch, random, nonce, peer: None, next: Some(0), due, names: Names::default() }
    }

    pub(super) fn is_up(&self) -> bool {
        self.peer.is_some()
    }

    /// Records may be sent: the other engine has the session as well, and will take them.
    pub(super) fn may_send(&self) -> bool {
        self.peer.is_some_and(|peer| peer.is_sure)
    }

    pub(super) fn next_time(&self) -> Option<Nanos> {
        self.next
    }

    pub(super) fn down(&mut self) {
        self.peer = None;
        self.next = None;
        self.nonce = self.random.next();
        self.due.fill(None);
    }

    pub(super) fn seek(&mut self, now: Nanos) {
        self.next = Some(now);
    }

    pub(super) fn tick(&mut self, now: Nanos, pause: Nanos) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let what = match self.peer {
            Some(peer) => (peer.own, peer.nonce, false),
            None => (self.nonce, 0, false),
        };
        for due in &mut self.due {
            // An answer that is still to be said comes first.
            due.get_or_insert(what);
        }
        self.next = Some(now + pause);
    }

    /// A packet of the session came, so the other engine has it.
    pub(super) fn is_sure(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.is_sure = true;
            self.next = None;
        }
    }

    /// What is to be said on a path now.
    pub(super) fn take(&mut self, path: usize) -> Option<Hello> {
        let (nonce, echo, is_up) = self.due.get_mut(path)?.take()?;
        Some(Hello { epoch: self.epoch, nonce, echo, is_up })
    }

    pub(super) fn hear(&mut self, now: Nanos, path: usize, hello: &Hello) -> Heard {
        let Some(due) = self.due.get_mut(path) else { return Heard::Nothing };
        if hello.epoch == self.epoch {
            return Heard::Nothing;
        }
        if let Some(peer) = self.peer
            && (peer.epoch, peer.nonce) == (hello.epoch, hello.nonce)
        {
            if !hello.is_up {
                *due = Some((peer.own, peer.nonce, true));
            } else if hello.echo == peer.own {
                self.is_sure();
            }
            return Heard::Nothing;
        }
        if hello.echo == self.nonce {
            *due = Some((self.nonce, hello.nonce, true));
            let own = core::mem::replace(&mut self.nonce, self.random.next());
            let peer = Peer { epoch: hello.epoch, nonce: hello.nonce, own, is_sure: hello.is_up };
            self.next = (!hello.is_up).then_some(now);
            self.names = self.name(&peer);
            self.peer = Some(peer);
            return Heard::Begin;
        }
        // An echo of something else is an answer to somebody who is no more.
        if hello.echo == 0 {
            *due = Some((self.nonce, hello.nonce, false));
        }
        Heard::Nothing
    }

    fn name(&self, peer: &Peer) -> Names {
        let send = [self.epoch, peer.own, peer.epoch, peer.nonce];
        let receive = [peer.epoch, peer.nonce, self.epoch, peer.own];
        let (send_tag, receive_tag) = (hash_words(1, &send), hash_words(1, &receive));
        Names { send_tag, receive_tag, session: Session { send, receive } }
    }
}
