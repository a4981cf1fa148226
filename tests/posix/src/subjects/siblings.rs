//! Several processes and threads on one listener: whoever has time gets the connections, and what one of them leaves
//! behind goes to the others.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("siblings/closed_in_one", closed_in_one),
    solo("siblings/closed_while_another_waits", closed_while_another_waits),
    solo("siblings/last_one_closes", last_one_closes),
    solo("siblings/stopped_worker", stopped_worker),
    solo("siblings/stopped_worker_epoll", stopped_worker_epoll),
    solo("siblings/sleeps_on_adopted", sleeps_on_adopted),
    solo("siblings/busy_worker", busy_worker),
    solo("siblings/first_who_is_free", first_who_is_free),
    solo("siblings/killed_with_queue", killed_with_queue),
    solo("siblings/nobody_for_a_while", nobody_for_a_while),
    solo("siblings/client_gone", client_gone),
    solo("siblings/before_any_interest", before_any_interest),
    solo("siblings/threads", threads),
    solo("siblings/threads_begin_together", threads_begin_together),
    solo("siblings/reuseport_closed", reuseport_closed),
];

/// Echoes what one connection says until its end.
fn serve_one(listening: i32) -> i32 {
    let server = accept(listening).fd();
    let mut buffer = [0; 64];
    loop {
        let got = recv(server, &mut buffer, 0);
        if got.value <= 0 {
            close(server);
            return i32::from(got.value != 0);
        }
        send(server, &buffer[..got.count()], 0);
    }
}

/// Serves connections of one byte each: "q" ends the worker, "b" makes it compute for ever.
fn work(listening: i32) -> i32 {
    loop {
        let server = accept(listening).fd();
        let mut byte = [0];
        recv(server, &mut byte, 0);
        send(server, &byte, 0);
        close(server);
        match &byte {
            b"q" => return 0,
            b"b" => compute(),
            _ => {}
        }
    }
}

/// The same with epoll, as servers do that have many connections.
fn work_with_epoll(listening: i32) -> i32 {
    set_nonblocking(listening, true);
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 0);
    loop {
        epoll_wait(ep, 1, 5000);
        let server = accept(listening);
        if !server.ok() {
            continue;
        }
        epoll_add(ep, server.fd(), libc::EPOLLIN, 1);
        await_readable(server.fd());
        let mut byte = [0];
        recv(server.fd(), &mut byte, 0);
        send(server.fd(), &byte, 0);
        close(server.fd());
        if &byte == b"q" {
            return 0;
        }
    }
}

fn compute() {
    let mut number = 1_u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

fn answered(client: i32, byte: u8) -> bool {
    let mut answer = [0];
    let good = recv(client, &mut answer, 0).value == 1 && answer[0] == byte;
    close(client);
    good
}

fn post(addr: &Addr, byte: u8) -> i32 {
    let client = dial(addr);
    send(client, &[byte], 0);
    client
}

fn ask(addr: &Addr, byte: u8) -> bool {
    answered(post(addr, byte), byte)
}

/// Two workers that wait for connections.
fn two_workers(listening: i32, body: fn(i32) -> i32) -> [i32; 2] {
    let workers = [(); 2].map(|()| fork_child(|| body(listening)));
    sleep(20);
    workers
}

fn echoed(clients: &[i32]) -> usize {
    clients.iter().for_each(|client| _ = shutdown(*client, libc::SHUT_WR));
    let good = clients.iter().filter(|client| {
        let mut answer = [0; 16];
        let text = format!("number {client}");
        recv(**client, &mut answer[..text.len()], libc::MSG_WAITALL);
        answer[..text.len()] == *text.as_bytes() && recv(**client, &mut [0; 8], 0).value == 0
    });
    good.count()
}

fn talkers(addr: &Addr) -> Vec<i32> {
    let clients: Vec<i32> = (0..3).map(|_| dial(addr)).collect();
    clients.iter().for_each(|client| _ = send(*client, format!("number {client}").as_bytes(), 0));
    clients
}

/// The connections wait at the parent, which closes; the child begins to accept only then.
fn closed_in_one() {
    let (listening, addr) = listener();
    show_poll("parent", listening);
    let (begin, may_begin) = pipe(0);
    let child = fork_child(|| {
        read(begin, &mut [0]);
        i32::from((0..3).any(|_| serve_one(listening) != 0))
    });
    let clients = talkers(&addr);
    close(listening);
    sleep(2);
    write(may_begin, b"!");
    say!("served {}", echoed(&clients));
    say!("child: {}", wait_child(child));
    show("connect when all are gone", connect(tcp(), &addr));
}

/// The same with a child that waits in accept while connections come to both.
fn closed_while_another_waits() {
    let (listening, addr) = listener();
    show_poll("parent", listening);
    let child = fork_child(|| i32::from((0..6).any(|_| serve_one(listening) != 0)));
    sleep(20);
    let clients = [talkers(&addr), talkers(&addr)].concat();
    close(listening);
    say!("served {}", echoed(&clients));
    say!("child: {}", wait_child(child));
}

/// The parent closes, and then the child, without an accept by anybody.
fn last_one_closes() {
    let (listening, addr) = listener();
    show_poll("parent", listening);
    let (begin, may_begin) = pipe(0);
    let child = fork_child(|| {
        read(begin, &mut [0]);
        close(listening);
        read(begin, &mut [0]);
        0
    });
    let client = dial(&addr);
    close(listening);
    sleep(2);
    show_poll("waits", client);
    write(may_begin, b"!");
    await_events(client, libc::POLLHUP);
    show_recv("client", client, 8, 0);
    show("connect", connect(tcp(), &addr));
    write(may_begin, b"!");
    say!("child: {}", wait_child(child));
}

fn with_one_stopped(body: fn(i32) -> i32) {
    let (listening, addr) = listener();
    let [stopped, idle] = two_workers(listening, body);
    stop(stopped);
    say!("answered {}", (0..8).filter(|_| ask(&addr, b'x')).count());
    kill(stopped, libc::SIGCONT);
    say!("answered {}", (0..8).filter(|_| ask(&addr, b'x')).count());
    say!("ended {}", (0..2).filter(|_| ask(&addr, b'q')).count());
    say!("{} {}", wait_child(stopped), wait_child(idle));
}

fn stopped_worker() {
    with_one_stopped(work);
}

fn stopped_worker_epoll() {
    with_one_stopped(work_with_epoll);
}

const LONG: usize = 3_000_000;

/// Echoes bytes, and sends much after a "l", by edges alone; sleeps until each thing happens.
fn work_by_edges(listening: i32) -> i32 {
    set_nonblocking(listening, true);
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 0);
    let (long, mut sent) = (vec![b'l'; LONG], LONG);
    loop {
        let (result, events) = epoll_wait(ep, 1, 10_000);
        let Some(&(data, _)) = events.first() else {
            if result.ok() {
                return 1;
            }
            // Stopped and continued.
            continue;
        };
        if data == 0 {
            let server = accept(listening);
            if server.ok() {
                set_nonblocking(server.fd(), true);
                epoll_add(
                    ep,
                    server.fd(),
                    libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET,
                    server.fd() as u64,
                );
            }
            continue;
        }
        let server = data as i32;
        let mut byte = [0];
        while recv(server, &mut byte, 0).value > 0 {
            match &byte {
                b"q" => return 0,
                b"l" => sent = 0,
                _ => _ = send(server, &byte, 0),
            }
        }
        while sent < LONG {
            match send(server, &long[sent..], 0).value {
                n if n > 0 => sent += n as usize,
                _ => break,
            }
        }
    }
}

/// A connection that was taken over from a stopped worker wakes its new owner as any other: by data, and by room.
fn sleeps_on_adopted() {
    let (listening, addr) = listener();
    let [stopped, idle] = two_workers(listening, work_by_edges);
    let mut good = 0;
    for _ in 0..4 {
        stop(stopped);
        let client = dial(&addr);
        for pause in [0, 60] {
            sleep(pause);
            send(client, b"x", 0);
            let mut answer = [0];
            good += i32::from(recv(client, &mut answer, 0).value == 1);
            // It looks what came for it meanwhile.
            kill(stopped, libc::SIGCONT);
        }
        send(client, b"l", 0);
        sleep(60);
        let mut much = vec![0; LONG];
        let (first, rest) = much.split_at_mut(LONG - 100);
        good += i32::from(recv(client, first, libc::MSG_WAITALL).count() == LONG - 100);
        sleep(60);
        good += i32::from(recv(client, rest, libc::MSG_WAITALL).count() == 100);
        close(client);
    }
    say!("good {good}");
    stop(stopped);
    say!("ended {}", !answered(post(&addr, b'q'), b'q'));
    kill(stopped, libc::SIGKILL);
    say!("{} {}", wait_child(stopped), wait_child(idle));
}

fn busy_worker() {
    let (listening, addr) = listener();
    let workers = two_workers(listening, work);
    say!("one computes: {}", ask(&addr, b'b'));
    say!("answered {}", (0..8).filter(|_| ask(&addr, b'x')).count());
    let clients: Vec<i32> = (0..8).map(|_| post(&addr, b'x')).collect();
    say!("answered {}", clients.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("the other ends: {}", ask(&addr, b'q'));
    workers.iter().for_each(|worker| _ = kill(*worker, libc::SIGKILL));
    workers.iter().for_each(|worker| _ = wait_child(*worker));
}

/// As `work`; a connection that says "h" holds its worker until it is closed.
fn work_or_hold(listening: i32) -> i32 {
    loop {
        let server = accept(listening).fd();
        let mut byte = [0];
        recv(server, &mut byte, 0);
        send(server, &byte, 0);
        if &byte == b"h" {
            recv(server, &mut [0], 0);
        }
        close(server);
        if &byte == b"q" {
            return 0;
        }
    }
}

/// All workers are held up, as Apache's are by connections that are kept; much later one of them has time again, and
/// takes what waits at the other, too.
fn first_who_is_free() {
    let (listening, addr) = listener();
    let workers = two_workers(listening, work_or_hold);
    let held = [(); 2].map(|()| {
        let client = post(&addr, b'h');
        recv(client, &mut [0], 0);
        client
    });
    let clients: Vec<i32> = (0..8).map(|_| post(&addr, b'x')).collect();
    clients.iter().for_each(|client| _ = set_timeout(*client, libc::SO_RCVTIMEO, 4000));
    set_timeout(clients[0], libc::SO_RCVTIMEO, 2300);
    show_recv("nobody is free", clients[0], 1, 0);
    set_timeout(clients[0], libc::SO_RCVTIMEO, 4000);
    close(held[0]);
    say!("answered {}", clients.into_iter().filter(|client| answered(*client, b'x')).count());
    close(held[1]);
    say!("ended {}", (0..2).filter(|_| ask(&addr, b'q')).count());
    say!("{:?}", workers.map(wait_child));
}

/// A worker dies while connections wait at it.
fn killed_with_queue() {
    let (listening, addr) = listener();
    let workers = two_workers(listening, work);
    workers.iter().for_each(|worker| stop(*worker));
    let clients: Vec<i32> = (0..8).map(|_| post(&addr, b'x')).collect();
    kill(workers[0], libc::SIGKILL);
    say!("{}", wait_child(workers[0]));
    kill(workers[1], libc::SIGCONT);
    say!("answered {}", clients.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("answered {}", (0..4).filter(|_| ask(&addr, b'x')).count());
    say!("ended {}", ask(&addr, b'q'));
    say!("{}", wait_child(workers[1]));
}

/// As when a server's workers crash and its master makes new ones.
fn nobody_for_a_while() {
    let (listening, addr) = listener();
    let workers = two_workers(listening, work);
    workers.iter().for_each(|worker| stop(*worker));
    let clients: Vec<i32> = (0..4).map(|_| post(&addr, b'x')).collect();
    for worker in workers {
        kill(worker, libc::SIGKILL);
        say!("{}", wait_child(worker));
    }
    sleep(5);
    let more: Vec<i32> = (0..4).map(|_| post(&addr, b'x')).collect();
    let worker = fork_child(|| work(listening));
    say!("answered {}", clients.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("answered {}", more.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("ended {}", ask(&addr, b'q'));
    say!("{}", wait_child(worker));
}

/// The client has sent and is gone, and so is the worker where its connection waited.
fn client_gone() {
    let (listening, addr) = listener();
    let first = fork_child(|| work(listening));
    sleep(20);
    say!("answered {}", ask(&addr, b'x'));
    stop(first);
    let client = fork_child(|| {
        send(dial(&addr), b"left behind", 0);
        0
    });
    say!("client: {}", wait_child(client));
    kill(first, libc::SIGKILL);
    say!("worker: {}", wait_child(first));
    let second = fork_child(|| {
        let server = accept(listening).fd();
        await_bytes(server, 11);
        let mut bytes = [0; 32];
        let got = recv(server, &mut bytes, 0);
        let end = recv(server, &mut [0; 8], 0);
        i32::from(&bytes[..got.count()] != b"left behind" || end.value != 0)
    });
    say!("its successor: {}", wait_child(second));
}

/// Connections come when only the parent could accept, and it never does.
fn before_any_interest() {
    let (listening, addr) = listener();
    let early: Vec<i32> = (0..4).map(|_| post(&addr, b'x')).collect();
    let workers = [(); 2].map(|()| fork_child(|| work(listening)));
    let late: Vec<i32> = (0..4).map(|_| post(&addr, b'x')).collect();
    say!("early {}", early.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("late {}", late.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("ended {}", (0..2).filter(|_| ask(&addr, b'q')).count());
    say!("{:?}", workers.map(wait_child));
}

fn threads() {
    let (listening, addr) = listener();
    let acceptors: Vec<_> = (0..4).map(|_| thread::spawn(move || work(listening))).collect();
    say!("answered {}", (0..40).filter(|_| ask(&addr, b'x')).count());
    let clients: Vec<i32> = (0..16).map(|_| post(&addr, b'x')).collect();
    say!("answered {}", clients.into_iter().filter(|client| answered(*client, b'x')).count());
    say!("ended {}", (0..4).filter(|_| ask(&addr, b'q')).count());
    say!("joined {}", acceptors.into_iter().filter_map(|acceptor| acceptor.join().ok()).count());
}

/// The threads of a worker all begin to wait at the same moment, as those of a server that has just reloaded.
fn threads_begin_together() {
    const THREADS: usize = 4;
    let (listening, addr) = listener();
    set_nonblocking(listening, true);
    let mut answered = 0;
    for _ in 0..50 {
        let (ready, tell_ready) = pipe(0);
        let worker = fork_child(|| {
            let together = Barrier::new(THREADS);
            let served = AtomicUsize::new(0);
            let serve = || {
                let ep = epoll();
                together.wait();
                epoll_add(ep, listening, libc::EPOLLIN, 0);
                write(tell_ready, b"!");
                while served.load(Ordering::Relaxed) < THREADS {
                    epoll_wait(ep, 1, 20);
                    let server = accept(listening);
                    if server.ok() {
                        send(server.fd(), b"x", 0);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(serve)));
            0
        });
        (0..THREADS).for_each(|_| _ = read(ready, &mut [0]));
        let clients: Vec<i32> = (0..THREADS).map(|_| dial(&addr)).collect();
        answered += clients.iter().filter(|client| recv(**client, &mut [0], 0).value == 1).count();
        close_all(&clients);
        wait_child(worker);
        close_all(&[ready, tell_ready]);
    }
    say!("answered {answered}");
}

/// Linux resets what waits at a listener that is closed, unless net.ipv4.tcp_migrate_req is set. Either way nobody
/// waits for ever, and whoever connects afterwards is served.
fn reuseport_closed() {
    let bound = |addr: &Addr| {
        let fd = tcp();
        set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        listen_on(fd, addr, 64);
        fd
    };
    let one = bound(&Addr::local(0));
    let (_, addr) = getsockname(one);
    let ((listens, tell_listens), (done, tell_done)) = (pipe(0), pipe(0));
    let sibling = fork_child(|| {
        let two = bound(&addr);
        close(one);
        write(tell_listens, b"x");
        read(done, &mut [0]);
        close(two);
        0
    });
    read(listens, &mut [0]);
    let clients: Vec<i32> = (0..20).map(|_| post(&addr, b'x')).collect();
    write(tell_done, b"x");
    say!("sibling: {}", wait_child(sibling));
    let worker = fork_child(|| work(one));
    let ends = clients.into_iter().filter(|client| {
        let got = recv(*client, &mut [0], 0);
        got.value == 1 || got.value == -1
    });
    say!("answered or reset: {}", ends.count());
    say!("answered afterwards: {}", (0..20).filter(|_| ask(&addr, b'x')).count());
    say!("ended {}", ask(&addr, b'q'));
    say!("{}", wait_child(worker));
}
