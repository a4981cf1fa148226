//! Handshakes: those that lead to keys, and everything that must not.

mod common;

use common::{engine_with, open, pair, shake, shared};
use proptest::prelude::*;
use sd_keys::handshake::message_len;
use sd_keys::{Accept, Cipher, Identity, Mode, Progress, Protection, Purpose, Refused, Trust, Unprotected};

const MODES: [Mode; 2] = [Mode::Pinned, Mode::Shared];
const CIPHER: Cipher = Cipher::Aes128Gcm;

#[test]
fn both_know_each_other() {
    let [a, b] = pair(CIPHER);
    for mode in MODES {
        let ([one, two], messages) = shake(&a, &b, mode);
        assert_eq!((one.binding(), one.mode(), two.mode()), (two.binding(), mode, mode));
        assert_ne!(one.peer(), two.peer());
        if mode == Mode::Pinned {
            assert_eq!((one.peer(), two.peer()), (b.key, a.key));
        }
        assert_eq!(one.is_preferred(), two.is_preferred());
        let ([back, _], _) = shake(&b, &a, mode);
        assert_ne!(one.is_preferred(), back.is_preferred(), "one of two that were begun at once");
        assert_ne!(one.binding(), back.binding());
        for message in messages {
            assert_eq!(message_len(&message), Some(Ok(message.len())));
            assert_eq!(message_len(&message[..7]), None);
        }
    }
}

#[test]
fn truncated_longer_and_changed_messages_are_refused_and_harmless() {
    let [a, b] = pair(CIPHER);
    for mode in MODES {
        let (mut first, one, mut second) = open(&a, &b, mode, &Purpose::Link);
        let spoil = |end: &mut sd_keys::Handshake, message: &[u8]| {
            for len in 0..message.len() {
                assert!(end.receive(&message[..len]).is_err(), "{mode:?}: {len} bytes");
            }
            assert!(end.receive(&[message, &[0]].concat()).is_err());
            for bit in 0..message.len() * 8 {
                let mut changed = message.to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                // The highest bit of a point says nothing (RFC 7748, section 5), but the transcript has it.
                assert!(end.receive(&changed).is_err(), "{mode:?}: bit {bit}");
            }
        };
        spoil(&mut second, &one);
        let Progress::Send(two) = second.receive(&one).unwrap() else { panic!() };
        spoil(&mut first, &two);
        let Progress::SendAndDone(three, keys) = first.receive(&two).unwrap() else { panic!() };
        spoil(&mut second, &three);
        let Progress::Done(others) = second.receive(&three).unwrap() else { panic!() };
        assert_eq!((keys.binding(), others.peer()), (others.binding(), others.peer()));
    }
}

#[test]
fn replayed_messages_lead_nowhere() {
    let [a, b] = pair(CIPHER);
    for mode in MODES {
        let (_, [one, two, three]) = shake(&a, &b, mode);
        let (mut first, new_one, mut second) = open(&a, &b, mode, &Purpose::Link);
        assert_eq!(first.receive(&two).unwrap_err(), Refused::Forged, "an answer to another question");
        // A recorded first message is answered, as nobody can know; and with the recorded third one all ends.
        let Progress::Send(_) = second.receive(&one).unwrap() else { panic!() };
        assert_eq!(second.receive(&three).unwrap_err(), Refused::Forged);
        assert_eq!(second.receive(&one).unwrap_err(), Refused::OutOfTurn);
        let (_, _, mut third) = open(&a, &b, mode, &Purpose::Link);
        let Progress::Send(new_two) = third.receive(&new_one).unwrap() else { panic!() };
        let Progress::SendAndDone(new_three, _) = first.receive(&new_two).unwrap() else { panic!() };
        assert!(matches!(third.receive(&new_three).unwrap(), Progress::Done(_)));
        for message in [&new_one, &new_two, &new_three] {
            assert_eq!(third.receive(message).unwrap_err(), Refused::OutOfTurn, "all is over");
            assert_eq!(first.receive(message).unwrap_err(), Refused::OutOfTurn);
        }
    }
}

#[test]
fn what_comes_back_to_its_sender_is_refused() {
    let [a, b] = pair(CIPHER);
    let accept = |mode| match mode {
        Mode::Pinned => Accept::Keys(vec![a.key, b.key]),
        Mode::Shared => Accept::Shared,
    };
    for mode in MODES {
        let (mut first, one, _) = open(&a, &b, mode, &Purpose::Link);
        assert_eq!(first.receive(&one).unwrap_err(), Refused::OutOfTurn);
        let mut own = a.shows.answer(accept(mode), &Purpose::Link).unwrap();
        match own.receive(&one) {
            Err(refused) => assert_eq!((mode, refused), (Mode::Pinned, Refused::Forged)),
            Ok(Progress::Send(two)) => {
                assert_eq!(mode, Mode::Shared, "everybody with the key may ask");
                assert_eq!(own.receive(&two).unwrap_err(), Refused::OutOfTurn);
                assert_eq!(first.receive(&two).unwrap_err(), Refused::Oneself);
                assert_eq!(first.receive(&two).unwrap_err(), Refused::OutOfTurn, "it has ended");
            }
            Ok(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(a.shows.begin(Some(a.key), &Purpose::Link).unwrap_err(), Refused::Oneself);
}

#[test]
fn wrong_keys() {
    let ([a, b], [c, d]) = (pair(CIPHER), pair(CIPHER));
    // Who begins means another one than who answers.
    let (_, one) = a.shows.begin(Some(c.key), &Purpose::Link).unwrap();
    let mut second = b.shows.answer(Accept::Keys(vec![a.key]), &Purpose::Link).unwrap();
    assert_eq!(second.receive(&one).unwrap_err(), Refused::Forged);
    // Who answers does not know who begins.
    let (mut first, one) = d.shows.begin(Some(b.key), &Purpose::Link).unwrap();
    let Progress::Send(two) = second.receive(&one).unwrap() else { panic!() };
    let Progress::SendAndDone(three, _) = first.receive(&two).unwrap() else { panic!() };
    assert_eq!(second.receive(&three).unwrap_err(), Refused::Stranger(d.key));
    assert_eq!(second.receive(&three).unwrap_err(), Refused::OutOfTurn, "it has ended");
    // Other shared keys.
    let (_, one) = a.shows.begin(None, &Purpose::Link).unwrap();
    let mut second = c.shows.answer(Accept::Shared, &Purpose::Link).unwrap();
    assert_eq!(second.receive(&one).unwrap_err(), Refused::Forged);
    // None.
    let none = engine_with(None, CIPHER);
    assert_eq!(none.shows.begin(None, &Purpose::Link).unwrap_err(), Refused::NoKey(Mode::Shared));
    // A key of small order, from which nothing secret would come.
    let mut small = open(&a, &b, Mode::Pinned, &Purpose::Link);
    small.1[8..40].fill(0);
    assert_eq!(small.2.receive(&small.1).unwrap_err(), Refused::Forged);
}

#[test]
fn wrong_roles_terms_and_purposes() {
    let [a, b] = pair(CIPHER);
    let link = Purpose::Link;
    // Both answer, both begin.
    let (mut first, one, mut second) = open(&a, &b, Mode::Pinned, &link);
    let (mut other, other_one, _) = open(&b, &a, Mode::Pinned, &link);
    assert_eq!(first.receive(&other_one).unwrap_err(), Refused::OutOfTurn);
    assert_eq!(other.receive(&one).unwrap_err(), Refused::OutOfTurn);
    // One shared, one pinned.
    let (_, shared_one, mut shared_second) = open(&a, &b, Mode::Shared, &link);
    assert_eq!(second.receive(&shared_one).unwrap_err(), Refused::Terms);
    assert_eq!(shared_second.receive(&one).unwrap_err(), Refused::Terms);
    // Another purpose: a carrier of that link, of another, by another path.
    let purposes = [
        link,
        Purpose::Carrier { link: [1; 32], path: 1 },
        Purpose::Carrier { link: [2; 32], path: 1 },
        Purpose::Carrier { link: [1; 32], path: 2 },
    ];
    for mode in MODES {
        for begun in &purposes {
            for awaited in &purposes {
                let (_, one, _) = open(&a, &b, mode, begun);
                let (_, _, mut second) = open(&a, &b, mode, awaited);
                assert_eq!(second.receive(&one).is_ok(), begun == awaited, "{begun:?} {awaited:?}");
            }
        }
    }
    // Another cipher; and one that is said and not meant.
    let chacha = engine_with(None, Cipher::ChaCha20Poly1305);
    let (_, mut one) = chacha.shows.begin(Some(b.key), &link).unwrap();
    let mut second = b.shows.answer(Accept::Keys(vec![chacha.key]), &link).unwrap();
    assert_eq!(second.receive(&one).unwrap_err(), Refused::Terms);
    one[7] = Cipher::Aes128Gcm as u8;
    assert_eq!(second.receive(&one).unwrap_err(), Refused::Forged);
    one[2] = 9;
    assert_eq!(second.receive(&one).unwrap_err(), Refused::Version(9));
}

#[test]
fn protection_is_what_the_file_says() {
    let [a, b] = pair(CIPHER);
    let keys = |mode| shake(&a, &b, mode).0.into_iter().next();
    let (right, wrong) = (Trust::Key(b.key), Trust::Key(a.key));
    assert!(matches!(Protection::new(&right, keys(Mode::Pinned)), Ok(Protection::Sealed(_))));
    assert!(matches!(Protection::new(&Trust::Shared, keys(Mode::Shared)), Ok(Protection::Sealed(_))));
    assert!(matches!(Protection::new(&Trust::Plain, None), Ok(Protection::Plain(_))));
    for (trust, keys, why) in [
        (wrong, keys(Mode::Pinned), Unprotected::OtherPeer),
        (right, keys(Mode::Shared), Unprotected::OtherPeer),
        (Trust::Shared, keys(Mode::Pinned), Unprotected::OtherPeer),
        (Trust::Plain, keys(Mode::Shared), Unprotected::KeysForPlain),
        (right, None, Unprotected::NoKeys),
        (Trust::Shared, None, Unprotected::NoKeys),
    ] {
        assert_eq!(Protection::new(&trust, keys).unwrap_err(), why, "{trust:?}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let folder = common::Folder::new();
    let path = folder.0.join("key");
    Identity::generate().unwrap().write_new(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let secret = text.lines().nth(1).and_then(|line| line.strip_prefix("private-key ")).unwrap();
    let identity = Identity::read(&path).unwrap();
    let shows = sd_keys::Credentials::new(Some(identity), Some(shared(1).remove(0)), CIPHER).unwrap();
    let shown = format!("{shows:?}");
    assert!(shown.contains("SharedKey") && !shown.contains(secret), "{shown}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Any bytes, and honest messages with some of theirs changed, at either end, lead to an error or to the right keys.
    #[test]
    fn any_messages(
        noise in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..130), 0..4),
        changes in prop::collection::vec((0usize..3, 0usize..130, 1u8..), 0..6),
        is_shared in any::<bool>(),
    ) {
        let [a, b] = pair(CIPHER);
        let (mut first, mut message, mut second) = open(&a, &b, MODES[usize::from(is_shared)], &Purpose::Link);
        for bytes in &noise {
            prop_assert!(first.receive(bytes).is_err() && second.receive(bytes).is_err());
        }
        let mut done = 0;
        for step in 0..3 {
            let end = if step % 2 == 0 { &mut second } else { &mut first };
            for (_, at, flip) in changes.iter().filter(|change| change.0 == step) {
                let mut changed = message.clone();
                let at = at % changed.len();
                changed[at] ^= flip;
                prop_assert!(end.receive(&changed).is_err());
            }
            match end.receive(&message) {
                Ok(Progress::Send(next)) => message = next,
                Ok(Progress::SendAndDone(next, _)) => (message, done) = (next, done + 1),
                Ok(Progress::Done(_)) => done += 1,
                Err(refused) => prop_assert!(false, "{refused}"),
            }
        }
        prop_assert_eq!(done, 2);
    }
}
