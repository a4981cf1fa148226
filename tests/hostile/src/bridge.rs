//! Finding 12: a connection that is passed on gets a kernel socket with a process behind it, by way of a loopback
//! listener for one moment. Whoever connects there first is not to be taken for the other end.

use crate::client::std_fd;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

/// The honest server's part: sends a connection away, by the C library's sendmsg.
pub(crate) fn pass(path: &str, stream: &TcpStream) -> io::Result<()> {
    let receiver = UnixStream::connect(path)?;
    crate::client::send_with_fds(receiver.as_raw_fd(), b"!", &[stream.as_raw_fd()])
}

/// The honest receiver, without the library: gives back every byte.
pub(crate) fn echo(path: &str) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    println!("listening");
    for sender in listener.incoming() {
        let Some(stream) = crate::places::receive(sender?.as_raw_fd())?.pop().map(TcpStream::from) else {
            continue;
        };
        std::thread::spawn(move || -> io::Result<()> {
            let (mut stream, mut buf) = (stream, [0; 256]);
            loop {
                let count = stream.read(&mut buf)?;
                if count == 0 {
                    return Ok(());
                }
                stream.write_all(b"bob ")?;
                stream.write_all(&buf[..count])?;
            }
        });
    }
    Ok(())
}

/// Connects to every port of a range, again and again, and says so when somebody answers.
pub(crate) fn spray(first: u16, last: u16) -> io::Result<()> {
    println!("ready");
    let mut held: Vec<TcpStream> = Vec::new();
    loop {
        for port in first..=last {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let Ok(fd) = sd_sys::fd::socket(libc::AF_INET, kind, 0) else { break };
            let stream = TcpStream::from(std_fd(fd));
            // SAFETY: an all-zero address is valid.
            let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            address.sin_family = libc::AF_INET as u16;
            address.sin_port = port.to_be();
            address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
            // SAFETY: the address is valid during the call.
            unsafe {
                libc::connect(stream.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
            };
            if stream.peer_addr().is_ok_and(|peer: SocketAddr| peer.port() == port) {
                held.push(stream);
            }
        }
        held.retain_mut(|stream| {
            let mut bytes = [0; 256];
            match stream.read(&mut bytes) {
                Ok(0) => false,
                Ok(count) => {
                    println!("seen: {}", bytes[..count].escape_ascii());
                    let _ = stream.write_all(b"bob HIJACKED\n");
                    true
                }
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            }
        });
        let excess = held.len().saturating_sub(500);
        held.drain(..excess);
    }
}
