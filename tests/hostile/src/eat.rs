//! Findings 10 and 14: what a client can make the monitor hold, look at and believe.

use crate::client::{Client, own, std_fd};
use sd_proto::{Request, VERSION};
use sd_shm::channel::{SEGMENT_LEN, Side};
use sd_shm::slab::State;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Channels of an earlier monitor's time, that there never were.
pub(crate) fn channels(count: u64) -> io::Result<()> {
    let (mut client, mut held) = (Client::prepare()?, Vec::new());
    client.hello(true)?;
    for number in 0..count {
        if number % 1000 == 999 {
            let Ok(next) = Client::prepare().and_then(|next| next.hello(true).map(|_| next)) else {
                println!("stopped after {number}");
                break;
            };
            held.push(std::mem::replace(&mut client, next));
        }
        let segment = sd_sys::mem::memfd_sealed(c"sd-channel", SEGMENT_LEN);
        let segment = own(segment)?;
        let request = Request::Channel { id: number, side: 0, peer_pid: 1, adopter: 0 };
        if client.control.tell(request, &[segment.as_raw_fd()]).is_err() {
            println!("stopped after {number}");
            break;
        }
    }
    let _ = client.settle();
    crate::stand()
}

/// Clients that ask and read no answer, until they are dismissed.
pub(crate) fn answers(count: u64) -> io::Result<()> {
    let mut held = Vec::new();
    for number in 0..count {
        let Ok(client) = Client::register() else {
            println!("stopped after {number}");
            break;
        };
        let asked = (0..100_000).take_while(|_| client.control.tell(Request::Status, &[]).is_ok()).count();
        if asked == 100_000 {
            return Err(io::Error::other("100,000 answers were kept for a client that reads none"));
        }
        held.push(client);
    }
    crate::stand()
}

/// Children that are announced and never come.
pub(crate) fn forks(count: u32) -> io::Result<()> {
    let client = Client::register()?;
    let mut held = Vec::new();
    for serial in 0..count {
        let Ok(pair) = sd_sys::msg::pair_with_credentials() else { break };
        let [monitors, childs] = pair.map(std_fd);
        if client.control.tell(Request::Fork { member: 63, serial }, &[monitors.as_raw_fd()]).is_err() {
            println!("stopped after {serial}");
            break;
        }
        held.push(childs);
    }
    let _ = client.settle();
    crate::stand()
}

/// A slab full of connections that there never were. `bind`: all of them from one port, and others ask for it.
pub(crate) fn fat(count: u64) -> io::Result<()> {
    let client = Client::register()?;
    for index in 0..count as usize {
        let Some(endpoint) = client.slab.endpoint(index) else { break };
        endpoint.ports.store(40_000 << 16 | 80, Ordering::Relaxed);
        endpoint.holders.store(1, Ordering::Relaxed);
        endpoint.begin(libc::AF_INET);
        endpoint.state.store(State::Connected as u8, Ordering::Relaxed);
    }
    client.slab.header().high.store(count as u32, Ordering::Release);
    std::thread::spawn(move || {
        loop {
            let asked =
                client.control.tell(Request::Status, &[]).and_then(|()| client.control.receive().map(drop));
            if asked.is_err() {
                return;
            }
        }
    });
    crate::stand()
}

/// A connection that there never was uses a port.
pub(crate) fn bind_block(port: u16) -> io::Result<()> {
    let client = Client::register()?;
    client.pretend(0, 1, Side::A, 0, u32::from(port) << 16 | 80);
    client.pretend(1, 1, Side::B, 1, u32::from(port) << 16 | 4000);
    client.settle()?;
    crate::stand()
}

/// Finding 14, the other way round: as many registrations as there are.
pub(crate) fn clients(count: u64) -> io::Result<()> {
    let mut held = Vec::new();
    for number in 0..count {
        match Client::register() {
            Ok(client) => held.push(client),
            Err(error) => {
                println!("stopped after {number}: {error}");
                break;
            }
        }
    }
    println!("{} clients of version {VERSION}", held.len());
    crate::stand()
}
