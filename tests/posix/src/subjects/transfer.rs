//! Much data, in one direction and in both, by threads of one process.

use std::thread;

use crate::bulk::{is_pattern, pattern, receive_pattern, send_pattern};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("transfer/one_way", one_way),
    solo("transfer/both_ways", both_ways),
    solo("transfer/ping_pong", ping_pong),
    solo("transfer/small_messages", small_messages),
    solo("transfer/sizes_around_pages", sizes_around_pages),
    solo("transfer/single_bytes", single_bytes),
    solo("transfer/vectors", vectors),
    solo("transfer/slow_reader", slow_reader),
    solo("transfer/overwrite_after_send", overwrite_after_send),
    solo("transfer/many_connections", many_connections),
    solo("transfer/ipv6", over_ipv6),
];

const EIGHT_MIB: u64 = 8 << 20;

fn run_one_way(pair: &Connected, total: u64, send_sizes: &'static [usize], receive_sizes: &'static [usize]) {
    let (client, server) = (pair.client, pair.server);
    let writer = thread::spawn(move || {
        let sent = send_pattern(client, total, send_sizes);
        shutdown(client, libc::SHUT_WR);
        sent
    });
    let tally = receive_pattern(server, u64::MAX, receive_sizes);
    say!("sent {}", writer.join().unwrap_or(0));
    tally.show("server");
}

fn one_way() {
    run_one_way(&connected(), EIGHT_MIB, &[1, 77, 4_097, 65_535, 262_144], &[3, 10_007, 65_536]);
}

fn both_ways() {
    let pair = connected();
    let run = |fd: i32, send_sizes: &'static [usize], receive_sizes: &'static [usize]| {
        let writer = thread::spawn(move || {
            let sent = send_pattern(fd, EIGHT_MIB, send_sizes);
            shutdown(fd, libc::SHUT_WR);
            sent
        });
        let reader = thread::spawn(move || receive_pattern(fd, u64::MAX, receive_sizes));
        (writer, reader)
    };
    let client = run(pair.client, &[5_000, 31_337], &[40_000, 11]);
    let server = run(pair.server, &[100_003, 64], &[8_192]);
    for (label, (writer, reader)) in [("client", client), ("server", server)] {
        say!("{label} sent {}", writer.join().unwrap_or(0));
        reader.join().expect("reader").show(label);
    }
}

fn ping_pong() {
    let pair = connected();
    let server = pair.server;
    let echo = thread::spawn(move || {
        let mut buffer = [0; 64];
        loop {
            let got = recv(server, &mut buffer, 0).count();
            if got == 0 {
                break;
            }
            send(server, &buffer[..got], 0);
        }
        close(server);
    });
    let mut good = 0;
    for round in 0..2_000u32 {
        let mut answer = [0; 4];
        send(pair.client, &round.to_ne_bytes(), 0);
        recv(pair.client, &mut answer, libc::MSG_WAITALL);
        good += i32::from(u32::from_ne_bytes(answer) == round);
    }
    shutdown(pair.client, libc::SHUT_WR);
    let _ = echo.join();
    say!("good rounds {good}");
    show_recv("client", pair.client, 8, 0);
}

fn small_messages() {
    run_one_way(&connected(), 320_000, &[16], &[16]);
}

fn sizes_around_pages() {
    let sizes = &[4_095, 4_096, 4_097, 8_191, 8_192, 16_383, 16_384, 16_385, 65_537, 131_072];
    run_one_way(&connected(), EIGHT_MIB, sizes, &[4_096, 16_384, 1, 32_768]);
}

fn single_bytes() {
    run_one_way(&connected(), 20_000, &[1], &[1]);
}

fn vectors() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        let mut sent = 0;
        while sent < EIGHT_MIB {
            let data = pattern(sent, 70_000.min((EIGHT_MIB - sent) as usize));
            let parts: Vec<&[u8]> = data.chunks(9_001).collect();
            sent += writev(client, &parts).count() as u64;
        }
        close(client);
    });
    let (mut received, mut intact) = (0, true);
    loop {
        let mut parts = vec![vec![0; 333], vec![0; 4_096], vec![0; 50_000]];
        let got = readv(pair.server, &mut parts).count();
        if got == 0 {
            break;
        }
        intact &= is_pattern(received, &parts.concat()[..got]);
        received += got as u64;
    }
    let _ = writer.join();
    say!("received {received}, intact {intact}");
}

fn slow_reader() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        let sent = send_pattern(client, EIGHT_MIB, &[200_000]);
        close(client);
        sent
    });
    let mut buffer = vec![0; 1 << 20];
    let (mut received, mut intact) = (0, true);
    loop {
        sleep(1);
        let got = recv(pair.server, &mut buffer, 0).count();
        if got == 0 {
            break;
        }
        intact &= is_pattern(received, &buffer[..got]);
        received += got as u64;
    }
    say!("sent {}, received {received}, intact {intact}", writer.join().unwrap_or(0));
}

/// What `send` returned is the receiver's: the sender may do what it likes with its buffer.
fn overwrite_after_send() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        const BLOCK: usize = 256 << 10;
        let mut buffer = vec![0; BLOCK];
        for block in 0..16 {
            buffer.copy_from_slice(&pattern(block * BLOCK as u64, BLOCK));
            let mut done = 0;
            while done < BLOCK {
                let sent = send(client, &buffer[done..], 0).count();
                buffer[done..done + sent].fill(0xee);
                done += sent;
            }
        }
        close(client);
    });
    receive_pattern(pair.server, u64::MAX, &[256 << 10]).show("server");
    let _ = writer.join();
}

fn many_connections() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..100).map(|_| connect_to(listening, &addr)).collect();
    for round in 0..20u8 {
        for (index, pair) in pairs.iter().enumerate() {
            send(pair.client, &[index as u8, round], 0);
        }
        for (index, pair) in pairs.iter().enumerate().rev() {
            let mut two = [0; 2];
            let result = recv(pair.server, &mut two, libc::MSG_WAITALL);
            if result.value != 2 || two != [index as u8, round] {
                say!("connection {index} round {round}: {result} {two:?}");
            }
        }
    }
    say!("{} connections, 20 rounds", pairs.len());
}

fn over_ipv6() {
    let listening = tcp6();
    let addr = listen_on(listening, &Addr::local6(0), 4);
    run_one_way(&connect_to(listening, &addr), EIGHT_MIB, &[123_457], &[65_536]);
}
