//! Every message survives encoding, and no bytes are understood that encoding would not make.
//!
//! `SD_FUZZ_SECONDS` lets the random bytes run for longer than a moment.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sd_proto::{Admission, ErrorCode, Ip, MESSAGE_MAX, Reply, Request, Route, Socket};
use std::time::{Duration, Instant};

fn ip() -> impl Strategy<Value = Ip> {
    prop_oneof![any::<[u8; 16]>().prop_map(Ip), any::<[u8; 4]>().prop_map(Ip::v4)]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (any::<u32>(), any::<bool>()).prop_map(|(version, again)| Request::Hello { version, again }),
        any::<(u32, u32, u32, bool)>().prop_map(|(index, generation, backlog, accepting)| Request::Listen {
            index,
            generation,
            backlog,
            accepting
        }),
        any::<(u32, bool)>().prop_map(|(index, accepting)| Request::Accepting { index, accepting }),
        any::<u32>().prop_map(|index| Request::Unlisten { index }),
        any::<u32>().prop_map(|index| Request::WillListen { index }),
        any::<(u32, u32, u32)>().prop_map(|(index, generation, backlog)| Request::Listens {
            index,
            generation,
            backlog
        }),
        (ip(), any::<(u16, u32, bool, bool)>()).prop_map(|(ip, (port, nth, want_ports, want_channel))| {
            Request::Connect { ip, port, nth, want_ports, want_channel }
        }),
        any::<(u32, u32)>().prop_map(|(member, serial)| Request::Fork { member, serial }),
        any::<(u64, u32)>().prop_map(|(id, side)| Request::Join { id, side }),
        any::<u32>().prop_map(|serial| Request::Born { serial }),
        Just(Request::Share),
        any::<u32>().prop_map(|number| Request::Berth { number }),
        any::<(u64, u32, u32)>().prop_map(|(channel, side, number)| Request::BerthOf {
            channel,
            side,
            number
        }),
        any::<u64>().prop_map(|len| Request::Memory { len }),
        Just(Request::Separate),
        Just(Request::Bridge),
        any::<(u64, u32, u32, u32)>().prop_map(|(id, side, peer_pid, adopter)| Request::Channel {
            id,
            side,
            peer_pid,
            adopter
        }),
        any::<u64>().prop_map(|channel| Request::Stuck { channel }),
        Just(Request::Idle),
        Just(Request::CannotTake),
        any::<u64>().prop_map(|channel| Request::Decline { channel }),
        any::<(u64, u32)>().prop_map(|(channel, number)| Request::Adopter { channel, number }),
        any::<(u64, u32)>().prop_map(|(channel, side)| Request::Ring { channel, side }),
        any::<u64>().prop_map(|channel| Request::Leave { channel }),
        any::<(u64, u32, u64)>().prop_map(|(channel, side, client)| Request::Home { channel, side, client }),
        any::<(u64, u32, u32, bool)>().prop_map(|(channel, slot, side, urgent)| Request::Signal {
            channel,
            slot,
            side,
            urgent
        }),
        (ip(), any::<(u16, bool)>()).prop_map(|(ip, (port, reuse))| Request::Bind { ip, port, reuse }),
        (ip(), ip(), any::<(u16, u16)>()).prop_map(|(ip, to_ip, (port, to_port))| Request::Tuple {
            ip,
            port,
            to_ip,
            to_port
        }),
        (ip(), any::<(u64, u32)>()).prop_map(|(ip, (channel, listener))| Request::Admits {
            channel,
            listener,
            ip
        }),
        Just(Request::Status),
    ]
}

fn admission() -> impl Strategy<Value = Admission> {
    let rest = any::<(u32, bool, u16)>();
    (rest, ip()).prop_map(|((policy, has_all, port), ip)| Admission { policy, has_all, ip, port })
}

fn route() -> impl Strategy<Value = Route> {
    prop_oneof![
        any::<u32>().prop_map(|reason| Route::Kernel { reason }),
        Just(Route::Denied),
        Just(Route::Soon),
        (any::<(u64, bool, u32, u32, u32, u32, u64)>(), any::<(bool, u32, u64)>(), ip()).prop_map(
            |(
                (channel, fresh, listener, generation, candidates, peer_pid, peer),
                (stranger, user, cookie),
                ip,
            )| {
                let socket = Socket { user, cookie, ip };
                Route::Shm {
                    channel,
                    fresh,
                    listener,
                    generation,
                    candidates,
                    peer_pid,
                    peer,
                    stranger,
                    socket,
                }
            }
        ),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    use ErrorCode::*;
    let code = prop::sample::select(vec![Version, Descriptor, Protocol, Exhausted, Denied]);
    prop_oneof![
        any::<u64>().prop_map(|client| Reply::Welcome { client }),
        Just(Reply::Ok),
        code.prop_map(|code| Reply::Error { code }),
        (route(), any::<(u16, u16)>()).prop_map(|(route, (port_first, port_count))| Reply::Route {
            route,
            port_first,
            port_count
        }),
        (any::<(u64, u32, bool)>(), admission()).prop_map(|((id, peer_pid, stranger), admits)| {
            Reply::NewChannel { id, peer_pid, stranger, admits }
        }),
        any::<u64>().prop_map(|id| Reply::Stranger { id }),
        any::<u64>().prop_map(|id| Reply::ChannelDead { id }),
        any::<u64>().prop_map(|id| Reply::PeerGone { id }),
        any::<u32>().prop_map(|member| Reply::Shared { member }),
        any::<(u64, u32, u32, u32, bool)>().prop_map(|(id, peer_pid, adopter, listener, stranger)| {
            Reply::Offer { id, peer_pid, adopter, listener, stranger }
        }),
        any::<(u64, u32, u32)>().prop_map(|(channel, slot, generation)| Reply::Withdraw {
            channel,
            slot,
            generation
        }),
        any::<bool>().prop_map(|stranger| Reply::Adopter { stranger }),
        Just(Reply::Status),
    ]
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
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4000 {
        seen.insert(request().new_tree(&mut runner).unwrap().current().kind());
    }
    assert_eq!(seen, kinds, "the strategy above makes each kind");
}
