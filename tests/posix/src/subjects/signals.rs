//! Handlers of signals and blocking calls: which restart, which fail with EINTR; handlers that use the socket.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("signals/recv_mixed", recv_mixed),
    solo("signals/recv_mixed_late", recv_mixed_late),
    solo("signals/send_mixed", send_mixed),
    solo("signals/accept_mixed", accept_mixed),
    solo("signals/with_timeouts", with_timeouts),
    solo("signals/polls_never_restart", polls_never_restart),
    solo("signals/handler_sends", handler_sends),
    solo("signals/handler_receives", handler_receives),
    solo("signals/handler_closes", handler_closes),
];

/// A handler of each kind is installed; five signals of one kind come before the data.
fn recv_with(flags: i32, pause: u64) {
    count_signal(libc::SIGUSR1, flags);
    count_signal(libc::SIGUSR2, libc::SA_RESTART - flags);
    let pair = connected();
    sleep(pause);
    let thread = ping_then(move || {
        send(pair.client, b"data", 0);
    });
    show_recv("server", pair.server, 8, 0);
    let _ = thread.join();
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
    show_recv("server", pair.server, 8, libc::MSG_DONTWAIT);
}

fn recv_mixed() {
    recv_with(libc::SA_RESTART, 0);
    recv_with(0, 0);
}

/// After traffic, when the sleeper has something to tidy up.
fn recv_mixed_late() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    count_signal(libc::SIGUSR2, 0);
    let pair = connected();
    let bytes = vec![7; 100_000];
    let sender = std::thread::spawn(move || send(pair.client, &bytes, 0).value);
    let mut room = vec![0; 100_000];
    say!("received {}", recv(pair.server, &mut room, libc::MSG_WAITALL).value);
    say!("sent {}", sender.join().unwrap_or(0));
    let thread = ping_then(move || {
        sleep(300);
        send(pair.client, b"late", 0);
    });
    show_recv("server", pair.server, 8, 0);
    let _ = thread.join();
}

fn send_mixed() {
    for flags in [libc::SA_RESTART, 0] {
        count_signal(libc::SIGUSR1, flags);
        count_signal(libc::SIGUSR2, libc::SA_RESTART - flags);
        let pair = connected();
        crate::bulk::fill(pair.client, 0);
        let thread = ping_then(move || {
            crate::bulk::drain(pair.server);
        });
        let sent = send(pair.client, b"more", 0);
        say!("send = {sent}");
        let _ = thread.join();
    }
}

fn accept_mixed() {
    for flags in [libc::SA_RESTART, 0] {
        count_signal(libc::SIGUSR1, flags);
        count_signal(libc::SIGUSR2, libc::SA_RESTART - flags);
        let (listening, addr) = listener();
        let thread = ping_then(move || {
            dial(&addr);
        });
        let accepted = accept(listening);
        say!(
            "accepted {} {}",
            accepted.ok(),
            if accepted.ok() { String::new() } else { accepted.to_string() }
        );
        let _ = thread.join();
        say!("signalled: {}", taken(libc::SIGUSR1) > 0);
    }
}

/// With a time-out even a handler with SA_RESTART means EINTR.
fn with_timeouts() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let pair = connected();
    set_timeout(pair.server, libc::SO_RCVTIMEO, 2000);
    set_timeout(pair.client, libc::SO_SNDTIMEO, 2000);
    let (listening, _) = listener();
    set_timeout(listening, libc::SO_RCVTIMEO, 2000);
    let pinger = Pinger::start();
    show_recv("recv", pair.server, 8, 0);
    show("accept", accept(listening));
    crate::bulk::fill(pair.client, 0);
    show_send("send", pair.client, b"more", 0);
    drop(pinger);
}

fn polls_never_restart() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN, 1);
    let pinger = Pinger::start();
    show_poll_for("poll", pair.server, libc::POLLIN, 2000);
    show_poll_for("poll without end", pair.server, libc::POLLIN, -1);
    show("epoll_wait", epoll_wait(ep, 1, -1).0);
    drop(pinger);
}

static CLIENT: AtomicI32 = AtomicI32::new(-1);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Messages of a handler's own, told from the others by their first byte.
const FROM_HANDLER: [u8; 32] = [b'h'; 32];

extern "C" fn sends(_: i32) {
    let fd = CLIENT.load(Ordering::Relaxed);
    // SAFETY: 32 readable bytes.
    let sent = unsafe { libc::send(fd, FROM_HANDLER.as_ptr().cast(), 32, libc::MSG_DONTWAIT) };
    CALLS.fetch_add(u32::from(sent == 32), Ordering::Relaxed);
}

/// The only thread sends messages; a handler that interrupts it sends others on the same socket.
fn handler_sends() {
    let pair = connected();
    CLIENT.store(pair.client, Ordering::Relaxed);
    let (mut mine, mut torn, mut handlers) = (0u32, 0u32, 0u32);
    handle(libc::SIGUSR1, sends, libc::SA_RESTART);
    every(libc::SIGUSR1, 100);
    let mut sent = 0;
    for _ in 0..15_000 {
        sent += u32::from(send(pair.client, &[b'm'; 32], 0).value == 32);
        let mut message = [0; 32];
        while recv(pair.server, &mut message, libc::MSG_DONTWAIT).value > 0 {
            match message {
                [b'm', ..] if message == [b'm'; 32] => mine += 1,
                FROM_HANDLER => handlers += 1,
                _ => torn += 1,
            }
        }
    }
    block_signal(libc::SIGUSR1, true);
    let mut message = [0; 32];
    while recv(pair.server, &mut message, libc::MSG_DONTWAIT).value > 0 {
        handlers += u32::from(message == FROM_HANDLER);
    }
    say!(
        "torn {torn}, lost {}, of the handler lost {}",
        sent - mine,
        CALLS.load(Ordering::Relaxed) - handlers
    );
}

static SUM: AtomicU32 = AtomicU32::new(0);

extern "C" fn receives(_: i32) {
    let mut byte = [0u8; 4];
    // SAFETY: four writable bytes.
    let got = unsafe {
        libc::recv(CLIENT.load(Ordering::Relaxed), byte.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT)
    };
    if got > 0 {
        SUM.fetch_add(got as u32, Ordering::Relaxed);
    }
}

/// The only thread receives; so does a handler that interrupts it. Together they get every byte once.
fn handler_receives() {
    let pair = connected();
    CLIENT.store(pair.server, Ordering::Relaxed);
    handle(libc::SIGUSR1, receives, libc::SA_RESTART);
    every(libc::SIGUSR1, 100);
    let mut got = 0;
    let mut sent = 0;
    for _ in 0..15_000 {
        sent += send(pair.client, b"12345678", libc::MSG_DONTWAIT).value.max(0) as u32;
        let mut message = [0; 3];
        got += recv(pair.server, &mut message, libc::MSG_DONTWAIT).value.max(0) as u32;
        got += recv(pair.server, &mut message, libc::MSG_DONTWAIT).value.max(0) as u32;
        got += recv(pair.server, &mut message, libc::MSG_DONTWAIT).value.max(0) as u32;
    }
    block_signal(libc::SIGUSR1, true);
    let mut rest = [0; 4096];
    loop {
        match recv(pair.server, &mut rest, libc::MSG_DONTWAIT).value {
            n if n > 0 => got += n as u32,
            _ => break,
        }
    }
    say!("bytes missing: {}", i64::from(sent) - i64::from(got + SUM.load(Ordering::Relaxed)));
}

static CLOSED: AtomicU32 = AtomicU32::new(0);

extern "C" fn closes(_: i32) {
    let fd = CLIENT.swap(-1, Ordering::Relaxed);
    // SAFETY: no pointers; the number was given to the handler.
    let closed = fd >= 0 && unsafe { libc::close(fd) } == 0;
    CLOSED.fetch_add(u32::from(closed), Ordering::Relaxed);
}

/// As in servers that end gracefully: a handler closes a listener, or a connection, whatever call of the only thread
/// it interrupts.
fn handler_closes() {
    let (listening, addr) = listener();
    CLIENT.store(-1, Ordering::Relaxed);
    handle(libc::SIGUSR1, closes, libc::SA_RESTART);
    every(libc::SIGUSR1, 100);
    let (mut given, mut echoed) = (0, 0);
    for round in 0..3000 {
        let (fd, other) = if round % 2 == 0 {
            (listener().0, -1)
        } else {
            let client = dial(&addr);
            (client, accept(listening).fd())
        };
        match CLIENT.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => given += 1,
            Err(_) => _ = close(fd),
        }
        let client = dial(&addr);
        let server = accept(listening).fd();
        send(client, b"byte", 0);
        echoed += u32::from(recv(server, &mut [0; 8], 0).value == 4);
        close(client);
        close(server);
        if other >= 0 {
            close(other);
        }
    }
    block_signal(libc::SIGUSR1, true);
    let last = CLIENT.swap(-1, Ordering::Relaxed);
    if last >= 0 {
        close(last);
        given -= 1;
    }
    say!("echoed {echoed}, closed all: {}", CLOSED.load(Ordering::Relaxed) == given);
    say!("its number is free: {}", tcp() == listening + 1);
    show("connect", connect(tcp(), &addr));
}
