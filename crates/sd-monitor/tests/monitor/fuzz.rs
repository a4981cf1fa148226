//! Random bytes and nearly sensible requests, with random descriptors, at a live monitor.
//!
//! Runs for a second, or `SD_FIRE_SECONDS`; prints the seed, which `SD_FUZZ_SEED` sets.

use crate::client::{Client, Control};
use crate::process::Process;
use crate::random::Random;
use crate::server::{Server, until};
use sd_proto::{Ip, MESSAGE_MAX, Request, VERSION};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Chance, as requests need it.
trait Chance {
    fn one_in(&mut self, n: usize) -> bool;
    /// Mostly small, sometimes anything.
    fn number(&mut self) -> u64;
}

impl Chance for Random {
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn number(&mut self) -> u64 {
        if self.one_in(8) { self.next() } else { self.below(4) as u64 }
    }
}

/// Descriptors to send: good ones of every kind, and others.
struct Supply {
    all: Vec<i32>,
    port: u16,
    _kept: (Client, [OwnedFd; 2], TcpListener),
}

impl Supply {
    fn new(server: &Server) -> Supply {
        let client = Client::prepare(server);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pidfd = crate::client::own(sd_sys::fd::pidfd_open(std::process::id() as i32).unwrap());
        let mut all = client.hello_fds().to_vec();
        let [monitors, _] = sd_sys::msg::pair_with_credentials().unwrap().map(crate::client::own);
        all.extend([listener.as_raw_fd(), pidfd.as_raw_fd(), monitors.as_raw_fd(), 0, 2]);
        let port = listener.local_addr().unwrap().port();
        Supply { all, port, _kept: (client, [pidfd, monitors], listener) }
    }

    fn some(&self, random: &mut Random) -> Vec<i32> {
        let count = random.below(6);
        (0..count).map(|_| self.all[random.below(self.all.len())]).collect()
    }

    /// What the request should have.
    fn fitting(&self, request: &Request) -> Vec<i32> {
        match request {
            Request::Hello { .. } => self.all[..4].to_vec(),
            Request::Listen { .. } => vec![self.all[4]],
            Request::Fork { .. } => vec![self.all[6]],
            Request::Born { .. } => vec![self.all[5]],
            Request::Channel { .. } => vec![self.all[0]],
            _ => Vec::new(),
        }
    }
}

fn request(random: &mut Random) -> Request {
    let port = random.number() as u16;
    match random.below(13) {
        0 => Request::Hello { version: VERSION, again: random.one_in(2) },
        1 => Request::Listen {
            index: random.number() as u32,
            generation: random.number() as u32 | 1,
            backlog: random.number() as u32,
            accepting: random.one_in(2),
        },
        2 => Request::Accepting { index: random.number() as u32, accepting: random.one_in(2) },
        3 if random.one_in(2) => Request::WillListen { index: random.number() as u32 },
        3 if random.one_in(2) => {
            Request::Listens { index: random.number() as u32, generation: 1, backlog: random.number() as u32 }
        }
        3 => Request::Unlisten { index: random.number() as u32 },
        4 | 5 => Request::Connect {
            ip: if random.one_in(9) { Ip([random.next() as u8; 16]) } else { Ip::v4([127, 0, 0, 1]) },
            port,
            nth: random.number() as u32,
            want_ports: random.one_in(2),
            want_channel: random.one_in(2),
        },
        6 => Request::Fork { member: random.number() as u32, serial: random.below(9) as u32 },
        8 => Request::Born { serial: random.below(9) as u32 },
        7 => Request::Channel {
            id: random.number(),
            side: random.number() as u32,
            peer_pid: random.number() as u32,
            adopter: random.below(20) as u32,
        },
        9 if random.one_in(3) => Request::Decline { channel: random.below(20) as u64 },
        9 if random.one_in(3) => Request::Finished { channel: random.below(20) as u64 },
        9 => Request::Stuck { channel: random.below(20) as u64 },
        10 => Request::Adopter { channel: random.below(20) as u64, number: random.below(20) as u32 },
        11 if random.one_in(3) => Request::Memory { len: random.number() },
        11 => Request::Leave { channel: random.below(20) as u64 },
        _ => Request::Status,
    }
}

/// One message; false when the connection is over.
fn step(random: &mut Random, control: &Control, supply: &Supply) -> bool {
    let mut buf = [0; MESSAGE_MAX];
    let mut request = request(random);
    if let Request::Connect { port: wanted, .. } = &mut request
        && !random.one_in(5)
    {
        *wanted = supply.port;
    }
    let mut fds = supply.fitting(&request);
    if random.one_in(4) {
        fds = supply.some(random);
    }
    let len = request.encode(&mut buf).len();
    if random.one_in(10) {
        buf[random.below(len)] = random.next() as u8;
    }
    let len = if random.one_in(20) { random.below(MESSAGE_MAX) } else { len };
    if control.send_bytes(&buf[..len], &fds).is_err() {
        return false;
    }
    if random.one_in(3) {
        return true;
    }
    // Answers are mostly read, and what is not read fills the queue.
    while let Ok(received) = control.receive_with(libc::MSG_DONTWAIT) {
        if received.is_none() {
            return false;
        }
    }
    true
}

#[test]
fn a_monitor_under_fire_keeps_serving() {
    let seconds = std::env::var("SD_FIRE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let seed = std::env::var("SD_FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("SD_FUZZ_SEED={seed}");
    let mut random = Random::new(seed);
    let server = Server::start();
    let witness = Control::connect(server.socket());
    witness.status();
    let before = server.holdings();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut messages = 0u64;
    while Instant::now() < end {
        let supply = Supply::new(&server);
        let mut controls: Vec<Control> = (0..4).map(|_| Control::connect(server.socket())).collect();
        let child = random.one_in(4).then(|| Process::fork(|_| {}));
        for _ in 0..400 {
            let which = random.below(4);
            if !step(&mut random, &controls[which], &supply) {
                controls[which] = Control::connect(server.socket());
            }
            messages += 1;
        }
        assert!(witness.status()["counters"].is_object());
        drop((child, supply));
    }
    println!("{messages} messages");
    until("all is forgotten", || server.holdings() == before);
    let status = witness.status();
    assert_eq!((&status["channels"], &status["processes"]), (&0.into(), &0.into()));
    Client::register(&server).listen(0);
}
