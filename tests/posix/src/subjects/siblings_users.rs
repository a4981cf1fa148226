//! Processes of two users on one listener.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("siblings/other_user_and_a_reader", || other_user(waits_in_recv)),
    solo("siblings/other_user_and_poll", || other_user(waits_in_poll)),
    solo("siblings/other_user_and_epoll", || other_user(waits_in_epoll)),
    solo("siblings/other_user_and_a_half_close", || other_user(closes_half)),
    solo("siblings/other_user_and_much_data", || other_user(sends_much)),
    solo("siblings/other_user_and_a_thread", || other_user(waits_in_a_thread)),
    solo("siblings/other_user_is_started_when_needed", other_user_is_started_when_needed),
    solo("siblings/other_user_and_port_options", || other_user_of(limit_ports, shows_port_options)),
];

/// As servers do that give up their privileges in a worker: who has the listener first waits for connections, but does not
/// take them. Those that came before the worker accepts are its own all the same.
fn other_user(client: fn(i32)) {
    other_user_of(|_| {}, client);
}

/// The same; the client's socket is prepared before it connects.
fn other_user_of(prepare: fn(i32), client: fn(i32)) {
    let (listening, addr) = listener();
    let worker = fork_child(|| {
        sleep(60);
        let changed = call!(libc::setgid(65_534)).ok() && call!(libc::setuid(65_534)).ok();
        assert!(changed || !is_root());
        let (mut got, mut buffer) = (0, [0; 4096]);
        let server = accept(listening).fd();
        loop {
            let result = recv(server, &mut buffer, 0);
            got += result.value.max(0);
            if result.value <= 0 || buffer[result.count() - 1] == b'.' {
                break;
            }
        }
        send(server, format!("{got} bytes").as_bytes(), 0);
        recv(server, &mut buffer, 0).value as i32
    });
    let client = fork_child(|| {
        let fd = tcp();
        prepare(fd);
        connect(fd, &addr);
        let before = getsockname(fd).1.port();
        client(fd);
        say!("its name stays {}", getsockname(fd).1.port() == before);
        say!("flags {:?}", call!(libc::fcntl(fd, libc::F_GETFL)).value & i64::from(libc::O_NONBLOCK));
        close(fd);
        0
    });
    poll_one(listening, libc::POLLIN, 2000);
    say!("client: {}", wait_child(client));
    say!("worker: {}", wait_child(worker));
}

/// As Postfix does: a process of root's looks at the listener and accepts nothing, but starts others for what waits, which accept
/// as another user, and are busy with that one connection.
fn other_user_is_started_when_needed() {
    const CLIENTS: usize = 4;
    let (listening, addr) = listener();
    let client = fork_child(|| {
        let all: Vec<i32> = (0..CLIENTS).map(|_| greeted(&addr)).collect();
        all.into_iter().for_each(|fd| _ = close(fd));
        CLIENTS as i32
    });
    let workers: Vec<i32> = (0..CLIENTS)
        .map(|_| {
            let (_, events) = poll_one(listening, libc::POLLIN, 5000);
            say!("{}", poll_mask(events));
            let (accepted, accepts) = pipe(0);
            let worker = fork_child(|| {
                let changed = call!(libc::setgid(65_534)).ok() && call!(libc::setuid(65_534)).ok();
                assert!(changed || !is_root());
                let server = accept(listening).fd();
                write(accepts, b"x");
                send(server, b"welcome", 0);
                recv(server, &mut [0; 16], 0).value as i32
            });
            read(accepted, &mut [0; 1]);
            worker
        })
        .collect();
    say!("client: {}", wait_child(client));
    workers.into_iter().for_each(|worker| say!("worker: {}", wait_child(worker)));
}

/// A connection that was greeted.
fn greeted(addr: &Addr) -> i32 {
    let fd = tcp();
    connect(fd, addr);
    assert_eq!(recv(fd, &mut [0; 16], 0).value, 7);
    fd
}

fn show_answer(fd: i32) {
    let mut answer = [0; 64];
    let got = recv(fd, &mut answer, 0);
    say!("{:?}", String::from_utf8_lossy(&answer[..got.count()]));
}

fn waits_in_recv(fd: i32) {
    send(fd, b"hello.", 0);
    show_answer(fd);
    say!("{}", send(fd, b"more", 0));
}

fn waits_in_poll(fd: i32) {
    set_nonblocking(fd, true);
    send(fd, b"hello.", 0);
    let (result, events) = poll_one(fd, libc::POLLIN, 3000);
    say!("{result} {}", poll_mask(events));
    show_answer(fd);
}

fn waits_in_epoll(fd: i32) {
    let ep = epoll();
    epoll_add(ep, fd, libc::EPOLLIN | libc::EPOLLET, 7);
    send(fd, b"hello.", 0);
    say!("{:?}", epoll_wait(ep, 4, 3000).1);
    show_answer(fd);
    epoll_mod(ep, fd, libc::EPOLLOUT, 8);
    say!("{:?}", epoll_wait(ep, 4, 3000).1);
}

fn closes_half(fd: i32) {
    send(fd, b"hello", 0);
    say!("{}", shutdown(fd, libc::SHUT_WR));
    show_answer(fd);
}

fn sends_much(fd: i32) {
    let mut data = vec![b'x'; 300_000];
    data[299_999] = b'.';
    say!("{}", send(fd, &data, 0));
    show_answer(fd);
}

fn waits_in_a_thread(fd: i32) {
    thread::scope(|scope| {
        scope.spawn(|| show_answer(fd));
        sleep(20);
        send(fd, b"hello.", 0);
    });
}

const IP_LOCAL_PORT_RANGE: i32 = 51;
const RANGE: i32 = 60_000 << 16 | 33_000;

fn limit_ports(fd: i32) {
    show("late", set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1));
}

fn shows_port_options(fd: i32) {
    show("range", set_int(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, RANGE));
    send(fd, b"hello.", 0);
    show_answer(fd);
    say!("range {}", get_int(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE).1 == RANGE);
    say!("late {}", get_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT).1);
}
