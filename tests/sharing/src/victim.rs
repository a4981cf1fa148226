//! Does one operation between two stops (SIGSTOP to itself), traced by its parent, who steps through it and kills it.
//!
//! What has been acknowledged to it is noted in a shared file, where it outlives the process.

use crate::note;
use crate::observer::{BLOCK, PRESENT};
use crate::pattern::bytes;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The note: bytes acknowledged, and the port that `accept` listens on.
struct Note(&'static [AtomicU64; 2]);

impl Note {
    fn acknowledged(&self, bytes: usize) {
        self.0[0].store(bytes as u64, Ordering::SeqCst);
    }
}

/// Where the tracer takes over or has seen enough.
fn stop() {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(libc::SIGSTOP) };
}

pub(crate) fn run(op: &str, port: u16, file: &str) -> io::Result<()> {
    let note = Note(note::open(file)?);
    // SAFETY: no memory is involved.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    match op {
        "connect" => {
            stop();
            drop(connect(port, b'S')?);
            stop();
        }
        "listen" => {
            stop();
            let listener = TcpListener::bind("127.0.0.1:0")?;
            stop();
            drop(listener);
        }
        "accept" => accept(&note)?,
        "idle" => idle(port, &note)?,
        "park" => park(port, &note)?,
        "sweep" => sweep(port, &note)?,
        "thread_waker" => thread_waker(port)?,
        _ => on_connection(op, port, &note)?,
    }
    Ok(())
}

fn connect(port: u16, mode: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(&[mode])?;
    Ok(stream)
}

fn accept(note: &Note) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    note.0[1].store(u64::from(listener.local_addr()?.port()), Ordering::SeqCst);
    stop();
    let (mut stream, _) = listener.accept()?;
    stream.read_exact(&mut [0; 5])?;
    stop();
    Ok(())
}

fn on_connection(op: &str, port: u16, note: &Note) -> io::Result<()> {
    let mode = match op {
        "recv" | "epoll" => b'R',
        "in-turn" | "take-over" => b'B',
        "pong" | "poll" => b'E',
        _ => b'S',
    };
    let mut stream = connect(port, mode)?;
    if ["close", "shutdown", "fork", "exec", "exit", "spawn", "pass"].contains(&op) {
        stream.write_all(&bytes(0, 100))?;
        note.acknowledged(100);
    }
    let sibling = (op == "in-turn").then(|| fork_sibling(&mut stream, note));
    if op == "take-over" {
        fork_rival(&mut stream, note);
    }
    stop();
    match op {
        "in-turn" => blocks(&mut stream, b'v', 40)?,
        "take-over" => blocks(&mut stream, b'v', 10)?,
        "send" => send(&mut stream, note, 1, 100)?,
        "sends" => send(&mut stream, note, 8, 20)?,
        "send-long" => send(&mut stream, note, 1, 300_000)?,
        "recv" => recv(&mut stream, note)?,
        "epoll" => epoll(&mut stream, note)?,
        "pong" => {
            stream.write_all(&bytes(0, 8))?;
            stream.read_exact(&mut [0; 8])?;
        }
        "poll" => {
            stream.write_all(&bytes(0, 8))?;
            poll(&[&stream]);
            stream.read_exact(&mut [0; 8])?;
        }
        "spawn" => spawn(&stream),
        "pass" => pass(&stream)?,
        "close" => drop(stream),
        "shutdown" => stream.shutdown(Shutdown::Write)?,
        "fork" => fork(&mut stream),
        "exec" => exec(&stream),
        "exit" => std::process::exit(0),
        _ => return Err(io::Error::other("no such operation")),
    }
    stop();
    if let Some(sibling) = sibling {
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(sibling, std::ptr::null_mut(), 0) };
    }
    Ok(())
}

fn blocks(stream: &mut TcpStream, byte: u8, count: usize) -> io::Result<()> {
    (0..count).try_for_each(|_| stream.write_all(&[byte; BLOCK]))
}

/// A child that writes to the same connection when it is told to.
fn fork_sibling(stream: &mut TcpStream, note: &Note) -> libc::pid_t {
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            while note.0[1].load(Ordering::SeqCst) != 1 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let _ = blocks(stream, b's', 40);
            note.0[1].store(2, Ordering::SeqCst);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

/// A child that writes to the same connection until its parent is gone, and a little longer.
fn fork_rival(stream: &mut TcpStream, note: &Note) {
    let parent = std::process::id();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    let mut left = 5;
    while left > 0 && stream.write_all(&[b's'; BLOCK]).is_ok() {
        note.0[0].fetch_add(BLOCK as u64, Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(200));
        left -= u32::from(std::os::unix::process::parent_id() != parent);
    }
    // SAFETY: ends the child.
    unsafe { libc::_exit(0) };
}

/// Four connections, whose rings share a page, on which nothing happens: the library gives memory back meanwhile.
fn idle(port: u16, note: &Note) -> io::Result<()> {
    let mut streams = (0..4).map(|_| connect(port, b'S')).collect::<io::Result<Vec<_>>>()?;
    for stream in &mut streams {
        stream.write_all(&bytes(0, 100))?;
    }
    // Waits in vain teach the library not to spin for long.
    streams[0].set_read_timeout(Some(Duration::from_millis(1)))?;
    (0..10).for_each(|_| drop(streams[0].read(&mut [0; 8])));
    streams[0].set_read_timeout(Some(Duration::from_millis(2500)))?;
    note.acknowledged(100);
    stop();
    let _ = streams[0].read(&mut [0; 8]);
    stop();
    Ok(())
}

/// All connections of the process idle in epoll for so long that their halves are parked, and are used again.
fn park(port: u16, note: &Note) -> io::Result<()> {
    let mut streams = (0..4).map(|_| connect(port, b'S')).collect::<io::Result<Vec<_>>>()?;
    for stream in &mut streams {
        stream.write_all(&bytes(0, 100))?;
    }
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(0) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    let mut wait = |time| {
        // SAFETY: room for one event.
        unsafe { libc::epoll_wait(set, &mut event, 1, time) };
    };
    // Waits in vain teach the library not to spin for long.
    (0..10).for_each(|_| wait(1));
    for stream in &streams {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the kernel reads one event.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event) };
    }
    note.acknowledged(100);
    stop();
    wait(1500);
    for stream in &mut streams {
        stream.write_all(&bytes(100, 60))?;
    }
    stop();
    Ok(())
}

/// A process that waits again and again, for a moment only, looks after its idle connections in between: the third lap of
/// the clock hand, which gives the rings back, comes two seconds after the first wait, and so in the operation.
fn sweep(port: u16, note: &Note) -> io::Result<()> {
    let mut streams = (0..12).map(|_| connect(port, b'S')).collect::<io::Result<Vec<_>>>()?;
    for stream in &mut streams {
        stream.write_all(&bytes(0, 100))?;
    }
    streams[0].set_read_timeout(Some(Duration::from_millis(1)))?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1990) {
        drop(streams[0].read(&mut [0; 8]));
    }
    note.acknowledged(100);
    stop();
    (0..30).for_each(|_| drop(streams[0].read(&mut [0; 8])));
    for stream in &mut streams {
        stream.write_all(&bytes(100, 60))?;
    }
    stop();
    Ok(())
}

/// One thread of two polls connections of its own, and so sleeps on a thread waker.
fn thread_waker(port: u16) -> io::Result<()> {
    let mut others = connect(port, b'E')?;
    std::thread::spawn(move || others.read(&mut [0; 8]));
    let mut streams = (0..2).map(|_| connect(port, b'E')).collect::<io::Result<Vec<_>>>()?;
    stop();
    for round in 0..3 {
        streams[round % 2].write_all(&bytes(8 * (round / 2), 8))?;
        poll(&[&streams[0], &streams[1]]);
        streams[round % 2].read_exact(&mut [0; 8])?;
    }
    stop();
    Ok(())
}

/// Waits until one of them can be read.
fn poll(streams: &[&TcpStream]) {
    let entry =
        |stream: &&TcpStream| libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<libc::pollfd> = streams.iter().map(entry).collect();
    // SAFETY: the list is valid during the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 2000) };
}

/// A program that has the connection too, and ends at once.
fn spawn(stream: &TcpStream) {
    let args = [c"true".as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: a descriptor of ours, C strings, and lists that end.
    unsafe {
        libc::fcntl(stream.as_raw_fd(), libc::F_SETFD, 0);
        let (none, no_attributes) = (std::ptr::null(), std::ptr::null());
        libc::posix_spawn(
            &mut pid,
            c"/bin/true".as_ptr(),
            none,
            no_attributes,
            args.as_ptr(),
            args[1..].as_ptr(),
        );
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// Passes the connection to itself, and sends on with what came.
fn pass(stream: &TcpStream) -> io::Result<()> {
    let (from, to) = std::os::unix::net::UnixDatagram::pair()?;
    crate::wanderer::send_fd(from.as_raw_fd(), stream.as_raw_fd())?;
    let fd = crate::wanderer::receive_fd(to.as_raw_fd())?;
    // SAFETY: it came for us.
    let mut passed = unsafe { TcpStream::from_raw_fd(fd) };
    passed.write_all(&bytes(100, 50))
}

fn send(stream: &mut TcpStream, note: &Note, count: usize, len: usize) -> io::Result<()> {
    for i in 0..count {
        stream.write_all(&bytes(i * len, len))?;
        note.acknowledged((i + 1) * len);
    }
    Ok(())
}

fn recv(stream: &mut TcpStream, note: &Note) -> io::Result<()> {
    let (mut buf, mut got) = ([0; 3000], 0);
    while got < PRESENT {
        got += stream.read(&mut buf)?;
        note.acknowledged(got);
    }
    Ok(())
}

fn epoll(stream: &mut TcpStream, note: &Note) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: plain calls with valid pointers.
    unsafe {
        let set = libc::epoll_create1(0);
        libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event);
        libc::epoll_wait(set, &mut event, 1, 1000);
    }
    note.acknowledged(stream.read(&mut [0; 3000])?);
    Ok(())
}

/// The child sends what follows, and ends.
fn fork(stream: &mut TcpStream) {
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        let _ = stream.write_all(&bytes(100, 50));
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
}

/// The new program has the connection, and ends.
fn exec(stream: &TcpStream) {
    let args = [c"true".as_ptr(), std::ptr::null()];
    // SAFETY: a descriptor of ours, and a terminated list of C strings.
    unsafe {
        libc::fcntl(stream.as_raw_fd(), libc::F_SETFD, 0);
        libc::execv(c"/bin/true".as_ptr(), args.as_ptr());
    }
}
