//! Every way to end a connection in the states of the side that ends it, as the other side sees it: one subject per
//! state, one line per way and look.
//!
//! Each line begins with a fresh connection. `left` ends it; `right` looks.

use super::states::{await_urgent, give, pair};
use crate::setup::abort;
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(solo(concat!("ends/", stringify!($state)), || run($state))),*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    idle unread peeked part_read all_read shut_read shut_read_unread shut_read_then_data shut_write shut_write_unread
    shut_both shut_both_unread shut_both_then_data urgent_unread urgent_read sent sent_and_unread
    right_shut_write right_shut_write_unread right_shut_read right_shut_both both_shut_write
    both_shut_write_unread right_shut_both_unread
);

/// Both sides of a connection.
struct Ends {
    left: i32,
    right: i32,
}

fn run(state: fn() -> Ends) {
    signal(libc::SIGPIPE, libc::SIG_IGN);
    for (way, end) in WAYS {
        for (name, look) in LOOKS {
            let ends = state();
            end(ends.left);
            sleep(2);
            say!("{way}, {name}: {}", look(ends.right));
            close(ends.right);
        }
    }
}

type Way = fn(i32);
type Look = fn(i32) -> String;

/// In this time the other end knows of a death, also through a pump, and beside other work.
const SETTLES_MS: u64 = 40;

const WAYS: &[(&str, Way)] = &[
    ("close", |fd| {
        close(fd);
    }),
    ("abort", abort),
    ("linger", |fd| {
        set_linger(fd, 1, 1);
        close(fd);
    }),
    ("shutdown, close", |fd| {
        shutdown(fd, libc::SHUT_RDWR);
        close(fd);
    }),
    ("dup2 over it", |fd| {
        let other = eventfd(0, 0);
        dup2(other, fd);
        close(other);
        close(fd);
    }),
    ("disconnect", |fd| {
        connect(fd, &Addr::unspec());
        close(fd);
    }),
    ("exit of a child", |fd| {
        let child = fork_child(|| {
            sleep(2);
            0
        });
        close(fd);
        wait_child(child);
        sleep(SETTLES_MS);
    }),
    ("death of a child", dies),
    ("abort by death", |fd| {
        set_linger(fd, 1, 0);
        dies(fd);
    }),
];

/// The last process that has the descriptor is killed.
fn dies(fd: i32) {
    let child = fork_child(|| {
        sleep(1000);
        0
    });
    close(fd);
    kill(child, libc::SIGKILL);
    wait_child(child);
    sleep(SETTLES_MS);
}

const LOOKS: &[(&str, Look)] = &[
    ("asked", |fd| format!("{} {} {}", events(fd), error(fd), events(fd))),
    ("read", |fd| {
        format!("{} {} {} {}", read_some(fd, 64), read_some(fd, 64), read_some(fd, 64), events(fd))
    }),
    ("read a little", |fd| format!("{} {} {}", read_some(fd, 4), error(fd), read_some(fd, 64))),
    ("sent", |fd| {
        let first = send(fd, b"x", 0);
        sleep(2);
        let seen = events(fd);
        let second = send(fd, b"x", 0);
        format!("{first} {seen} {second} {} {} {}", read_some(fd, 64), read_some(fd, 64), events(fd))
    }),
    ("sent, asked", |fd| {
        let first = send(fd, b"x", 0);
        sleep(2);
        format!("{first} {} {} {}", events(fd), error(fd), send(fd, b"x", 0))
    }),
    ("read, sent", |fd| {
        let first = read_some(fd, 64);
        let sent = send(fd, b"x", 0);
        sleep(2);
        format!("{first} {sent} {} {} {}", events(fd), send(fd, b"x", 0), read_some(fd, 64))
    }),
    ("shut", |fd| {
        let result = shutdown(fd, libc::SHUT_WR);
        sleep(2);
        format!("{result} {} {} {}", events(fd), send(fd, b"x", 0), read_some(fd, 64))
    }),
    ("named", |fd| {
        let (result, bytes) = ioctl_int(fd, libc::FIONREAD, -1);
        format!("{} {result} {bytes} {}", getpeername(fd).0, connect(fd, &Addr::local(9)))
    }),
];

fn events(fd: i32) -> String {
    poll_mask(poll_one(fd, ALL, 0).1)
}

fn error(fd: i32) -> String {
    match get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
        (result, _) if !result.ok() => result.to_string(),
        (_, 0) => "0".to_owned(),
        (_, number) => errno_name(number),
    }
}

fn read_some(fd: i32, len: usize) -> String {
    let mut buffer = vec![0; len];
    let result = recv(fd, &mut buffer, libc::MSG_DONTWAIT);
    match result.value > 0 {
        true => text(&buffer[..result.count()]),
        false => result.to_string(),
    }
}

fn idle() -> Ends {
    let (left, right) = pair();
    Ends { left, right }
}

/// Bytes wait at the left.
fn unread() -> Ends {
    let ends = idle();
    give(ends.right, ends.left, b"0123456789");
    ends
}

fn peeked() -> Ends {
    let ends = unread();
    recv(ends.left, &mut [0; 64], libc::MSG_PEEK);
    ends
}

fn part_read() -> Ends {
    let ends = unread();
    recv(ends.left, &mut [0; 4], 0);
    ends
}

fn all_read() -> Ends {
    let ends = unread();
    recv(ends.left, &mut [0; 64], 0);
    ends
}

fn shut(side: fn(&Ends) -> i32, how: i32, from: Ends) -> Ends {
    shutdown(side(&from), how);
    sleep(1);
    from
}

fn left(ends: &Ends) -> i32 {
    ends.left
}

fn right(ends: &Ends) -> i32 {
    ends.right
}

fn shut_read() -> Ends {
    shut(left, libc::SHUT_RD, idle())
}

fn shut_read_unread() -> Ends {
    shut(left, libc::SHUT_RD, unread())
}

/// What comes after SHUT_RD is received all the same.
fn shut_read_then_data() -> Ends {
    let ends = shut_read();
    give(ends.right, ends.left, b"0123456789");
    ends
}

fn shut_write() -> Ends {
    shut(left, libc::SHUT_WR, idle())
}

fn shut_write_unread() -> Ends {
    shut(left, libc::SHUT_WR, unread())
}

fn shut_both() -> Ends {
    shut(left, libc::SHUT_RDWR, idle())
}

fn shut_both_unread() -> Ends {
    shut(left, libc::SHUT_RDWR, unread())
}

/// The bytes draw a reset.
fn shut_both_then_data() -> Ends {
    let ends = shut_both();
    send(ends.right, b"0123456789", 0);
    sleep(2);
    ends
}

fn urgent_unread() -> Ends {
    let ends = idle();
    send(ends.right, b"abc", libc::MSG_OOB);
    await_urgent(ends.left);
    ends
}

fn urgent_read() -> Ends {
    let ends = urgent_unread();
    recv(ends.left, &mut [0; 64], 0);
    recv(ends.left, &mut [0; 1], libc::MSG_OOB);
    ends
}

/// Bytes wait at the right.
fn sent() -> Ends {
    let ends = idle();
    give(ends.left, ends.right, b"abcdefghij");
    ends
}

fn sent_and_unread() -> Ends {
    let ends = sent();
    give(ends.right, ends.left, b"0123456789");
    ends
}

fn right_shut_write() -> Ends {
    shut(right, libc::SHUT_WR, idle())
}

fn right_shut_write_unread() -> Ends {
    shut(right, libc::SHUT_WR, unread())
}

fn right_shut_read() -> Ends {
    shut(right, libc::SHUT_RD, sent())
}

fn right_shut_both() -> Ends {
    shut(right, libc::SHUT_RDWR, idle())
}

fn right_shut_both_unread() -> Ends {
    shut(right, libc::SHUT_RDWR, unread())
}

fn both_shut_write() -> Ends {
    shut(left, libc::SHUT_WR, right_shut_write())
}

fn both_shut_write_unread() -> Ends {
    shut(left, libc::SHUT_WR, right_shut_write_unread())
}
