//! Programs that close all numbers beyond their own, the library's too, by an instruction of their own in the middle of traffic.

use crate::confined::unseen;
use crate::echo::{dial, serve_and};
use crate::pattern::bytes;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// An echo server that does it after each so many events.
pub(crate) fn serve(every: u64) -> io::Result<()> {
    let mut count = 0;
    serve_and(("127.0.0.1", 0), |highest| {
        count += 1;
        if count % every == 0 {
            close_beyond(highest);
        }
    })
}

/// close_range(2), past libc.
fn close_beyond(highest: i32) {
    assert_eq!(unseen(libc::SYS_close_range, highest as usize + 1, u32::MAX as usize, 0), 0);
}

/// A client with several connections, old and new, that does it after each so many echoes. `threads`: some other threads
/// wait for answers meanwhile, on a connection each and on several.
pub(crate) fn chat(port: u16, count: usize, every: usize, threads: usize) -> io::Result<()> {
    let highest = &AtomicI32::new(0);
    let all_connected = &Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..threads)
            .map(|own| scope.spawn(move || talk(port, count, 0, (highest, all_connected, own + 1))))
            .collect();
        talk(port, count, every, (highest, all_connected, 0))?;
        others.into_iter().try_for_each(|other| other.join().map_err(|_| io::Error::other("panicked"))?)
    })?;
    println!("{count} echoes");
    Ok(())
}

fn talk(
    port: u16,
    count: usize,
    every: usize,
    (highest, all_connected, own): (&AtomicI32, &Barrier, usize),
) -> io::Result<()> {
    let connect = || {
        let stream = dial(port)?;
        highest.fetch_max(stream.as_raw_fd(), Ordering::SeqCst);
        Ok::<_, io::Error>(stream)
    };
    let mut all: Vec<TcpStream> = (0..3).map(|_| connect()).collect::<io::Result<_>>()?;
    all_connected.wait();
    for i in 0..count {
        if i % 13 == 12 && own == 0 {
            all.remove(0);
            all.push(connect()?);
        }
        let message = bytes(i, [1, 100, 5000, 70_000][i % 4]);
        all.iter_mut().try_for_each(|stream| stream.write_all(&message))?;
        if every != 0 && i % every == every - 1 {
            close_beyond(highest.load(Ordering::SeqCst));
        }
        for stream in &mut all {
            // Some are waited for with poll, beside a number of the kernel's.
            if i % 2 == 0 {
                wait_for(stream)?;
            }
            let mut back = vec![0; message.len()];
            stream.read_exact(&mut back)?;
            if message != back {
                return Err(io::Error::other(format!("echo {i} is not what was sent")));
            }
        }
        // The server falls asleep.
        std::thread::sleep(Duration::from_micros(if i % 5 == own % 5 { 2000 } else { 0 }));
    }
    Ok(())
}

fn wait_for(stream: &TcpStream) -> io::Result<()> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(stream.as_raw_fd()), entry(-1)];
    // SAFETY: two entries.
    match unsafe { libc::poll(fds.as_mut_ptr(), 2, 10_000) } {
        1 => Ok(()),
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A client that does it, and has its own file at all numbers of the library's by then, so that nothing can be given back: the process
/// is closed for good. Then it listens and waits for a second, and says what that has made of it.
pub(crate) fn end(port: u16) -> io::Result<()> {
    let stream = dial(port)?;
    let null = std::fs::File::open("/dev/null")?;
    close_beyond(null.as_raw_fd().max(stream.as_raw_fd()));
    for number in 1024..1100 {
        unseen(libc::SYS_dup2, null.as_raw_fd() as usize, number, 0);
    }
    // Notices it, and is answered over the kernel. What was connected before that is reset, once.
    match answered(port) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => answered(port),
        other => other,
    }?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let before = switches()?;
    let mut fds = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one entry.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), 1, 1000) };
    println!("ready {ready}, woken {} times, {} slabs", switches()? - before, slabs()?);
    Ok(())
}

/// A connection of its own is answered.
fn answered(port: u16) -> io::Result<()> {
    let mut late = dial(port)?;
    late.write_all(b"still")?;
    late.read_exact(&mut [0; 5])
}

/// How often this thread has gone to sleep.
fn switches() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
}

/// The library's slabs that are open.
fn slabs() -> io::Result<usize> {
    let links = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().contains("sd-slab")).count())
}
