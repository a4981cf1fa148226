//! The client of a vandal (see `vandal`): an ordinary program whose library has real segments with a server, and goes on
//! using them while somebody writes into them. What its calls say is of no interest; it must not crash either, since
//! to its library the other side may be the hostile one.

use crate::pattern::Random;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Connections that it has open, at most.
const CONNS: usize = 12;

/// Calls for as long as it may live.
pub(crate) fn run(port: u16, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let mut conns = vec![dial(port)?];
    println!("ready");
    loop {
        let index = random.below(conns.len() as u64 + 1) as usize;
        if index == conns.len() {
            if index < CONNS {
                conns.extend(dial(port));
            }
        } else if random.below(10) == 0 {
            conns.swap_remove(index);
        } else {
            act(&mut conns[index], &mut random);
        }
    }
}

fn act(conn: &mut TcpStream, random: &mut Random) {
    let len = [1, 8, 900, 3000, 60_000][random.below(5) as usize];
    let mut buf = vec![random.next() as u8; len];
    let _ = if random.below(2) == 0 { conn.write(&buf) } else { conn.read(&mut buf) };
}

fn dial(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    let pause = Some(Duration::from_millis(2));
    stream.set_read_timeout(pause)?;
    stream.set_write_timeout(pause)?;
    Ok(stream)
}
