//! A client whose connections lead to another network namespace, so that its next socket is expected to lead there too.

use crate::brief::{both, in_a_child, turns};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const FEW: usize = 3;
const MANY: usize = 3000;
/// So many short ones first: the process has registered then, and has learned where its connections lead.
const SHORT: usize = 20;

/// Says `said` when it is done, and stays. `here` is the port of a server on this host.
pub(crate) fn run(place: &str, here: u16, way: &str) -> io::Result<()> {
    let connect = || TcpStream::connect(place);
    (0..SHORT).try_for_each(|_| both(&mut connect()?, FEW))?;
    match way {
        "few" => stay(connect().and_then(|mut stream| both(&mut stream, FEW).map(|()| stream))?),
        "many" => stay(connect().and_then(|mut stream| both(&mut stream, MANY).map(|()| stream))?),
        "slow" => {
            let mut stream = connect()?;
            for _ in 0..MANY / 100 {
                both(&mut stream, 1)?;
                std::thread::sleep(Duration::from_millis(20));
            }
            stay(stream);
        }
        "duplicate" => {
            let mut stream = connect()?;
            both(&mut stream, FEW)?;
            let mut other = stream.try_clone()?;
            turns(&mut other, &mut stream, MANY)?;
            stay((stream, other));
        }
        "forks" => {
            let mut stream = connect()?;
            both(&mut stream, FEW)?;
            in_a_child(|| both(&mut stream, MANY))?;
            both(&mut stream, MANY)?;
            stay(stream);
        }
        "here" => {
            let mut stream = TcpStream::connect(("127.0.0.1", here))?;
            both(&mut stream, FEW)?;
            stay(stream);
        }
        "listens" => {
            let listener = TcpListener::bind(("127.0.0.1", here))?;
            listener.set_nonblocking(true)?;
            let _ = listener.accept();
            stay(listener);
        }
        _ => return Err(io::Error::other("no such way")),
    }
    Ok(())
}

fn stay<T>(kept: T) {
    println!("said");
    std::thread::sleep(Duration::from_secs(60));
    drop(kept);
}
