//! What two engines say to each other on a new trunk before it carries packets: who they are, and whether a link that they have goes on.
//!
//! ```text
//!  the engine that calls                               the one that is called
//!  hail: sealed or plain, the link that it has  ───>
//!                                               <───   answer: that one goes on, or a new one begins
//!  handshake (`sd_keys::handshake`), three messages; none where the hosts files say plain
//! ```
//! A link that goes on keeps its keys, so the handshake of a trunk that replaces another is bound to that link: it shows that the other engine is
//! the one that the link is with. A new link has the keys of its handshake.
//!
//! # Guarantees
//! * Not a byte behind the greeting is read, so what follows is the carrier's.
//! * Who is not the engine that the hosts file has ends nothing: until it has shown itself the trunk before stays.
//! * What is said in the clear is part of the handshake: who changes it makes that fail.

use crate::hosts::Engine;
use crate::socket::{self, ENDED};
use sd_keys::handshake::{HEAD, message_len};
use sd_keys::{Accept, Credentials, Handshake, Keys, Progress, Purpose, Refused, Trust};
use sd_proto::PeerState;
use sd_sys::Errno;
use std::os::fd::OwnedFd;

/// A greeting that takes longer is over.
pub(crate) const PATIENCE_NS: u64 = 5_000_000_000;
const MAGIC: [u8; 6] = *b"sdlnk2";
/// Magic, whether a handshake follows, the binding of the link that the caller has.
const HAIL: usize = 6 + 1 + 32;
const PLAIN: u8 = 0;
const SEALED: u8 = 1;
const NEW: u8 = 0;
const GOES_ON: u8 = 1;

/// By which both ends know a link; zeros: there is none, or it is plain.
pub(crate) type Binding = [u8; 32];

/// Who greets whom.
pub(crate) struct Terms<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) engine: &'a Engine,
    /// Of the link that this engine has.
    pub(crate) binding: Binding,
}

/// What was agreed.
pub(crate) struct Agreed {
    pub(crate) socket: OwnedFd,
    /// The link that both have goes on.
    pub(crate) goes_on: bool,
    pub(crate) keys: Option<Keys>,
}

/// Why it comes to nothing, and the kernel's reason if there is one: it has ended, or the other one is not who it should be.
#[derive(Debug)]
pub(crate) struct Over(pub(crate) PeerState, pub(crate) Errno);

impl Over {
    fn of(state: PeerState) -> Over {
        Over(state, ENDED)
    }

    /// A call has failed. `is_through`: a connection was there.
    pub(crate) fn failed(errno: Errno, is_through: bool) -> Over {
        let state = match errno.0 {
            0 | libc::EPIPE | libc::ECONNRESET => return Over::of(PeerState::Unwelcome),
            libc::ECONNREFUSED if !is_through => PeerState::Refused,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN => PeerState::NoRoute,
            libc::ETIMEDOUT => PeerState::Silent,
            _ => PeerState::Broken,
        };
        Over(state, errno)
    }
}

impl From<Refused> for Over {
    fn from(refused: Refused) -> Over {
        Over::of(match refused {
            Refused::Forged | Refused::Stranger(_) | Refused::Oneself => PeerState::OtherKey,
            Refused::Terms => PeerState::NotAlike,
            Refused::NoKey(_) => PeerState::NoKey,
            Refused::Malformed | Refused::Version(_) | Refused::OutOfTurn | Refused::Library => {
                PeerState::Noise
            }
        })
    }
}

enum Stage {
    /// Of who was called: the hail is awaited.
    Called,
    /// Of who has called: the answer is awaited.
    Answer,
    Handshake(Box<Handshake>),
    Done(Option<Keys>),
}

/// A greeting that is under way.
pub(crate) struct Greeting {
    socket: OwnedFd,
    pub(crate) until_ns: u64,
    out: Vec<u8>,
    come: Vec<u8>,
    wanted: usize,
    /// The link that the caller has, as it was said, or heard.
    claimed: Binding,
    goes_on: bool,
    /// Something was sent, so there is a connection.
    is_through: bool,
    stage: Stage,
}

impl Greeting {
    /// This engine calls.
    pub(crate) fn call(socket: OwnedFd, now: u64, terms: &Terms<'_>) -> Greeting {
        let mut hail = MAGIC.to_vec();
        hail.push(if terms.engine.trust == Trust::Plain { PLAIN } else { SEALED });
        hail.extend(terms.binding);
        Greeting { claimed: terms.binding, ..Greeting::new(socket, now, Stage::Answer, hail, 1) }
    }

    /// Another engine has called.
    pub(crate) fn called(socket: OwnedFd, now: u64) -> Greeting {
        Greeting::new(socket, now, Stage::Called, Vec::new(), HAIL)
    }

    fn new(socket: OwnedFd, now: u64, stage: Stage, out: Vec<u8>, wanted: usize) -> Greeting {
        let until_ns = now + PATIENCE_NS;
        let (come, claimed) = (Vec::new(), [0; 32]);
        let (goes_on, is_through) = (false, false);
        Greeting { socket, until_ns, out, come, wanted, claimed, goes_on, is_through, stage }
    }

    /// Goes on as far as it can. What is agreed comes once.
    pub(crate) fn look(mut self, terms: &Terms<'_>) -> Result<Result<Agreed, Greeting>, Over> {
        loop {
            let is_through = self.is_through;
            let failed = |errno| Over::failed(errno, is_through);
            let sent = socket::send(&self.socket, &self.out).map_err(failed)?;
            self.is_through |= sent > 0;
            self.out.drain(..sent);
            if !self.out.is_empty() {
                return Ok(Err(self));
            }
            if let Stage::Done(keys) = self.stage {
                return Ok(Ok(Agreed { socket: self.socket, goes_on: self.goes_on, keys }));
            }
            let have = self.come.len();
            self.come.resize(self.wanted, 0);
            let got = socket::receive(&self.socket, &mut self.come[have..]).map_err(failed)?;
            self.come.truncate(have + got);
            if self.come.len() < self.wanted {
                return Ok(Err(self));
            }
            self.take(terms)?;
        }
    }

    /// All that was awaited has come.
    fn take(&mut self, terms: &Terms<'_>) -> Result<(), Over> {
        if let Stage::Handshake(handshake) = &mut self.stage {
            let len = message_len(&self.come).ok_or(Over::of(PeerState::Noise))??;
            if len > self.come.len() {
                self.wanted = len;
                return Ok(());
            }
            let progress = handshake.receive(&self.come)?;
            match progress {
                Progress::Send(message) => self.out = message,
                Progress::SendAndDone(message, keys) => {
                    self.out = message;
                    self.stage = Stage::Done(Some(keys));
                }
                Progress::Done(keys) => self.stage = Stage::Done(Some(keys)),
            }
        } else if let Stage::Called = self.stage {
            self.hailed(terms)?;
        } else {
            self.answered(terms)?;
        }
        self.come.clear();
        self.wanted = HEAD;
        Ok(())
    }

    /// The caller's hail is there.
    fn hailed(&mut self, terms: &Terms<'_>) -> Result<(), Over> {
        let is_plain = terms.engine.trust == Trust::Plain;
        let kind = if is_plain { PLAIN } else { SEALED };
        let (magic, rest) = self.come.split_at(MAGIC.len());
        if magic != MAGIC || rest[0] != kind {
            let is_other = magic == MAGIC && [PLAIN, SEALED].contains(&rest[0]);
            return Err(Over::of(if is_other { PeerState::NotAlike } else { PeerState::Noise }));
        }
        // What a plain link goes on with, its own greetings say.
        self.claimed.copy_from_slice(&rest[1..]);
        self.goes_on = is_plain || (terms.binding != [0; 32] && self.claimed == terms.binding);
        self.out.push(if self.goes_on { GOES_ON } else { NEW });
        if is_plain {
            self.stage = Stage::Done(None);
            return Ok(());
        }
        let accept = match terms.engine.trust {
            Trust::Key(key) => Accept::Keys(vec![key]),
            _ => Accept::Shared,
        };
        let handshake = terms.credentials.answer(accept, &self.purpose())?;
        self.stage = Stage::Handshake(Box::new(handshake));
        Ok(())
    }

    /// The answer is there.
    fn answered(&mut self, terms: &Terms<'_>) -> Result<(), Over> {
        self.goes_on = self.come[0] == GOES_ON;
        let peer = match terms.engine.trust {
            Trust::Plain => {
                self.stage = Stage::Done(None);
                return Ok(());
            }
            Trust::Key(key) => Some(key),
            Trust::Shared => None,
        };
        if self.goes_on && self.claimed == [0; 32] {
            return Err(Over::of(PeerState::Noise));
        }
        let (handshake, message) = terms.credentials.begin(peer, &self.purpose())?;
        (self.stage, self.out) = (Stage::Handshake(Box::new(handshake)), message);
        Ok(())
    }

    /// All that was said in the clear is in it.
    fn purpose(&self) -> Purpose {
        match (self.goes_on, self.claimed) {
            (true, link) => Purpose::Carrier { link, path: 0 },
            (false, link) if link == [0; 32] => Purpose::Link,
            (false, link) => Purpose::After { link },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sd_keys::{Cipher, Identity, PublicKey, SharedKey};
    use std::os::unix::net::UnixStream;

    /// An engine, as one end of a greeting has it.
    struct Side {
        credentials: Credentials,
        engine: Engine,
        binding: Binding,
    }

    impl Side {
        fn new(identity: Option<Identity>, shared: Option<SharedKey>, trust: Trust) -> Side {
            let credentials = Credentials::new(identity, shared, Cipher::Aes128Gcm).unwrap();
            let address = "10.0.0.1:7".parse().unwrap();
            let engine = Engine { address, trust, is_gone: false };
            Side { credentials, engine, binding: [0; 32] }
        }

        fn terms(&self) -> Terms<'_> {
            Terms { credentials: &self.credentials, engine: &self.engine, binding: self.binding }
        }
    }

    fn pinned() -> [Side; 2] {
        let keys = [Identity::generate().unwrap(), Identity::generate().unwrap()];
        let [one, two] = [keys[0].public(), keys[1].public()];
        let [first, second] = keys;
        [Side::new(Some(first), None, Trust::Key(two)), Side::new(Some(second), None, Trust::Key(one))]
    }

    /// Both ends, until they are done or over.
    fn greet(sides: &[Side; 2]) -> [Option<Agreed>; 2] {
        greet_past(sides, |_| ())
    }

    /// The same past somebody who changes the hail.
    fn greet_past(sides: &[Side; 2], change: impl FnOnce(&mut Vec<u8>)) -> [Option<Agreed>; 2] {
        let (here, there) = UnixStream::pair().unwrap();
        let sockets = [here, there].map(|socket| {
            socket.set_nonblocking(true).unwrap();
            OwnedFd::from(socket)
        });
        let [here, there] = sockets;
        let mut calls = Greeting::call(here, 0, &sides[0].terms());
        change(&mut calls.out);
        let mut both = [Some(calls), Some(Greeting::called(there, 0))];
        let mut done = [None, None];
        for _ in 0..20 {
            for at in [0, 1] {
                let Some(greeting) = both[at].take() else { continue };
                match greeting.look(&sides[at].terms()) {
                    Ok(Ok(agreed)) => done[at] = Some(agreed),
                    Ok(Err(greeting)) => both[at] = Some(greeting),
                    Err(_) => {}
                }
            }
        }
        done
    }

    fn binding(agreed: &Option<Agreed>) -> Binding {
        agreed.as_ref().and_then(|agreed| agreed.keys.as_ref()).map(Keys::binding).unwrap()
    }

    #[test]
    fn both_get_the_keys_of_one_handshake() {
        let shared = SharedKey::generate().unwrap();
        let folder = std::env::temp_dir().join(format!("sd-greeting-{}", std::process::id()));
        shared.write_new(&folder).unwrap();
        let key = || Some(SharedKey::read(&folder).unwrap());
        let with_shared = [key(), key()].map(|key| Side::new(None, key, Trust::Shared));
        std::fs::remove_file(&folder).unwrap();
        for sides in [pinned(), with_shared] {
            let done = greet(&sides);
            assert_eq!(binding(&done[0]), binding(&done[1]));
            assert!(done.iter().flatten().all(|agreed| !agreed.goes_on));
        }
    }

    #[test]
    fn a_link_goes_on_if_both_have_it() {
        let mut sides = pinned();
        let first = binding(&greet(&sides)[0]);
        sides.iter_mut().for_each(|side| side.binding = first);
        let done = greet(&sides);
        assert!(done.iter().flatten().filter(|agreed| agreed.goes_on).count() == 2);
        // One of them was started anew.
        for at in [0, 1] {
            sides.iter_mut().for_each(|side| side.binding = first);
            sides[at].binding = [0; 32];
            let done = greet(&sides);
            assert!(done.iter().flatten().filter(|agreed| !agreed.goes_on).count() == 2);
        }
    }

    #[test]
    fn who_changes_the_hail_ends_no_link() {
        let mut sides = pinned();
        let first = binding(&greet(&sides)[0]);
        for has in [[first; 2], [first, [0; 32]], [[0; 32]; 2]] {
            sides.iter_mut().zip(has).for_each(|(side, binding)| side.binding = binding);
            for at in [7, 20, HAIL - 1] {
                let done = greet_past(&sides, |hail| hail[at] ^= 1);
                assert!(done.iter().all(Option::is_none), "byte {at}");
            }
        }
    }

    #[test]
    fn who_has_another_key_or_none_agrees_to_nothing() {
        let other = Identity::generate().unwrap().public();
        let trust = |sides: &mut [Side; 2], at: usize, trust| sides[at].engine.trust = trust;
        let mut tries: Vec<[Side; 2]> = Vec::new();
        for at in [0, 1] {
            for new in [Trust::Key(other), Trust::Key(PublicKey([0; 32])), Trust::Plain, Trust::Shared] {
                let mut sides = pinned();
                trust(&mut sides, at, new);
                tries.push(sides);
            }
        }
        for sides in tries {
            let done = greet(&sides);
            // The caller has its keys when it has sent its last message; the one that is called must not.
            assert!(done[1].is_none(), "{:?}", sides.map(|side| side.engine.trust));
        }
    }

    #[test]
    fn plain_wants_both_to_say_so_and_leaves_all_that_follows() {
        let plain = || Side::new(None, None, Trust::Plain);
        let done = greet(&[plain(), plain()]);
        assert!(done.iter().flatten().filter(|agreed| agreed.goes_on && agreed.keys.is_none()).count() == 2);
        let [Some(here), Some(there)] = done else { panic!("they have not agreed") };
        assert_eq!(socket::send(&here.socket, b"a packet"), Ok(8));
        let mut room = [0; 20];
        assert_eq!(socket::receive(&there.socket, &mut room), Ok(8));
        assert_eq!(&room[..8], b"a packet");
    }

    #[test]
    fn noise_is_no_greeting() {
        let [side, _] = pinned();
        for bytes in [&b"GET / HTTP/1.1\r\nHost: of nobody at all here\r\n\r\n"[..], &[0xff; 200], &[0; 200]]
        {
            let (here, there) = UnixStream::pair().unwrap();
            there.set_nonblocking(true).unwrap();
            assert_eq!(socket::send(&OwnedFd::from(here), bytes), Ok(bytes.len()));
            let greeting = Greeting::called(OwnedFd::from(there), 0);
            assert!(greeting.look(&side.terms()).is_err());
        }
    }
}
