//! Packets in and out, as long as both ends are there.

use crate::common::{Make, Random, drain, packet, put, take, wait};
use proptest::prelude::*;
use sd_carrier::{Carrier, Flushed, Kind, PACKET_MIN, Received, State};

/// From the shortest to the longest, in order and whole, in batches that the kernel surely holds.
pub(crate) fn each_length(make: Make) {
    let [mut here, mut there] = make.pair();
    let most = here.packet_max();
    assert!(most >= PACKET_MIN && there.packet_max() == most);
    let middle = (1500..most).step_by(397);
    let lens: Vec<usize> = (1..most.min(1500)).chain(middle).chain([most - 1, most]).collect();
    for (batch, lens) in lens.chunks(4).enumerate() {
        let packets: Vec<_> =
            lens.iter().enumerate().map(|(at, len)| packet((batch * 4 + at) as u64, *len)).collect();
        assert!(packets.iter().all(|packet| send(&mut *here, packet)));
        assert_eq!(flush(&mut *here), Flushed::All);
        assert!(take(&mut *there, packets.len()) == packets, "a packet of {lens:?} was changed");
    }
}

/// Commits, with a flush if there is no room.
fn send(carrier: &mut dyn Carrier, packet: &[u8]) -> bool {
    put(carrier, packet) || (carrier.flush() == Flushed::All && put(carrier, packet))
}

fn flush(carrier: &mut dyn Carrier) -> Flushed {
    while carrier.flush() == Flushed::Blocked {
        assert!(carrier.wants().write);
        wait(&[carrier], -1);
    }
    carrier.flush()
}

/// Batches of any sizes from both ends, flushed now and then: what was sent comes, in order.
pub(crate) fn random_batches(make: Make) {
    let most = make.pair()[0].packet_max();
    let len = prop_oneof![1..=most.min(100), 1..=most, (most * 9 / 10)..=most];
    let batch = (any::<bool>(), prop::collection::vec(len, 1..20), any::<bool>());
    let config = ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(batches in prop::collection::vec(batch, 1..8))| {
        let (mut pair, mut number) = (make.pair(), 0);
        let mut waiting = [Vec::new(), Vec::new()];
        for (is_back, lens, is_flushed) in batches {
            let from = usize::from(is_back);
            for len in lens {
                number += 1;
                let bytes: usize = waiting[from].iter().map(Vec::len).sum();
                // The kernel would drop more.
                let is_much = waiting[from].len() > 40 || bytes + len > 100_000;
                if is_much && pair[from].kind() == Kind::Datagrams {
                    break;
                }
                let packet = packet(number, len);
                if !send(&mut *pair[from], &packet) {
                    break;
                }
                waiting[from].push(packet);
            }
            if is_flushed {
                pair[from].flush();
            }
            let mut came: Vec<Vec<u8>> = Vec::new();
            drain(&mut *pair[1 - from], &mut came);
            let expected: Vec<_> = waiting[from].drain(..came.len()).collect();
            prop_assert!(came == expected);
        }
        for from in 0..2 {
            let mut came = Vec::new();
            while came.len() < waiting[from].len() {
                pair[from].flush();
                wait(&[&*pair[0], &*pair[1]], 10);
                drain(&mut *pair[1 - from], &mut came);
            }
            prop_assert!(came == waiting[from]);
        }
    });
}

/// Both send until nothing more goes, and read nothing meanwhile; then both read, and all goes on.
pub(crate) fn full_both_ways(make: Make) {
    const MOST: u64 = 20_000;
    let mut pair = make.pair();
    let kind = pair[0].kind();
    let len = 1000.min(pair[0].packet_max());
    let mut sent = [0; 2];
    for (from, carrier) in pair.iter_mut().enumerate() {
        let flushed = carrier.send(&mut |room| {
            let packet = packet(sent[from], len);
            room[..len].copy_from_slice(&packet);
            let is_more = sent[from] < MOST;
            sent[from] += u64::from(is_more);
            is_more.then_some(len)
        });
        assert_eq!(carrier.wants().write, flushed == Flushed::Blocked);
        assert!(
            kind != Kind::Stream || flushed == Flushed::Blocked,
            "the kernel took {} packets",
            sent[from]
        );
    }
    let mut came = [Vec::new(), Vec::new()];
    loop {
        for (carrier, came) in pair.iter_mut().zip(&mut came) {
            drain(&mut **carrier, came);
            carrier.flush();
        }
        let is_all = came[0].len() as u64 == sent[1] && came[1].len() as u64 == sent[0];
        let is_quiet = pair.iter().all(|carrier| !carrier.wants().write);
        if is_all || (is_quiet && kind == Kind::Datagrams && wait(&[&*pair[0], &*pair[1]], 0) == 0) {
            break;
        }
        wait(&[&*pair[0], &*pair[1]], 100);
    }
    for (at, came) in came.iter().enumerate() {
        let mut numbers = 0..sent[1 - at];
        // Datagrams may be lost here, but nothing comes twice or in another order by the loopback device.
        let is_next = |came: &Vec<u8>| numbers.any(|number| packet(number, len) == *came);
        assert!(!came.is_empty() && came.iter().all(is_next));
    }
    assert!(pair.iter().all(|carrier| carrier.state() == State::Open));
    let [here, there] = &mut pair;
    assert!(put(&mut **here, b"after") && here.flush() == Flushed::All);
    assert_eq!(take(&mut **there, 1), [b"after"]);
}

/// `Carrier::send` goes on where a buffer is full, as long as the kernel takes it.
pub(crate) fn more_than_a_buffer(make: Make) {
    let [mut here, mut there] = make.pair();
    let (len, count) = (here.packet_max().min(1200), 3000);
    let (mut number, mut came) = (0, Vec::new());
    while number < count {
        // No more at a time than the kernel surely holds.
        let until = number + 40;
        let flushed = here.send(&mut |room| {
            let is_more = number < until;
            if is_more {
                room[..len].copy_from_slice(&packet(number, len));
                number += 1;
            }
            is_more.then_some(len)
        });
        assert_ne!(flushed, Flushed::Ended);
        while (came.len() as u64) < number {
            here.flush();
            wait(&[&*here, &*there], -1);
            drain(&mut *there, &mut came);
        }
    }
    assert!(came.iter().enumerate().all(|(number, came)| packet(number as u64, len) == *came));
}

/// Room may be asked for and not used; nothing of it is ever seen.
pub(crate) fn what_is_not_committed(make: Make) {
    let [mut here, mut there] = make.pair();
    let mut random = Random(7);
    let mut sent = Vec::new();
    for number in 0..200 {
        if let Some(room) = here.room() {
            room.fill(0xaa);
        }
        if random.below(3) > 0 {
            let len = 1 + random.below(here.packet_max().min(900) as u64) as usize;
            sent.push(packet(number, len));
            assert!(send(&mut *here, sent.last().unwrap()));
        }
        if random.below(10) == 0 {
            flush(&mut *here);
            let came = take(&mut *there, sent.len());
            assert!(came == sent);
            sent.clear();
        }
    }
    flush(&mut *here);
    assert!(take(&mut *there, sent.len()) == sent);
}

/// Nothing came, nothing is to be sent: calls say so at once, and a loop that waits for what is wanted sleeps.
pub(crate) fn nothing_to_do(make: Make) {
    let mut pair = make.pair();
    for round in 0..3 {
        for carrier in &mut pair {
            assert_eq!(carrier.receive(&mut |_, _| panic!("nothing was sent")), Received::Drained);
            assert_eq!(carrier.flush(), Flushed::All);
            assert_eq!(carrier.send(&mut |_| None), Flushed::All);
            assert!(carrier.wants().read && !carrier.wants().write);
        }
        assert_eq!(wait(&[&*pair[0], &*pair[1]], 0), 0, "after {round} rounds something wakes an idle loop");
        let [here, there] = &mut pair;
        let count = (0..10).take_while(|_| put(&mut **here, &[5; 400])).count();
        assert!(count > 1 && here.wants().write, "something waits to be sent");
        assert_eq!(flush(&mut **here), Flushed::All);
        take(&mut **there, count);
    }
}
