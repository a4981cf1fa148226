//! A monitor of another version: to whatever a client says first it answers that it is one. That much of the protocol
//! all versions have in common.

use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Reply 3, an error, with code 1, the version.
const ANSWER: [u8; 5] = [3, 1, 0, 0, 0];

pub(crate) fn serve(path: &str) -> io::Result<()> {
    let listener = listen(path)?;
    println!("ready");
    loop {
        // SAFETY: null addresses are allowed.
        let socket = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        std::thread::spawn(move || talk(socket));
    }
}

fn listen(path: &str) -> io::Result<RawFd> {
    // SAFETY: an all-zero address is valid; the kernel reads as much of it as is said.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
            *to = from as libc::c_char;
        }
        let len = size_of_val(&address) as libc::socklen_t;
        if libc::bind(socket, (&raw const address).cast(), len) != 0 || libc::listen(socket, 64) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

/// Answers as long as somebody asks. Descriptors that come along are cut off: there is no room for them.
fn talk(socket: RawFd) {
    // SAFETY: a socket of ours.
    let _closes = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut message = [0u8; 256];
    loop {
        // SAFETY: the slices are valid during the calls.
        let got = unsafe { libc::recv(socket, message.as_mut_ptr().cast(), message.len(), 0) };
        if got <= 0 {
            return;
        }
        let _ = writeln!(io::stdout(), "asked");
        // SAFETY: as above.
        unsafe { libc::send(socket, ANSWER.as_ptr().cast(), ANSWER.len(), libc::MSG_NOSIGNAL) };
    }
}
