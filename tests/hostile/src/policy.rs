//! Finding 7 a and b: ways round a rule.

use crate::client::{Client, Control, std_fd};
use sd_proto::{Ip, Reply, Request, Route};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

/// Asks for a way to a port by every name of it, and prints to which it is given one.
pub(crate) fn names(port: u16) -> io::Result<()> {
    let client = Client::register()?;
    for text in [
        "127.0.0.1",
        "127.0.0.2",
        "203.0.113.9",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "2001:db8::1",
        "::127.0.0.1",
    ] {
        let ip = match text.parse() {
            Ok(IpAddr::V4(ip)) => Ip::v4(ip.octets()),
            Ok(IpAddr::V6(ip)) => Ip(ip.octets()),
            Err(_) => continue,
        };
        match client.connect_to(ip, port, false) {
            Ok((Route::Shm { .. }, _)) => println!("seen: a way to {text}"),
            other => println!("{text}: {:?}", other.map(|(route, _)| route)),
        }
    }
    println!("ready");
    Ok(())
}

/// An honest daemon, with the library: makes a socket as root, gives its privileges up, and connects with that socket
/// and with one more.
pub(crate) fn became(port: u16, user: u32) -> io::Result<()> {
    let connect = |fd: i32| -> io::Result<String> {
        // SAFETY: an all-zero address is valid.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        // SAFETY: the address is valid during the call, and the descriptor was just made.
        let mut stream = unsafe {
            let done = libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32);
            let error = io::Error::last_os_error();
            let stream = TcpStream::from_raw_fd(fd);
            if done != 0 {
                return Err(error);
            }
            stream
        };
        stream.set_read_timeout(Some(std::time::Duration::from_secs(3)))?;
        stream.write_all(b"hello\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    };
    // SAFETY: no pointers but a null one, of no groups.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        if user != 0 {
            libc::setgroups(0, std::ptr::null());
            libc::setresgid(user, user, user);
            libc::setresuid(user, user, user);
        }
        socket
    };
    println!("{:?}", connect(socket));
    // SAFETY: no pointers.
    println!("{:?}", connect(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) }));
    Ok(())
}

/// A child whose first words the kernel has noted no sender of, as its socket had not asked for one yet: whose are they?
pub(crate) fn nobody(port: u16) -> io::Result<()> {
    let parent = Client::register()?;
    let client = Client::prepare()?;
    let mut pair = [0; 2];
    // SAFETY: the kernel writes two numbers.
    unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
    };
    let [monitors, childs] = pair.map(|fd| std_fd(sd_sys::fd::Owned::new(fd)));
    let child = Control { socket: childs };
    child.tell(Request::Hello { version: crate::client::version(), again: false }, &client.hello_fds())?;
    let ip = Ip::v4([127, 0, 0, 1]);
    child.tell(Request::Connect { ip, port, nth: 0, want_ports: false, want_channel: true }, &[])?;
    parent.control.tell(Request::Fork { member: 1, serial: 1 }, &[monitors.as_raw_fd()])?;
    parent.settle()?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    while let Ok((reply, _)) = child.receive_with(libc::MSG_DONTWAIT) {
        match reply {
            Reply::Route { route: Route::Shm { .. }, .. } => println!("seen: as nobody {reply:?}"),
            reply => println!("as nobody: {reply:?}"),
        }
    }
    println!("ready");
    Ok(())
}
