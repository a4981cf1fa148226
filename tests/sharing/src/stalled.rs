//! Readers that stall, and servers that offer each of them more than memory holds. Buffers are small and static, so
//! what is used beside is the sockets'.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PIECE: usize = 64 << 10;

/// So long nobody reads. A guest that is emulated takes longer for everything.
fn stall() -> Duration {
    let seconds = std::env::var("SD_STALL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

static BYTES: [u8; PIECE] = [7; PIECE];

/// How it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One thread, sockets that never block.
    Nonblocking,
    /// The same, each send of a few bytes.
    Small,
    /// A thread for each socket, which waits.
    Blocking,
}

/// `workers` processes at once, each of which serves as many readers, a child of its own, `offer` bytes each; each says how much
/// each reader had been sent while nobody read. Then once more, if `again`.
pub(crate) fn run(count: usize, offer: usize, workers: usize, way: &str, again: bool) -> io::Result<()> {
    let way = match way {
        "small" => Way::Small,
        "blocking" => Way::Blocking,
        _ => Way::Nonblocking,
    };
    let work = || -> io::Result<()> {
        round(count, offer, way)?;
        if again { round(count, offer, way) } else { Ok(()) }
    };
    if workers == 1 {
        return work();
    }
    let children: Vec<i32> = (0..workers).map(|_| fork(work)).collect::<io::Result<_>>()?;
    let failed = children.into_iter().filter(|child| !wait(*child)).count();
    if failed == 0 { Ok(()) } else { Err(io::Error::other(format!("{failed} workers failed"))) }
}

/// Does it in a child of this process.
fn fork(work: impl FnOnce() -> io::Result<()>) -> io::Result<i32> {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let done = work();
            if let Err(error) = &done {
                eprintln!("sd-sharing: {error}");
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        child => Ok(child),
    }
}

fn wait(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}

fn round(count: usize, offer: usize, way: Way) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let readers = fork(|| read_late(port, count, offer))?;
    listener.accept()?.0.write_all(b"!")?;
    let open: Vec<TcpStream> = (0..count).map(|_| first(&listener, way)).collect::<io::Result<_>>()?;
    match way {
        Way::Blocking => serve_blocking(open, offer)?,
        _ => serve(open, offer, if way == Way::Small { 100 } else { PIECE })?,
    }
    if wait(readers) { Ok(()) } else { Err(io::Error::other("the readers did not get all")) }
}

fn first(listener: &TcpListener, way: Way) -> io::Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    stream.read_exact(&mut [0])?;
    stream.set_nonblocking(way != Way::Blocking)?;
    Ok(stream)
}

fn say(sent: impl Iterator<Item = usize> + Clone) {
    println!("stalled at {} to {} bytes", sent.clone().min().unwrap_or(0), sent.max().unwrap_or(0));
}

fn serve(open: Vec<TcpStream>, offer: usize, piece: usize) -> io::Result<()> {
    let mut open: Vec<_> = open.into_iter().map(|stream| (stream, offer)).collect();
    let (start, mut is_told) = (Instant::now(), false);
    while open.iter().any(|(_, left)| *left > 0) {
        let mut moved = false;
        for (stream, left) in open.iter_mut().filter(|(_, left)| *left > 0) {
            // As much as one large piece, unless the socket is full before.
            for _ in 0..PIECE / piece {
                match stream.write(&BYTES[..piece.min(*left)]) {
                    Ok(len) => (*left, moved) = (*left - len, true),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
                if *left == 0 {
                    break;
                }
            }
        }
        if !is_told && start.elapsed() > stall() / 2 {
            is_told = true;
            say(open.iter().map(|(_, left)| offer - left));
        }
        if !moved {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    if !is_told {
        say(open.iter().map(|_| offer));
    }
    Ok(())
}

fn serve_blocking(open: Vec<TcpStream>, offer: usize) -> io::Result<()> {
    let sent: Vec<AtomicUsize> = open.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for (stream, sent) in open.into_iter().zip(&sent) {
            let send = move || {
                let mut stream = stream;
                // In pieces, so that it can be said how far it came.
                while sent.load(Ordering::Relaxed) < offer
                    && stream.write_all(&BYTES[..4096.min(offer - sent.load(Ordering::Relaxed))]).is_ok()
                {
                    sent.fetch_add(4096, Ordering::Relaxed);
                }
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, send)?;
        }
        std::thread::sleep(stall() / 2);
        say(sent.iter().map(|sent| sent.load(Ordering::Relaxed)));
        Ok(())
    })
}

fn read_late(port: u16, count: usize, offer: usize) -> io::Result<()> {
    if let Some(group) = std::env::var_os("SD_READERS_GROUP") {
        std::fs::write(group, "0")?;
    }
    // Who comes before the server has accepted once may get the kernel's connections.
    TcpStream::connect(("127.0.0.1", port))?.read_exact(&mut [0])?;
    std::thread::sleep(stall() / 10);
    let connect = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"?")?;
        Ok(stream)
    };
    let all: Vec<TcpStream> = (0..count).map(connect).collect::<io::Result<_>>()?;
    std::thread::sleep(stall());
    let mut buffer = vec![0u8; PIECE];
    for mut stream in all {
        let mut total = 0;
        while total < offer {
            match stream.read(&mut buffer)? {
                0 => return Err(io::Error::other(format!("{total} bytes came"))),
                len if buffer[..len].iter().all(|byte| *byte == 7) => total += len,
                _ => return Err(io::Error::other("wrong bytes")),
            }
        }
        if total != offer {
            return Err(io::Error::other("too many bytes"));
        }
    }
    Ok(())
}
