//! Two processes: servers of the kinds that are in use, and clients that drive them all.

use std::thread;

use crate::bulk::pattern;
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("servers/epoll_server", epoll_server, many_connections_client),
    pair("servers/changing_server", changing_server, crowd_client),
    pair("servers/edge_server", edge_server, many_connections_client),
    pair("servers/edge_ends", edge_ends_server, short_connections_client),
    pair("servers/poll_server", poll_server, many_connections_client),
    pair("servers/select_server", select_server, many_connections_client),
    pair("servers/thread_server", thread_server, many_connections_client),
    pair("servers/fork_server", fork_server, many_connections_client),
    pair("servers/prefork_server", prefork_server, questions_client),
    pair("servers/prefork_worker_killed", fragile_prefork_server, questions_client),
    pair("servers/inetd_server", inetd_server, upper_client),
    pair("servers/reuseport", reuseport_server, questions_client),
    pair("servers/first_contacts", first_contacts_server, first_contacts_client),
];

const CONNECTIONS: u64 = 30;
const PER_CONNECTION: u64 = 60_000;

/// Opens all connections, sends on each in turn, and takes the echo from each.
fn many_connections_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let clients: Vec<i32> = (0..CONNECTIONS).map(|_| dial(&addr)).collect();
    let mut intact = 0;
    for step in 0..PER_CONNECTION / 20_000 {
        for client in &clients {
            send(*client, &pattern(step * 20_000, 20_000), 0);
        }
        for client in &clients {
            let mut echo = vec![0; 20_000];
            let result = recv(*client, &mut echo, libc::MSG_WAITALL);
            intact += u64::from(result.value == 20_000 && crate::bulk::is_pattern(step * 20_000, &echo));
        }
    }
    let ends = clients.iter().filter(|client| {
        shutdown(**client, libc::SHUT_WR);
        recv(**client, &mut [0; 8], 0).value == 0
    });
    say!("ends {}", ends.count());
    say!("intact echoes {intact}");
}

/// Echoes what is there; false when the stream has ended.
pub(crate) fn echo_some(fd: i32) -> bool {
    let mut buffer = [0; 30_000];
    let got = recv(fd, &mut buffer, 0).count();
    let mut done = 0;
    while done < got {
        done += send(fd, &buffer[done..got], 0).count();
    }
    got > 0
}

fn epoll_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 0);
    let mut ended = 0;
    while ended < CONNECTIONS {
        let (result, events) = epoll_wait(ep, 8, 5000);
        if result.value <= 0 {
            break;
        }
        for (number, _) in events {
            if number == 0 {
                let fd = accept(listening).fd();
                epoll_add(ep, fd, libc::EPOLLIN, fd as u64);
            } else if !echo_some(number as i32) {
                close(number as i32);
                ended += 1;
            }
        }
    }
    say!("ended {ended}");
}

/// Connections of [`changing_server`]: more than are looked at anew each time when one goes to the ring.
const CROWD: u64 = 60;

/// One byte on each connection in turn, and the echo of it.
fn crowd_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let clients: Vec<i32> = (0..CROWD).map(|_| dial(&addr)).collect();
    role.hear();
    let mut echoes = 0;
    for _ in 0..4 {
        for client in &clients {
            send(*client, b"x", 0);
            echoes += recv(*client, &mut [0; 4], 0).value;
        }
    }
    say!("echoes {echoes}");
}

/// All connections that had no bytes yet are registered anew, with other numbers, before each look: others go to the ring meanwhile.
fn changing_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let ep = epoll();
    let fds: Vec<i32> = (0..CROWD).map(|_| accept(listening).fd()).collect();
    fds.iter().for_each(|fd| epoll_add(ep, *fd, libc::EPOLLIN, 0));
    let mut right = 0;
    role.tell("ready");
    for turn in 0..4 * CROWD {
        for (index, fd) in (0..).zip(&fds).skip(turn as usize) {
            epoll_mod(ep, *fd, libc::EPOLLIN, turn * CROWD + index);
        }
        let (_, events) = epoll_wait(ep, 8, 5000);
        let at = turn % CROWD;
        right += u64::from(events.len() == 1 && events[0].0 == at * CROWD + at);
        echo_some(fds[at as usize]);
    }
    say!("right {right}");
}

fn edge_server(role: &mut Role) {
    serve_edges(role, CONNECTIONS);
}

/// Connections of [`edge_ends_server`].
const SHORT: u64 = 200;

/// Connections that end after none to five messages: in any step of their promotion.
fn short_connections_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let mut ends = 0;
    for number in 0..SHORT {
        let client = dial(&addr);
        for _ in 0..number % 6 {
            send(client, b"x", 0);
            recv(client, &mut [0; 4], 0);
        }
        shutdown(client, libc::SHUT_WR);
        ends += u64::from(recv(client, &mut [0; 4], 0).value == 0);
        close(client);
    }
    say!("ends {ends}");
}

fn edge_ends_server(role: &mut Role) {
    serve_edges(role, SHORT);
}

/// As nginx: non-blocking, edge-triggered, reads and accepts until EAGAIN.
fn serve_edges(role: &mut Role, count: u64) {
    let (listening, addr) = listener_with(64);
    set_nonblocking(listening, true);
    role.tell_port(&addr);
    let ep = epoll();
    let edge = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
    epoll_add(ep, listening, edge, 0);
    let mut ended = 0;
    let mut buffer = [0; 8_192];
    while ended < count {
        let (result, events) = epoll_wait(ep, 512, 5000);
        if result.value <= 0 {
            break;
        }
        for (number, _) in events {
            if number == 0 {
                loop {
                    let fd = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
                    if !fd.ok() {
                        break;
                    }
                    epoll_add(ep, fd.fd(), edge, fd.value as u64);
                }
                continue;
            }
            loop {
                let got = recv(number as i32, &mut buffer, 0);
                if got.value <= 0 {
                    if got.value == 0 {
                        close(number as i32);
                        ended += 1;
                    }
                    break;
                }
                send(number as i32, &buffer[..got.count()], 0);
            }
        }
    }
    say!("ended {ended}");
}

fn poll_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let mut fds = vec![pollfd(listening, libc::POLLIN)];
    let mut ended = 0;
    while ended < CONNECTIONS && poll(&mut fds, 5000).value > 0 {
        for entry in &mut fds[1..] {
            if entry.revents != 0 && !echo_some(entry.fd) {
                close(entry.fd);
                entry.fd = -1;
                ended += 1;
            }
        }
        if fds[0].revents & libc::POLLIN != 0 {
            fds.push(pollfd(accept(listening).fd(), libc::POLLIN));
        }
    }
    say!("ended {ended}");
}

fn select_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let mut open = vec![listening];
    let mut ended = 0;
    while ended < CONNECTIONS {
        let mut set = FdSet::of(&open);
        let count = open.iter().max().map_or(0, |fd| fd + 1);
        if select_read(count, Some(&mut set), 5000).value <= 0 {
            break;
        }
        let ready: Vec<i32> = open.iter().copied().filter(|fd| set.has(*fd)).collect();
        for fd in ready {
            if fd == listening {
                open.push(accept(listening).fd());
            } else if !echo_some(fd) {
                close(fd);
                open.retain(|other| *other != fd);
                ended += 1;
            }
        }
    }
    say!("ended {ended}");
}

fn thread_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let handlers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let fd = accept(listening).fd();
            thread::spawn(move || {
                while echo_some(fd) {}
                close(fd);
            })
        })
        .collect();
    say!("ended {}", handlers.into_iter().filter_map(|handler| handler.join().ok()).count());
}

fn fork_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let children: Vec<i32> = (0..CONNECTIONS)
        .map(|_| {
            let fd = accept(listening).fd();
            let child = fork_child(|| {
                close(listening);
                while echo_some(fd) {}
                0
            });
            close(fd);
            child
        })
        .collect();
    say!("ended {}", children.iter().filter(|child| wait_child(**child) == "exit 0").count());
}

const QUESTIONS: usize = 60;

/// Asks one question per connection, and then ends the workers that answer "q" with their end.
fn questions_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let ask = |byte: u8| {
        let client = dial(&addr);
        send(client, &[byte], 0);
        let mut answer = [0];
        let good = recv(client, &mut answer, 0).value == 1 && answer[0] == byte;
        close(client);
        good
    };
    say!("answered {}", (0..QUESTIONS).filter(|_| ask(b'x')).count());
    role.tell("asked");
    let workers: usize = role.hear().parse().unwrap_or(0);
    say!("ended {}", (0..workers).filter(|_| ask(b'q')).count());
}

/// Answers one byte per connection, until it is a "q".
fn answer(listening: i32) -> i32 {
    loop {
        let fd = accept(listening).fd();
        let mut byte = [0];
        recv(fd, &mut byte, 0);
        send(fd, &byte, 0);
        close(fd);
        if byte == *b"q" {
            return 0;
        }
    }
}

fn prefork_server(role: &mut Role) {
    let (listening, addr) = listener();
    let children: Vec<i32> = (0..4).map(|_| fork_child(|| answer(listening))).collect();
    close(listening);
    role.tell_port(&addr);
    role.expect("asked");
    role.tell("4");
    say!("ended {}", children.iter().filter(|child| wait_child(**child) == "exit 0").count());
}

/// One of three workers is killed before the questions come; the others must get them all.
fn fragile_prefork_server(role: &mut Role) {
    let (listening, addr) = listener();
    let children: Vec<i32> = (0..3).map(|_| fork_child(|| answer(listening))).collect();
    close(listening);
    sleep(10);
    kill(children[1], libc::SIGKILL);
    say!("killed: {}", wait_child(children[1]));
    role.tell_port(&addr);
    role.expect("asked");
    role.tell("2");
    say!("{} {}", wait_child(children[0]), wait_child(children[2]));
}

/// Each connection gets a program of its own.
fn inetd_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    for _ in 0..3 {
        let fd = accept(listening).fd();
        let child = fork_child(|| {
            dup2(fd, 0);
            close(fd);
            close(listening);
            let words = [c"sd-posix".as_ptr(), c"helper".as_ptr(), c"upper".as_ptr(), c"0".as_ptr()];
            let words = [words.as_slice(), &[std::ptr::null()]].concat();
            call!(libc::execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
            127
        });
        close(fd);
        say!("child: {}", wait_child(child));
    }
}

fn upper_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    for word in ["one", "two", "three"] {
        let client = dial(&addr);
        show_send("client", client, word.as_bytes(), 0);
        show_recv("client", client, 64, 0);
        shutdown(client, libc::SHUT_WR);
        show_recv("client", client, 64, 0);
        close(client);
    }
}

/// Two workers, each with a listener of its own on the same port.
fn reuseport_server(role: &mut Role) {
    let bound = |addr: &Addr| {
        let fd = tcp();
        set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        listen_on(fd, addr, 64);
        fd
    };
    let one = bound(&Addr::local(0));
    let (_, addr) = getsockname(one);
    let two = bound(&addr);
    let ep = epoll();
    epoll_add(ep, one, libc::EPOLLIN, one as u64);
    epoll_add(ep, two, libc::EPOLLIN, two as u64);
    role.tell_port(&addr);
    let mut taken = [0, 0];
    while taken[0] + taken[1] < QUESTIONS {
        let (result, events) = epoll_wait(ep, 2, 5000);
        if result.value <= 0 {
            break;
        }
        for (number, _) in events {
            let fd = accept(number as i32).fd();
            let mut byte = [0];
            recv(fd, &mut byte, 0);
            send(fd, &byte, 0);
            close(fd);
            taken[usize::from(number == two as u64)] += 1;
        }
    }
    say!("together {}, each some: {}", taken[0] + taken[1], taken[0] > 0 && taken[1] > 0);
    role.expect("asked");
    role.tell("0");
}

/// Processes that connect once each, one after the other.
const CONTACTS: u64 = 250;
/// Connections that are busy meanwhile, more than there are processors.
const BUSY: usize = 4;

/// One thread accepts and answers. Others are busy with a connection each: they may take in what the monitor says of new peers, whose
/// connections are the first one's.
fn first_contacts_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let busy = [(); BUSY].map(|()| accept(listening).fd());
    let busy = busy.map(|fd| thread::spawn(move || while echo_some(fd) {}));
    let answered = (0..CONTACTS).filter(|_| {
        let fd = accept(listening).fd();
        let is_answered = echo_some(fd);
        close(fd);
        is_answered
    });
    say!("answered {}", answered.count());
    for thread in busy {
        thread.join().expect("busy thread");
    }
}

fn ask_once(fd: i32) -> bool {
    send(fd, b"x", 0).value == 1 && recv(fd, &mut [0; 8], 0).value == 1
}

fn first_contacts_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let busy = [(); BUSY].map(|()| {
        let asks = || {
            let fd = dial(&addr);
            while ask_once(fd) {}
            0
        };
        fork_child(asks)
    });
    sleep(50);
    let met =
        (0..CONTACTS).filter(|_| wait_child(fork_child(|| i32::from(!ask_once(dial(&addr))))) == "exit 0");
    say!("met {}", met.count());
    for child in busy {
        kill(child, libc::SIGTERM);
        say!("busy: {}", wait_child(child));
    }
}
