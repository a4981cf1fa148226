//! Two processes: much data, in the ways in which programs move it.

use std::thread;

use super::pair_basic::{call_server, serve_one};
use super::pair_servers::echo_some;
use crate::bulk::{fill, pattern, receive_pattern, send_pattern};
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("load/upload", receiving_server, sending_client),
    pair("load/download", sending_server, receiving_client),
    pair("load/both_ways", duplex_server, duplex_client),
    pair("load/ping_pong", pong_server, ping_client),
    pair("load/small_messages", small_server, small_client),
    pair("load/pipelined_commands", command_server, pipelining_client),
    pair("load/http_keepalive", http_server, http_client),
    pair("load/sendfile", file_server, receiving_client),
    pair("load/fill_then_drain", draining_server, filling_client),
    pair("load/slow_reader", slow_server, sending_client),
    pair("load/forked_client", counting_server, forked_client),
    pair("load/threaded_client", counting_server, threaded_client),
    pair("load/proxy", proxy_server, proxy_client),
];

const TOTAL: u64 = 8 << 20;

fn receiving_server(role: &mut Role) {
    let server = serve_one(role);
    receive_pattern(server, u64::MAX, &[65_536, 1, 4_095]).show("server");
}

fn sending_client(role: &mut Role) {
    let client = call_server(role);
    say!("sent {}", send_pattern(client, TOTAL, &[1, 100_000, 777, 16_384]));
    close(client);
}

fn sending_server(role: &mut Role) {
    let server = serve_one(role);
    say!("sent {}", send_pattern(server, TOTAL, &[262_144, 5]));
    close(server);
}

fn receiving_client(role: &mut Role) {
    let client = call_server(role);
    receive_pattern(client, u64::MAX, &[9_999]).show("client");
}

fn duplex(fd: i32) {
    let sender = thread::spawn(move || {
        let sent = send_pattern(fd, TOTAL, &[50_000, 3]);
        shutdown(fd, libc::SHUT_WR);
        sent
    });
    receive_pattern(fd, u64::MAX, &[70_000]).show("received");
    say!("sent {}", sender.join().unwrap_or(0));
}

fn duplex_server(role: &mut Role) {
    duplex(serve_one(role));
}

fn duplex_client(role: &mut Role) {
    duplex(call_server(role));
}

fn pong_server(role: &mut Role) {
    let server = serve_one(role);
    let mut buffer = [0; 512];
    let mut rounds = 0;
    loop {
        let got = recv(server, &mut buffer, 0).count();
        if got == 0 {
            break;
        }
        send(server, &buffer[..got], 0);
        rounds += 1;
    }
    say!("rounds {rounds}");
}

fn ping_client(role: &mut Role) {
    let client = call_server(role);
    let mut good = 0;
    for round in 0..2_000u32 {
        let mut answer = [0; 4];
        send(client, &round.to_ne_bytes(), 0);
        recv(client, &mut answer, libc::MSG_WAITALL);
        good += u32::from(u32::from_ne_bytes(answer) == round);
    }
    say!("good {good}");
}

fn small_server(role: &mut Role) {
    let server = serve_one(role);
    receive_pattern(server, u64::MAX, &[12]).show("server");
}

fn small_client(role: &mut Role) {
    let client = call_server(role);
    say!("sent {}", send_pattern(client, 360_000, &[12]));
}

/// As redis: commands end with a newline, many arrive at once, and each is answered in order.
fn command_server(role: &mut Role) {
    let server = serve_one(role);
    let (mut pending, mut answered) = (Vec::new(), 0u32);
    loop {
        let mut buffer = [0; 16_384];
        let got = read(server, &mut buffer).count();
        if got == 0 {
            break;
        }
        pending.extend_from_slice(&buffer[..got]);
        let mut answers = Vec::new();
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            answers.extend_from_slice(b"+");
            answers.extend(pending.drain(..=end));
            answered += 1;
        }
        let mut done = 0;
        while done < answers.len() {
            done += write(server, &answers[done..]).count();
        }
    }
    say!("answered {answered}, left {}", pending.len());
}

fn pipelining_client(role: &mut Role) {
    let client = call_server(role);
    let mut good = 0;
    for batch in 0..50 {
        let commands: Vec<String> =
            (0..100).map(|number| format!("GET key:{}\n", batch * 100 + number)).collect();
        let wanted: String = commands.iter().map(|command| format!("+{command}")).collect();
        send(client, commands.concat().as_bytes(), 0);
        let mut answer = vec![0; wanted.len()];
        recv(client, &mut answer, libc::MSG_WAITALL);
        good += u32::from(answer == wanted.as_bytes());
    }
    say!("good batches {good}");
}

const PAGE: u64 = 40_000;

/// As a web server: header under TCP_CORK, body by sendfile, keep-alive.
fn http_server(role: &mut Role) {
    let server = serve_one(role);
    let file = temporary_file(&pattern(0, PAGE as usize));
    let mut served = 0;
    loop {
        let mut request = [0; 1_024];
        let got = recv(server, &mut request, 0).count();
        if got == 0 || !request[..got].ends_with(b"\r\n\r\n") {
            break;
        }
        set_int(server, libc::IPPROTO_TCP, libc::TCP_CORK, 1);
        let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE}\r\n\r\n");
        writev(server, &[header.as_bytes()]);
        let mut offset = 0;
        while (offset as u64) < PAGE && sendfile_at(server, file, &mut offset, 16_384).ok() {}
        set_int(server, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
        served += 1;
    }
    say!("served {served}");
}

fn http_client(role: &mut Role) {
    let client = call_server(role);
    let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE}\r\n\r\n");
    let mut good = 0;
    for _ in 0..50 {
        send(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 0);
        let mut answer = vec![0; header.len() + PAGE as usize];
        recv(client, &mut answer, libc::MSG_WAITALL);
        let (head, body) = answer.split_at(header.len());
        good += u32::from(head == header.as_bytes() && crate::bulk::is_pattern(0, body));
    }
    say!("good answers {good}");
}

fn file_server(role: &mut Role) {
    let server = serve_one(role);
    let file = temporary_file(&pattern(0, TOTAL as usize));
    let mut sent = 0;
    while sent < TOTAL {
        let result = sendfile(server, file, 1_000_000);
        if result.value <= 0 {
            break;
        }
        sent += result.count() as u64;
    }
    say!("sent {sent}");
}

fn draining_server(role: &mut Role) {
    let server = serve_one(role);
    let sent: u64 = role.hear().parse().unwrap_or(0);
    let tally = receive_pattern(server, sent, &[65_536]);
    say!("all: {}, intact {}", tally.bytes == sent, tally.intact);
    role.tell("drained");
    show_recv("server", server, 64, 0);
}

fn filling_client(role: &mut Role) {
    let client = call_server(role);
    let ep = epoll();
    let sent = fill(client, 0);
    epoll_add(ep, client, libc::EPOLLOUT | libc::EPOLLET, 1);
    show_poll("full", client);
    show_epoll("full", ep);
    role.tell(&sent.to_string());
    show_epoll_within("room", ep, 5000);
    role.expect("drained");
    await_events(client, libc::POLLOUT);
    show_poll("drained", client);
    show_send("client", client, b"more", libc::MSG_DONTWAIT);
}

fn slow_server(role: &mut Role) {
    let server = serve_one(role);
    let (mut received, mut intact) = (0, true);
    let mut buffer = vec![0; 700_000];
    loop {
        sleep(2);
        let got = recv(server, &mut buffer, 0).count();
        if got == 0 {
            break;
        }
        intact &= crate::bulk::is_pattern(received, &buffer[..got]);
        received += got as u64;
    }
    say!("received {received}, intact {intact}");
}

/// Three senders share one connection; each sends 1000 messages of 8 equal bytes.
fn counting_server(role: &mut Role) {
    let server = serve_one(role);
    let (mut counts, mut torn) = ([0; 3], 0);
    loop {
        let mut message = [0; 8];
        if recv(server, &mut message, libc::MSG_WAITALL).value != 8 {
            break;
        }
        match message {
            [letter @ b'a'..=b'c', rest @ ..] if rest == [letter; 7] => {
                counts[usize::from(letter - b'a')] += 1
            }
            _ => torn += 1,
        }
    }
    say!("messages {counts:?}, torn {torn}");
}

fn send_letters(client: i32, letter: u8) -> i32 {
    let good = (0..1_000).filter(|_| send(client, &[letter; 8], 0).value == 8).count();
    i32::from(good != 1_000)
}

fn forked_client(role: &mut Role) {
    let client = call_server(role);
    let children = [b'a', b'b'].map(|letter| fork_child(|| send_letters(client, letter)));
    say!("own failures {}", send_letters(client, b'c'));
    say!("{:?}", children.map(wait_child));
    close(client);
}

fn threaded_client(role: &mut Role) {
    let client = call_server(role);
    let threads = [b'a', b'b'].map(|letter| thread::spawn(move || send_letters(client, letter)));
    say!("own failures {}", send_letters(client, b'c'));
    say!("{:?}", threads.map(|thread| thread.join().unwrap_or(-1)));
    close(client);
}

/// A proxy of HAProxy's kind between a client and a back end in the client's own process.
fn proxy_server(role: &mut Role) {
    let front = serve_one(role);
    let back = dial(&Addr::local(role.hear_port("B")));
    let forward = |from: i32, to: i32| {
        move || {
            let (mut buffer, mut moved) = (vec![0; 20_000], 0);
            loop {
                let got = recv(from, &mut buffer, 0).count();
                if got == 0 {
                    shutdown(to, libc::SHUT_WR);
                    return moved;
                }
                let mut done = 0;
                while done < got {
                    done += send(to, &buffer[done..got], libc::MSG_NOSIGNAL).count();
                }
                moved += got;
            }
        }
    };
    let (there, back_again) = (thread::spawn(forward(front, back)), thread::spawn(forward(back, front)));
    say!("forth {}, back {}", there.join().unwrap_or(0), back_again.join().unwrap_or(0));
}

fn proxy_client(role: &mut Role) {
    let front = call_server(role);
    let (listening, addr) = listener();
    role.tell_port(&addr);
    let back = accept(listening).fd();
    let back_end = thread::spawn(move || {
        while echo_some(back) {}
        close(back);
    });
    let sender = thread::spawn(move || {
        let sent = send_pattern(front, 2_000_000, &[33_333]);
        shutdown(front, libc::SHUT_WR);
        sent
    });
    receive_pattern(front, u64::MAX, &[12_345]).show("client");
    say!("sent {}", sender.join().unwrap_or(0));
    let _ = back_end.join();
}
