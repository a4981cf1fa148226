//! Readers that stall, and a server that offers each of them more than memory holds. Buffers are small and static, so
//! what is used beside is the sockets'.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PIECE: usize = 64 << 10;
/// So long nobody reads.
const STALL: Duration = Duration::from_secs(2);

/// Serves as many readers, a child of this process, `offer` bytes each; says how much each had been sent while nobody read.
pub(crate) fn run(count: usize, offer: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(listener);
            let read = read_late(port, count, offer);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(read.is_err())) };
        }
        _ => {}
    }
    let accepted: io::Result<Vec<_>> = (0..count).map(|_| Ok((first(&listener)?, offer))).collect();
    serve(accepted?, offer)?;
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    unsafe { libc::wait(&raw mut status) };
    if status == 0 { Ok(()) } else { Err(io::Error::other("the readers did not get all")) }
}

fn first(listener: &TcpListener) -> io::Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    stream.read_exact(&mut [0])?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn serve(mut open: Vec<(TcpStream, usize)>, offer: usize) -> io::Result<()> {
    let piece = vec![7u8; PIECE];
    let (start, mut is_told) = (Instant::now(), false);
    while !open.is_empty() {
        let mut moved = false;
        for (stream, left) in &mut open {
            match stream.write(&piece[..PIECE.min(*left)]) {
                Ok(len) => (*left, moved) = (*left - len, true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        open.retain(|(_, left)| *left > 0);
        if !is_told && start.elapsed() > STALL / 2 {
            is_told = true;
            let sent = open.iter().map(|(_, left)| offer - left);
            println!("stalled at {} to {} bytes", sent.clone().min().unwrap_or(0), sent.max().unwrap_or(0));
        }
        if !moved {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn read_late(port: u16, count: usize, offer: usize) -> io::Result<()> {
    let connect = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"?")?;
        Ok(stream)
    };
    let all: Vec<TcpStream> = (0..count).map(connect).collect::<io::Result<_>>()?;
    std::thread::sleep(STALL);
    let mut buffer = vec![0u8; PIECE];
    for mut stream in all {
        let mut total = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                len if buffer[..len].iter().all(|byte| *byte == 7) => total += len,
                _ => return Err(io::Error::other("wrong bytes")),
            }
        }
        if total != offer {
            return Err(io::Error::other("not all bytes"));
        }
    }
    Ok(())
}
