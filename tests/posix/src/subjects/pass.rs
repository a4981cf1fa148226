//! Connections passed over Unix sockets (SCM_RIGHTS).

use super::others::{pass, take, take_with};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("pass/names", names),
    solo("pass/queued_data", queued_data),
    solo("pass/epoll_in_the_receiver", epoll_in_the_receiver),
    solo("pass/bulk", bulk),
    solo("pass/client_side", client_side),
    solo("pass/on_and_on", on_and_on),
    solo("pass/many", many),
    solo("pass/sender_keeps", sender_keeps),
    solo("pass/sender_dies", sender_dies),
    solo("pass/never_taken", never_taken),
    solo("pass/taken_late", taken_late),
    solo("pass/to_oneself", to_oneself),
    solo("pass/receiver_killed", receiver_killed),
    solo("pass/options", options),
    solo("pass/peek", peek),
    solo("pass/no_room", no_room),
    solo("pass/in_turn", in_turn),
    solo("pass/refused_and_passed_again", refused_and_passed_again),
    solo("pass/two_receivers", two_receivers),
    solo("pass/receiver_ends_first", receiver_ends_first),
    solo("pass/receiver_forks", receiver_forks),
    solo("pass/receiver_executes", receiver_executes),
    solo("pass/nonblocking_is_shared", nonblocking_is_shared),
    solo("pass/there_and_back", there_and_back),
    solo("pass/to_another_user", to_another_user),
];

/// A process that was there before the connection: it takes what comes, and does `body` with it.
pub(super) fn receiver(body: fn(i32)) -> (i32, i32) {
    receiver_before_take(|| {}, body)
}

/// The same, which does something else first.
fn receiver_before_take(first: fn(), body: fn(i32)) -> (i32, i32) {
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        first();
        let (_, fd) = take(there);
        body(fd);
        0
    });
    close(there);
    (child, here)
}

pub(super) fn answer_in_upper_case(fd: i32) {
    let mut buffer = [0; 64];
    let got = recv(fd, &mut buffer, 0).count();
    buffer[..got].make_ascii_uppercase();
    send(fd, &buffer[..got], 0);
}

fn end(child: i32, client: i32) {
    say!("receiver: {}", wait_child(child));
    await_events(client, libc::POLLRDHUP);
    show_recv("client", client, 64, 0);
}

fn names() {
    let (listening, addr) = listener();
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connect_to(listening, &addr);
    let before = [getsockname(pair.server).1.port(), getpeername(pair.server).1.port()];
    pass(a, pair.server);
    close(pair.server);
    let (result, fd) = take(b);
    show("take", result);
    let after = [getsockname(fd).1.port(), getpeername(fd).1.port()];
    say!("same ports: {}", before == after);
}

fn queued_data() {
    let (child, to) = receiver(|fd| crate::bulk::receive_pattern(fd, u64::MAX, &[4096]).show("receiver"));
    let pair = connected();
    let sent = crate::bulk::send_pattern(pair.client, 50_000, &[10_000]);
    say!("sent {sent}");
    shutdown(pair.client, libc::SHUT_WR);
    pass(to, pair.server);
    close(pair.server);
    end(child, pair.client);
}

fn epoll_in_the_receiver() {
    let (child, to) = receiver(|fd| {
        let ep = epoll();
        epoll_add(ep, fd, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
        for _ in 0..3 {
            epoll_wait(ep, 4, 5000);
            answer_in_upper_case(fd);
        }
    });
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    for word in ["first", "second", "third"] {
        sleep(80);
        say!("answer {}", super::exec::ask(pair.client, word));
    }
    end(child, pair.client);
}

fn bulk() {
    let (child, to) = receiver(|fd| {
        crate::bulk::send_pattern(fd, 3_000_000, &[100_000]);
    });
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    crate::bulk::receive_pattern(pair.client, u64::MAX, &[65_536]).show("client");
    end(child, pair.client);
}

fn client_side() {
    let (child, to) = receiver(answer_in_upper_case);
    let pair = connected();
    pass(to, pair.client);
    close(pair.client);
    say!("answer {}", super::exec::ask(pair.server, "to the client"));
    end(child, pair.server);
}

/// From process to process to process.
fn on_and_on() {
    let (last, to_last) = receiver(answer_in_upper_case);
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let middle = fork_child(|| {
        let (_, fd) = take(there);
        pass(to_last, fd);
        0
    });
    let pair = connected();
    pass(here, pair.server);
    close(pair.server);
    say!("middle: {}", wait_child(middle));
    say!("answer {}", super::exec::ask(pair.client, "twice"));
    end(last, pair.client);
}

fn many() {
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        for _ in 0..20 {
            let (_, fd) = take(there);
            answer_in_upper_case(fd);
            close(fd);
        }
        0
    });
    close(there);
    let (listening, addr) = listener();
    for round in 0..20 {
        let pair = connect_to(listening, &addr);
        pass(here, pair.server);
        close(pair.server);
        let answer = super::exec::ask(pair.client, &format!("round {round}"));
        await_events(pair.client, libc::POLLRDHUP);
        say!("{answer}");
        close(pair.client);
    }
    say!("receiver: {}", wait_child(child));
}

/// The sender never closes its copy; the receiver still gets what comes.
fn sender_keeps() {
    let (child, to) = receiver(answer_in_upper_case);
    let pair = connected();
    pass(to, pair.server);
    say!("answer {}", super::exec::ask(pair.client, "to the receiver"));
    say!("receiver: {}", wait_child(child));
    show_send("sender", pair.server, b"from the sender", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 64, 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
}

fn sender_dies() {
    let (child, to) = receiver(|fd| {
        sleep(200);
        answer_in_upper_case(fd);
    });
    let (listening, addr) = listener();
    let sender = fork_child(|| {
        let accepted = accept(listening).fd();
        pass(to, accepted);
        0
    });
    let client = dial(&addr);
    close(listening);
    close(to);
    say!("sender: {}", wait_child(sender));
    say!("answer {}", super::exec::ask(client, "after its death"));
    end(child, client);
}

fn never_taken() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    pass(a, pair.server);
    close(pair.server);
    show_poll("in flight", pair.client);
    close(b);
    close(a);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
}

fn taken_late() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    pass(a, pair.server);
    close(pair.server);
    send(pair.client, b"before ", 0);
    sleep(300);
    let (_, fd) = take(b);
    send(pair.client, b"and after", 0);
    await_bytes(fd, 16);
    show_recv("taken", fd, 32, 0);
    show_send("taken", fd, b"answer", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

fn to_oneself() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    pass(a, pair.server);
    let (_, fd) = take(b);
    show_send("client", pair.client, b"one", 0);
    await_readable(fd);
    show_recv("taken", fd, 32, 0);
    close(fd);
    show_send("original", pair.server, b"two", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

fn receiver_killed() {
    let (child, to) = receiver(|fd| {
        answer_in_upper_case(fd);
        sleep(8000);
    });
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "then killed"));
    kill(child, libc::SIGKILL);
    end(child, pair.client);
}

fn options() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    set_int(pair.server, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    fcntl(pair.server, libc::F_SETFL, libc::O_NONBLOCK);
    pass(a, pair.server);
    close(pair.server);
    let (_, fd) = take(b);
    show_option("taken", fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    show_recv("non-blocking", fd, 8, 0);
    say!("{}", descriptor_flags(fd));
}

/// A look at the message gives a descriptor too, and the message stays.
fn peek() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    pass(a, pair.server);
    close(pair.server);
    let (result, looked_at) = take_with(b, libc::MSG_PEEK);
    show("peek", result);
    close(looked_at);
    let (result, fd) = take(b);
    show("take", result);
    show_send("client", pair.client, b"to the taken", 0);
    await_readable(fd);
    show_recv("taken", fd, 32, 0);
    show_send("taken", fd, b"answer", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

/// The receiver has no room for descriptors: they are closed.
fn no_room() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    pass(a, pair.server);
    close(pair.server);
    show_recv("the byte", b, 8, 0);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
}

/// Sender and receiver use the connection in turn, and the end comes with the last of the two.
fn in_turn() {
    let (child, to) = receiver(|fd| (0..3).for_each(|_| answer_in_upper_case(fd)));
    let pair = connected();
    pass(to, pair.server);
    for round in 0..3 {
        say!("receiver: {}", super::exec::ask(pair.client, &format!("round {round}")));
        show_send("sender", pair.server, b"and the sender", 0);
        await_readable(pair.client);
        show_recv("client", pair.client, 64, 0);
    }
    say!("receiver: {}", wait_child(child));
    show_poll("one is left", pair.client);
    sender_goes_on(&pair);
}

/// The sender still has the connection, alone, and ends it.
fn sender_goes_on(pair: &Connected) {
    send(pair.client, b"to the sender", 0);
    await_readable(pair.server);
    show_recv("sender", pair.server, 64, 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
}

/// As Node's cluster does: a worker that is about to end closes what it gets, and the next one gets the sender's copy.
fn refused_and_passed_again() {
    let (first, to_first) = receiver(|fd| {
        close(fd);
    });
    let (second, to_second) = receiver(answer_in_upper_case);
    let pair = connected();
    pass(to_first, pair.server);
    say!("first: {}", wait_child(first));
    show_poll("open", pair.client);
    pass(to_second, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "to the second"));
    end(second, pair.client);
}

fn two_receivers() {
    let (first, to_first) = receiver(answer_in_upper_case);
    let (second, to_second) = receiver(|fd| {
        sleep(200);
        answer_in_upper_case(fd);
    });
    let pair = connected();
    pass(to_first, pair.server);
    pass(to_second, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "to one"));
    sleep(400);
    show_poll("open", pair.client);
    say!("answer {}", super::exec::ask(pair.client, "to the other"));
    say!("first: {}", wait_child(first));
    end(second, pair.client);
}

/// The receiver is killed in the middle, and the sender goes on with its copy.
fn receiver_ends_first() {
    let (child, to) = receiver(|fd| {
        answer_in_upper_case(fd);
        sleep(8000);
    });
    let pair = connected();
    pass(to, pair.server);
    say!("answer {}", super::exec::ask(pair.client, "then killed"));
    kill(child, libc::SIGKILL);
    say!("receiver: {}", wait_child(child));
    sleep(100);
    show_poll("open", pair.client);
    sender_goes_on(&pair);
}

fn receiver_forks() {
    let (child, to) = receiver(|fd| {
        let grandchild = fork_child(|| {
            answer_in_upper_case(fd);
            0
        });
        wait_child(grandchild);
        answer_in_upper_case(fd);
    });
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "from the grandchild"));
    say!("answer {}", super::exec::ask(pair.client, "from the child"));
    end(child, pair.client);
}

fn receiver_executes() {
    let (child, to) = receiver(|fd| {
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        let (path, name) = (c"/bin/cat", [c"cat".as_ptr(), core::ptr::null()]);
        // SAFETY: C strings, and a list of them with a null at its end.
        unsafe { libc::execv(path.as_ptr(), name.as_ptr()) };
    });
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "through cat"));
    shutdown(pair.client, libc::SHUT_WR);
    end(child, pair.client);
}

/// O_NONBLOCK belongs to what both have.
fn nonblocking_is_shared() {
    let (child, to) = receiver(|fd| {
        fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
        sleep(300);
    });
    let pair = connected();
    pass(to, pair.server);
    say!("receiver: {}", wait_child(child));
    show_recv("sender", pair.server, 8, 0);
    say!("{}", descriptor_flags(pair.server));
}

fn there_and_back() {
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        let (_, fd) = take(there);
        answer_in_upper_case(fd);
        pass(there, fd);
        close(fd);
        0
    });
    close(there);
    let pair = connected();
    pass(here, pair.server);
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "there"));
    let (_, fd) = take(here);
    say!("child: {}", wait_child(child));
    show_send("back", fd, b"and back", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 64, 0);
    close(fd);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
}

/// As FTP servers and sshd do: a child that has given up its privileges gets what its parent accepts. It holds the
/// connection itself: the peer's name is the client's.
fn to_another_user() {
    let before = connected();
    let (child, to) = receiver_before_take(
        || {
            let changed = call!(libc::setgid(65_534)).ok() && call!(libc::setuid(65_534)).ok();
            assert!(changed || !is_root());
        },
        |fd| {
            send(fd, &getpeername(fd).1.port().to_ne_bytes(), 0);
            answer_in_upper_case(fd);
        },
    );
    let pair = connected();
    pass(to, pair.server);
    close(pair.server);
    let mut port = [0; 2];
    await_bytes(pair.client, 2);
    recv(pair.client, &mut port, 0);
    say!("its peer is the client: {}", u16::from_ne_bytes(port) == getsockname(pair.client).1.port());
    say!("answer {}", super::exec::ask(pair.client, "from another user"));
    end(child, pair.client);
    close(before.client);
}
