//! A client that is done soon, or lives; and a server with a child for each connection.

use crate::pattern::bytes;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

/// Messages there and back, each checked.
pub(crate) fn turns(there: &mut TcpStream, back: &mut TcpStream, count: usize) -> io::Result<()> {
    for i in 0..count {
        let (message, mut answer) = (bytes(i, 1 + i % 100), vec![0; 1 + i % 100]);
        there.write_all(&message)?;
        back.read_exact(&mut answer)?;
        if message != answer {
            return Err(io::Error::other(format!("echo {i} is not what was sent")));
        }
    }
    Ok(())
}

pub(crate) fn both(stream: &mut TcpStream, count: usize) -> io::Result<()> {
    let mut same = std::mem::ManuallyDrop::new(unowned(stream));
    turns(stream, &mut same, count)
}

/// The same number once more; not to be dropped.
fn unowned(stream: &TcpStream) -> TcpStream {
    // SAFETY: open; who calls does not drop what is made of it.
    unsafe { TcpStream::from_raw_fd(stream.as_raw_fd()) }
}

const FEW: usize = 3;
const MANY: usize = 3000;
const QUEUE: usize = 30;

/// Says `said` when it is done, and stays.
pub(crate) fn run(port: u16, way: &str) -> io::Result<()> {
    let connect = || TcpStream::connect(("127.0.0.1", port));
    let mut kept: Vec<TcpStream> = Vec::new();
    match way {
        // 6 messages on each.
        "one" => both(&mut connect()?, FEW)?,
        "two" => (0..2).try_for_each(|_| both(&mut connect()?, FEW))?,
        "several" => (0..12).try_for_each(|_| both(kept_only(&mut kept, connect()?), FEW))?,
        "beside" => (0..4).try_for_each(|_| both(kept_also(&mut kept, connect()?), FEW))?,
        "many" => (0..5).try_for_each(|_| both(kept_also(&mut kept, connect()?), FEW))?,
        // By then it is known whether the server has handed on those before.
        "registered" => {
            (0..5).try_for_each(|_| both(kept_also(&mut kept, connect()?), FEW))?;
            (0..20).try_for_each(|_| both(kept_only(&mut kept, connect()?), FEW))?;
        }
        "long" => both(kept_only(&mut kept, connect()?), MANY)?,
        "waits" => {
            let stream = kept_only(&mut kept, connect()?);
            stream.set_nonblocking(true)?;
            in_an_instance(stream)?;
        }
        "duplicate" => {
            let stream = kept_only(&mut kept, connect()?);
            both(stream, FEW)?;
            let mut other = stream.try_clone()?;
            turns(&mut other, stream, MANY)?;
        }
        "forks" => {
            let stream = kept_only(&mut kept, connect()?);
            both(stream, FEW)?;
            in_a_child(|| both(stream, MANY))?;
            both(stream, MANY)?;
        }
        "starts" => {
            let stream = kept_only(&mut kept, connect()?);
            both(stream, FEW)?;
            stream.write_all(b"some")?;
            // Its standard input is a duplicate, made where no hook sees it.
            let input = OwnedFd::from(stream.try_clone()?);
            let mut program = Command::new("head");
            let output = program.args(["-c", "4"]).stdin(input).stderr(Stdio::null()).output()?;
            if output.stdout != b"some" {
                return Err(io::Error::other("a program that was started did not get the bytes"));
            }
            both(stream, MANY)?;
        }
        "again" => {
            // Nobody listens at this one.
            let refused = TcpStream::connect(("127.0.0.1", 1)).map(drop);
            if refused.map_err(|error| error.kind()) != Err(io::ErrorKind::ConnectionRefused) {
                return Err(io::Error::other("nobody listens there, but who connects is not told"));
            }
            both(kept_only(&mut kept, connect()?), MANY)?;
        }
        "queue" => {
            (0..5).try_for_each(|_| both(kept_also(&mut kept, connect()?), FEW))?;
            in_a_queue(connect)?;
        }
        _ => return Err(io::Error::other("no such way")),
    }
    println!("said");
    std::thread::sleep(std::time::Duration::from_secs(60));
    Ok(())
}

/// Many connections that wait to be accepted, between two lines of standard input.
fn in_a_queue(connect: impl Fn() -> io::Result<TcpStream>) -> io::Result<()> {
    let mut line = String::new();
    println!("known");
    io::stdin().read_line(&mut line)?;
    let mut waiting = (0..QUEUE).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
    waiting.iter_mut().try_for_each(|stream| stream.write_all(b"x"))?;
    println!("waiting");
    io::stdin().read_line(&mut line)?;
    waiting.iter_mut().try_for_each(|stream| stream.read_exact(&mut [0]))
}

/// The others are closed.
fn kept_only(kept: &mut Vec<TcpStream>, stream: TcpStream) -> &mut TcpStream {
    kept.clear();
    kept_also(kept, stream)
}

fn kept_also(kept: &mut Vec<TcpStream>, stream: TcpStream) -> &mut TcpStream {
    let at = kept.len();
    kept.push(stream);
    &mut kept[at]
}

/// Waits for each answer in an epoll instance.
fn in_an_instance(stream: &mut TcpStream) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
    // SAFETY: the event is valid during the calls.
    unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &mut event) };
    for i in 0..MANY {
        let (message, mut answer) = (bytes(i, 8), [0; 8]);
        stream.write_all(&message)?;
        let mut got = 0;
        while got < answer.len() {
            match stream.read(&mut answer[got..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => got += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // SAFETY: as above.
                    let ready = unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, 5000) };
                    if ready != 1 {
                        return Err(io::Error::other(format!("no event of answer {i}")));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if message != answer {
            return Err(io::Error::other(format!("echo {i} is not what was sent")));
        }
    }
    Ok(())
}

pub(crate) fn in_a_child(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = work().is_err();
        // SAFETY: the end of the child.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: a status is written.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::other("the child failed")) }
}

/// Connections that a server hands on before it does anything else with them.
const HANDED_ON: usize = 40;

/// An echo server with a process for each connection, which it has no more then; see `xtask/src/sharing/brief.rs` for the ways in which it treats
/// those that come later. Serves until it is killed.
pub(crate) fn serve_in_children(way: &str) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("port {}", listener.local_addr()?.port());
    // SAFETY: children are not waited for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let instance = if way == "instance" { Some(watch(&listener)?) } else { None };
    let mut kept = Vec::new();
    for count in 0.. {
        instance.as_ref().map_or(Ok(()), wait)?;
        let (mut stream, _) = listener.accept()?;
        let late = if count < HANDED_ON { "" } else { way };
        if late == "itself" {
            echo(&mut stream);
            continue;
        }
        serve_in_child(&listener, &mut stream);
        match late {
            "kept" => kept.push(stream),
            // The other child has it as well, and does nothing with it.
            "twice" => in_a_child_that_stays(),
            _ => {}
        }
    }
    Ok(())
}

fn serve_in_child(listener: &TcpListener, stream: &mut TcpStream) {
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: the child has a copy of the listener.
        unsafe { libc::close(listener.as_raw_fd()) };
        echo(stream);
        // SAFETY: the end of the child.
        unsafe { libc::_exit(0) };
    }
}

fn in_a_child_that_stays() {
    // SAFETY: this process has one thread, and its child ends after a while.
    unsafe {
        if libc::fork() == 0 {
            libc::sleep(60);
            libc::_exit(0);
        }
    }
}

fn echo(stream: &mut TcpStream) {
    let mut buf = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut buf) {
        if stream.write_all(&buf[..len]).is_err() {
            break;
        }
    }
}

/// An epoll instance with the listener, which does not block any more.
fn watch(listener: &TcpListener) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: the event is valid during the call.
    match unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, listener.as_raw_fd(), &mut event) } {
        0 => Ok(set),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Until somebody connects.
fn wait(set: &OwnedFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the event is valid during the call.
    while unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, -1) } != 1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}
