//! One end of a connection in the hands of many processes and threads.

use std::thread;
use std::time::{Duration, Instant};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("tokens/hundred_writers", hundred_writers),
    solo("tokens/threads_and_children_write", threads_and_children_write),
    solo("tokens/forked_readers", forked_readers),
    solo("tokens/thread_readers", thread_readers),
    solo("tokens/holder_computes", holder_computes),
    solo("tokens/holder_sleeps", holder_sleeps),
    solo("tokens/holder_stopped", holder_stopped),
    solo("tokens/reader_stopped", reader_stopped),
    solo("tokens/writer_killed_anywhere", writer_killed_anywhere),
    solo("tokens/reader_killed_anywhere", reader_killed_anywhere),
    solo("tokens/thread_ends", thread_ends),
];

const MESSAGE: usize = 100;

/// A message that says who sent it and the how-manieth it is, and can be recognised as whole.
fn message(writer: u32, number: u32) -> [u8; MESSAGE] {
    let mut bytes = [(writer * 31 + number) as u8; MESSAGE];
    bytes[..4].copy_from_slice(&writer.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn write_messages(fd: i32, writer: u32, count: u32) -> i32 {
    for number in 0..count {
        let result = send(fd, &message(writer, number), 0);
        if result.value != MESSAGE as i64 {
            return 1;
        }
    }
    0
}

/// Receives whole messages until the stream ends: how many, and whether each was whole and in its writer's order.
fn read_messages(fd: i32, writers: usize) -> (u32, bool) {
    let (mut count, mut good, mut next) = (0, true, vec![0u32; writers]);
    let mut buffer = [0; MESSAGE];
    while recv(fd, &mut buffer, libc::MSG_WAITALL).value == MESSAGE as i64 {
        let word =
            |at: usize| u32::from_le_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
        let (writer, number) = (word(0), word(4));
        let expected = next.get_mut(writer as usize);
        good &= buffer == message(writer, number) && expected.as_deref() == Some(&number);
        expected.into_iter().for_each(|next| *next += 1);
        count += 1;
    }
    (count, good)
}

fn say_messages(fd: i32, writers: usize) {
    let (count, good) = read_messages(fd, writers);
    say!("{count} messages, whole and in order {good}");
}

fn hundred_writers() {
    let pair = connected();
    let children: Vec<i32> =
        (0..100).map(|writer| fork_child(|| write_messages(pair.client, writer, 50))).collect();
    close(pair.client);
    say_messages(pair.server, 100);
    say!("children that failed {}", children.iter().filter(|child| wait_child(**child) != "exit 0").count());
}

/// Two children and three threads at once.
fn threads_and_children_write() {
    let pair = connected();
    let children: Vec<i32> =
        (0..2).map(|writer| fork_child(|| write_messages(pair.client, writer, 2000))).collect();
    let client = pair.client;
    let threads: Vec<_> =
        (2..5).map(|writer| thread::spawn(move || write_messages(client, writer, 2000))).collect();
    let server = pair.server;
    let reader = thread::spawn(move || read_messages(server, 5));
    threads.into_iter().for_each(|thread| drop(thread.join()));
    for child in children {
        say!("child: {}", wait_child(child));
    }
    close(client);
    let (count, good) = reader.join().expect("reader");
    say!("{count} messages, whole and in order {good}");
}

/// Takes bytes until the stream ends; how many, and their sum.
fn tally(fd: i32) -> (u64, u64) {
    let (mut count, mut sum, mut buffer) = (0, 0, [0; 77]);
    loop {
        let got = recv(fd, &mut buffer, 0).count();
        if got == 0 {
            return (count, sum);
        }
        count += got as u64;
        sum += buffer[..got].iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
}

const NUMBERS: u32 = 100_000;

/// Sends 1..=NUMBERS, by four bytes each.
fn send_numbers(fd: i32) {
    let bytes: Vec<u8> = (1..=NUMBERS).flat_map(u32::to_le_bytes).collect();
    for chunk in bytes.chunks(1000) {
        send(fd, chunk, 0);
    }
}

fn expected_sum() -> u64 {
    (1..=NUMBERS).flat_map(u32::to_le_bytes).map(u64::from).sum()
}

fn say_tally(tallies: impl Iterator<Item = (u64, u64)>) {
    let (count, sum) = tallies.fold((0, 0), |(count, sum), (c, s)| (count + c, sum + s));
    say!("{count} bytes, sum right {}", sum == expected_sum());
}

fn forked_readers() {
    let pair = connected();
    let pipes: Vec<(i32, i32)> = (0..5).map(|_| pipe(0)).collect();
    let children: Vec<i32> = pipes
        .iter()
        .map(|(_, tell)| {
            fork_child(|| {
                close(pair.client);
                let (count, sum) = tally(pair.server);
                write(*tell, &[count.to_le_bytes(), sum.to_le_bytes()].concat());
                0
            })
        })
        .collect();
    send_numbers(pair.client);
    close(pair.client);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
    say_tally(pipes.iter().map(|(hear, _)| {
        let mut bytes = [0; 16];
        read(*hear, &mut bytes);
        (number(&bytes[..8]), number(&bytes[8..]))
    }));
    children.iter().for_each(|child| drop(wait_child(*child)));
}

fn thread_readers() {
    let pair = connected();
    let server = pair.server;
    let readers: Vec<_> = (0..5).map(|_| thread::spawn(move || tally(server))).collect();
    send_numbers(pair.client);
    shutdown(pair.client, libc::SHUT_WR);
    say_tally(readers.into_iter().map(|reader| reader.join().expect("reader")));
}

/// Enough calls in a row that the caller is the one for whom sending is made cheap.
fn become_holder(fd: i32, letter: u8) {
    for _ in 0..200 {
        send(fd, &[letter], 0);
    }
}

/// A child sends, says so, and then does `then`; the parent sends meanwhile.
fn beside(stops: bool, then: impl FnOnce()) {
    let pair = connected();
    let (hear, tell) = pipe(0);
    let child = fork_child(|| {
        become_holder(pair.client, b'c');
        write(tell, b"!");
        then();
        become_holder(pair.client, b'd');
        0
    });
    read(hear, &mut [0]);
    if stops {
        // SAFETY: no result is asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
    }
    let start = Instant::now();
    become_holder(pair.client, b'p');
    say!("parent waited {}", start.elapsed() > Duration::from_millis(500));
    kill(child, libc::SIGCONT);
    say!("child: {}", wait_child(child));
    close(pair.client);
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match recv(pair.server, &mut buffer, 0).count() {
            0 => break,
            got => all.extend_from_slice(&buffer[..got]),
        }
    }
    let of = |letter: u8| all.iter().filter(|byte| **byte == letter).count();
    say!("received {} {} {}", of(b'c'), of(b'p'), of(b'd'));
}

fn holder_computes() {
    beside(false, || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1000) {
            std::hint::spin_loop();
        }
    });
}

fn holder_sleeps() {
    beside(false, || sleep(1000));
}

fn holder_stopped() {
    beside(true, || {
        kill(getpid(), libc::SIGSTOP);
    });
}

/// A child blocks in recv and is stopped there; its parent receives.
fn reader_stopped() {
    let pair = connected();
    let child = fork_child(|| {
        let mut byte = [0];
        recv(pair.server, &mut byte, 0);
        i32::from(byte[0])
    });
    sleep(100);
    kill(child, libc::SIGSTOP);
    sleep(50);
    send(pair.client, b"ab", 0);
    show_recv("parent", pair.server, 1, 0);
    kill(child, libc::SIGCONT);
    say!("child: {}", wait_child(child));
}

/// A thread that used the socket is gone; the others go on.
fn thread_ends() {
    let pair = connected();
    for letter in [b'a', b'b', b'c'] {
        let _ = thread::spawn(move || become_holder(pair.client, letter)).join();
    }
    become_holder(pair.client, b'd');
    await_bytes(pair.server, 800);
    say!("bytes {}", fionread(pair.server));
}

/// Runs a traced child for so many instructions and kills it; false when it had come to its end before.
fn killed_after(steps: usize, body: impl FnOnce()) -> bool {
    let child = fork_child(|| {
        // SAFETY: no pointers.
        unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        kill(getpid(), libc::SIGSTOP);
        body();
        0
    });
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    let mut wait = || unsafe { libc::waitpid(child, &mut status, 0) };
    wait();
    for _ in 0..steps {
        // SAFETY: the child is stopped; no pointers.
        if unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) } != 0 {
            break;
        }
        wait();
    }
    let ended = !libc::WIFSTOPPED(status);
    if !ended {
        kill(child, libc::SIGKILL);
        // SAFETY: as above.
        unsafe { libc::waitpid(child, &mut status, 0) };
    }
    !ended
}

/// Instruction counts at which a child is killed, all over the call. Each instruction is a switch to the child and back,
/// so on a busy machine there are fewer; `cargo xtask sharing` steps through everything.
fn deaths() -> impl Iterator<Item = usize> {
    const COUNT: usize = 105;
    let start = Instant::now();
    (0..COUNT).map(|number| number * 43 % COUNT * 23).take_while(move |_| start.elapsed().as_secs() < 3)
}

/// A child dies in the middle of a send, after each number of instructions; what the parent sends then must arrive
/// whole, and of what the child sent either all or nothing.
fn writer_killed_anywhere() {
    let pair = connected();
    let (mut good, mut killed) = (true, 0);
    for (number, steps) in deaths().enumerate() {
        killed += u32::from(killed_after(steps, || {
            send(pair.client, &message(1, number as u32), 0);
        }));
        good &= send(pair.client, &message(0, number as u32), 0).value == MESSAGE as i64;
        let mut buffer = [0; MESSAGE];
        recv(pair.server, &mut buffer, libc::MSG_WAITALL);
        if buffer == message(1, number as u32) {
            recv(pair.server, &mut buffer, libc::MSG_WAITALL);
        }
        good &= buffer == message(0, number as u32);
    }
    say!("killed some {}, stream good {good}, left {}", killed > 0, fionread(pair.server));
}

/// A child dies in the middle of a recv; what it had not taken is there for the parent, once.
fn reader_killed_anywhere() {
    let pair = connected();
    let (mut good, mut killed) = (true, 0);
    for (number, steps) in deaths().enumerate() {
        for writer in 0..2 {
            send(pair.client, &message(writer, number as u32), 0);
        }
        killed += u32::from(killed_after(steps, || {
            recv(pair.server, &mut [0; MESSAGE], 0);
        }));
        let mut buffer = [0; MESSAGE];
        recv(pair.server, &mut buffer, libc::MSG_WAITALL);
        if buffer == message(0, number as u32) {
            recv(pair.server, &mut buffer, libc::MSG_WAITALL);
        }
        good &= buffer == message(1, number as u32);
    }
    say!("killed some {}, stream good {good}, left {}", killed > 0, fionread(pair.server));
}
