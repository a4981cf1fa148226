//! Threads that share sockets.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("threads/full_duplex", full_duplex),
    solo("threads/two_receivers", two_receivers),
    solo("threads/two_blocked_receivers", two_blocked_receivers),
    solo("threads/two_senders", two_senders),
    solo("threads/senders_large", senders_large),
    solo("threads/pool", pool),
    solo("threads/thread_per_connection", thread_per_connection),
    solo("threads/connect_storm", connect_storm),
    solo("threads/accept_pool", accept_pool),
    solo("threads/handed_over", handed_over),
    solo("threads/close_wakes_no_one", close_wakes_no_one),
    solo("threads/peek_and_recv", peek_and_recv),
    solo("threads/short_lived", short_lived),
    solo("threads/leave_no_mappings", leave_no_mappings),
    solo("threads/fork_with_threads", fork_with_threads),
    solo("threads/descriptor_race", descriptor_race),
    solo("threads/duplicated_and_used", duplicated_and_used),
];

fn full_duplex() {
    let pair = connected();
    let side = |fd: i32| {
        let sender = thread::spawn(move || crate::bulk::send_pattern(fd, 3_000_000, &[8_000, 33]));
        let receiver = thread::spawn(move || crate::bulk::receive_pattern(fd, 3_000_000, &[7_777]));
        (sender, receiver)
    };
    let (client, server) = (side(pair.client), side(pair.server));
    for (label, (sender, receiver)) in [("client", client), ("server", server)] {
        let tally = receiver.join().expect("receiver");
        say!(
            "{label}: sent {}, received {} intact {}",
            sender.join().unwrap_or(0),
            tally.bytes,
            tally.intact
        );
    }
}

/// A thread duplicates a number again and again, and uses that, while another one uses the first: whatever becomes of the connection meanwhile.
fn duplicated_and_used() {
    let turn = |fd: i32| send(fd, b"x", 0).value + recv(fd, &mut [0; 1], 0).value;
    let of_one = || {
        let pair = connected();
        let server = thread::spawn(move || {
            let mut room = [0; 100];
            loop {
                let got = recv(pair.server, &mut room, 0).value;
                if got <= 0 {
                    break;
                }
                send(pair.server, &room[..got as usize], 0);
            }
        });
        let of_duplicates = thread::spawn(move || {
            let of_one = |_| {
                let twin = dup(pair.client).fd();
                let done = turn(twin);
                close(twin);
                done
            };
            (0..60).map(of_one).sum::<i64>()
        });
        let sum = (0..60).map(|_| turn(pair.client)).sum::<i64>() + of_duplicates.join().unwrap_or(0);
        close(pair.client);
        let _ = server.join();
        close(pair.server);
        sum
    };
    say!("bytes sent and received: {}", (0..40).map(|_| of_one()).sum::<i64>());
}

/// A server with a thread for each connection has so many, each of which begins before the one before it ends.
fn leave_no_mappings() {
    let pair = connected();
    let body = move || {
        send(pair.client, b"a", 0);
        recv(pair.server, &mut [0; 1], 0).value
    };
    let in_turn = |count: usize| {
        let mut before = thread::spawn(body);
        for _ in 0..count {
            let ends = std::mem::replace(&mut before, thread::spawn(body));
            if ends.join().ok() != Some(1) {
                say!("a thread received nothing");
            }
        }
        before.join().unwrap_or(0)
    };
    let mappings = || std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count());
    in_turn(10);
    let before = mappings();
    in_turn(200);
    say!("a mapping for each: {}", mappings() >= before + 100);
}

/// Counts the messages of eight bytes that arrive until the stream ends; a torn one counts as a million.
fn count_messages(fd: i32) -> u32 {
    let mut count = 0;
    loop {
        let mut message = [0; 8];
        match recv(fd, &mut message, libc::MSG_WAITALL).value {
            8 if message.iter().all(|byte| *byte == message[0]) => count += 1,
            8 => count += 1_000_000,
            _ => return count,
        }
    }
}

fn two_receivers() {
    let pair = connected();
    let server = pair.server;
    let receivers: Vec<_> = (0..2).map(|_| thread::spawn(move || count_bytes(server))).collect();
    crate::bulk::send_pattern(pair.client, 400_000, &[8, 100, 3]);
    shutdown(pair.client, libc::SHUT_WR);
    let counts = receivers.into_iter().map(|receiver| receiver.join().unwrap_or(0));
    say!("received together {}", counts.sum::<u64>());
}

fn count_bytes(fd: i32) -> u64 {
    let mut total = 0;
    loop {
        let got = recv(fd, &mut [0; 100], 0).count();
        if got == 0 {
            return total;
        }
        total += got as u64;
    }
}

fn two_blocked_receivers() {
    let pair = connected();
    let server = pair.server;
    let receivers: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(move || {
                let mut byte = [0];
                (recv(server, &mut byte, 0).value, byte[0])
            })
        })
        .collect();
    sleep(10);
    send(pair.client, b"A", 0);
    sleep(2);
    send(pair.client, b"B", 0);
    let mut got: Vec<(i64, u8)> =
        receivers.into_iter().map(|receiver| receiver.join().expect("receiver")).collect();
    got.sort_unstable();
    say!("{got:?}");
}

fn two_senders() {
    let pair = connected();
    let client = pair.client;
    let senders: Vec<_> = [b'a', b'b', b'c']
        .into_iter()
        .map(|letter| {
            thread::spawn(move || (0..3_000).filter(|_| send(client, &[letter; 8], 0).value == 8).count())
        })
        .collect();
    let server = pair.server;
    let receiver = thread::spawn(move || count_messages(server));
    let sent: usize = senders.into_iter().map(|sender| sender.join().unwrap_or(0)).sum();
    close(pair.client);
    say!("sent {sent}, received whole {}", receiver.join().unwrap_or(0));
}

fn senders_large() {
    const EACH: usize = 2_000_000;
    let pair = connected();
    let client = pair.client;
    let senders: Vec<_> = [b'a', b'b']
        .into_iter()
        .map(|letter| thread::spawn(move || send(client, &vec![letter; EACH], 0).count()))
        .collect();
    let server = pair.server;
    let receiver = thread::spawn(move || {
        let (mut buffer, mut of_a, mut of_b) = (vec![0; 65_536], 0, 0);
        loop {
            let got = recv(server, &mut buffer, 0).count();
            if got == 0 {
                return (of_a, of_b);
            }
            let letters_a = buffer[..got].iter().filter(|byte| **byte == b'a').count();
            of_a += letters_a;
            of_b += got - letters_a;
        }
    });
    let sent: usize = senders.into_iter().map(|sender| sender.join().unwrap_or(0)).sum();
    close(pair.client);
    let (of_a, of_b) = receiver.join().expect("receiver");
    say!("sent {sent}, received {of_a} and {of_b}");
}

/// One thread waits, four work: as memcached and HAProxy divide it.
fn pool() {
    let (listening, addr) = listener();
    let ep = epoll();
    let pairs: Vec<Connected> = (0..16).map(|_| connect_to(listening, &addr)).collect();
    for pair in &pairs {
        epoll_add(ep, pair.server, libc::EPOLLIN | libc::EPOLLONESHOT, pair.server as u64);
    }
    let answered = Arc::new(AtomicU32::new(0));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let answered = Arc::clone(&answered);
            thread::spawn(move || {
                while answered.load(Ordering::Relaxed) < 16 * 50 {
                    let (_, events) = epoll_wait(ep, 1, 50);
                    for (number, _) in events {
                        let fd = number as i32;
                        let mut byte = [0];
                        if recv(fd, &mut byte, libc::MSG_DONTWAIT).value == 1 {
                            send(fd, &byte, 0);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        epoll_mod(ep, fd, libc::EPOLLIN | libc::EPOLLONESHOT, number);
                    }
                }
            })
        })
        .collect();
    let mut good = 0;
    for round in 0..50u8 {
        for pair in &pairs {
            send(pair.client, &[round], 0);
        }
        for pair in &pairs {
            let mut byte = [255];
            recv(pair.client, &mut byte, 0);
            good += u32::from(byte[0] == round);
        }
    }
    for worker in workers {
        let _ = worker.join();
    }
    say!("good answers {good}");
}

fn thread_per_connection() {
    let (listening, addr) = listener();
    let server = thread::spawn(move || {
        let handlers: Vec<_> = (0..12)
            .map(|_| {
                let fd = accept(listening).fd();
                thread::spawn(move || {
                    let tally = crate::bulk::receive_pattern(fd, u64::MAX, &[5_000]);
                    send(fd, &tally.bytes.to_ne_bytes(), 0);
                    close(fd);
                    tally.intact
                })
            })
            .collect();
        handlers.into_iter().filter_map(|handler| handler.join().ok()).filter(|intact| *intact).count()
    });
    let clients: Vec<_> = (0..12)
        .map(|number| {
            thread::spawn(move || {
                let client = dial(&addr);
                let total = 50_000 + number * 1_111;
                crate::bulk::send_pattern(client, total, &[4_001]);
                shutdown(client, libc::SHUT_WR);
                let mut answer = [0; 8];
                recv(client, &mut answer, libc::MSG_WAITALL);
                u64::from_ne_bytes(answer) == total
            })
        })
        .collect();
    let right = clients.into_iter().filter_map(|client| client.join().ok()).filter(|right| *right).count();
    say!("right answers {right}, intact streams {}", server.join().unwrap_or(0));
}

fn connect_storm() {
    let (listening, addr) = listener_with(512);
    let dialers: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let fds: Vec<i32> = (0..50).map(|_| dial(&addr)).collect();
                let mut sorted = fds.clone();
                sorted.sort_unstable();
                sorted.dedup();
                (fds.len(), sorted.len())
            })
        })
        .collect();
    let accepted = (0..200).filter(|_| accept(listening).ok()).count();
    let counts: Vec<(usize, usize)> =
        dialers.into_iter().map(|dialer| dialer.join().expect("dialer")).collect();
    say!("dialled and distinct {counts:?}, accepted {accepted}");
}

fn accept_pool() {
    let (listening, addr) = listener();
    let acceptors: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let mut taken = 0;
                loop {
                    let fd = accept(listening);
                    if !fd.ok() {
                        return (taken, fd.errno);
                    }
                    taken += 1;
                    send(fd.fd(), b"k", 0);
                    close(fd.fd());
                }
            })
        })
        .collect();
    for _ in 0..80 {
        let client = dial(&addr);
        recv(client, &mut [0; 1], 0);
        close(client);
    }
    shutdown(listening, libc::SHUT_RDWR);
    let ends: Vec<(i32, i32)> =
        acceptors.into_iter().map(|acceptor| acceptor.join().expect("acceptor")).collect();
    say!("taken {}", ends.iter().map(|(taken, _)| taken).sum::<i32>());
    say!("each ended with EINVAL: {}", ends.iter().all(|(_, errno)| *errno == libc::EINVAL));
}

/// A socket is used by one thread after the other.
fn handed_over() {
    let pair = connected();
    let (client, server) = (pair.client, pair.server);
    for round in 0..20 {
        let sender = thread::spawn(move || send(client, &crate::bulk::pattern(round * 100, 100), 0).value);
        let receiver = thread::spawn(move || {
            let mut buffer = [0; 100];
            recv(server, &mut buffer, libc::MSG_WAITALL);
            crate::bulk::is_pattern(round * 100, &buffer)
        });
        if sender.join().ok() != Some(100) || receiver.join().ok() != Some(true) {
            say!("round {round} failed");
        }
    }
    say!("done");
}

/// Closing a descriptor does not end a recv(2) that another thread is in: data still reaches it.
fn close_wakes_no_one() {
    let pair = connected();
    let server = pair.server;
    let reader = thread::spawn(move || {
        let mut buffer = [0; 8];
        let result = recv(server, &mut buffer, 0);
        (result, buffer)
    });
    sleep(10);
    show("close", close(pair.server));
    show("recv of the closed number", recv(pair.server, &mut [0; 1], 0));
    show_send("client", pair.client, b"late", 0);
    let (result, buffer) = reader.join().expect("reader");
    show_bytes("recv in the other thread", result, &buffer);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
}

fn peek_and_recv() {
    let pair = connected();
    let server = pair.server;
    let peeker = thread::spawn(move || recv(server, &mut [0; 8], libc::MSG_PEEK).value);
    sleep(5);
    send(pair.client, b"once", 0);
    say!("peek {}", peeker.join().unwrap_or(-9));
    show_recv("server", pair.server, 8, 0);
}

fn short_lived() {
    let (listening, addr) = listener();
    let mut good = 0;
    for _ in 0..50 {
        let client = thread::spawn(move || {
            let client = dial(&addr);
            send(client, b"brief", 0);
            close(client);
        });
        let server = accept(listening).fd();
        let mut buffer = [0; 8];
        let got = recv(server, &mut buffer, libc::MSG_WAITALL).count();
        good += u32::from(&buffer[..got] == b"brief");
        close(server);
        let _ = client.join();
    }
    say!("good {good}");
}

/// A child of a threaded process has only the forking thread, and may use the sockets.
fn fork_with_threads() {
    let (pair, busy) = (connected(), connected());
    let (client, server) = (busy.client, busy.server);
    let sender = thread::spawn(move || {
        let sent = crate::bulk::send_pattern(client, 2_000_000, &[1_000]);
        shutdown(client, libc::SHUT_WR);
        sent
    });
    let receiver = thread::spawn(move || crate::bulk::receive_pattern(server, 2_000_000, &[1_500]));
    let children: Vec<i32> = (0..3)
        .map(|_| {
            fork_child(|| {
                send(pair.client, b"child", 0);
                0
            })
        })
        .collect();
    for child in children {
        say!("child: {}", wait_child(child));
    }
    say!("sent {}", sender.join().unwrap_or(0));
    let tally = receiver.join().expect("receiver");
    say!("received {}, intact {}", tally.bytes, tally.intact);
    await_bytes(pair.server, 15);
    show_recv("server", pair.server, 32, 0);
}

/// Four threads open and close at once: no number is given twice, none is lost.
fn descriptor_race() {
    let before = lowest_free();
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4u8)
        .map(|number| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.wait();
                let mut good = 0;
                for _ in 0..100 {
                    let pair = connected();
                    send(pair.client, &[number], 0);
                    let mut byte = [99];
                    recv(pair.server, &mut byte, 0);
                    good += u32::from(byte[0] == number);
                    close_all(&[pair.client, pair.server]);
                }
                good
            })
        })
        .collect();
    let good: u32 = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    say!("good {good}, nothing left open: {}", lowest_free() == before);
}
