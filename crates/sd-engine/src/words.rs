//! What engines say to each other besides bytes: the question whether the other host has the other end of a connection, where an end of
//! theirs for RDMA is, and the words of a slot as its process has written them.

use sd_carrier::{Grant, VerbsEnd, Window};
use sd_proto::{Ip, Reply};

/// The first byte of a question.
const QUESTION: u8 = 1;
/// The first byte of an offer of RDMA: the rest is the end's.
const RDMA: u8 = 2;
/// What a question says of its streams: nothing, their first numbers, or besides where its kernel counts from.
const UNTOLD: u8 = 0;
const TOLD: u8 = 1;
const RESTORED: u8 = 2;
/// Bytes of [`Words`], and of what is said of rings behind them.
pub(crate) const WORDS_LEN: usize = 37;
const GRANTING_LEN: usize = 32;

/// A connection as the end that has connected knows it; its names as the other host has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) local: (Ip, u16),
    pub(crate) remote: (Ip, u16),
    pub(crate) here: Here,
    pub(crate) streams: Option<Streams>,
}

/// Sequence numbers of what an end sends, and of what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// Of the first byte.
    pub(crate) began: (u32, u32),
    /// From which its kernel counts: others where the connection was restored.
    pub(crate) counted: (u32, u32),
}

/// What only a connection's own host has to know of it. Nobody else is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Here {
    /// Its names here, where the kernel translates them.
    pub(crate) names: Option<[(Ip, u16); 2]>,
    /// Its network namespace; 0: the kernel does not tell.
    pub(crate) netns: u64,
    /// The tenant whose own namespace that is, or 0.
    pub(crate) owner: u32,
}

impl Question {
    /// What the monitor wants to be asked.
    pub(crate) fn of(reply: &Reply) -> Option<Question> {
        let Reply::Seek { local, local_port, remote, remote_port, told, netns, .. } = *reply else {
            return None;
        };
        let Reply::Seek { sent, received, sent_from, received_from, .. } = *reply else { return None };
        let streams = Streams { began: (sent, received), counted: (sent_from, received_from) };
        let here = Here { netns, ..Here::default() };
        let (local, remote) = ((local, local_port), (remote, remote_port));
        Some(Question { local, remote, here, streams: told.then_some(streams) })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Streams { began, counted } = self.streams.unwrap_or_default();
        let (told, numbers) = match (self.streams, began == counted) {
            (None, _) => (UNTOLD, &[began][..]),
            (Some(_), true) => (TOLD, &[began][..]),
            (Some(_), false) => (RESTORED, &[began, counted][..]),
        };
        let mut out = vec![QUESTION];
        for (ip, port) in [self.local, self.remote] {
            out.extend(ip.0);
            out.extend(port.to_le_bytes());
        }
        out.push(told);
        let numbers = numbers.iter().flat_map(|(sent, received)| [sent, received]);
        out.extend(numbers.flat_map(|number| number.to_le_bytes()));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Question> {
        let mut from = Reader(bytes);
        (from.take::<1>()? == [QUESTION]).then_some(())?;
        let mut name = || Some((Ip(from.take()?), u16::from_le_bytes(from.take()?)));
        let (local, remote) = (name()?, name()?);
        let [told] = from.take()?;
        let mut numbers = || Some((u32::from_le_bytes(from.take()?), u32::from_le_bytes(from.take()?)));
        let began = numbers()?;
        let streams = match told {
            UNTOLD => None,
            TOLD => Some(Streams { began, counted: began }),
            RESTORED => Some(Streams { began, counted: numbers()? }),
            _ => return None,
        };
        from.0.is_empty().then_some(Question { local, remote, here: Here::default(), streams })
    }
}

/// What is said of an end for RDMA, in place of a question: it is refused, as there is no connection.
pub(crate) fn offer(end: &VerbsEnd) -> [u8; 1 + VerbsEnd::LEN] {
    let mut out = [RDMA; 1 + VerbsEnd::LEN];
    Writer(&mut out[1..]).put(&end.encode());
    out
}

/// The same, as it has come.
pub(crate) fn offered(bytes: &[u8]) -> Option<VerbsEnd> {
    let (first, end) = bytes.split_first()?;
    (*first == RDMA).then(|| VerbsEnd::decode(end.try_into().ok()?))?
}

/// What is said when a connection is accepted: see `behind` of [`Reply::Promote`]. Nothing where both ends count alike.
pub(crate) fn answer(behind: u32) -> Vec<u8> {
    if behind == 0 { Vec::new() } else { behind.to_le_bytes().to_vec() }
}

/// The same, as it has come. What nobody of ours would say counts as nothing.
pub(crate) fn answered(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// What stands in a side's words of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// So much of the stream was written before.
    pub(crate) at: u64,
    pub(crate) flags: u32,
    /// `SlotState`, without the generation.
    pub(crate) state: u8,
    pub(crate) urgent: u64,
    pub(crate) switched_at: u64,
    /// Ring bytes of the sender's own, for people who look at packets.
    pub(crate) written: u64,
    pub(crate) granting: Granting,
}

/// What an engine says of rings: of the one that its process reads, and what it goes by of what the other engine has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granting {
    /// The other engine may place into the ring; and how often that has changed.
    pub(crate) grant: Option<Grant>,
    pub(crate) count: u32,
    /// How far this engine follows the other one's count: by no grant before that anything is placed any more.
    pub(crate) done: u32,
}

impl Words {
    pub(crate) fn encode(&self) -> Encoded {
        let mut out = [0; WORDS_LEN + GRANTING_LEN];
        let mut to = Writer(&mut out);
        to.put(&self.flags.to_le_bytes());
        to.put(&[self.state]);
        for word in [self.at, self.urgent, self.switched_at, self.written] {
            to.put(&word.to_le_bytes());
        }
        let Granting { grant, count, done } = self.granting;
        if self.granting == Granting::default() {
            return Encoded(out, WORDS_LEN);
        }
        let Grant { end, window } = grant.unwrap_or(NO_GRANT);
        for word in [count, done, end, window.key] {
            to.put(&word.to_le_bytes());
        }
        for word in [window.addr, window.len] {
            to.put(&word.to_le_bytes());
        }
        Encoded(out, WORDS_LEN + GRANTING_LEN)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Words> {
        let mut from = Reader(bytes);
        let flags = u32::from_le_bytes(from.take()?);
        let [state] = from.take()?;
        let mut word = || Some(u64::from_le_bytes(from.take()?));
        let (at, urgent, switched_at, written) = (word()?, word()?, word()?, word()?);
        let granting = if from.0.is_empty() { Granting::default() } else { Granting::decode(&mut from)? };
        from.0.is_empty().then_some(Words { at, flags, state, urgent, switched_at, written, granting })
    }
}

/// In the place of a grant.
const NO_GRANT: Grant = Grant { end: 0, window: Window { addr: 0, len: 0, key: 0 } };

impl Granting {
    fn decode(from: &mut Reader<'_>) -> Option<Granting> {
        let mut number = || Some(u32::from_le_bytes(from.take()?));
        let (count, done, end, key) = (number()?, number()?, number()?, number()?);
        let (addr, len) = (u64::from_le_bytes(from.take()?), u64::from_le_bytes(from.take()?));
        let grant = Grant { end, window: Window { addr, len, key } };
        Some(Granting { grant: (len != 0).then_some(grant), count, done })
    }
}

/// Words as bytes, and how many of those count.
pub(crate) struct Encoded([u8; WORDS_LEN + GRANTING_LEN], usize);

impl std::ops::Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Encoded(bytes, len) = self;
        bytes.get(..*len).unwrap_or_default()
    }
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (here, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*here)
    }
}
