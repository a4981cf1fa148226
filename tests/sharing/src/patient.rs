//! A client that goes on while the monitor stands still: first contacts, forks, listeners and ends of children.

use crate::echo::dial;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Talks to one server in so many turns, and to another from when the monitor is stopped on: begins with the first line of its standard
/// input, says when it has done them all, and ends after another line, when the monitor has gone on.
pub(crate) fn run(known: u16, new: u16, turns: u64) -> io::Result<()> {
    let mut all = vec![dial(known)?, dial(known)?];
    all.iter_mut().try_for_each(echo)?;
    println!("connected");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let mut listeners = Vec::new();
    for _ in 0..turns {
        all.push(dial(new)?);
        listeners.push(TcpListener::bind("127.0.0.1:0")?);
        child_echoes(&mut all[0])?;
        all.iter_mut().try_for_each(echo)?;
        std::thread::sleep(Duration::from_millis(300));
    }
    println!("{turns} turns");
    io::stdin().read_line(&mut line)?;
    for listener in &listeners {
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (mut far, _) = listener.accept()?;
        far.write_all(b"x")?;
        near.read_exact(&mut [0])?;
    }
    all.push(dial(new)?);
    child_echoes(&mut all[1])?;
    all.iter_mut().try_for_each(echo)?;
    println!("{} connections live", all.len());
    Ok(())
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut back = [0; 100];
    stream.write_all(&[7; 100])?;
    stream.read_exact(&mut back)?;
    if back == [7; 100] { Ok(()) } else { Err(io::Error::other("the echo is not what was sent")) }
}

/// A child uses the connection, and ends.
fn child_echoes(stream: &mut TcpStream) -> io::Result<()> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = i32::from(echo(stream).is_err());
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is valid during the call.
            unsafe { libc::waitpid(child, &mut status, 0) };
            if status == 0 { Ok(()) } else { Err(io::Error::other("a child lost its parent's connection")) }
        }
    }
}
