//! A client that ends its connection in one of several ways, when it is told to by a file that appears.

use crate::pattern::bytes;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// `exit`, `exec` of a program that does without the connection, `close`; any other way is its parent's business.
pub(crate) fn run(port: u16, way: &str, file: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"S")?;
    stream.write_all(&bytes(0, 5))?;
    println!("connected");
    while !Path::new(file).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    match way {
        "exit" => std::process::exit(0),
        "exec" => return Err(Command::new("sleep").arg("60").exec()),
        "close" => drop(stream),
        _ => std::mem::forget(stream),
    }
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}
