//! What comes from another host before it is known who is there, and what is sealed afterwards.
//!
//! Two engines shake hands; between any two of their messages one gets bytes of the input, or the right message with some of its bytes
//! changed. All of these have to be refused, and the right one has to be taken afterwards.

use super::Bytes;
use sd_keys::handshake::message_len;
use sd_keys::{Accept, Cipher, Credentials, Handshake, Identity, Keys, Progress, PublicKey, Purpose, Sealed};
use sd_link::seal::{Seal, Session};
use std::sync::OnceLock;

struct Engine {
    shows: Credentials,
    key: PublicKey,
}

fn engines() -> &'static [Engine; 2] {
    static ENGINES: OnceLock<[Engine; 2]> = OnceLock::new();
    ENGINES.get_or_init(|| {
        [Cipher::Aes128Gcm; 2].map(|cipher| {
            let identity = Identity::generate().expect("random bytes");
            let key = identity.public();
            Engine { shows: Credentials::new(Some(identity), None, cipher).expect("random bytes"), key }
        })
    })
}

pub(super) fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let [a, b] = engines();
    let fault = "what is right is taken";
    let (mut first, one) = a.shows.begin(Some(b.key), &Purpose::Link).expect(fault);
    let mut second = b.shows.answer(Accept::Keys(vec![a.key]), &Purpose::Link).expect(fault);
    disturb(&mut bytes, &mut second, &one);
    let Ok(Progress::Send(two)) = second.receive(&one) else { panic!("{fault}") };
    disturb(&mut bytes, &mut first, &two);
    let Ok(Progress::SendAndDone(three, ours)) = first.receive(&two) else { panic!("{fault}") };
    disturb(&mut bytes, &mut second, &three);
    let Ok(Progress::Done(theirs)) = second.receive(&three) else { panic!("{fault}") };
    assert_eq!(ours.binding(), theirs.binding());
    sealed(&mut bytes, ours, theirs);
}

fn disturb(bytes: &mut Bytes<'_>, end: &mut Handshake, right: &[u8]) {
    for _ in 0..bytes.u8() % 4 {
        let mut message = right.to_vec();
        message.truncate(if bytes.u8().is_multiple_of(4) { usize::from(bytes.u8()) } else { right.len() });
        for _ in 0..bytes.u8() % 4 {
            let at = usize::from(bytes.u8()) % right.len();
            if let Some(byte) = message.get_mut(at) {
                *byte = bytes.u8();
            }
        }
        let _ = message_len(&message);
        if message != right {
            assert!(end.receive(&message).is_err(), "{message:?}");
        }
    }
}

fn sealed(bytes: &mut Bytes<'_>, ours: Keys, theirs: Keys) {
    let (mut ours, mut theirs) = (Sealed::new(ours), Sealed::new(theirs));
    let (one, two) = ([1, 2, 3, 4], [3, 4, 1, 2]);
    ours.begin(&Session { send: one, receive: two });
    theirs.begin(&Session { send: two, receive: one });
    while !bytes.is_empty() {
        let (path, number, header) = (bytes.u8(), bytes.number() % (1 << 20), usize::from(bytes.u8()));
        let mut packet: Vec<u8> = (0..bytes.u8()).map(|_| bytes.u8()).collect();
        assert!(!theirs.is_signed(&packet));
        assert!(!theirs.open(path, number, &mut packet, header));
        ours.seal(path, number, &mut packet, header);
        theirs.open(path, number, &mut packet, header);
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let change = [1, 1, 1, 60, 7];
    vec![
        vec![0, 0, 0, 1, 5, 24, 50, 1, 2, 3],
        [&change[..], &change, &change].concat(),
        vec![1, 0, 40, 0, 1, 0, 8, 0, 1, 1, 2, 3, 9, 0, 0],
        vec![0, 0, 0, 3, 255, 0, 0, 1, 0, 0, 0, 0, 0, 24, 60],
    ]
}
