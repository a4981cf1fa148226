//! Connections passed at bad moments.

use super::exec::ask;
use super::others::{pass, take};
use super::pass::{answer_in_upper_case, receiver};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("pass/hot_allocator", hot_allocator),
    solo("pass/receivers_stopped", receivers_stopped),
    solo("pass/half_closed_late", half_closed_late),
];

/// Receivers are stopped at any moment of their taking, for longer than anybody waits for them.
fn receivers_stopped() {
    let passed: Vec<_> = (0..16u32)
        .map(|round| {
            let (child, to) = receiver(answer_in_upper_case);
            let pair = connected();
            // Until it sleeps in its recvmsg.
            sleep(20);
            pass(to, pair.server);
            close(pair.server);
            std::thread::sleep(Duration::from_micros(u64::from(round) * 50));
            kill(child, libc::SIGSTOP);
            (child, pair.client)
        })
        .collect();
    sleep(1300);
    for (child, client) in passed {
        kill(child, libc::SIGCONT);
        say!("answer {}", ask(client, "after the stop"));
        say!("receiver: {}", wait_child(child));
        await_events(client, libc::POLLRDHUP);
        show_recv("client", client, 64, 0);
    }
}

/// Other threads hold the lock of the allocator nearly all the time: also when the sender is copied.
fn hot_allocator() {
    // One arena for all, and blocks too large for the caches of threads.
    one_arena();
    let is_over = AtomicBool::new(false);
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::black_box(
                        (2000..30_000).step_by(997).map(Vec::<u8>::with_capacity).collect::<Vec<_>>(),
                    );
                }
            });
        }
        let (listening, addr) = listener();
        let answers = |pair: &Connected, fd| {
            send(pair.client, b"word", 0);
            answer_in_upper_case(fd);
            await_readable(pair.client);
            recv(pair.client, &mut [0; 8], 0).count() == 4
        };
        let mut answered = 0;
        for _ in 0..30 {
            let pair = connect_to(listening, &addr);
            pass(a, pair.server);
            close(pair.server);
            let fd = take(b).1;
            answered += u32::from(answers(&pair, fd));
            close_all(&[pair.client, fd]);
        }
        let late: Vec<_> = (0..10).map(|_| connect_to(listening, &addr)).collect();
        for pair in &late {
            pass(a, pair.server);
            close(pair.server);
        }
        sleep(200);
        let taken: Vec<i32> = late.iter().map(|_| take(b).1).collect();
        answered += late.iter().zip(&taken).map(|(pair, fd)| u32::from(answers(pair, *fd))).sum::<u32>();
        say!("{answered} answered");
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Taken when bytes are under way to it already, while the sender keeps its own: an end of what is sent is no end of what comes.
fn half_closed_late() {
    let pair = connected();
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(pair.server);
        close(pair.client);
        sleep(300);
        let (_, fd) = take(b);
        show_recv("receiver", fd, 6, 0);
        show("shutdown", shutdown(fd, libc::SHUT_WR));
        crate::bulk::receive_pattern(fd, u64::MAX, &[65_536]).show("receiver");
        0
    });
    send(pair.client, b"before", 0);
    pass(a, pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    // The receiver says first that it has shut down.
    sleep(100);
    show_recv("client", pair.client, 8, 0);
    say!("sent {}", crate::bulk::send_pattern(pair.client, 500_000, &[50_000]));
    shutdown(pair.client, libc::SHUT_WR);
    say!("receiver: {}", wait_child(child));
}
