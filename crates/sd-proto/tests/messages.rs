//! Every message survives encoding, and no bytes are understood that encoding would not make.
//!
//! `SD_FUZZ_SECONDS` lets the random bytes run for longer than a moment.

use proptest::prelude::*;
use sd_proto::{ErrorCode, MESSAGE_MAX, Reply, Request, Route};
use std::time::{Duration, Instant};

/// Messages of all kinds of a table, with any fields.
fn any_of<T: std::fmt::Debug>(
    kinds: &'static [u8],
    made_of: fn(u8, &mut dyn FnMut() -> u64) -> Option<T>,
) -> impl Strategy<Value = T> {
    let numbers = prop::collection::vec(any::<u64>(), 24);
    (prop::sample::select(kinds), numbers).prop_map(move |(kind, numbers)| {
        let mut numbers = numbers.into_iter();
        made_of(kind, &mut || numbers.next().unwrap()).unwrap()
    })
}

fn request() -> impl Strategy<Value = Request> {
    any_of(Request::KINDS, Request::made_of)
}

fn reply() -> impl Strategy<Value = Reply> {
    any_of(Reply::KINDS, Reply::made_of)
}

/// What is understood is what would have been said; nothing else is.
fn check(bytes: &[u8]) {
    let mut buf = [0; MESSAGE_MAX];
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(request.encode(&mut buf), bytes);
    }
    if let Ok(reply) = Reply::decode(bytes) {
        assert_eq!(reply.encode(&mut buf), bytes);
    }
}

proptest! {
    #[test]
    fn requests_survive(request in request(), tail in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut buf = [0; MESSAGE_MAX];
        let mut bytes = request.encode(&mut buf).to_vec();
        prop_assert_eq!(Request::decode(&bytes), Ok(request));
        prop_assert!(Request::decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(tail);
        prop_assert!(Request::decode(&bytes).is_err());
    }

    #[test]
    fn replies_survive(reply in reply(), tail in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut buf = [0; MESSAGE_MAX];
        let mut bytes = reply.encode(&mut buf).to_vec();
        prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
        prop_assert!(Reply::decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(tail);
        prop_assert!(Reply::decode(&bytes).is_err());
    }

    #[test]
    fn random_bytes_are_no_message_or_exactly_one(bytes in prop::collection::vec(any::<u8>(), 0..MESSAGE_MAX + 9)) {
        check(&bytes);
    }

    #[test]
    fn nearly_right_bytes_too(request in request(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut buf = [0; MESSAGE_MAX];
        let mut bytes = request.encode(&mut buf).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        check(&bytes);
    }
}

#[test]
fn every_kind_and_length() {
    let (kinds, lengths) = if cfg!(miri) { (0..=40, 1..24) } else { (0..=u8::MAX, 1..80) };
    for kind in kinds {
        for len in lengths.clone() {
            for fill in [0, 1, 2, u8::MAX] {
                let mut bytes = vec![fill; len];
                bytes[0] = kind;
                check(&bytes);
            }
        }
    }
}

/// The fuzz target: a cheap generator and no shrinking, for as long as wanted.
#[test]
fn a_flood_of_random_bytes() {
    let seconds = std::env::var("SD_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0.2);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = [0u8; MESSAGE_MAX + 8];
    while Instant::now() < end {
        for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
            for chunk in bytes.chunks_exact_mut(8) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                chunk.copy_from_slice(&random.to_le_bytes());
            }
            // Lengths and kinds that exist are tried most; flags are mostly 0 or 1.
            bytes[0] %= 10;
            let len = if random & 7 == 0 { random as usize % bytes.len() } else { random as usize % 48 };
            for byte in &mut bytes[1..] {
                if *byte & 3 != 0 {
                    *byte &= 1;
                }
            }
            check(&bytes[..len]);
        }
    }
}

/// Whoever must leave no kind out asks for examples of all.
#[test]
#[cfg_attr(miri, ignore = "thousands of examples, and no memory that is not Rust's own")]
fn there_is_an_example_of_each_kind() {
    let examples: Vec<Request> = Request::examples().collect();
    let kinds: std::collections::BTreeSet<u8> = examples.iter().map(Request::kind).collect();
    assert_eq!(kinds.len(), examples.len());
    let replies: std::collections::BTreeSet<u8> = Reply::examples().map(|reply| reply.kind()).collect();
    assert_eq!((kinds.len(), replies.len()), (Request::KINDS.len(), Reply::KINDS.len()));
    let understood = |kind: &u8| {
        let mut message = [0; MESSAGE_MAX];
        message[0] = *kind;
        (1..MESSAGE_MAX).any(|len| Request::decode(&message[..len]).is_ok())
    };
    assert_eq!((0..=u8::MAX).filter(understood).collect::<std::collections::BTreeSet<u8>>(), kinds);
}

/// What was on the wire before there was a table.
#[test]
fn bytes_of_version_15() {
    let mut buf = [0; MESSAGE_MAX];
    let route = Route::Kernel { reason: 7 };
    let reply = Reply::Route { port_first: 1, port_count: 2, route };
    assert_eq!(reply.encode(&mut buf), [4, 1, 0, 2, 0, 1, 7, 0, 0, 0]);
    let request = Request::Listen { index: 1, generation: 2, backlog: 3, accepting: true };
    assert_eq!(request.encode(&mut buf), [2, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1]);
    let [number, admits] = [Reply::Error { code: ErrorCode::InUse }, Reply::Stranger { id: 5 }];
    assert_eq!(number.encode(&mut buf), [3, 6, 0, 0, 0]);
    assert_eq!(admits.encode(&mut buf), [52, 5, 0, 0, 0, 0, 0, 0, 0]);
}
