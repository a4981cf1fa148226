//! Findings 2 and 3: a listener that is registered, while the kernel has none (any more) there.

use crate::client::{Channel, Client};
use sd_proto::Reply;
use sd_shm::channel::{SLOTS, Side};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// `close`: the kernel's listener is closed. `any`: the same, at 0.0.0.0. `shutdown`: it listens no more, and its port
/// can be bound by others, as SO_REUSEADDR permits.
pub(crate) fn run(port: u16, way: &str) -> io::Result<()> {
    let ip = if way == "any" { [0; 4] } else { [127, 0, 0, 1] };
    let listener = TcpListener::bind((std::net::Ipv4Addr::from(ip), port))?;
    let client = Client::register()?;
    println!("registered: {:?}", client.listen(0, &listener)?);
    if way == "shutdown" {
        // SAFETY: no pointers.
        unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    } else {
        drop(listener);
    }
    println!("ready");
    let mut channels: Vec<Channel> = Vec::new();
    loop {
        let mut look =
            libc::pollfd { fd: client.control.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        if unsafe { libc::poll(&mut look, 1, 5) } > 0 {
            match client.control.receive()? {
                (Reply::NewChannel { id, peer_pid, .. } | Reply::Offer { id, peer_pid, .. }, fds)
                    if !fds.is_empty() =>
                {
                    println!("seen: a channel with process {peer_pid}");
                    channels.push(Channel::new(id, fds)?);
                }
                (reply, _) => println!("told: {reply:?}"),
            }
        }
        channels.iter().for_each(spy);
    }
}

/// Prints what has been sent by side A.
fn spy(channel: &Channel) {
    for slot in 0..SLOTS {
        let (generation, _) = channel.map.slot(slot).side[Side::A as usize].state();
        if generation == 0 {
            continue;
        }
        let ring = channel.map.small_ring(slot, Side::A);
        // SAFETY: a small ring has so many bytes.
        let bytes: Vec<u8> = (0..64).map(|at| unsafe { ring.add(at).read_volatile() }).collect();
        if bytes.iter().any(|byte| *byte != 0) {
            println!(
                "seen: {}",
                String::from_utf8_lossy(&bytes).escape_default().to_string().replace("\\u{0}", "")
            );
        }
    }
}
