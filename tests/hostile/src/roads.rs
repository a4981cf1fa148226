//! Ends of promoted connections that do not play by the rules of `sd_ring::road`: programs with the library, which write into the other
//! end's word besides, or never read.

use sd_ring::road::RoadWord;
use sd_shm::channel::{Mapping, SLOTS, Slot, SlotState};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The bits of `SlotSide::flags` that are a [`RoadWord`].
const SHIFT: u32 = 8;
const MASK: u32 = 0x3f << SHIFT;
const PATIENCE: Duration = Duration::from_secs(20);
const LINE: &[u8] = b"mallory\n";

/// `left`: the other end has left the ring, and its word says that it is there. `nothing`: neither end has said anything, all the while.
pub(crate) fn words(port: u16, way: &str) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let Some(slot) = promoted(&stream, end)? else { continue };
        stream.set_nonblocking(true)?;
        let said = match way {
            "left" => RoadWord::ATTACHED | RoadWord::SWITCHED,
            _ => RoadWord::default(),
        };
        if way == "left" {
            slot.side[0].say(RoadWord::WANTS_KERNEL);
            let _ = (&stream).write(LINE);
            while !slot.side[1].road().has(RoadWord::LEFT) && Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        let state = slot.side[1].state();
        std::thread::spawn(move || {
            loop {
                slot.side.iter().for_each(|side| overwrite(&side.flags, said));
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        // Else it was given back before.
        if state.1 == SlotState::Open && slot.side[1].state() == state {
            println!("ready");
            loop {
                let _ = (&stream).write(LINE);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    Err(io::Error::other("no connection was promoted, or none stayed so"))
}

fn overwrite(flags: &AtomicU32, said: RoadWord) {
    let rest = flags.load(Ordering::Relaxed) & !MASK;
    flags.store(rest | said.0 << SHIFT, Ordering::Relaxed);
}

fn ask(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(LINE)?;
    let (mut byte, mut got) = ([0], 0);
    while byte != *b"\n" {
        got += stream.read(&mut byte)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Talks until both directions go through the rings of a slot, which is returned. This process has no other such connection.
fn promoted(stream: &TcpStream, end: Instant) -> io::Result<Option<&'static Slot>> {
    let over = RoadWord::ATTACHED | RoadWord::SWITCHED;
    let is_there = |slot: &&'static Slot| slot.side.iter().all(|side| side.road() == over);
    let mut segment: Option<&'static Mapping> = None;
    while Instant::now() < end {
        ask(stream)?;
        segment = segment.or_else(|| self::segment().map(|map| &*Box::leak(Box::new(map))));
        let Some(map) = segment else { continue };
        if let Some(slot) = (0..SLOTS).map(|slot| map.slot(slot)).find(is_there) {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Of the only channel that this process has: the library's, among its descriptors.
fn segment() -> Option<Mapping> {
    let folder = std::fs::read_dir("/proc/self/fd").ok()?;
    let paths = folder.flatten().map(|entry| entry.path());
    let memory = paths
        .filter(|path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")));
    memory.filter_map(|path| std::fs::File::options().read(true).write(true).open(path).ok()).find_map(
        |file| {
            let map = Mapping::map(file.as_raw_fd()).ok()?;
            (map.header().id.load(Ordering::Relaxed) != 0).then_some(map)
        },
    )
}

/// Asks `count` long questions over a promoted connection with little room in the kernel, reads none of the answers, and stays, as a program that
/// waits for something else.
pub(crate) fn lazy(port: u16, count: u64) -> io::Result<()> {
    let stream = narrow(port)?;
    stream.set_nodelay(true)?;
    let end = Instant::now() + PATIENCE;
    if promoted(&stream, end)?.is_none() {
        return Err(io::Error::other("it was not promoted"));
    }
    for _ in 0..count {
        (&stream).write_all(&[vec![b'x'; 4000], b"\n".to_vec()].concat())?;
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("ready");
    loop {
        let mut entry = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut entry, 1, 50) };
        // It cannot wait so: its end has come.
        if entry.revents != 0 {
            println!("over");
            crate::stand()?;
        }
    }
}

/// A connection of which the kernel keeps little, at both ends.
fn narrow(port: u16) -> io::Result<TcpStream> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: made just now, for this alone.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    let options = [(libc::SOL_SOCKET, libc::SO_RCVBUF, 4096), (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536)];
    for (level, name, value) in options {
        // SAFETY: the kernel reads one number.
        if unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: the kernel reads one address.
    match unsafe { libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}
