//! Sealed packets: those that open, and everything that must not.

mod common;

use common::{pair, seals, shake};
use proptest::prelude::*;
use sd_keys::sealed::{GENERATION, SEAL};
use sd_keys::{Cipher, Mode, Sealed};
use sd_link::seal::{LATE_MAX, PHASE, Seal, Session};

const HEADER: usize = 24;
const CIPHERS: [Cipher; 2] = [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

fn begin([a, b]: &mut [Sealed; 2], count: u64) {
    let (one, two) = ([1, count, 2, 5], [2, 5, 1, count]);
    a.begin(&Session { send: one, receive: two });
    b.begin(&Session { send: two, receive: one });
}

fn up(cipher: Cipher) -> [Sealed; 2] {
    let mut seals = seals(cipher);
    begin(&mut seals, 1);
    seals
}

fn packet(seal: &mut Sealed, path: u8, number: u64, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![path; HEADER];
    packet.extend(body);
    packet.extend([0; SEAL]);
    seal.seal(path, number, &mut packet, HEADER);
    packet
}

fn opens(seal: &mut Sealed, path: u8, number: u64, packet: &[u8], body: &[u8]) -> bool {
    let mut packet = packet.to_vec();
    let is_open = seal.open(path, number, &mut packet, HEADER);
    if is_open {
        assert_eq!(&packet[HEADER..packet.len() - SEAL], body);
    }
    is_open
}

const BODY: &[u8] = b"a record, and another one";

#[test]
fn packets_open_where_they_should_and_nowhere_else() {
    for cipher in CIPHERS {
        let [mut a, mut b] = up(cipher);
        let sealed = packet(&mut a, 3, 7, BODY);
        assert!(!sealed.windows(8).any(|window| window == &BODY[..8]), "it can be read");
        assert!(opens(&mut b, 3, 7, &sealed, BODY));
        assert!(!opens(&mut b, 2, 7, &sealed, BODY), "another path");
        assert!(!opens(&mut b, 3, 8, &sealed, BODY), "another number");
        assert!(!opens(&mut a, 3, 7, &sealed, BODY), "it has come back");
        for other in [GENERATION, 2 * GENERATION, 1 << 40, u64::MAX - 7, u64::MAX - 7 - GENERATION] {
            assert!(!opens(&mut b, 3, other + 7, &sealed, BODY), "{other}");
        }
        for len in 0..sealed.len() {
            assert!(!opens(&mut b, 3, 7, &sealed[..len], BODY), "{len} bytes of it");
        }
        assert!(!opens(&mut b, 3, 7, &[&sealed[..], &[0]].concat(), BODY));
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&mut b, 3, 7, &changed, BODY), "bit {bit}");
        }
        assert!(opens(&mut b, 3, 7, &sealed, BODY), "what was refused has changed nothing");
        let empty = packet(&mut a, 3, 8, b"");
        assert!(opens(&mut b, 3, 8, &empty, b""));
    }
}

#[test]
fn other_sessions_and_other_handshakes() {
    let engines = pair(Cipher::Aes128Gcm);
    let mut seals = shake(&engines[0], &engines[1], Mode::Pinned).0.map(Sealed::new);
    begin(&mut seals, 1);
    let old = packet(&mut seals[0], 0, 0, BODY);
    begin(&mut seals, 2);
    let new = packet(&mut seals[0], 0, 0, BODY);
    assert_ne!(old, new);
    assert!(!opens(&mut seals[1], 0, 0, &old, BODY) && opens(&mut seals[1], 0, 0, &new, BODY));
    let mut others = shake(&engines[0], &engines[1], Mode::Pinned).0.map(Sealed::new);
    begin(&mut others, 2);
    assert!(!opens(&mut others[1], 0, 0, &new, BODY), "the same engines and words, another handshake");
}

#[test]
fn greetings() {
    let ([mut a, mut b], mut others) = (seals(Cipher::Aes128Gcm), seals(Cipher::Aes128Gcm));
    let mut greeting = [7; 60];
    a.sign(&mut greeting);
    assert!(greeting[..60 - SEAL] == [7; 60 - SEAL] && b.is_signed(&greeting) && !a.is_signed(&greeting));
    assert!(others.iter_mut().all(|other| !other.is_signed(&greeting)));
    for bit in 0..480 {
        greeting[bit / 8] ^= 1 << (bit % 8);
        assert!(!b.is_signed(&greeting), "bit {bit}");
        greeting[bit / 8] ^= 1 << (bit % 8);
    }
    assert!((0..60).all(|len| !b.is_signed(&greeting[..len])));
    begin(&mut others, 1);
    let mut short = [0; 3];
    a.sign(&mut short);
}

/// Nothing goes out that could be read, or that has a nonce for the second time.
#[test]
fn no_number_is_used_twice() {
    let mut seals = seals(Cipher::Aes128Gcm);
    let nothing = [&[0; HEADER][..], &[0; 41]].concat();
    assert_eq!(packet(&mut seals[0], 0, 0, BODY), nothing, "before a session");
    begin(&mut seals, 1);
    let first = packet(&mut seals[0], 0, 5, BODY);
    for number in [5, 4, 0] {
        assert_eq!(
            packet(&mut seals[0], 0, number, b"another one, as long here"),
            nothing,
            "{number} after 5"
        );
    }
    begin(&mut seals, 1);
    assert_eq!(packet(&mut seals[0], 0, 5, BODY), nothing, "the same session is not begun again");
    assert!(opens(&mut seals[1], 0, 5, &first, BODY));
    let mut short = [1; HEADER + SEAL - 1];
    seals[0].seal(0, 6, &mut short, HEADER);
    assert_eq!(short[HEADER..], [0; SEAL - 1]);
    seals[0].seal(0, 7, &mut short, HEADER * 9);
    assert_eq!(packet(&mut seals[0], 0, u64::MAX, BODY), [&[0; HEADER][..], &[0; 41]].concat());
}

#[test]
fn keys_change_with_numbers() {
    for cipher in CIPHERS {
        let [mut a, mut b] = up(cipher);
        let mut late = Vec::new();
        for number in (0..4 * GENERATION).step_by(64).chain(4 * GENERATION..4 * GENERATION + 10) {
            let sealed = packet(&mut a, 0, number, BODY);
            if number % GENERATION >= GENERATION - 256 {
                late.push((number, sealed));
                continue;
            }
            assert!(opens(&mut b, 0, number, &sealed, BODY), "{number}");
            let is_due = number % GENERATION == LATE_MAX - 64;
            for (number, sealed) in late.drain(..if is_due { late.len() } else { 0 }) {
                assert!(opens(&mut b, 0, number, &sealed, BODY), "{number} is late, and would be taken");
            }
        }
        assert_eq!(late.len(), 4);
        let over = packet(&mut a, 0, 4 * GENERATION + LATE_MAX, BODY);
        assert!(opens(&mut b, 0, 4 * GENERATION + LATE_MAX, &over, BODY));
        assert!(!opens(&mut b, 0, late[0].0, &late[0].1, BODY), "the key of long ago is gone");
    }
}

#[test]
fn each_path_has_its_own_pace() {
    let [mut a, mut b] = up(Cipher::Aes128Gcm);
    let far = [0, 1, 2].map(|count| packet(&mut a, 0, count * GENERATION, BODY));
    for (count, sealed) in far.iter().enumerate() {
        assert!(opens(&mut b, 0, count as u64 * GENERATION, sealed, BODY));
    }
    let near = packet(&mut a, 255, 1, BODY);
    assert!(opens(&mut b, 255, 1, &near, BODY));
    assert!(!opens(&mut b, 0, 1, &near, BODY));
    // What is forged with numbers to come changes no key.
    for number in [3 * GENERATION, 4 * GENERATION, 9 * GENERATION, 1 << 61, 1 << 62, 1 << 63] {
        assert!(!opens(&mut b, 0, number, &near, BODY));
    }
    let next = packet(&mut a, 0, 2 * GENERATION + 1, BODY);
    assert!(opens(&mut b, 0, 2 * GENERATION + 1, &next, BODY));
}

/// Keys change with numbers and with the phase, and packets are late or lost, those around both changes as well: each opens, and with its own key alone.
#[test]
fn keys_change_with_the_phase() {
    for (turn, lost) in [
        (5, 0),
        (GENERATION - 3, 0),
        (GENERATION - 3, 6),
        (GENERATION - 3, 300),
        (GENERATION, 9),
        (GENERATION + 2, 1),
    ] {
        let [mut a, mut b] = up(Cipher::Aes128Gcm);
        let phase = |number: u64| number | if number >= turn { PHASE } else { 0 };
        let first = packet(&mut a, 0, 0, BODY);
        assert!(opens(&mut b, 0, 0, &first, BODY));
        let around = turn.saturating_sub(4).max(1)..turn + lost + 4;
        let sent: Vec<_> =
            around.map(|number| (phase(number), packet(&mut a, 0, phase(number), BODY))).collect();
        let is_lost = |at: &u64| (turn..turn + lost).contains(&(at & !PHASE));
        // Each is preceded by the one behind it.
        for pair in sent.chunks(2) {
            for (number, sealed) in pair.iter().rev().filter(|(number, _)| !is_lost(number)) {
                assert!(
                    !opens(&mut b, 0, number ^ PHASE, sealed, BODY),
                    "{turn}, {lost}: {number} in the other phase"
                );
                let is_open = opens(&mut b, 0, *number, sealed, BODY);
                // Of two changes at once the keys before are gone.
                assert!(is_open || lost > 0 && number & PHASE == 0, "{turn}, {lost}: {number}");
            }
        }
        // Back again.
        let last = packet(&mut a, 0, 3 * GENERATION / 2, BODY);
        assert!(opens(&mut b, 0, 3 * GENERATION / 2, &last, BODY));
        assert!(!opens(&mut b, 0, 0, &first, BODY), "the key of long ago is gone");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Packets of all kinds, on several paths, in any order near each other, some changed: only what was sent opens, and as it was.
    #[test]
    fn reordered_and_changed(
        begin in prop_oneof![Just(0u64), (GENERATION - 60)..GENERATION],
        order in prop::collection::vec((0u8..3, 0u64..100, 0usize..64, any::<u8>(), 0usize..100), 1..200),
        len in 0usize..1500,
    ) {
        let [mut a, mut b] = up(Cipher::Aes128Gcm);
        let body = vec![9; len];
        let sent: Vec<Vec<Vec<u8>>> = (0..3)
            .map(|path| (begin..begin + 100).map(|number| packet(&mut a, path, number, &body)).collect())
            .collect();
        for (path, at, swaps, flip, place) in order {
            let mut packet = sent[usize::from(path)][at as usize].clone();
            let (path, number) = match swaps {
                0 => ((path + 1) % 3, begin + at),
                1 => (path, begin + (at + 1) % 100),
                2 => (path, begin + at + GENERATION),
                _ => (path, begin + at),
            };
            let place = place * 16 % packet.len();
            packet[place] ^= if swaps > 40 { flip } else { 0 };
            let is_right = swaps > 2 && (swaps <= 40 || flip == 0);
            prop_assert_eq!(opens(&mut b, path, number, &packet, &body), is_right);
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), path in any::<u8>(), number in any::<u64>(), header in 0usize..300) {
        let [mut a, mut b] = up(Cipher::ChaCha20Poly1305);
        prop_assert!(!b.open(path, number, &mut bytes.clone(), header));
        prop_assert!(!b.is_signed(&bytes));
        let mut packet = bytes.clone();
        a.seal(path, number % (1 << 24), &mut packet, header);
        let has_room = header + SEAL <= bytes.len();
        prop_assert_eq!(b.open(path, number % (1 << 24), &mut packet, header), has_room && number % (1 << 24) < 3 * GENERATION);
    }
}
