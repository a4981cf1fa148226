//! Clients that try until somebody listens, as services do that wait for their database.

use crate::many::stay;
use std::io::{BufRead, BufReader, Error, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Binds, tells the port, listens a moment later, and accepts one connection; all of them stay.
pub(crate) fn serve(count: u64) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut kept = Vec::new();
    let mut chance = u64::from(std::process::id()) | 1;
    for _ in 0..count {
        let listener = bound()?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = Instant::now() + Duration::from_micros((chance >> 33) % 600);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        // SAFETY: no memory is involved.
        if unsafe { libc::listen(listener.as_raw_fd(), 16) } != 0 {
            return Err(Error::last_os_error());
        }
        kept.push(listener.accept()?.0);
    }
    stay()
}

/// A socket at a port of this host's, which does not listen yet.
fn bound() -> Result<TcpListener> {
    let mut name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: no memory is involved; the descriptor was just made and is owned once.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        TcpListener::from_raw_fd(fd)
    };
    let at = (&raw mut name).cast();
    // SAFETY: the address has that length.
    match unsafe { libc::bind(socket.as_raw_fd(), at, size_of_val(&name) as libc::socklen_t) } {
        0 => Ok(socket),
        _ => Err(Error::last_os_error()),
    }
}

/// Tries, without a pause or with one, until the server listens; `COUNT` times. Then it says so and stays.
pub(crate) fn connect(count: u64) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["late-server", &count.to_string()]).stdout(Stdio::piped());
    let mut server = command.spawn()?;
    let ports = server.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
    let mut kept = Vec::new();
    for (round, port) in ports.enumerate() {
        let port: u16 = port?.parse().map_err(std::io::Error::other)?;
        kept.push(loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        if kept.len() as u64 == count {
            break;
        }
    }
    println!("all");
    stay()
}
