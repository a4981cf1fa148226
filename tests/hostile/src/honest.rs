//! Honest programs: plain users of sockets, that run with the library or without.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Answers each line with a word and the line, and prints who came. Styles: `threads`, a thread for each connection; `any`,
/// the same at 0.0.0.0; `two`, the same on the next port too; `one`, one connection at a time, with room for few others;
/// `poll`, all by one thread; `pass:PATH`, which passes each connection on to a receiver.
pub(crate) fn serve(port: u16, word: &str, style: &str) -> io::Result<()> {
    let ip = if style == "any" { [0; 4] } else { [127, 0, 0, 1] };
    let listener = TcpListener::bind((std::net::Ipv4Addr::from(ip), port))?;
    if style == "two" {
        let (word, second) = (word.to_owned(), TcpListener::bind(("127.0.0.1", port + 1))?);
        std::thread::spawn(move || accept_all(&second, &word, "threads"));
    }
    if style == "one" {
        // SAFETY: no pointers. The backlog is another one from now on.
        unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 5) };
    }
    println!("listening");
    if style == "poll" {
        return answer_all(&listener, word);
    }
    accept_all(&listener, word, style)
}

fn accept_all(listener: &TcpListener, word: &str, style: &str) -> io::Result<()> {
    let port = listener.local_addr()?.port();
    loop {
        let (stream, peer) = listener.accept()?;
        println!("peer {peer} at {port}");
        let word = word.to_owned();
        if let Some(path) = style.strip_prefix("pass:") {
            crate::bridge::pass(path, &stream)?;
        } else if style == "one" {
            let _ = converse(stream, &word);
        } else {
            std::thread::spawn(move || converse(stream, &word));
        }
    }
}

/// One thread that waits for everybody at once.
fn answer_all(listener: &TcpListener, word: &str) -> io::Result<()> {
    let mut streams: Vec<TcpStream> = Vec::new();
    loop {
        let fds = std::iter::once(std::os::fd::AsRawFd::as_raw_fd(listener))
            .chain(streams.iter().map(std::os::fd::AsRawFd::as_raw_fd));
        let mut fds: Vec<libc::pollfd> =
            fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the list is as long as it says.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| fd.revents != 0);
        let mut index = 0;
        streams.retain(|mut stream| {
            index += 1;
            let mut bytes = [0; 4096];
            !is_ready(index) || {
                let len = stream.read(&mut bytes).unwrap_or(0);
                let lines = bytes[..len].split_inclusive(|byte| *byte == b'\n');
                let all = lines.flat_map(|line| [word.as_bytes(), b" ", line].concat());
                len != 0 && stream.write_all(&all.collect::<Vec<u8>>()).is_ok()
            }
        });
        if is_ready(0) {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            streams.push(stream);
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

/// Prints microseconds from before socket(2) to the answer, the path, and the answer.
pub(crate) fn contact(port: u16, line: &str, patience_ms: u64) -> io::Result<()> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(patience_ms)))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    println!("{} {} {}", start.elapsed().as_micros(), path(), answer.trim_end());
    Ok(())
}

/// Prints what came from an address, or the error.
pub(crate) fn reach(ip: &str, port: u16, line: &str) -> io::Result<()> {
    let ip: std::net::IpAddr = ip.parse().map_err(io::Error::other)?;
    let reached = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&(ip, port).into(), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    println!("{:?}", reached().map_err(|error| error.kind()));
    Ok(())
}

/// Which way the connections of this process go.
fn path() -> &'static str {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if maps.contains("memfd:sd-channel") { "shm" } else { "kernel" }
}

/// Makes connections, keeps them, and asks once on each.
pub(crate) fn crowd(port: u16, count: u64) -> io::Result<()> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(("127.0.0.1", port))?);
    }
    for mut stream in streams {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"x\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        if answer.trim_end() != "bob x" {
            return Err(io::Error::other(format!("{answer:?} came")));
        }
    }
    println!("{count} {}", path());
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
        if &answer[..got] != b"bob x\n" {
            return Err(io::Error::other(format!("{} came", answer[..got].escape_ascii())));
        }
        took.push(start.elapsed().as_micros());
        std::thread::sleep(Duration::from_millis(1));
    }
    took.sort_unstable();
    println!("{} {} {}", took.len(), took[took.len() / 2], took[took.len() - 1]);
    Ok(())
}
