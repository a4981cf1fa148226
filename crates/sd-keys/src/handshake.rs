//! Two engines show each other who they are, and agree on keys. No I/O: messages in, messages out.
//!
//! ```text
//! who begins                                     who answers
//!     ── 1: e            (to the pinned key, or under the shared one) ──>
//!     <── 2: e, [s]      now it is he, at this moment ──
//!     ── 3: s            now it is he, at this moment ──>
//! ```
//! The patterns are Noise's (revision 34, sections 7.5, 9.4), by `snow`: `XK` where the other engine's key is pinned, `XXpsk0` where
//! a key is shared; there each engine has a pair that lives as long as it, so that two that share a key can be told apart and
//! one's own messages are known. Each message has 8 bytes before it, of which none may differ from what is awaited:
//!
//! ```text
//! 0 magic u16 | version u8 | step u8 | len of all u16 | mode u8 | cipher u8
//! ```
//! What both must agree on but do not say stands in the prologue: the protocol, its version, mode, cipher and [`Purpose`].
//!
//! A message that is refused changes nothing, so a forged one does not hinder the right one. A lost one is sent again by the caller.
//! Who answers has keys only after message 3, which nobody can make who does not have what was random in message 2: so a message 1
//! that was recorded leads to an answer and no further.
//!
//! **Both begin at once**: both handshakes may go on; of two with the same engine both ends keep the one for which
//! [`Keys::is_preferred`] says true: that which the lower public key began.

use crate::Secret;
use crate::identity::{Identity, PublicKey, SharedKey, random};
use crate::primitives::Primitives;
use crate::sealed::Cipher;
use snow::{Builder, HandshakeState};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Bytes before each message of `snow`, by which [`message_len`] says how long all of it is.
pub const HEAD: usize = 8;
const MAGIC: u16 = 0x5DE2;
const VERSION: u8 = 1;
/// No message is longer.
pub const MESSAGE_MAX: usize = 128;

/// How engines show who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// By the public key that the other one's file has.
    Pinned = 1,
    /// By a key that both have.
    Shared = 2,
}

impl Mode {
    fn pattern(self) -> &'static str {
        match self {
            Mode::Pinned => "Noise_XK_25519_AESGCM_SHA256",
            Mode::Shared => "Noise_XXpsk0_25519_AESGCM_SHA256",
        }
    }

    /// Bytes of message 1, 2 and 3 behind their heads.
    fn len(self, step: u8) -> usize {
        match (self, step) {
            (_, 3) => 64,
            (Mode::Shared, 2) => 96,
            _ => 48,
        }
    }
}

/// What a handshake is for: keys for one purpose are none for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A link of two engines.
    Link,
    /// A link in the place of one, the handshake of which has this [`Keys::binding`], that only the engine that begins has left.
    After { link: [u8; 32] },
    /// One more carrier of a link, the handshake of which has this [`Keys::binding`].
    Carrier { link: [u8; 32], path: u8 },
}

impl Purpose {
    fn prologue(&self, mode: Mode, cipher: Cipher) -> Vec<u8> {
        let mut words = b"sd engine".to_vec();
        words.extend([VERSION, mode as u8, cipher as u8]);
        match self {
            Purpose::Link => words.push(1),
            Purpose::After { link } => {
                words.push(3);
                words.extend(link);
            }
            Purpose::Carrier { link, path } => {
                words.extend([2, *path]);
                words.extend(link);
            }
        }
        words
    }
}

/// Why a message is not taken, or a handshake not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no message of a handshake, or not whole.
    Malformed,
    /// The other engine speaks another version.
    Version(u8),
    /// Another step is awaited; or it is one's own message that has come back, or all is over.
    OutOfTurn,
    /// The other engine shows itself in another way, or uses another cipher.
    Terms,
    /// Not of who has the key, or not for this handshake.
    Forged,
    /// It is of the holder of a key that is not awaited.
    Stranger(PublicKey),
    /// The other end is this engine itself.
    Oneself,
    /// This engine has no key for this mode.
    NoKey(Mode),
    /// The library of cryptography has failed.
    Library,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Malformed => f.write_str("no message of a handshake"),
            Refused::Version(version) => write!(f, "version {version} of the handshake, not {VERSION}"),
            Refused::OutOfTurn => f.write_str("a message out of turn"),
            Refused::Terms => {
                f.write_str("one end has a pinned key and the other a shared one, or the ciphers differ")
            }
            Refused::Forged => f.write_str("not of an engine that has the key"),
            Refused::Stranger(key) => write!(f, "an engine whose key is not in the hosts file: {key}"),
            Refused::Oneself => f.write_str("this engine itself"),
            Refused::NoKey(Mode::Pinned) => f.write_str("this engine has no key of its own (key FILE)"),
            Refused::NoKey(Mode::Shared) => f.write_str("this engine has no shared key (shared-key FILE)"),
            Refused::Library => f.write_str("the library of cryptography failed"),
        }
    }
}

impl std::error::Error for Refused {}

/// What an engine shows itself with. Made once for its life.
#[derive(Debug)]
pub struct Credentials {
    identity: Option<Identity>,
    shared: Option<SharedKey>,
    /// The pair for shared keys.
    instance: Identity,
    cipher: Cipher,
}

/// Whom an engine that answers awaits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accept {
    /// The holder of one of these keys.
    Keys(Vec<PublicKey>),
    /// Whoever has the shared key.
    Shared,
}

impl Accept {
    fn mode(&self) -> Mode {
        match self {
            Accept::Keys(_) => Mode::Pinned,
            Accept::Shared => Mode::Shared,
        }
    }

    fn first(&self) -> Option<PublicKey> {
        match self {
            Accept::Keys(keys) => keys.first().copied(),
            Accept::Shared => None,
        }
    }
}

impl Credentials {
    pub fn new(
        identity: Option<Identity>,
        shared: Option<SharedKey>,
        cipher: Cipher,
    ) -> std::io::Result<Credentials> {
        Ok(Credentials { identity, shared, instance: Identity::generate()?, cipher })
    }

    /// Whether an engine with these shows itself in the same way to whom it trusts by key, or by the shared key.
    pub fn is_same(&self, other: &Credentials, mode: Mode) -> bool {
        let public = |of: &Credentials| of.identity.as_ref().map(Identity::public);
        let shared = |of: &Credentials| of.shared.as_ref().map(|key| Secret::new(*key.bytes()));
        match mode {
            Mode::Pinned => public(self) == public(other),
            Mode::Shared => shared(self) == shared(other),
        }
    }

    /// Begins a handshake with the holder of `peer`, or of the shared key if that is `None`. The message is to be sent.
    pub fn begin(&self, peer: Option<PublicKey>, purpose: &Purpose) -> Result<(Handshake, Vec<u8>), Refused> {
        let accept = peer.map_or(Accept::Shared, |peer| Accept::Keys(vec![peer]));
        if peer.is_some_and(|peer| self.identity.as_ref().is_some_and(|own| own.public() == peer)) {
            return Err(Refused::Oneself);
        }
        let mut handshake = self.handshake(accept, purpose, true)?;
        let message = handshake.write()?;
        Ok((handshake, message))
    }

    /// Awaits a handshake of another engine.
    pub fn answer(&self, accept: Accept, purpose: &Purpose) -> Result<Handshake, Refused> {
        self.handshake(accept, purpose, false)
    }

    fn handshake(&self, accept: Accept, purpose: &Purpose, begins: bool) -> Result<Handshake, Refused> {
        let mode = accept.mode();
        let own = match mode {
            Mode::Pinned => self.identity.as_ref().ok_or(Refused::NoKey(mode))?,
            Mode::Shared => &self.instance,
        };
        let shared = match mode {
            Mode::Pinned => None,
            Mode::Shared => Some(self.shared.as_ref().ok_or(Refused::NoKey(mode))?),
        };
        let start = Start {
            mode,
            prologue: purpose.prologue(mode, self.cipher),
            own: Secret::new(*own.private()),
            once: random().map_err(|_| Refused::Library)?,
            shared: shared.map(|key| Secret::new(*key.bytes())),
            peer: if begins { accept.first() } else { None },
            begins,
        };
        let noise = start.noise().ok_or(Refused::Library)?;
        let terms = Terms { mode, cipher: self.cipher };
        Ok(Handshake { noise, start, first: Vec::new(), terms, accept, own: own.public(), next: 1 })
    }
}

/// All that a handshake begins with, so that it can be begun again and comes to the same messages.
struct Start {
    mode: Mode,
    prologue: Vec<u8>,
    own: Secret,
    /// The private key that is for this handshake only.
    once: Secret,
    shared: Option<Secret>,
    /// The pinned key.
    peer: Option<PublicKey>,
    begins: bool,
}

impl Start {
    fn noise(&self) -> Option<Box<HandshakeState>> {
        let pattern = self.mode.pattern().parse().ok()?;
        let primitives = Box::new(Primitives(Some(self.once.clone())));
        let mut builder = Builder::with_resolver(pattern, primitives)
            .prologue(&self.prologue)
            .and_then(|builder| builder.local_private_key(self.own.as_slice()))
            .ok()?;
        if let Some(shared) = &self.shared {
            builder = builder.psk(0, shared).ok()?;
        }
        if let Some(peer) = &self.peer {
            builder = builder.remote_public_key(&peer.0).ok()?;
        }
        let noise = if self.begins { builder.build_initiator() } else { builder.build_responder() };
        noise.ok().map(Box::new)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    mode: Mode,
    cipher: Cipher,
}

impl Terms {
    fn head(self, step: u8) -> [u8; HEAD] {
        let magic = MAGIC.to_le_bytes();
        let len = ((HEAD + self.mode.len(step)) as u16).to_le_bytes();
        [magic[0], magic[1], VERSION, step, len[0], len[1], self.mode as u8, self.cipher as u8]
    }

    /// Whether `message` has the head of step `step`, and its length.
    fn check(self, message: &[u8], step: u8) -> Result<(), Refused> {
        let [m0, m1, version, step_, l0, l1, mode, cipher] =
            *message.first_chunk::<HEAD>().ok_or(Refused::Malformed)?;
        if u16::from_le_bytes([m0, m1]) != MAGIC {
            return Err(Refused::Malformed);
        }
        if version != VERSION {
            return Err(Refused::Version(version));
        }
        if usize::from(u16::from_le_bytes([l0, l1])) != message.len() {
            return Err(Refused::Malformed);
        }
        if (mode, cipher) != (self.mode as u8, self.cipher as u8) {
            return Err(Refused::Terms);
        }
        if step_ != step {
            return Err(Refused::OutOfTurn);
        }
        if message.len() == HEAD + self.mode.len(step) { Ok(()) } else { Err(Refused::Malformed) }
    }
}

/// Of a stream that begins with a handshake's message: how long that is; `None` while too little is there to say.
pub fn message_len(stream: &[u8]) -> Option<Result<usize, Refused>> {
    let head = stream.first_chunk::<HEAD>()?;
    let len = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let is_one = head[..2] == MAGIC.to_le_bytes() && (HEAD..=MESSAGE_MAX).contains(&len);
    Some(if is_one { Ok(len) } else { Err(Refused::Malformed) })
}

/// What follows from a message.
#[derive(Debug)]
pub enum Progress {
    /// This is to be sent; an answer follows.
    Send(Vec<u8>),
    /// This is to be sent, and the keys are there. The other engine has them when it has taken the message.
    SendAndDone(Vec<u8>, Keys),
    /// The keys are there, and the other engine has them.
    Done(Keys),
}

/// A handshake that is under way.
pub struct Handshake {
    noise: Box<HandshakeState>,
    start: Start,
    /// Message 1, at the end that answers.
    first: Vec<u8>,
    terms: Terms,
    accept: Accept,
    own: PublicKey,
    /// The step of the message that comes next, whoever sends it; 4: all is over.
    next: u8,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshake({:?}, step {})", self.terms.mode, self.next)
    }
}

impl Handshake {
    /// Takes a message. One that is refused has changed nothing, except that a [`Refused::Stranger`] or [`Refused::Oneself`] ends it.
    pub fn receive(&mut self, message: &[u8]) -> Result<Progress, Refused> {
        self.terms.check(message, self.next)?;
        if self.start.begins != (self.next == 2) {
            return Err(Refused::OutOfTurn);
        }
        // Nothing is said but what the pattern says.
        let mut nothing = [0; MESSAGE_MAX];
        if self.noise.read_message(&message[HEAD..], &mut nothing).is_err() {
            self.go_back()?;
            return Err(Refused::Forged);
        }
        if self.next == 1 {
            self.first = message.to_vec();
        }
        self.next += 1;
        self.look_at_peer().inspect_err(|_| self.next = 4)?;
        if self.next == 4 {
            return Ok(Progress::Done(self.keys()?));
        }
        let answer = self.write()?;
        Ok(if self.next == 4 { Progress::SendAndDone(answer, self.keys()?) } else { Progress::Send(answer) })
    }

    /// `snow` goes back when it refuses a message, but for the key it has gone on to within message 3. So the end that answers
    /// comes there anew. That costs as much as a handshake: only who changes a right message 3 makes us do it.
    fn go_back(&mut self) -> Result<(), Refused> {
        if self.next != 3 || self.noise.get_remote_static().is_none() {
            return Ok(());
        }
        self.noise = self.start.noise().ok_or(Refused::Library)?;
        let mut bytes = [0; MESSAGE_MAX];
        let first = self.first.get(HEAD..).unwrap_or_default();
        self.noise.read_message(first, &mut bytes).map_err(|_| Refused::Library)?;
        self.noise.write_message(&[], &mut bytes).map_err(|_| Refused::Library)?;
        Ok(())
    }

    fn write(&mut self) -> Result<Vec<u8>, Refused> {
        let mut message = vec![0; MESSAGE_MAX];
        message[..HEAD].copy_from_slice(&self.terms.head(self.next));
        let len = self.noise.write_message(&[], &mut message[HEAD..]).map_err(|_| Refused::Library)?;
        message.truncate(HEAD + len);
        self.next += 1;
        Ok(message)
    }

    fn peer(&self) -> Option<PublicKey> {
        self.noise.get_remote_static()?.try_into().ok().map(PublicKey)
    }

    /// Whether the other engine is awaited, once its key is known.
    fn look_at_peer(&self) -> Result<(), Refused> {
        let Some(peer) = self.peer() else { return Ok(()) };
        if peer == self.own {
            return Err(Refused::Oneself);
        }
        match &self.accept {
            Accept::Keys(keys) if !keys.contains(&peer) => Err(Refused::Stranger(peer)),
            _ => Ok(()),
        }
    }

    fn keys(&mut self) -> Result<Keys, Refused> {
        let peer = self.peer().ok_or(Refused::Library)?;
        let binding = self.noise.get_handshake_hash().try_into().map_err(|_| Refused::Library)?;
        let (mut first, mut second) = self.noise.dangerously_get_raw_split();
        let secrets = [&first, &second].map(|half| Zeroizing::new(*half));
        first.zeroize();
        second.zeroize();
        let [first, second] = secrets;
        let (send, receive) = if self.start.begins { (first, second) } else { (second, first) };
        let (begun_by, answered_by) = if self.start.begins { (self.own, peer) } else { (peer, self.own) };
        let Terms { mode, cipher } = self.terms;
        Ok(Keys { send, receive, binding, peer, mode, cipher, is_preferred: begun_by < answered_by })
    }
}

/// What a handshake leads to.
pub struct Keys {
    pub(crate) send: Secret,
    pub(crate) receive: Secret,
    pub(crate) cipher: Cipher,
    binding: [u8; 32],
    peer: PublicKey,
    mode: Mode,
    is_preferred: bool,
}

impl Keys {
    /// The other engine: its pinned key; or of a holder of the shared key the one that it has while it lives.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What this handshake is known by, to both ends and to nobody who was not in it; not a secret.
    pub fn binding(&self) -> [u8; 32] {
        self.binding
    }

    /// Of two handshakes that both ends began at once this one is to be kept. Both say the same.
    pub fn is_preferred(&self) -> bool {
        self.is_preferred
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?}, {})", self.mode, self.peer)
    }
}
