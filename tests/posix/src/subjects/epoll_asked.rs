//! Event loops that ask an instance of epoll for something else with each message, while the library moves the connection: what is told is what was
//! asked for last, by the instance that was asked.

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("epoll_asked/with_each_message", with_each_message, client),
    pair("epoll_asked/seldom", seldom, client),
    pair("epoll_asked/in_turn", in_turn, client),
    pair("epoll_asked/by_two", by_two, client),
    pair("epoll_asked/by_a_duplicate", by_a_duplicate, client),
    pair("epoll_asked/by_one_that_ends", by_one_that_ends, client),
    pair("epoll_asked/of_another_connection", of_another_connection, client),
    pair("epoll_asked/by_a_child", by_a_child, client),
];

const IN: i32 = libc::EPOLLIN;
const ROUNDS: u64 = 200;
/// What the server answers.
const AGAIN: &[u8] = b"a";
const NEXT: &[u8] = b"n";
const OVER: &[u8] = b"o";

/// Sends a byte and waits for the answer, on one connection after the other.
fn client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let mut answer = *b"n";
    while answer != OVER {
        let fd = dial(&addr);
        loop {
            send(fd, b"x", 0);
            if recv(fd, &mut answer, 0).count() != 1 || answer != AGAIN {
                break;
            }
        }
        close(fd);
    }
}

/// What waits for the client's connections.
fn served(role: &mut Role) -> i32 {
    let (listening, addr) = listener_with(8);
    role.tell_port(&addr);
    listening
}

/// Not the first connection that an instance is asked about.
fn accept_later(listening: i32) -> i32 {
    let (fd, ep) = (accept(listening).fd(), epoll());
    epoll_add(ep, fd, IN, 1);
    for _ in 0..40 {
        epoll_mod(ep, fd, IN, 2);
        turn(fd, [ep], [vec![2]]);
    }
    end(fd, NEXT);
    close(ep);
    accept(listening).fd()
}

/// A message comes, and is answered. Whether the instances told of it in another way than this.
fn turn<const N: usize>(fd: i32, instances: [i32; N], wanted: [Vec<u64>; N]) -> bool {
    await_readable(fd);
    let is_wrong = |(ep, wanted): (i32, Vec<u64>)| {
        // Whoever writes has written a moment before he tells.
        let limit = if wanted.is_empty() { 0 } else { 2000 };
        let mut told: Vec<u64> = epoll_wait(ep, 4, limit).1.into_iter().map(|(data, _)| data).collect();
        told.sort_unstable();
        told != wanted
    };
    let wrong = instances.into_iter().zip(wanted).filter(|one| is_wrong(one.clone())).count();
    recv(fd, &mut [0; 4], 0);
    send(fd, AGAIN, 0);
    wrong > 0
}

/// The last message is answered so.
fn end(fd: i32, answer: &[u8]) {
    await_readable(fd);
    recv(fd, &mut [0; 4], 0);
    send(fd, answer, 0);
    close(fd);
}

fn with_each_message(role: &mut Role) {
    let fd = accept_later(served(role));
    let ep = epoll();
    epoll_add(ep, fd, IN, u64::MAX);
    let wrong = (0..ROUNDS).filter(|round| {
        epoll_mod(ep, fd, IN, 7 * round);
        turn(fd, [ep], [vec![7 * round]])
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    let wrong = (0..ROUNDS).filter(|round| {
        let is_asked = round % 3 != 0;
        epoll_mod(ep, fd, if is_asked { IN } else { 0 }, *round);
        turn(fd, [ep], [if is_asked { vec![*round] } else { vec![] }])
    });
    say!("wrong, not always asked: {:?}", wrong.collect::<Vec<_>>());
    end(fd, OVER);
}

/// The connection may be moved, and come back, between one and the next.
fn seldom(role: &mut Role) {
    let fd = accept_later(served(role));
    let ep = epoll();
    epoll_add(ep, fd, IN, 0);
    let wrong = (0..8 * ROUNDS).filter(|round| {
        if round % 7 == 0 {
            epoll_mod(ep, fd, IN, *round);
        }
        turn(fd, [ep], [vec![round / 7 * 7]])
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    end(fd, OVER);
}

/// One instance after the other has it.
fn in_turn(role: &mut Role) {
    let fd = accept_later(served(role));
    let [one, two] = [epoll(), epoll()];
    epoll_add(one, fd, IN, 1000);
    let wrong = (0..ROUNDS).filter(|round| {
        let (from, to) = if round % 2 == 0 { (one, two) } else { (two, one) };
        epoll_del(from, fd);
        epoll_add(to, fd, IN, *round);
        turn(fd, [from, to], [vec![], vec![*round]])
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    end(fd, OVER);
    show_epoll("the one", one);
    show_epoll("the other", two);
}

fn by_two(role: &mut Role) {
    let fd = accept_later(served(role));
    let [one, two] = [epoll(), epoll()];
    epoll_add(one, fd, IN, 1);
    epoll_add(two, fd, IN, 2);
    let wrong = (0..ROUNDS).filter(|round| {
        let changed = if round % 2 == 0 { one } else { two };
        epoll_mod(changed, fd, IN, 10 + round);
        let before = 10 + round.saturating_sub(1);
        let wanted = match round {
            0 => [vec![10], vec![2]],
            _ if changed == one => [vec![10 + round], vec![before]],
            _ => [vec![before], vec![10 + round]],
        };
        turn(fd, [one, two], wanted)
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    end(fd, OVER);
}

/// Two numbers lead to it, and each is asked for by itself.
fn by_a_duplicate(role: &mut Role) {
    let fd = accept_later(served(role));
    let ep = epoll();
    let other = dup(fd).fd();
    epoll_add(ep, fd, IN, 1);
    epoll_add(ep, other, IN, 2);
    let wrong = (0..ROUNDS).filter(|round| {
        epoll_mod(ep, other, IN, 10 + round);
        turn(fd, [ep], [vec![1, 10 + round]])
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    epoll_del(ep, fd);
    let wrong = (0..ROUNDS).filter(|round| {
        epoll_mod(ep, other, IN, *round);
        turn(fd, [ep], [vec![*round]])
    });
    say!("wrong, by one number: {:?}", wrong.collect::<Vec<_>>());
    close(other);
    end(fd, OVER);
}

/// An instance is closed, and another one may have its place.
fn by_one_that_ends(role: &mut Role) {
    let fd = accept_later(served(role));
    let kept = epoll();
    epoll_add(kept, fd, IN, 1);
    let wrong = (0..ROUNDS).filter(|round| {
        let short = epoll();
        let is_asked = round % 2 == 0;
        if is_asked {
            epoll_add(short, fd, IN, *round);
        }
        let wanted = [vec![1], if is_asked { vec![*round] } else { vec![] }];
        let is_wrong = turn(fd, [kept, short], wanted);
        close(short);
        is_wrong
    });
    say!("wrong: {:?}", wrong.collect::<Vec<_>>());
    end(fd, OVER);
}

/// A number that was registered leads to another connection, which is not, until later.
fn of_another_connection(role: &mut Role) {
    let (listening, ep) = (served(role), epoll());
    let mut wrong = 0;
    for round in 0..8 {
        let fd = accept(listening).fd();
        epoll_add(ep, fd, IN, round);
        for _ in 0..20 {
            wrong += u32::from(turn(fd, [ep], [vec![round]]));
        }
        end(fd, NEXT);
        let fd = accept(listening).fd();
        for _ in 0..60 {
            wrong += u32::from(turn(fd, [ep], [vec![]]));
        }
        epoll_add(ep, fd, IN, 100 + round);
        for _ in 0..20 {
            wrong += u32::from(turn(fd, [ep], [vec![100 + round]]));
        }
        end(fd, if round == 7 { OVER } else { NEXT });
    }
    say!("wrong: {wrong}");
}

/// A child of a fork asks the instance, which it has too, for something else, and ends.
fn by_a_child(role: &mut Role) {
    let (fd, ep) = (accept_later(served(role)), epoll());
    epoll_add(ep, fd, IN, 1);
    let mut wrong = vec![];
    let mut turns = |count, wanted: &[u64], step| {
        let are_wrong = (0..count).filter(|_| turn(fd, [ep], [wanted.to_vec()])).count();
        if are_wrong != 0 {
            wrong.push((step, are_wrong));
        }
    };
    turns(1, &[1], ("added", 1));
    for data in 2..6 {
        by_child(|| epoll_mod(ep, fd, IN, data));
        turns(60, &[data], ("changed", data));
    }
    for data in 6..16 {
        by_child(|| epoll_del(ep, fd));
        turns(20, &[], ("removed", data));
        by_child(|| epoll_add(ep, fd, IN, data));
        turns(20, &[data], ("added", data));
    }
    say!("wrong: {wrong:?}");
    end(fd, OVER);
}

fn by_child(call: impl FnOnce()) {
    let child = fork_child(|| {
        call();
        0
    });
    say!("child: {}", wait_child(child));
}
