//! A connection that carries messages when, and as fast as, whoever started it says, so that each state that it is in can be looked at.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// `steered serve`: at all addresses; sends back what comes on its connections, one after the other. `steered ADDRESS:PORT`: reads lines
/// `COUNT MS`, sends so many single bytes with such pauses, each after the answer to the one before, and says `done`.
pub(crate) fn run(place: &str) -> io::Result<()> {
    if place != "serve" {
        return obey(&TcpStream::connect(place)?);
    }
    let listener = TcpListener::bind("0.0.0.0:0")?;
    println!("port {}", listener.local_addr()?.port());
    loop {
        let mut stream = listener.accept()?.0;
        let mut byte = [0];
        while stream.read(&mut byte)? != 0 {
            stream.write_all(&byte)?;
        }
    }
}

fn obey(mut stream: &TcpStream) -> io::Result<()> {
    println!("connected");
    for line in io::stdin().lines() {
        let line = line?;
        let mut words = line.split(' ').map(|word| word.parse().unwrap_or(0u64));
        let (count, pause) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        for number in 0..count {
            let (sent, mut back) = ([number as u8], [0]);
            stream.write_all(&sent)?;
            stream.read_exact(&mut back)?;
            if sent != back {
                return Err(io::Error::other(format!("echo {number} is not what was sent")));
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        println!("done");
    }
    Ok(())
}
