//! epoll and fork: the interest list belongs to the open file that parent and child share.

use std::thread;

use super::epoll_edges::show_edges_of_room;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("fork_epoll/child_adds", child_adds),
    solo("fork_epoll/child_adds_to_an_empty_one", child_adds_to_an_empty_one),
    solo("fork_epoll/child_adds_where_one_sleeps", child_adds_where_one_sleeps),
    solo("fork_epoll/children_have_their_own", children_have_their_own),
    solo("fork_epoll/parent_adds", parent_adds),
    solo("fork_epoll/parent_adds_to_an_empty_one", parent_adds_to_an_empty_one),
    solo("fork_epoll/child_deletes", child_deletes),
    solo("fork_epoll/child_closes_its_numbers", child_closes_its_numbers),
    solo("fork_epoll/closed_by_both", closed_by_both),
    solo("fork_epoll/closed_after_another_was_added", closed_after_another_was_added),
    solo("fork_epoll/room_after_child_closed", room_after_child_closed),
    solo("fork_epoll/child_closes_the_set", child_closes_the_set),
    solo("fork_epoll/child_makes_its_own", child_makes_its_own),
    solo("fork_epoll/oneshot_once", oneshot_once),
    solo("fork_epoll/oneshot_rearmed_by_the_other", oneshot_rearmed_by_the_other),
    solo("fork_epoll/edges_in_the_child", edges_in_the_child),
    solo("fork_epoll/sleeping_child_is_told", sleeping_child_is_told),
    solo("fork_epoll/sleeping_parent_is_told", sleeping_parent_is_told),
    solo("fork_epoll/sleeper_hears_of_change", sleeper_hears_of_change),
    solo("fork_epoll/daemon", daemon),
    solo("fork_epoll/grandchild", grandchild),
    solo("fork_epoll/idle_children", idle_children),
    solo("fork_epoll/kernel_and_ours", kernel_and_ours),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

fn feed(pair: &Connected) {
    let before = fionread(pair.server);
    send(pair.client, b"x", 0);
    await_bytes(pair.server, before + 1);
}

/// Runs a child to its end.
fn in_child(body: impl FnOnce()) {
    let child = fork_child(|| {
        body();
        0
    });
    say!("child: {}", wait_child(child));
}

fn child_adds() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    feed(&other);
    in_child(|| epoll_add(ep, other.server, IN, 2));
    show_epoll("added by the child", ep);
    show("ADD again", epoll_ctl(ep, libc::EPOLL_CTL_ADD, other.server, IN, 3));
    epoll_mod(ep, other.server, IN | OUT, 4);
    show_epoll("changed by the parent", ep);
    epoll_del(ep, other.server);
    show_epoll("deleted by the parent", ep);
}

fn child_adds_to_an_empty_one() {
    let pair = connected();
    let (never, emptied) = (epoll(), epoll());
    epoll_add(emptied, pair.client, IN, 1);
    epoll_del(emptied, pair.client);
    in_child(|| {
        epoll_add(never, pair.server, IN, 2);
        epoll_add(emptied, pair.server, IN, 3);
    });
    feed(&pair);
    show_epoll("never had any", never);
    show_epoll("had one", emptied);
}

/// A thread waits for an instance without sockets; the child registers the first.
fn child_adds_where_one_sleeps() {
    let pair = connected();
    let ep = epoll();
    let waiter = thread::spawn(move || {
        loop {
            let (result, told) = epoll_wait(ep, 4, 5000);
            if result.errno != libc::EINTR {
                return told;
            }
        }
    });
    sleep(50);
    in_child(|| epoll_add(ep, pair.server, IN, 1));
    feed(&pair);
    say!("told: {:?}", waiter.join());
}

/// Instances that are made after the fork are nobody else's, also where the parent had one before.
fn children_have_their_own() {
    let pair = connected();
    let before = epoll();
    epoll_add(before, pair.client, IN, 1);
    close(before);
    for number in 0..3 {
        in_child(|| {
            let ep = epoll();
            show(&format!("child {number}"), epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, IN, 2));
            show_epoll("nothing yet", ep);
        });
    }
    let ep = epoll();
    feed(&pair);
    show_epoll("the parent's", ep);
}

/// The child waits for an instance without sockets; the parent registers the first.
fn parent_adds_to_an_empty_one() {
    let pair = connected();
    let ep = epoll();
    let child = fork_child(|| {
        show_epoll_within("child", ep, 3000);
        0
    });
    sleep(50);
    epoll_add(ep, pair.server, IN, 1);
    feed(&pair);
    say!("child: {}", wait_child(child));
}

fn parent_adds() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    let (go_in, go_out) = pipe(0);
    epoll_add(ep, pair.server, IN, 1);
    let child = fork_child(|| {
        read(go_in, &mut [0]);
        show_epoll("child", ep);
        show("child's ADD", epoll_ctl(ep, libc::EPOLL_CTL_ADD, other.server, IN, 3));
        epoll_mod(ep, other.server, 0, 3);
        0
    });
    epoll_add(ep, other.server, OUT, 2);
    write(go_out, b"g");
    say!("child: {}", wait_child(child));
    show_epoll("parent", ep);
}

fn child_deletes() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    epoll_add(ep, other.server, IN, 2);
    feed(&pair);
    feed(&other);
    in_child(|| epoll_del(ep, pair.server));
    show_epoll("one left", ep);
    show("DEL of it", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, pair.server));
    show("ADD of it", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, IN, 3));
    show_epoll("both", ep);
}

/// A registration lives as long as any process has the socket open.
fn child_closes_its_numbers() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    in_child(|| {
        close(pair.server);
        close(pair.client);
    });
    feed(&pair);
    show_epoll("still registered", ep);
}

fn closed_by_both() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, OUT, 1);
    epoll_add(ep, other.server, OUT, 2);
    in_child(|| {
        close(pair.server);
    });
    close(pair.server);
    show_epoll("only the other", ep);
    let again = connected();
    show("ADD of a new one", epoll_ctl(ep, libc::EPOLL_CTL_ADD, again.server, OUT, 3));
    show_epoll("two", ep);
}

/// The parent has taken it out of the set, closed it, and registered another one before the child closes its own number.
fn closed_after_another_was_added() {
    let (pair, other, third) = (connected(), connected(), connected());
    let ep = epoll();
    let (go_in, go_out) = pipe(0);
    epoll_add(ep, pair.server, OUT, 1);
    let child = fork_child(|| {
        read(go_in, &mut [0]);
        close(pair.server);
        0
    });
    epoll_del(ep, pair.server);
    close(pair.server);
    epoll_add(ep, other.server, OUT, 2);
    write(go_out, b"g");
    say!("child: {}", wait_child(child));
    show_epoll("the other", ep);
    epoll_mod(ep, other.server, OUT, 4);
    epoll_add(ep, third.server, OUT, 3);
    show_epoll("two", ep);
}

/// What a child does that is about to execute a program. The parent is still told of room.
fn room_after_child_closed() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, IN | OUT | ET, 1);
    show_epoll("when added", ep);
    in_child(|| {
        close(pair.client);
    });
    show_edges_of_room(&pair, ep);
}

fn child_closes_the_set() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    in_child(|| {
        close(ep);
        show("child", epoll_wait(ep, 1, 0).0);
    });
    feed(&pair);
    show_epoll("parent", ep);
}

/// What servers do: the child forgets the set and makes one of its own.
fn child_makes_its_own() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    in_child(|| {
        close(ep);
        let own = epoll();
        epoll_add(own, pair.server, IN, 2);
        feed(&pair);
        show_epoll("child", own);
        recv(pair.server, &mut [0; 4], 0);
        epoll_del(own, pair.server);
    });
    show_epoll("parent, taken", ep);
    feed(&pair);
    show_epoll("parent", ep);
}

fn oneshot_once() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    feed(&pair);
    in_child(|| show_epoll("child", ep));
    show_epoll("parent: it has fired", ep);
}

fn oneshot_rearmed_by_the_other() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    feed(&pair);
    show_epoll("parent", ep);
    in_child(|| {
        show_epoll("child: it has fired", ep);
        epoll_mod(ep, pair.server, IN | ONESHOT, 2);
    });
    show_epoll("parent, re-armed", ep);
    show_epoll("parent, fired", ep);
}

fn edges_in_the_child() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    feed(&pair);
    show_epoll("parent", ep);
    in_child(|| {
        show_epoll("child: told already", ep);
        feed(&pair);
        show_epoll("child: new data", ep);
        show_epoll("child: told already", ep);
        recv(pair.server, &mut [0; 4], 0);
        show_epoll("child: taken", ep);
        feed(&pair);
        show_epoll("child: and again", ep);
        shutdown(pair.client, libc::SHUT_WR);
        await_events(pair.server, libc::POLLRDHUP);
        show_epoll("child: the end", ep);
        show_epoll("child: told already", ep);
    });
}

fn sleeping_child_is_told() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let child = fork_child(|| {
        show_epoll_within("child", ep, 3000);
        recv(pair.server, &mut [0; 4], 0);
        show_epoll_within("child, again", ep, 3000);
        0
    });
    sleep(30);
    send(pair.client, b"x", 0);
    sleep(30);
    send(pair.client, b"y", 0);
    say!("child: {}", wait_child(child));
}

fn sleeping_parent_is_told() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let child = fork_child(|| {
        sleep(30);
        send(pair.client, b"x", 0);
        0
    });
    show_epoll_within("parent", ep, 3000);
    say!("child: {}", wait_child(child));
}

/// A change made by one process ends the sleep of the other.
fn sleeper_hears_of_change() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let child = fork_child(|| {
        sleep(30);
        epoll_mod(ep, pair.server, OUT, 2);
        0
    });
    show_epoll_within("parent", ep, 3000);
    say!("child: {}", wait_child(child));
    epoll_mod(ep, pair.server, IN, 3);
    let child = fork_child(|| {
        show_epoll_within("child", ep, 3000);
        0
    });
    sleep(30);
    epoll_mod(ep, pair.server, OUT, 4);
    say!("child: {}", wait_child(child));
}

/// The set and its sockets are made, then the maker forks and is gone.
fn daemon() {
    let (done_in, done_out) = pipe(0);
    let (safe_in, safe_out) = pipe(0);
    let child = fork_child(|| {
        let pair = connected();
        let ep = epoll();
        epoll_add(ep, pair.server, IN, 1);
        let maker = getpid();
        fork_child(|| {
            call!(libc::prctl(libc::PR_SET_PDEATHSIG, 0));
            // Until now it would have died with its maker.
            write(safe_out, b"s");
            while call!(libc::getppid()).value == i64::from(maker) {
                sleep(1);
            }
            let client = pair.client;
            let writer = thread::spawn(move || {
                sleep(20);
                send(client, b"x", 0);
            });
            show_epoll_within("daemon", ep, 3000);
            let _ = writer.join();
            show_recv("daemon", pair.server, 8, 0);
            show_epoll("daemon, taken", ep);
            write(done_out, b"d");
            0
        });
        read(safe_in, &mut [0]);
        0
    });
    say!("maker: {}", wait_child(child));
    read(done_in, &mut [0]);
}

fn grandchild() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    in_child(|| {
        epoll_add(ep, other.server, OUT, 2);
        in_child(|| {
            show_epoll("grandchild", ep);
            epoll_mod(ep, other.server, OUT, 3);
        });
        show_epoll("child", ep);
        epoll_mod(ep, pair.server, OUT, 4);
    });
    show_epoll("parent", ep);
}

/// Children that never touch the set do not disturb it, however they end.
fn idle_children() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let children: Vec<i32> = (0..5)
        .map(|number| {
            fork_child(|| {
                sleep(5 * number);
                number as i32
            })
        })
        .collect();
    let mut told = 0;
    for _ in 0..50 {
        feed(&pair);
        told += epoll_wait(ep, 4, 1000).1.len();
        recv(pair.server, &mut [0; 8], 0);
        told += 100 * epoll_wait(ep, 4, 0).1.len();
    }
    say!("told {told}");
    children.iter().for_each(|child| say!("child: {}", wait_child(*child)));
    feed(&pair);
    show_epoll("at the end", ep);
}

fn kernel_and_ours() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    in_child(|| {
        epoll_add(ep, read_end, IN, 2);
        write(write_end, b"x");
        feed(&pair);
        show_epoll("child", ep);
    });
    show_epoll("parent", ep);
    epoll_del(ep, read_end);
    show_epoll("parent, without the pipe", ep);
}
