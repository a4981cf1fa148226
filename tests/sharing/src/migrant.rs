//! A server that is moved to another network namespace with its connections, as CRIU moves one, and clients that check every byte meanwhile.
//!
//! The server takes connections, and makes some where it is told to (`dial ADDRESS:PORT`), to a client that is called. It saves them and its listener by TCP_REPAIR when it is told to (`save`), and makes them anew in another network namespace
//! (`restore PATH`), under the same numbers. It does that by system calls of its own, not by those of libc: so a library that is preloaded sees as
//! little of it as a process does that CRIU restores. All else of the process stays, its memory and its epoll instance.

use crate::echo::{Server, control};
use crate::pattern::{Random, bytes};
use libc::{IPPROTO_TCP, SOL_SOCKET, c_int};
use sd_sys::{check, syscall};
use std::ffi::CString;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

// linux/tcp.h
const TCP_REPAIR: c_int = 19;
const TCP_REPAIR_QUEUE: c_int = 20;
const TCP_QUEUE_SEQ: c_int = 21;
const TCP_REPAIR_OPTIONS: c_int = 22;
const TCP_TIMESTAMP: c_int = 24;
const TCP_REPAIR_WINDOW: c_int = 29;
const RECV_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;
// asm-generic/socket.h
const SO_BUF_LOCK: c_int = 72;
// linux/sockios.h
const SIOCINQ: c_int = 0x541b;
const SIOCOUTQ: c_int = 0x5411;
const SIOCOUTQNSD: c_int = 0x894b;
const OPT_MAXSEG: u32 = 2;
const OPT_WINDOW: u32 = 3;
const OPT_SACK: u32 = 4;
const OPT_TIMESTAMPS: u32 = 8;

/// Bytes of a socket's buffers.
const BUFFER: c_int = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// `ADDRESS`, `ADDRESS:PORT SEED`, or `called ADDRESS SEED`.
pub(crate) fn run(words: &[&str]) -> io::Result<()> {
    match words {
        [address] => serve(address),
        [address, seed] => talk(TcpStream::connect(address)?, seed.parse().unwrap_or(0)),
        ["called", address, seed] => {
            let listener = TcpListener::bind((*address, 0))?;
            println!("port {}", listener.local_addr()?.port());
            talk(listener.accept()?.0, seed.parse().unwrap_or(0))
        }
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

/// Serves until it is killed.
fn serve(address: &str) -> io::Result<()> {
    let mut server = Server::listen(address, 0)?;
    control(server.set, libc::EPOLL_CTL_ADD, 0, libc::EPOLLIN);
    loop {
        for fd in server.wait() {
            if fd == 0 {
                let mut line = String::new();
                io::stdin().lock().read_line(&mut line)?;
                match line.trim().split_once(' ') {
                    Some(("dial", address)) => server.dial(address)?,
                    None if line.trim() == "save" => migrate(&server)?,
                    _ => return Ok(()),
                }
                // What the events were about may be another socket.
                break;
            } else if fd == server.listener.as_raw_fd() {
                server.accept()?;
            } else if let Err(error) = server.echo(fd) {
                let info: [u8; 8] = get(fd, libc::TCP_INFO, [0u8; 8])?;
                let maps = std::fs::read_to_string("/proc/self/maps")?.matches("memfd:").count();
                eprintln!("a connection is over: {error}, state {}, {maps} segments", info[0]);
                server.conns.remove(&fd);
            }
        }
    }
}

/// Saves all sockets; nothing else is done until it is told to make them anew in another namespace.
fn migrate(server: &Server) -> io::Result<()> {
    let saved = server.conns.iter().map(|(fd, (_, owed))| save(*fd, !owed.is_empty()));
    let saved = saved.collect::<io::Result<Vec<_>>>()?;
    let listens_at = name(server.listener.as_raw_fd(), libc::SYS_getsockname)?;
    raw_close(server.listener.as_raw_fd())?;
    println!("saved {}", saved.len());
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    enter(line.trim().strip_prefix("restore ").ok_or(ErrorKind::InvalidInput)?)?;
    saved.iter().try_for_each(|one| restore(one, server.set))?;
    listen_anew(&server.listener, &listens_at, server.set)?;
    println!("restored {}", saved.len());
    Ok(())
}

/// Talks with such a server until its standard input ends, and checks every byte.
fn talk(mut stream: TcpStream, seed: u64) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tell = is_over.clone();
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_line(&mut String::new());
        tell.store(true, std::sync::atomic::Ordering::Release);
    });
    println!("connected");
    let (mut random, mut count, mut total) = (Random::new(seed), 0u64, 0usize);
    while !is_over.load(std::sync::atomic::Ordering::Acquire) {
        let len = [1, 8, 100, 1000, 5000, 60_000][random.below(6) as usize];
        let (message, mut back) = (bytes(total, len), vec![0; len]);
        stream.write_all(&message)?;
        stream.read_exact(&mut back)?;
        if message != back {
            return Err(io::Error::other(format!("echo {count} is not what was sent")));
        }
        (count, total) = (count + 1, total + len);
        if count.is_power_of_two() {
            println!("so far {count}");
        }
    }
    println!("right: {count} echoes, {total} bytes");
    Ok(())
}

/// A connection, as it is saved.
struct Saved {
    fd: RawFd,
    local: Vec<u8>,
    peer: Vec<u8>,
    /// Sequence numbers behind the queues.
    sent: u32,
    received: u32,
    /// What was not acknowledged, and how much of that was never sent.
    send_queue: Vec<u8>,
    unsent: usize,
    receive_queue: Vec<u8>,
    options: Vec<[u32; 2]>,
    timestamp: u32,
    window: [u32; 5],
    /// It waits for room.
    owes: bool,
}

fn io_of(error: sd_sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

fn set<T>(fd: RawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let (place, len) = (std::ptr::from_ref(value), size_of::<T>());
    // SAFETY: the kernel reads that many bytes.
    check(unsafe { syscall!(libc::SYS_setsockopt, fd, level, name, place, len) }).map(drop).map_err(io_of)
}

fn get<T: Copy>(fd: RawFd, name: c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most that many bytes.
    check(unsafe { syscall!(libc::SYS_getsockopt, fd, IPPROTO_TCP, name, &raw mut value, &raw mut len) })
        .map_err(io_of)?;
    Ok(value)
}

fn queued(fd: RawFd, request: c_int) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes an int.
    check(unsafe { syscall!(libc::SYS_ioctl, fd, request, &raw mut bytes) }).map_err(io_of)?;
    Ok(bytes.max(0) as usize)
}

fn name(fd: RawFd, call: libc::c_long) -> io::Result<Vec<u8>> {
    let (mut name, mut len) = (vec![0u8; 128], 128u32);
    // SAFETY: the kernel writes at most that many bytes.
    check(unsafe { syscall!(call, fd, name.as_mut_ptr(), &raw mut len) }).map_err(io_of)?;
    name.truncate(len as usize);
    Ok(name)
}

fn peek(fd: RawFd, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    if len != 0 {
        // SAFETY: the kernel writes at most that many bytes.
        let got = check(unsafe { syscall!(libc::SYS_recvfrom, fd, bytes.as_mut_ptr(), len, flags, 0, 0) });
        if got.map_err(io_of)? != len {
            return Err(io::Error::other("a queue was cut"));
        }
    }
    Ok(bytes)
}

fn raw_close(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_close, fd) }).map(drop).map_err(io_of)
}

/// Nothing comes from the network meanwhile. The kernel's connection is gone afterwards, and nobody was told.
fn save(fd: RawFd, owes: bool) -> io::Result<Saved> {
    let (local, peer) = (name(fd, libc::SYS_getsockname)?, name(fd, libc::SYS_getpeername)?);
    let info: [u8; 8] = get(fd, libc::TCP_INFO, [0u8; 8])?;
    set(fd, IPPROTO_TCP, TCP_REPAIR, &1i32)?;
    let seq = |queue: c_int| {
        set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue)?;
        get(fd, TCP_QUEUE_SEQ, 0u32)
    };
    let (received, in_len) = (seq(RECV_QUEUE)?, queued(fd, SIOCINQ)?);
    let receive_queue = peek(fd, in_len)?;
    let (sent, out_len, unsent) = (seq(SEND_QUEUE)?, queued(fd, SIOCOUTQ)?, queued(fd, SIOCOUTQNSD)?);
    let send_queue = peek(fd, out_len)?;
    // tcpi_options, and both window scales.
    let (flags, scales) = (info[5], [u32::from(info[6] & 15), u32::from(info[6] >> 4)]);
    let mut options = vec![[OPT_MAXSEG, get(fd, libc::TCP_MAXSEG, 0u32)?]];
    for (flag, option) in
        [(4, [OPT_WINDOW, scales[0] | scales[1] << 16]), (2, [OPT_SACK, 0]), (1, [OPT_TIMESTAMPS, 0])]
    {
        options.extend((flags & flag != 0).then_some(option));
    }
    let (timestamp, window) = (get(fd, TCP_TIMESTAMP, 0u32)?, get(fd, TCP_REPAIR_WINDOW, [0u32; 5])?);
    raw_close(fd)?;
    Ok(Saved {
        fd,
        local,
        peer,
        sent,
        received,
        send_queue,
        unsent,
        receive_queue,
        options,
        timestamp,
        window,
        owes,
    })
}

fn enter(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: a path, and no other pointers.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let place = check(syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags)).map_err(io_of)?;
        check(syscall!(libc::SYS_setns, place, libc::CLONE_NEWNET)).map_err(io_of)?;
        raw_close(place as RawFd)
    }
}

/// A socket whose number is not the one that it is to have.
fn fresh() -> io::Result<RawFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let made = check(unsafe { syscall!(libc::SYS_socket, libc::AF_INET, kind, 0) }).map_err(io_of)?;
    // SAFETY: no pointers.
    let high =
        check(unsafe { syscall!(libc::SYS_fcntl, made, libc::F_DUPFD_CLOEXEC, 500) }).map_err(io_of)?;
    raw_close(made as RawFd)?;
    Ok(high as RawFd)
}

fn put(made: RawFd, at: RawFd, instance: RawFd, events: c_int) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: at as u64 };
    // SAFETY: the event is valid during the call.
    unsafe {
        check(syscall!(libc::SYS_dup3, made, at, libc::O_CLOEXEC)).map_err(io_of)?;
        check(syscall!(libc::SYS_epoll_ctl, instance, libc::EPOLL_CTL_ADD, at, &raw mut event))
            .map_err(io_of)?;
    }
    raw_close(made)
}

fn send(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let (from, len) = (bytes[done..].as_ptr(), bytes.len() - done);
        // SAFETY: the kernel reads that many bytes.
        let sent = check(unsafe { syscall!(libc::SYS_sendto, fd, from, len, 0, 0, 0) });
        done += sent.map_err(io_of)?;
    }
    Ok(())
}

fn restore(saved: &Saved, instance: RawFd) -> io::Result<()> {
    let fd = fresh()?;
    set(fd, IPPROTO_TCP, TCP_REPAIR, &1i32)?;
    set(fd, SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    // As much as the kernel's own tuning may have given the socket before; it tunes this one too.
    for buffer in [libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE] {
        set(fd, SOL_SOCKET, buffer, &BUFFER)?;
    }
    set(fd, SOL_SOCKET, SO_BUF_LOCK, &0i32)?;
    for (queue, behind, len) in [
        (RECV_QUEUE, saved.received, saved.receive_queue.len()),
        (SEND_QUEUE, saved.sent, saved.send_queue.len()),
    ] {
        set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue)?;
        set(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &behind.wrapping_sub(len as u32))?;
    }
    // SAFETY: names as the kernel has given them.
    unsafe {
        for (call, name) in [(libc::SYS_bind, &saved.local), (libc::SYS_connect, &saved.peer)] {
            check(syscall!(call, fd, name.as_ptr(), name.len())).map_err(io_of)?;
        }
        let (options, len) = (saved.options.as_ptr(), size_of::<[u32; 2]>() * saved.options.len());
        check(syscall!(libc::SYS_setsockopt, fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, len))
            .map_err(io_of)?;
    }
    set(fd, IPPROTO_TCP, TCP_TIMESTAMP, &saved.timestamp)?;
    let (was_sent, was_not) = saved.send_queue.split_at(saved.send_queue.len() - saved.unsent);
    for (queue, bytes) in [(RECV_QUEUE, saved.receive_queue.as_slice()), (SEND_QUEUE, was_sent)] {
        set(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue)?;
        send(fd, bytes)?;
    }
    set(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &saved.window)?;
    set(fd, IPPROTO_TCP, TCP_REPAIR, &0i32)?;
    // As the listener of std has it, and what it has accepted.
    set(fd, SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    send(fd, was_not)?;
    put(fd, saved.fd, instance, if saved.owes { libc::EPOLLOUT } else { libc::EPOLLIN })
}

/// By the name that it had.
fn listen_anew(listener: &TcpListener, local: &[u8], instance: RawFd) -> io::Result<()> {
    let fd = fresh()?;
    set(fd, SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    // SAFETY: a name as the kernel has given it.
    unsafe {
        check(syscall!(libc::SYS_bind, fd, local.as_ptr(), local.len())).map_err(io_of)?;
        check(syscall!(libc::SYS_listen, fd, 128)).map_err(io_of)?;
    }
    put(fd, listener.as_raw_fd(), instance, libc::EPOLLIN)
}
