//! What a packet costs to seal and to open, with both ciphers and the checksum; and what a handshake and a new key cost.
//!
//! `cargo run --release -p sd-keys --example cost`

use sd_keys::sealed::GENERATION;
use sd_keys::{Accept, Cipher, Credentials, Identity, Keys, Progress, Purpose, Sealed, SharedKey};
use sd_link::seal::{Checksum, Seal, Session};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes of whole packets.
const SIZES: [usize; 5] = [64, 200, 512, 1400, 16384];
const HEADER: usize = 24;
const ROUNDS: usize = 51;

fn shake(cipher: Cipher) -> [Keys; 2] {
    let identities = [Identity::generate().unwrap(), Identity::generate().unwrap()];
    let keys = [identities[0].public(), identities[1].public()];
    let [a, b] = identities.map(|identity| Credentials::new(Some(identity), None, cipher).unwrap());
    let (mut first, one) = a.begin(Some(keys[1]), &Purpose::Link).unwrap();
    let mut second = b.answer(Accept::Keys(vec![keys[0]]), &Purpose::Link).unwrap();
    let Progress::Send(two) = second.receive(&one).unwrap() else { unreachable!() };
    let Progress::SendAndDone(three, ours) = first.receive(&two).unwrap() else { unreachable!() };
    let Progress::Done(theirs) = second.receive(&three).unwrap() else { unreachable!() };
    [ours, theirs]
}

struct Ends {
    name: &'static str,
    seals: [Box<dyn Seal>; 2],
    number: u64,
}

impl Ends {
    fn new<S: Seal + 'static>(name: &'static str, [mut a, mut b]: [S; 2]) -> Ends {
        let (one, two) = ([1, 2, 3, 4], [3, 4, 1, 2]);
        a.begin(&Session { send: one, receive: two });
        b.begin(&Session { send: two, receive: one });
        Ends { name, seals: [Box::new(a), Box::new(b)], number: 0 }
    }

    /// Nanoseconds of sealing and of opening a packet.
    fn measure(&mut self, size: usize) -> [f64; 2] {
        let count = (1_000_000 / (size + 300)).max(20);
        let mut packets = vec![vec![3u8; size]; count];
        let first = self.number;
        self.number += count as u64;
        let start = Instant::now();
        for (packet, number) in packets.iter_mut().zip(first..) {
            self.seals[0].seal(0, number, black_box(packet), HEADER);
        }
        let sealed = start.elapsed();
        let start = Instant::now();
        for (packet, number) in packets.iter_mut().zip(first..) {
            assert!(self.seals[1].open(0, number, black_box(packet), HEADER));
        }
        [sealed, start.elapsed()].map(|time| nanos(time, count))
    }
}

fn nanos(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What somebody who only knows a public key, or nothing, can make an engine do by a message.
fn strangers() {
    let engine =
        |shared| Credentials::new(Some(Identity::generate().unwrap()), shared, Cipher::Aes128Gcm).unwrap();
    let [own, other] = [(); 2].map(|()| engine(Some(SharedKey::generate().unwrap())));
    let identity = Identity::generate().unwrap();
    let (pinned, accept) = (identity.public(), Accept::Keys(vec![identity.public()]));
    let own_pinned = Credentials::new(Some(identity), None, Cipher::Aes128Gcm).unwrap();
    for (name, own, accept, message) in [
        (
            "answer to a first message, pinned key",
            &own_pinned,
            accept,
            other.begin(Some(pinned), &Purpose::Link).unwrap().1,
        ),
        (
            "refusal of a first message, shared key",
            &own,
            Accept::Shared,
            other.begin(None, &Purpose::Link).unwrap().1,
        ),
    ] {
        let times = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            let mut end = own.answer(accept.clone(), &Purpose::Link).unwrap();
            let _ = black_box(end.receive(&message));
            nanos(start.elapsed(), 1000)
        });
        println!("{name}: {:.0} us", median(times.collect()));
    }
}

fn main() {
    let sealed = |cipher| shake(cipher).map(Sealed::new);
    let mut all = [
        Ends::new("checksum", [Checksum::default(), Checksum::default()]),
        Ends::new("AES-128-GCM", sealed(Cipher::Aes128Gcm)),
        Ends::new("ChaCha20-Poly1305", sealed(Cipher::ChaCha20Poly1305)),
    ];
    println!("nanoseconds to seal / to open a packet; medians of {ROUNDS} rounds in turns");
    println!("{:<20}{}", "bytes", SIZES.map(|size| format!("{size:>14}")).concat());
    let mut rows = vec![vec![[Vec::new(), Vec::new()]; SIZES.len()]; all.len()];
    for _ in 0..ROUNDS {
        for (column, size) in SIZES.into_iter().enumerate() {
            for (ends, row) in all.iter_mut().zip(&mut rows) {
                for (place, value) in row[column].iter_mut().zip(ends.measure(size)) {
                    place.push(value);
                }
            }
        }
    }
    for (ends, row) in all.iter().zip(rows) {
        let cells = row.into_iter().map(|cell| cell.map(median)).map(|[s, o]| format!("{s:>7.0} /{o:>5.0}"));
        println!("{:<20}{}", ends.name, cells.collect::<String>());
    }
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        black_box(shake(Cipher::Aes128Gcm));
        nanos(start.elapsed(), 1000)
    });
    println!("handshake, both ends, with two new identities: {:.0} us", median(times.collect()));
    strangers();
    let [_, ends, _] = &mut all;
    let mut number = (ends.number / GENERATION + 1) * GENERATION;
    let times = (0..ROUNDS).map(|_| {
        let mut packet = [3; 64];
        ends.seals[0].seal(0, number, &mut packet, HEADER);
        let start = Instant::now();
        assert!(ends.seals[1].open(0, number, &mut packet, HEADER));
        number += GENERATION;
        nanos(start.elapsed(), 1)
    });
    println!("to open the first packet of 64 bytes with a new key: {:.0} ns", median(times.collect()));
}
