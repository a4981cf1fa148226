//! Copies of a connection that relatives have, of whom one gives rights up: what one reads, leaves unread and closes.

use super::privileges::{drop_rights, echo, receive_all, talk};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::sync::atomic::{AtomicU8, Ordering};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("privileges/parent_drops", parent_drops),
    solo("privileges/read_by_another", read_by_another),
    solo("privileges/read_by_another_to_the_end", read_by_another_to_the_end),
    solo("privileges/forgotten_copy", forgotten_copy),
    solo("privileges/unread_stays", unread_stays),
    solo("privileges/one_after_the_other", one_after_the_other),
    solo("privileges/one_after_the_other_early", one_after_the_other_early),
    solo("privileges/both_read", both_read),
];

/// The child keeps what the parent had, which goes on as another user.
fn parent_drops() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        echo(pair.server)
    });
    drop_rights();
    talk(pair.client);
    close(pair.server);
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
}

/// What the child has read is not unread when the parent closes the last copy, which it has never looked at.
fn read_by_another() {
    the_child_reads(|_| ());
}

/// Nor after the client's end.
fn read_by_another_to_the_end() {
    the_child_reads(|client| {
        shutdown(client, libc::SHUT_WR);
        pause(20);
    });
}

fn the_child_reads(afterwards: fn(i32)) {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        pause(100);
        let all = receive_all(pair.server, 5);
        write(pair.server, &all);
        0
    });
    drop_rights();
    write(pair.client, b"hello");
    say!("answer {:?}", String::from_utf8_lossy(&receive_all(pair.client, 5)));
    say!("child: {}", wait_child(child));
    afterwards(pair.client);
    close(pair.server);
    show_recv("client", pair.client, 32, 0);
}

/// A copy that the child never looks at takes nothing away.
fn forgotten_copy() {
    let pair = connected();
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        drop_rights();
        write(there, b"x");
        read(there, &mut [0]);
        0
    });
    read(here, &mut [0]);
    for round in 0..5 {
        write(pair.client, format!("round {round}").as_bytes());
        pause(20);
        show_recv("server", pair.server, 32, 0);
    }
    write(here, b"x");
    say!("child: {}", wait_child(child));
    write(pair.client, b"and after");
    show_recv("server", pair.server, 32, 0);
}

/// What the child leaves unread is there for the parent.
fn unread_stays() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        drop_rights();
        let first = receive_all(pair.server, 5);
        write(pair.server, &first);
        // The rest comes, and is not read.
        await_bytes(pair.server, 4);
        0
    });
    write(pair.client, b"first");
    say!("answer {:?}", String::from_utf8_lossy(&receive_all(pair.client, 5)));
    write(pair.client, b"rest");
    say!("child: {}", wait_child(child));
    pause(50);
    show_recv("parent", pair.server, 32, 0);
}

/// Records of one connection are read by a process and by its child that gave rights up, whoever comes first: none is lost.
fn both_read() {
    const RECORDS: usize = 1000;
    let pair = connected();
    set_nonblocking(pair.server, true);
    let seen = Shared::new(RECORDS);
    let child = fork_child(|| {
        close(pair.client);
        drop_rights();
        seen.read_all(pair.server, |_| ())
    });
    let other = fork_child(|| {
        close(pair.client);
        // It leaves the others time, and then some of what there is.
        seen.read_all(pair.server, |records| {
            if records % 5 == 0 {
                pause(20);
            }
        })
    });
    for record in 0..RECORDS {
        write(pair.client, &(record as u64).to_le_bytes());
        if record % 2 == 1 {
            pause(1);
        }
    }
    pause(20);
    seen.ends();
    let ends = [child, other].map(wait_child);
    say!("{ends:?}, lost: {}", seen.missing());
}

/// Memory that children share: a byte for each record, and one that says that there are no more.
struct Shared(&'static [AtomicU8]);

impl Shared {
    fn new(records: usize) -> Shared {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory, which stays until the process ends; zeros are valid.
        Shared(unsafe {
            let at = libc::mmap(std::ptr::null_mut(), records + 1, prot, flags, -1, 0);
            assert!(at != libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast(), records + 1)
        })
    }

    fn ends(&self) {
        self.0.last().iter().for_each(|end| end.store(1, Ordering::SeqCst));
    }

    fn missing(&self) -> usize {
        self.0.iter().filter(|seen| seen.load(Ordering::SeqCst) == 0).count()
    }

    /// Reads records until there are no more, and does something after each.
    fn read_all(&self, fd: i32, after: impl Fn(usize)) -> i32 {
        let has_ended = || self.0.last().is_some_and(|end| end.load(Ordering::SeqCst) != 0);
        let (mut record, mut records) = ([0; 8], 0);
        loop {
            let is_last = has_ended();
            while read(fd, &mut record).value == 8 {
                let number = u64::from_le_bytes(record) as usize;
                match self.0.get(number) {
                    Some(seen) => seen.store(1, Ordering::SeqCst),
                    None => return 1,
                }
                records += 1;
                after(records);
            }
            if is_last {
                return 0;
            }
            std::thread::yield_now();
        }
    }
}

/// As OpenSSH: one child before authentication and one after it, of a process that keeps its copy. The first does what is given, the second echoes.
fn keeper_of_two(pair: &Connected, first: impl FnOnce()) -> i32 {
    let keeper = fork_child(|| {
        close(pair.client);
        let first = fork_child(|| {
            drop_rights();
            first();
            0
        });
        assert_eq!(wait_child(first), "exit 0");
        let second = fork_child(|| {
            drop_rights();
            echo(pair.server)
        });
        assert_eq!(wait_child(second), "exit 0");
        0
    });
    close(pair.server);
    keeper
}

fn end_keeper(client: i32, keeper: i32) {
    shutdown(client, libc::SHUT_WR);
    show_recv("client", client, 32, 0);
    say!("keeper: {}", wait_child(keeper));
}

/// The client goes on at once.
fn one_after_the_other() {
    for round in 0..8 {
        let pair = connected();
        let keeper = keeper_of_two(&pair, || {
            write(pair.server, &receive_all(pair.server, 5));
            pause(round % 3);
        });
        write(pair.client, b"first");
        receive_all(pair.client, 5);
        let long = vec![b'x'; 100_000];
        write(pair.client, b"second");
        let after = receive_all(pair.client, 6);
        say!("answer {:?}", String::from_utf8_lossy(&after));
        write(pair.client, &long);
        let back = receive_all(pair.client, long.len());
        say!("same {}", back == long);
        if let Some(at) = back.iter().position(|byte| *byte != b'x') {
            say!("at {at}: {:?}", String::from_utf8_lossy(&back[at..back.len().min(at + 20)]));
        }
        end_keeper(pair.client, keeper);
    }
}

/// The first ends with the second's message unread, as OpenSSH's child does.
fn one_after_the_other_early() {
    for _ in 0..8 {
        let pair = connected();
        let keeper = keeper_of_two(&pair, || drop(receive_all(pair.server, 5)));
        write(pair.client, b"first");
        write(pair.client, b"second");
        say!("answer {:?}", String::from_utf8_lossy(&receive_all(pair.client, 6)));
        end_keeper(pair.client, keeper);
    }
}
