//! A hostile peer. It is an ordinary client whose library set up real segments; then it writes into those as it likes,
//! while it goes on calling the library, so that the other side is busy with what was written.

use crate::pattern::Random;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A mapping of a segment that others have too.
#[derive(Clone, Copy)]
struct Region {
    start: usize,
    len: usize,
}

/// Only the first part of a segment is written to: control words and small rings, and the first large rings. The rest
/// is gigabytes of nothing.
const REACH: usize = 12 << 20;
/// How long one scribbler lives.
const LIFE: Duration = Duration::from_millis(700);
/// Connections that it has open, at most.
const CONNS: usize = 12;

/// Writable mappings of segments shared with peers.
fn regions() -> Vec<Region> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        (rest.starts_with("rw-s") && rest.contains("memfd:sd-channel"))
            .then(|| Region { start, len: (end - start).min(REACH) })
    };
    maps.lines().filter_map(parse).collect()
}

/// Values that code which trusts them would fall over.
fn nasty(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        3 => random.below(5000),
        4 => u64::from(u32::MAX) << 32,
        5 => 0x7fff_ffff_7fff_ffff,
        6 => (random.below(8) << 32) | random.below(1 << 22),
        _ => random.next(),
    }
}

fn scribble(region: Region, random: &mut Random) {
    // Control words lie in front; most writes go there.
    let reach = [0x2000, 0x6000, 0x2_0000, region.len][random.below(4) as usize].min(region.len);
    let place = region.start + random.below(reach as u64 / 8) as usize * 8;
    // SAFETY: an aligned word in a mapping that lasts until the end of this process; others change it too.
    let word = unsafe { &*(place as *const AtomicU64) };
    match random.below(4) {
        0 => drop(word.fetch_xor(1 << random.below(64), Ordering::SeqCst)),
        1 => drop(word.fetch_add(random.below(64), Ordering::SeqCst)),
        _ => word.store(nasty(random), Ordering::SeqCst),
    }
}

pub(crate) fn run(port: u16, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let mut conns = vec![dial(port)?];
    let regions = regions();
    if regions.is_empty() {
        return Err(io::Error::other("no segment is shared with the server"));
    }
    static OVER: AtomicBool = AtomicBool::new(false);
    let writer = std::thread::spawn(move || {
        let (mut random, mut count) = (Random::new(!seed), 0u64);
        while !OVER.load(Ordering::Relaxed) {
            scribble(regions[random.below(regions.len() as u64) as usize], &mut random);
            count += 1;
            if count % 64 == 0 && random.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(50)));
            }
        }
        count
    });
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        // What the library says is of no interest; it must only survive in the others.
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
    OVER.store(true, Ordering::Relaxed);
    println!("{} writes", writer.join().unwrap_or(0));
    Ok(())
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
