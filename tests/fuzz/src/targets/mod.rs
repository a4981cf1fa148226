//! What is fuzzed. A target takes any bytes; what it must not do ends the process.

mod engine;
mod handshake;
mod hosts;
mod image;
mod monitor;
mod ring;
mod views;

use sd_proto::{MESSAGE_MAX, Reply, Request};

pub(crate) struct Target {
    name: &'static str,
    pub(crate) run: fn(&[u8]),
    /// To begin with, where there is no corpus.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

const ALL: [Target; 9] = [
    Target { name: "messages", run: messages, seeds: message_seeds },
    Target { name: "policy", run: policy, seeds: policy_seeds },
    Target { name: "ring", run: ring::run, seeds: ring::seeds },
    Target { name: "views", run: views::run, seeds: views::seeds },
    Target { name: "image", run: image::run, seeds: image::seeds },
    Target { name: "handshake", run: handshake::run, seeds: handshake::seeds },
    Target { name: "hosts", run: hosts::run, seeds: hosts::seeds },
    Target { name: "engine", run: sd_engine::testing::engine, seeds: engine::seeds },
    Target { name: "monitor", run: monitor::run, seeds: monitor::seeds },
];

pub(crate) fn named(name: &str) -> Option<&'static Target> {
    static TARGETS: [Target; 9] = ALL;
    TARGETS.iter().find(|target| target.name == name)
}

/// Bytes of an input, one after the other; zeros when there are no more.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(crate) fn u64(&mut self) -> u64 {
        (0..8).fold(0, |word, at| word | u64::from(self.u8()) << (8 * at))
    }

    /// Mostly small, sometimes anything.
    pub(crate) fn number(&mut self) -> u64 {
        match self.u8() {
            255 => self.u64(),
            254 => u64::from(self.u8()) << 8 | u64::from(self.u8()),
            small => u64::from(small),
        }
    }
}

fn messages(input: &[u8]) {
    if let Ok(request) = Request::decode(input) {
        assert_eq!(request.encode(&mut [0; MESSAGE_MAX]), input, "{request:?}");
    }
    if let Ok(reply) = Reply::decode(input) {
        assert_eq!(reply.encode(&mut [0; MESSAGE_MAX]), input, "{reply:?}");
    }
}

fn message_seeds() -> Vec<Vec<u8>> {
    (0..=50).flat_map(|kind| (0..40).map(move |len| [vec![kind], vec![0; len]].concat())).collect()
}

fn policy(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        sd_monitor::testing::policy(text);
    }
}

fn policy_seeds() -> Vec<Vec<u8>> {
    let lines = [
        "allow",
        "deny uid=1 to=10.0.0.0/8 port=1-65535",
        "kernel to=::1/128 # why",
        "stay port=80",
        "default deny",
    ];
    lines.map(|line| line.as_bytes().to_vec()).into()
}
