//! Programs that subjects start by exec, with descriptors that they inherit.

use std::process::ExitCode;

use crate::sys::*;

pub(crate) fn run(what: &str, arguments: &[&str]) -> ExitCode {
    alarm(9);
    let fds: Vec<i32> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    match (what, fds.as_slice()) {
        // Prints each byte string that comes, and answers it in upper case, until the stream ends.
        ("upper", [fd]) => upper(*fd),
        // Says of each descriptor whether it is open, and what it is.
        ("describe", fds) => {
            for fd in fds {
                say!("helper: {} {}", descriptor_flags(*fd), file_type(*fd));
            }
        }
        // Accepts one connection from an inherited listener and sends it a greeting.
        ("accept", [fd]) => {
            let accepted = show_fd("helper: accept", accept(*fd));
            show_send("helper", accepted, b"hello from exec", 0);
        }
        // As "accept", when epoll says so.
        ("epoll_accept", [fd]) => epoll_accept(*fd),
        // As "upper", but it waits in epoll, with the socket non-blocking.
        ("epoll", [fd]) => epoll_upper(*fd),
        // Sends so many megabytes, as edges tell it that there is room.
        ("fill", [fd, megabytes]) => fill(*fd, *megabytes as usize),
        // Answers one word in upper case.
        ("once", [fd]) => once(*fd),
        // Whether both names have these ports.
        ("names", [fd, own, peer]) => {
            let ports = [getsockname(*fd).1.port(), getpeername(*fd).1.port()].map(i32::from);
            say!("helper: names as before: {}", ports == [*own, *peer]);
        }
        // Reads to the end, and says how many bytes there were.
        ("count", [fd]) => crate::bulk::receive_pattern(*fd, u64::MAX, &[4096]).show("helper"),
        // Writes only, after a while.
        ("late", [fd]) => late(*fd),
        // Greets so many connections.
        ("greet", [fd, count]) => greet(*fd, *count),
        // Says over the given connection what comes back over a new one.
        ("dial", [fd, port]) => dial_and_tell(*fd, *port as u16),
        // Connects, and asks after a while.
        ("ask_late", [port]) => ask_late(*port as u16),
        // Connects the given socket.
        ("connect", [fd, port]) => {
            show("helper: connect", connect(*fd, &Addr::local(*port as u16)));
            show_send("helper", *fd, b"from the new image", 0);
        }
        // Executes itself so many times, then answers.
        ("again", [fd, left]) => again(*fd, *left),
        // A child of the new image answers.
        ("forks", [fd]) => {
            let child = fork_child(|| {
                once(*fd);
                0
            });
            say!("helper: {}", wait_child(child));
        }
        // Answers, and stays.
        ("hold", [fd]) => {
            once(*fd);
            pause(8000);
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn again(fd: i32, left: i32) {
    match left {
        0 => upper(fd),
        left => drop(crate::subjects::exec_helper("again", &[fd, left - 1])),
    }
}

fn greet(listener: i32, count: i32) {
    for _ in 0..count {
        let accepted = accept(listener).fd();
        send(accepted, b"hello from exec", 0);
        close(accepted);
    }
}

fn ask_late(port: u16) {
    let socket = crate::setup::dial(&Addr::local(port));
    pause(500);
    send(socket, b"question", 0);
    show_recv("helper", socket, 32, 0);
}

fn dial_and_tell(fd: i32, port: u16) {
    let socket = crate::setup::dial(&Addr::local(port));
    send(socket, b"echo", 0);
    let mut buffer = [0; 32];
    let got = recv(socket, &mut buffer, 0).count();
    show_send("helper", fd, &buffer[..got], 0);
}

fn epoll_accept(fd: i32) {
    let epoll = call!(libc::epoll_create1(0)).fd();
    show("helper: ADD", epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1));
    let mut event = [libc::epoll_event { events: 0, u64: 0 }];
    show("helper: epoll_wait", call!(libc::epoll_wait(epoll, event.as_mut_ptr(), 1, 8000)));
    let accepted = show_fd("helper: accept", accept(fd));
    show_send("helper", accepted, b"hello from exec", 0);
}

fn late(fd: i32) {
    pause(300);
    show_send("helper", fd, b"at last", 0);
}

fn once(fd: i32) {
    let mut buffer = [0; 64];
    let got = read(fd, &mut buffer).count();
    let answer = buffer[..got].to_ascii_uppercase();
    write(fd, &answer);
}

fn epoll_upper(fd: i32) {
    fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
    let ep = epoll();
    epoll_add(ep, fd, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
    loop {
        let (_, events) = epoll_wait(ep, 4, 5000);
        let mut buffer = [0; 64];
        let result = read(fd, &mut buffer);
        show_bytes(&format!("helper: {} event, read", events.len()), result, &buffer);
        if result.value <= 0 {
            return;
        }
        write(fd, &buffer[..result.count()].to_ascii_uppercase());
    }
}

fn upper(fd: i32) {
    loop {
        let mut buffer = [0; 256];
        let result = read(fd, &mut buffer);
        show_bytes("helper: read", result, &buffer);
        if result.value <= 0 {
            return;
        }
        let answer = buffer[..result.count()].to_ascii_uppercase();
        show("helper: write", write(fd, &answer));
    }
}

fn fill(fd: i32, megabytes: usize) {
    let (set, block) = (epoll(), vec![7; 5 << 20]);
    set_nonblocking(fd, true);
    epoll_add(set, fd, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET, 1);
    let (mut left, mut lost) = (megabytes << 20, 0);
    while left > 0 && lost == 0 {
        match send(fd, &block[..left.min(block.len())], 0) {
            sent if sent.value > 0 => left -= sent.count(),
            _ => lost += u32::from(epoll_wait(set, 1, 3000).0.value != 1),
        }
    }
    say!("helper: edges that did not come: {lost}");
}
