//! Processes that share a listener share what waits at it: a connection is for whoever accepts next, whichever of them
//! was free when it came, and however they look for it.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("siblings/queue_of_a_held_worker", queue_of_a_held_worker),
    solo("siblings/queue_and_a_silent_client", queue_and_a_silent_client),
    solo("siblings/queue_by_nonblocking_accept", queue_by_nonblocking_accept),
    solo("siblings/queue_told_by_poll", || told_by("poll", by_poll)),
    solo("siblings/queue_told_by_select", || told_by("select", by_select)),
    solo("siblings/queue_told_by_epoll", || told_by("epoll_wait", by_epoll)),
    solo("siblings/queue_wakes_poll", queue_wakes_poll),
    solo("siblings/queue_after_exec", queue_after_exec),
    solo("siblings/queue_of_a_stopped_worker", queue_of_a_stopped_worker),
];

/// Many enough that some come to each of two processes.
const CLIENTS: usize = 6;

/// Serves connections of one byte each, and reports every answer; a connection that says "h" holds its worker until it is closed.
fn serve(listening: i32, report: i32) -> i32 {
    loop {
        let server = accept(listening).fd();
        let mut byte = [0];
        recv(server, &mut byte, 0);
        send(server, &byte, 0);
        match &byte {
            b"h" => _ = recv(server, &mut [0], 0),
            _ => _ = write(report, &byte),
        }
        close(server);
        if &byte == b"q" {
            return 0;
        }
    }
}

/// How many reports come, up to `most`.
fn reports(from: i32, most: usize) -> usize {
    let waits = || poll_one(from, libc::POLLIN, 4000).1 & libc::POLLIN != 0;
    (0..most).take_while(|_| waits() && read(from, &mut [0]).value == 1).count()
}

fn post(addr: &Addr, byte: u8) -> i32 {
    let client = dial(addr);
    send(client, &[byte], 0);
    client
}

/// Both workers are told to end; how many do.
fn end(addr: &Addr, from: i32) -> usize {
    let ends = [(); 2].map(|()| post(addr, b'q'));
    let ended = reports(from, 2);
    close_all(&ends);
    ended
}

/// Two workers, each with a connection that holds it.
fn held_workers(listening: i32, addr: &Addr, report: i32) -> ([i32; 2], [i32; 2]) {
    let workers = [(); 2].map(|()| fork_child(|| serve(listening, report)));
    sleep(20);
    let held = [(); 2].map(|()| {
        let client = post(addr, b'h');
        recv(client, &mut [0], 0);
        client
    });
    (workers, held)
}

/// One worker stays held for as long as it takes; the other one serves all, one after the other.
fn queue_of_a_held_worker() {
    let ((listening, addr), (from, report)) = (listener(), pipe(0));
    let (workers, held) = held_workers(listening, &addr, report);
    close(held[0]);
    for _ in 0..CLIENTS {
        let client = post(&addr, b'x');
        say!("answered {}", recv(client, &mut [0], 0).value);
        close(client);
    }
    say!("reported {}", reports(from, CLIENTS));
    let early: Vec<i32> = (0..CLIENTS).map(|_| post(&addr, b'x')).collect();
    say!("reported {}", reports(from, CLIENTS));
    close_all(&early);
    close(held[1]);
    say!("ended {}", end(&addr, from));
    say!("{:?}", workers.map(wait_child));
}

/// The clients have asked, and are stopped: they tell nobody that they wait.
fn queue_and_a_silent_client() {
    let ((listening, addr), (from, report)) = (listener(), pipe(0));
    let ((begun, has_begun), (go_on, may_go_on)) = (pipe(0), pipe(0));
    let client = fork_child(|| {
        read(go_on, &mut [0]);
        let fds: Vec<i32> = (0..CLIENTS).map(|_| post(&addr, b'x')).collect();
        write(has_begun, b"!");
        read(go_on, &mut [0]);
        i32::from(fds.iter().filter(|fd| recv(**fd, &mut [0], 0).value == 1).count() != CLIENTS)
    });
    let (workers, held) = held_workers(listening, &addr, report);
    write(may_go_on, b"!");
    read(begun, &mut [0]);
    stop(client);
    close(held[0]);
    say!("reported {}", reports(from, CLIENTS));
    kill(client, libc::SIGCONT);
    write(may_go_on, b"!");
    say!("client: {}", wait_child(client));
    close(held[1]);
    say!("ended {}", end(&addr, from));
    say!("{:?}", workers.map(wait_child));
}

/// Connections wait at two processes, one of which is stopped; `body` looks in the other one.
fn beside_a_stopped(body: impl Fn(i32)) {
    let (listening, addr) = listener();
    let (begun, has_begun) = pipe(0);
    let stopped = fork_child(|| {
        poll_one(listening, libc::POLLIN, 0);
        write(has_begun, b"!");
        read(pipe(0).0, &mut [0]);
        0
    });
    poll_one(listening, libc::POLLIN, 0);
    read(begun, &mut [0]);
    stop(stopped);
    let client = fork_child(|| {
        let fds: Vec<i32> = (0..CLIENTS).map(|_| post(&addr, b'x')).collect();
        write(has_begun, b"!");
        i32::from(fds.iter().filter(|fd| recv(**fd, &mut [0], 0).value == 0).count() != CLIENTS)
    });
    read(begun, &mut [0]);
    body(listening);
    say!("client: {}", wait_child(client));
    kill(stopped, libc::SIGKILL);
    say!("the other: {}", wait_child(stopped));
}

fn serve_once(server: i32) -> bool {
    await_bytes(server, 1);
    let good = recv(server, &mut [0], 0).value == 1;
    close(server);
    good
}

fn queue_by_nonblocking_accept() {
    beside_a_stopped(|listening| {
        set_nonblocking(listening, true);
        let taken: Vec<i32> =
            (0..CLIENTS).map(|_| accept(listening)).filter(|it| it.ok()).map(Ret::fd).collect();
        say!("accepted {}", taken.len());
        say!("served {}", taken.into_iter().filter(|fd| serve_once(*fd)).count());
        show("and no more", accept(listening));
    });
}

fn by_poll(listening: i32) -> bool {
    poll_one(listening, libc::POLLIN, 0).1 & libc::POLLIN != 0
}

fn by_select(listening: i32) -> bool {
    let mut set = FdSet::of(&[listening]);
    select_read(listening + 1, Some(&mut set), 0).value == 1
}

fn by_epoll(listening: i32) -> bool {
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 0);
    let told = epoll_wait(ep, 1, 0).0.value == 1;
    close(ep);
    told
}

/// Each of them is told of, and then accepted.
fn told_by(call: &str, tells: fn(i32) -> bool) {
    beside_a_stopped(|listening| {
        for _ in 0..CLIENTS {
            say!("{call} tells: {}", tells(listening));
            say!("served: {}", serve_once(accept(listening).fd()));
        }
        say!("{call} tells: {}", tells(listening));
    });
}

/// A sibling waits in poll with something else when the connections come to one that does not accept.
fn queue_wakes_poll() {
    beside_a_stopped(|listening| {
        let (other, _writer) = pipe(0);
        for _ in 0..CLIENTS {
            let mut fds = [pollfd(other, libc::POLLIN), pollfd(listening, libc::POLLIN)];
            show("poll", poll(&mut fds, 3000));
            say!("served: {}", serve_once(accept(listening).fd()));
        }
    });
}

/// A worker becomes another program, which keeps the listener open and never accepts.
fn queue_after_exec() {
    let ((listening, addr), (from, report)) = (listener(), pipe(0));
    let (begin, may_begin) = pipe(0);
    let third = fork_child(|| {
        poll_one(listening, libc::POLLIN, 0);
        read(begin, &mut [0]);
        let arguments = [c"sleep".as_ptr(), c"8".as_ptr(), std::ptr::null()];
        call!(libc::execvp(c"sleep".as_ptr(), arguments.as_ptr()));
        1
    });
    let (workers, held) = held_workers(listening, &addr, report);
    let clients: Vec<i32> = (0..CLIENTS).map(|_| post(&addr, b'x')).collect();
    write(may_begin, b"!");
    sleep(20);
    close(held[0]);
    say!("reported {}", reports(from, CLIENTS));
    close_all(&clients);
    close(held[1]);
    say!("ended {}", end(&addr, from));
    say!("{:?}", workers.map(wait_child));
    kill(third, libc::SIGKILL);
    say!("the third: {}", wait_child(third));
}

/// A worker is stopped with connections at it; its sibling begins to accept only afterwards.
fn queue_of_a_stopped_worker() {
    let ((listening, addr), (from, report)) = (listener(), pipe(0));
    let (workers, held) = held_workers(listening, &addr, report);
    let clients: Vec<i32> = (0..CLIENTS).map(|_| post(&addr, b'x')).collect();
    workers.iter().for_each(|worker| stop(*worker));
    held.iter().for_each(|client| _ = close(*client));
    kill(workers[1], libc::SIGCONT);
    say!("reported {}", reports(from, CLIENTS));
    close_all(&clients);
    kill(workers[0], libc::SIGCONT);
    say!("ended {}", end(&addr, from));
    say!("{:?}", workers.map(wait_child));
}
