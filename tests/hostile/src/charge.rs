//! Memory that others are made to pay for, and programs that move much over honest connections.

use crate::client::Client;
use crate::syn::Way;
use sd_shm::channel::{Side, SlotState};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Headers of messages, as `sd_ring::header` writes them.
const DATA: u64 = 1 << 32;
const TO_LARGE: u64 = 3 << 32 | 8;
/// The largest message that a large ring holds.
const MESSAGE: u64 = (2 << 20) - 16;

/// Connections on slot after slot of one channel, one at a time. On each a message is announced, and its bytes are never
/// written: whoever reads them makes their pages. Says how much memory the channel has in the end. `leave`: its maker ends,
/// and another process keeps the segment.
pub(crate) fn run(port: u16, count: u64, way: &str) -> io::Result<()> {
    if way == "leave" {
        return keep(port, count);
    }
    let client = Client::register()?;
    let Some(to) = Way::ask(&client, port, false)? else {
        println!("no way");
        return crate::stand();
    };
    for slot in 0..count as usize {
        announce(&to, slot);
        to.syn(slot, 2000 + slot as u16, port, (to.listener, to.generation));
        to.wake();
        let is_read = || {
            let [_, b] = &to.channel.map.slot(slot).side;
            b.consumed.load(Ordering::Acquire) >= 8 + 8 + MESSAGE
        };
        if !holds_soon(is_read) {
            println!("slot {slot} was not read");
            break;
        }
        to.channel.map.slot(slot).side[Side::A as usize].set_state(1, SlotState::Closed);
        to.channel.map.events(Side::B).post(slot);
        to.wake();
    }
    println!("segment {}", to.channel.fd());
    println!("{} KiB", kib(to.channel.fd())?);
    crate::stand()
}

/// As a sender's cursor does it, but for the bytes.
fn announce(way: &Way, slot: usize) {
    let map = &way.channel.map;
    let word = |place: *mut u8| {
        // SAFETY: the first word of a ring of the mapping.
        unsafe { &*place.cast::<AtomicU64>() }
    };
    word(map.large_ring(slot, Side::A)).store(DATA | MESSAGE, Ordering::Release);
    word(map.small_ring(slot, Side::A)).store(TO_LARGE, Ordering::Release);
}

/// Somebody else does that and ends; this process has the segment, and says when its memory is gone.
fn keep(port: u16, count: u64) -> io::Result<()> {
    let made = Made::by_another(port, count)?;
    let (kept, said) = (made.segment.try_clone()?, made.said.clone());
    let before = kib(kept.as_raw_fd())?;
    drop(made);
    holds_soon(|| kib(kept.as_raw_fd()).is_ok_and(|now| now == 0));
    // Its maker was ready; this process is when it has said what was kept.
    print!("{}", said.trim_end_matches("ready\n"));
    println!("kept {before} KiB, then {} KiB", kib(kept.as_raw_fd())?);
    crate::stand()
}

/// A channel on which a process stands that has had a server read what it had not written. Dropped, that process ends.
pub(crate) struct Made {
    pub(crate) segment: std::fs::File,
    said: String,
    maker: std::process::Child,
}

impl Made {
    pub(crate) fn by_another(port: u16, count: u64) -> io::Result<Made> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command
            .args(["charge", &port.to_string(), &count.to_string(), "stay"])
            .stdout(std::process::Stdio::piped());
        let mut maker = command.spawn()?;
        let mut said = String::new();
        let mut lines = maker.stdout.take().map(io::BufReader::new).ok_or(io::ErrorKind::BrokenPipe)?;
        while !said.ends_with("ready\n") && io::BufRead::read_line(&mut lines, &mut said)? != 0 {}
        let number = said.lines().find_map(|line| line.strip_prefix("segment ")).unwrap_or_default();
        let path = format!("/proc/{}/fd/{number}", maker.id());
        let segment = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Made { segment, said, maker })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = self.maker.kill();
        let _ = self.maker.wait();
    }
}

fn holds_soon(holds: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(5);
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Memory of a file.
fn kib(fd: i32) -> io::Result<u64> {
    // SAFETY: an all-zero stat is valid, and the kernel writes one.
    let (stat, ok): (libc::stat, _) = unsafe {
        let mut stat = std::mem::zeroed();
        let ok = libc::fstat(fd, &mut stat);
        (stat, ok)
    };
    if ok == 0 { Ok(stat.st_blocks as u64 / 2) } else { Err(io::Error::last_os_error()) }
}

/// An honest server: sends what it gets back to who begins with an `m`, and drops what others send.
pub(crate) fn swallow(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening");
    loop {
        let (mut stream, _) = listener.accept()?;
        std::thread::spawn(move || -> io::Result<()> {
            let (mut bytes, mut first) = (vec![0; 100_000], [0]);
            stream.read_exact(&mut first)?;
            loop {
                let len = stream.read(&mut bytes)?;
                if len == 0 {
                    return Ok(());
                }
                if first == *b"m" {
                    stream.write_all(&bytes[..len])?;
                }
            }
        });
    }
}

/// What the bytes of a stream are.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// An honest server that reads so many connections late, each in a child of its own, to the end.
pub(crate) fn late(port: u16, count: u64) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening");
    for _ in 0..count {
        let (mut stream, _) = listener.accept()?;
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } != 0 {
            continue;
        }
        std::thread::sleep(Duration::from_secs(1));
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let is_right = bytes == pattern(bytes.len());
        println!("{} bytes, {}", bytes.len(), if is_right { "right" } else { "WRONG" });
        return Ok(());
    }
    // Somebody whom the children outlive would end the test's group.
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// An honest client of it, which sends what is taken without anybody's reading, and ends.
pub(crate) fn burst(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nonblocking(true)?;
    let (bytes, mut sent) = (pattern(1 << 20), 0);
    while sent < bytes.len() {
        match stream.write(&bytes[sent..bytes.len().min(sent + 60_000)]) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    println!("sent {sent}");
    Ok(())
}

/// An honest client of it: so many connections at once, and so many MiB there and back on each, in messages of all sizes.
pub(crate) fn bulk(port: u16, count: u64, mib: u64) -> io::Result<()> {
    let talks: Vec<_> =
        (0..count).map(|number| std::thread::spawn(move || talk(port, number, mib << 20))).collect();
    for talk in talks {
        talk.join().map_err(|_| io::Error::other("a thread panicked"))??;
    }
    println!("{mib} MiB there and back on {count} connections");
    Ok(())
}

fn talk(port: u16, number: u64, total: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"m")?;
    let mut out = stream.try_clone()?;
    let byte = move |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 ^ number as u8;
    let sender = std::thread::spawn(move || -> io::Result<()> {
        let (mut at, mut size) = (0, 1);
        while at < total {
            let end = total.min(at + size);
            out.write_all(&(at..end).map(byte).collect::<Vec<u8>>())?;
            (at, size) = (end, (size * 7 + 13) % 300_000);
        }
        Ok(())
    });
    let (mut at, mut size) = (0, 1);
    let mut bytes = vec![0; 200_000];
    while at < total {
        // A look first, now and then: it shows the same bytes.
        let seen = if size % 5 == 0 { stream.peek(&mut bytes[..100])? } else { 0 };
        let looked = bytes[..seen].to_vec();
        let len = stream.read(&mut bytes[..size])?;
        let is_right = bytes[..len].iter().zip(at..).all(|(is, at)| *is == byte(at));
        let is_same = looked.iter().zip(&bytes[..len]).all(|(a, b)| a == b);
        if len == 0 || !is_right || !is_same {
            return Err(io::Error::other(format!(
                "connection {number} at {at}: {len} bytes, right: {is_right}"
            )));
        }
        (at, size) = (at + len as u64, (size * 11 + 7) % 200_000 + 1);
    }
    sender.join().map_err(|_| io::Error::other("a thread panicked"))?
}
