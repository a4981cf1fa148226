//! Handshakes that others have published come out byte for byte: `snow` over our primitives is Noise.

use sd_keys::testing::Primitives;
use snow::{Builder, HandshakeState};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn ends(words: &[&str]) -> [HandshakeState; 2] {
    let [name, prologue, init, init_once, remote, resp, resp_once, shared] = words else {
        panic!("{words:?}");
    };
    let prologue = bytes(prologue);
    let shared: Option<[u8; 32]> = (*shared != "-").then(|| bytes(shared).try_into().unwrap());
    let remote = (*remote != "-").then(|| bytes(remote));
    [(init, init_once, true), (resp, resp_once, false)].map(|(own, once, begins)| {
        let (own, once) = (bytes(own), bytes(once));
        let mut builder = Builder::with_resolver(name.parse().unwrap(), Box::new(Primitives::default()))
            .prologue(&prologue)
            .unwrap()
            .local_private_key(&own)
            .unwrap()
            .fixed_ephemeral_key_for_testing_only(&once);
        if let Some(shared) = &shared {
            builder = builder.psk(if name.contains("psk0") { 0 } else { 3 }, shared).unwrap();
        }
        match (begins, &remote) {
            (true, Some(remote)) => builder.remote_public_key(remote).unwrap().build_initiator().unwrap(),
            (true, None) => builder.build_initiator().unwrap(),
            (false, _) => builder.build_responder().unwrap(),
        }
    })
}

#[test]
fn published_handshakes() {
    let text = include_str!("vectors.txt");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        let mut ends = ends(&words);
        for step in 0..3 {
            let (payload, message) = lines.next().unwrap().split_once(' ').unwrap();
            let (mut out, mut back) = ([0; 512], [0; 512]);
            let len = ends[step % 2].write_message(&bytes(payload), &mut out).unwrap();
            assert_eq!(out[..len], bytes(message), "{} message {step}", words[0]);
            let len = ends[1 - step % 2].read_message(&out[..len], &mut back).unwrap();
            assert_eq!(back[..len], bytes(payload));
        }
        let [first, second] = &mut ends;
        assert_eq!(first.dangerously_get_raw_split(), second.dangerously_get_raw_split());
        count += 1;
    }
    assert!(count >= 4, "{count} handshakes");
}
