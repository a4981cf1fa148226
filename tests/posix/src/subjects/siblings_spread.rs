//! Listeners that share an address by SO_REUSEPORT get equal shares of the connections.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("siblings/spread_over_threads", spread_over_threads),
    solo("siblings/spread_over_processes", spread_over_processes),
    solo("siblings/spread_beside_a_busy_one", spread_beside_a_busy_one),
];

const CONNECTIONS: usize = 800;

fn bound(addr: &Addr) -> i32 {
    let fd = tcp();
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    listen_on(fd, addr, 2048);
    fd
}

/// So many listeners, and their address.
fn listeners(count: usize) -> (Vec<i32>, Addr) {
    let first = bound(&Addr::local(0));
    let (_, addr) = getsockname(first);
    let all = std::iter::once(first).chain((1..count).map(|_| bound(&addr))).collect();
    (all, addr)
}

/// Takes connections until none comes for a while; how many said something. They are reset: in TIME-WAIT they would keep a
/// good part of the ports from subjects that bind them.
fn take(listening: i32) -> usize {
    let mut taken = 0;
    while poll_one(listening, libc::POLLIN, 1000).1 & libc::POLLIN != 0 {
        let server = accept(listening).fd();
        taken += usize::from(recv(server, &mut [0; 4], 0).value > 0);
        abort(server);
    }
    taken
}

fn connect_often(addr: &Addr) {
    for _ in 0..CONNECTIONS {
        let client = dial(addr);
        send(client, b"abcd", 0);
        close(client);
    }
}

fn tell(taken: &[usize]) {
    let share = CONNECTIONS / taken.len();
    say!("together {}", taken.iter().sum::<usize>());
    say!("each has half of its share: {}", taken.iter().all(|got| (share / 2..=share * 2).contains(got)));
}

fn spread_over_threads() {
    let (listening, addr) = listeners(8);
    let workers = listening.into_iter().map(|fd| thread::spawn(move || take(fd)));
    let workers: Vec<_> = workers.collect();
    sleep(60);
    connect_often(&addr);
    let taken: Vec<usize> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    tell(&taken);
}

fn spread_over_processes() {
    let (listening, addr) = listeners(4);
    let (counts, tell_counts) = pipe(0);
    let worker = |own: &i32| {
        fork_child(|| {
            listening.iter().filter(|fd| *fd != own).for_each(|fd| _ = close(*fd));
            write(tell_counts, &(take(*own) as u32).to_ne_bytes());
            0
        })
    };
    let workers: Vec<i32> = listening.iter().map(worker).collect();
    close_all(&listening);
    sleep(60);
    connect_often(&addr);
    workers.iter().for_each(|worker| _ = wait_child(*worker));
    let taken: Vec<usize> = workers
        .iter()
        .map(|_| {
            let mut count = [0; 4];
            read(counts, &mut count);
            u32::from_ne_bytes(count) as usize
        })
        .collect();
    tell(&taken);
}

/// Who waits for connections gets no more than who has something else to do.
fn spread_beside_a_busy_one() {
    const FEW: usize = 60;
    let (listening, addr) = listeners(2);
    let (may_begin, begin) = pipe(0);
    let (counts, tell_counts) = pipe(0);
    let worker = |own: usize| {
        let (own, other) = (listening[own], listening[1 - own]);
        fork_child(|| {
            close(other);
            if own == listening[1] {
                // It waits for connections before it is busy.
                poll_one(own, libc::POLLIN, 20);
                read(may_begin, &mut [0]);
            }
            let mut taken = 0_u32;
            while poll_one(own, libc::POLLIN, 1000).1 & libc::POLLIN != 0 {
                let server = accept(own).fd();
                send(server, b"x", 0);
                abort(server);
                taken += 1;
            }
            write(tell_counts, &taken.to_ne_bytes());
            0
        })
    };
    let workers = [worker(0), worker(1)];
    close_all(&listening);
    sleep(60);
    let clients: Vec<i32> = (0..FEW)
        .map(|_| {
            let client = dial(&addr);
            poll_one(client, libc::POLLIN, 1);
            client
        })
        .collect();
    write(begin, b"x");
    close_all(&clients);
    workers.iter().for_each(|worker| _ = wait_child(*worker));
    let taken = workers.map(|_| {
        let mut count = [0; 4];
        read(counts, &mut count);
        u32::from_ne_bytes(count) as usize
    });
    say!("together {}, each some: {}", taken[0] + taken[1], taken.iter().all(|got| *got >= FEW / 6));
}
