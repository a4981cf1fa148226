//! Honest programs: plain users of sockets, that run with the library or without.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Answers each line with a word and the line, and prints who came. Styles: `threads`, a thread for each connection;
/// `slow`, which takes one connection at a time and lingers over each, so that others wait in the backlog.
pub(crate) fn serve(port: u16, word: &str, style: &str) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening");
    loop {
        let (stream, peer) = listener.accept()?;
        println!("peer {peer}");
        let word = word.to_owned();
        if style == "slow" {
            std::thread::sleep(Duration::from_millis(50));
            let _ = converse(stream, &word);
        } else {
            std::thread::spawn(move || converse(stream, &word));
        }
    }
}

fn converse(stream: TcpStream, word: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        out.write_all(format!("{word} {}\n", line?).as_bytes())?;
    }
    Ok(())
}

/// Prints microseconds from before socket(2) to the answer, and the answer.
pub(crate) fn contact(port: u16, line: &str, patience_ms: u64) -> io::Result<()> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(patience_ms)))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    println!("{} {}", start.elapsed().as_micros(), answer.trim_end());
    Ok(())
}

/// Prints how many questions were answered in so long, and the median and the longest time of an answer in
/// microseconds. The pauses between them are not counted.
pub(crate) fn pace(port: u16, ms: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (mut took, mut answer) = (Vec::new(), [0; 64]);
    let end = Instant::now() + Duration::from_millis(ms);
    println!("connected");
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(b"x\n")?;
        let mut got = 0;
        while !answer[..got].ends_with(b"\n") {
            match stream.read(&mut answer[got..])? {
                0 => return Err(io::Error::other("the server has hung up")),
                count => got += count,
            }
        }
        took.push(start.elapsed().as_micros());
        std::thread::sleep(Duration::from_millis(1));
    }
    took.sort_unstable();
    println!("{} {} {}", took.len(), took[took.len() / 2], took[took.len() - 1]);
    Ok(())
}
