//! Two processes: resets, crashes, and what the survivor sees.

use super::pair_basic::{call_server, serve_one};
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("failure/unread_data_resets", unread_server, reset_client),
    pair("failure/linger_zero", linger_server, reset_client),
    pair("failure/exit_without_close", exiting_server, end_client),
    pair("failure/server_killed", killed_server, end_client),
    pair("failure/server_killed_sent_to", killed_server, sending_client),
    pair("failure/server_killed_unread", killed_unread_server, reset_client),
    pair("failure/server_killed_data_queued", killed_talking_server, queue_client),
    pair("failure/client_killed", end_server, killed_client),
    pair("failure/client_killed_unread", reset_server, killed_unread_client),
    pair("failure/killed_while_recv_blocks", killed_later_server, blocked_client),
    pair("failure/killed_while_poll_blocks", killed_later_server, polling_client),
    pair("failure/killed_while_epoll_blocks", killed_later_server, epolling_client),
    pair("failure/killed_while_send_blocks", killed_later_server, filling_client),
    pair("failure/killed_in_mid_transfer", killed_reader_server, transfer_client),
    pair("failure/killed_sender_in_mid_transfer", killed_sender_server, prefix_client),
    pair("failure/listener_killed", killed_listener, pending_client),
    pair("failure/killed_with_many", killed_with_many_server, many_client),
    pair("failure/write_until_error", quitting_server, stubborn_client),
    pair("failure/sigpipe", quitting_server, sigpipe_client),
    pair("failure/sigterm_default", terminated_server, end_client),
    pair("failure/aborted", aborted_server, end_client),
    pair("failure/restart_after_kill", prekilled_server, reconnecting_client),
    pair("failure/stopped_and_continued", stopped_server, continuing_client),
];

fn die() -> ! {
    kill(getpid(), libc::SIGKILL);
    exit_now(99)
}

/// Waits until the client's bytes lie unread in the server.
fn leave_unread(role: &mut Role) -> i32 {
    let server = serve_one(role);
    role.expect("sent");
    await_bytes(server, 10);
    send(server, b"answer", 0);
    server
}

fn unread_server(role: &mut Role) {
    let server = leave_unread(role);
    show("close", close(server));
    role.tell("gone");
    role.expect("end");
}

fn linger_server(role: &mut Role) {
    let server = serve_one(role);
    role.expect("sent");
    send(server, b"answer", 0);
    set_linger(server, 1, 0);
    show("close", close(server));
    role.tell("gone");
    role.expect("end");
}

fn killed_unread_server(role: &mut Role) {
    leave_unread(role);
    die()
}

/// Sends, and sees the answer and then the reset.
fn reset_client(role: &mut Role) {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let client = call_server(role);
    show_send("client", client, b"never read", 0);
    role.tell("sent");
    await_events(client, libc::POLLHUP);
    show_poll("client", client);
    show_peername("client", client);
    show_recv("client", client, 64, 0);
    show_recv("client", client, 64, 0);
    show_recv("client", client, 64, 0);
    show_send("client", client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_poll("client", client);
    role.tell("end");
}

fn exiting_server(role: &mut Role) {
    let server = serve_one(role);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"answer", 0);
}

fn killed_server(role: &mut Role) {
    let server = serve_one(role);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"answer", 0);
    die()
}

fn terminated_server(role: &mut Role) {
    let server = serve_one(role);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"answer", 0);
    kill(getpid(), libc::SIGTERM);
}

fn aborted_server(role: &mut Role) {
    let server = serve_one(role);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"answer", 0);
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Sends, gets the answer, and sees the end of the stream.
fn end_client(role: &mut Role) {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let client = call_server(role);
    show_send("client", client, b"question", 0);
    await_events(client, libc::POLLRDHUP);
    show_poll("client", client);
    show_recv("client", client, 64, 0);
    show_recv("client", client, 64, 0);
    show_send("first", client, b"x", 0);
    show_taken(libc::SIGPIPE);
    await_events(client, libc::POLLHUP);
    show_send("second", client, b"x", 0);
    show_taken(libc::SIGPIPE);
}

/// Sends once more before it reads: the reset that answers it is behind the end of what comes.
fn sending_client(role: &mut Role) {
    let client = call_server(role);
    show_send("client", client, b"question", 0);
    await_events(client, libc::POLLRDHUP);
    show_send("first", client, b"x", libc::MSG_NOSIGNAL);
    await_events(client, libc::POLLHUP);
    show_recv("answer", client, 64, 0);
    show_recv("end", client, 64, 0);
    show_recv("end", client, 64, 0);
    show_send("second", client, b"x", libc::MSG_NOSIGNAL);
    show_send("third", client, b"x", libc::MSG_NOSIGNAL);
}

fn killed_talking_server(role: &mut Role) {
    let server = serve_one(role);
    let sent = crate::bulk::fill(server, 0);
    role.tell(&sent.to_string());
    role.expect("count known");
    die()
}

/// All that the dead server sent is still delivered.
fn queue_client(role: &mut Role) {
    let client = call_server(role);
    let sent: u64 = role.hear().parse().unwrap_or(0);
    role.tell("count known");
    say!("the pipe ends: {}", role.hear());
    let tally = crate::bulk::receive_pattern(client, u64::MAX, &[65_536]);
    say!("all: {}, intact {}, then recv = {}", tally.bytes == sent && sent > 0, tally.intact, tally.end);
}

fn end_server(role: &mut Role) {
    let server = serve_one(role);
    await_events(server, libc::POLLRDHUP);
    show_poll("server", server);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"x", libc::MSG_NOSIGNAL);
}

fn killed_client(role: &mut Role) {
    let client = call_server(role);
    show_send("client", client, b"last", 0);
    die()
}

fn reset_server(role: &mut Role) {
    let server = serve_one(role);
    show_send("server", server, b"never read", 0);
    role.tell("sent");
    await_events(server, libc::POLLHUP);
    show_poll("server", server);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
}

fn killed_unread_client(role: &mut Role) {
    let client = call_server(role);
    show_send("client", client, b"last", 0);
    role.expect("sent");
    await_bytes(client, 10);
    die()
}

fn killed_later_server(role: &mut Role) {
    serve_one(role);
    role.expect("about to block");
    sleep(20);
    die()
}

fn blocked_client(role: &mut Role) {
    let client = call_server(role);
    role.tell("about to block");
    show_recv("client", client, 8, 0);
    show_recv("client", client, 8, 0);
}

fn polling_client(role: &mut Role) {
    let client = call_server(role);
    role.tell("about to block");
    show_poll_for("client", client, libc::POLLIN | libc::POLLRDHUP, 5000);
    show_recv("client", client, 8, 0);
}

fn epolling_client(role: &mut Role) {
    let client = call_server(role);
    let ep = epoll();
    epoll_add(ep, client, libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET, 1);
    role.tell("about to block");
    show_epoll_within("client", ep, 5000);
    show_recv("client", client, 8, 0);
}

fn filling_client(role: &mut Role) {
    let client = call_server(role);
    crate::bulk::fill(client, 0);
    role.tell("about to block");
    show_send("client", client, b"no room", libc::MSG_NOSIGNAL);
    show_send("client", client, b"no peer", libc::MSG_NOSIGNAL);
}

fn killed_reader_server(role: &mut Role) {
    let server = serve_one(role);
    crate::bulk::receive_pattern(server, 3_000_000, &[10_000]);
    die()
}

fn transfer_client(role: &mut Role) {
    let client = call_server(role);
    let mut sent = 0u64;
    let error = loop {
        let result = send(client, &crate::bulk::pattern(sent, 50_000), libc::MSG_NOSIGNAL);
        if !result.ok() {
            break result.errno;
        }
        sent += result.count() as u64;
    };
    say!("more than was read: {}", sent >= 3_000_000);
    say!("ECONNRESET or EPIPE: {}", [libc::ECONNRESET, libc::EPIPE].contains(&error));
    show_send("afterwards", client, b"x", libc::MSG_NOSIGNAL);
}

fn killed_sender_server(role: &mut Role) {
    let server = serve_one(role);
    crate::bulk::send_pattern(server, 3_000_000, &[30_000]);
    die()
}

/// What `send` returned for before the sender died is delivered, and then comes the end.
fn prefix_client(role: &mut Role) {
    let client = call_server(role);
    crate::bulk::receive_pattern(client, u64::MAX, &[20_000]).show("client");
}

fn killed_listener(role: &mut Role) {
    let (_, addr) = listener();
    role.tell_port(&addr);
    role.expect("connected");
    die()
}

fn pending_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = dial(&addr);
    show_send("client", client, b"pending", 0);
    role.tell("connected");
    await_events(client, libc::POLLHUP);
    show_poll("client", client);
    show_recv("client", client, 8, 0);
    show("connect", connect(tcp(), &addr));
}

fn killed_with_many_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    for _ in 0..40 {
        send(accept(listening).fd(), b"hi", 0);
    }
    role.expect("all connected");
    die()
}

fn many_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let ep = epoll();
    let clients: Vec<i32> = (0..40).map(|_| dial(&addr)).collect();
    for client in &clients {
        recv(*client, &mut [0; 2], libc::MSG_WAITALL);
        epoll_add(ep, *client, libc::EPOLLIN | libc::EPOLLRDHUP, *client as u64);
    }
    show_epoll("nobody died yet", ep);
    role.tell("all connected");
    for client in &clients {
        await_events(*client, libc::POLLRDHUP);
    }
    let (result, events) = epoll_wait(ep, 64, 1000);
    let same = events.iter().all(|(_, mask)| *mask == (libc::EPOLLIN | libc::EPOLLRDHUP) as u32);
    say!("epoll_wait = {result}, all IN|RDHUP: {same}");
    let ends = clients.iter().filter(|client| recv(**client, &mut [0; 8], 0).value == 0).count();
    say!("ends {ends}");
}

fn quitting_server(role: &mut Role) {
    let server = serve_one(role);
    show("close", close(server));
    role.tell("closed");
    role.expect("end");
}

fn stubborn_client(role: &mut Role) {
    let client = call_server(role);
    role.expect("closed");
    await_events(client, libc::POLLRDHUP);
    show("write", write(client, b"x"));
    await_events(client, libc::POLLHUP);
    for _ in 0..3 {
        show("write", write(client, b"x"));
    }
    show_recv("client", client, 8, 0);
    show_so_error("client", client);
    role.tell("end");
}

/// With the default action the second write ends the process.
fn sigpipe_client(role: &mut Role) {
    signal(libc::SIGPIPE, libc::SIG_DFL);
    let client = call_server(role);
    role.expect("closed");
    await_events(client, libc::POLLRDHUP);
    show("write", write(client, b"x"));
    await_events(client, libc::POLLHUP);
    role.tell("end");
    show("not reached", write(client, b"x"));
}

/// A first server process dies by SIGKILL, a second one takes its port.
fn prekilled_server(role: &mut Role) {
    let addr = Addr::local(free_port());
    let (ready_in, ready_out) = pipe(0);
    let serve = || {
        let listening = tcp();
        set_int(listening, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        bind(listening, &addr);
        listen(listening, 4);
        write(ready_out, b"r");
        let server = accept(listening).fd();
        send(server, b"hello", 0);
        recv(server, &mut [0; 8], 0);
        0
    };
    let first = fork_child(serve);
    read(ready_in, &mut [0; 1]);
    role.tell_port(&addr);
    role.expect("connected");
    kill(first, libc::SIGKILL);
    say!("first: {}", wait_child(first));
    let second = fork_child(serve);
    read(ready_in, &mut [0; 1]);
    role.tell("second");
    say!("second: {}", wait_child(second));
}

fn reconnecting_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = dial(&addr);
    show_recv("client", client, 8, 0);
    role.tell("connected");
    show_recv("client", client, 8, 0);
    role.expect("second");
    let client = dial(&addr);
    show_recv("client", client, 8, 0);
    show_send("client", client, b"bye", 0);
}

/// A stopped server takes no harm: bytes wait for it.
fn stopped_server(role: &mut Role) {
    let server = serve_one(role);
    let helper = fork_child(|| {
        kill(parent(), libc::SIGSTOP);
        role.tell("stopped");
        role.expect("go on");
        kill(parent(), libc::SIGCONT);
        0
    });
    say!("helper: {}", wait_child(helper));
    await_bytes(server, 5);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"awake", 0);
}

fn parent() -> i32 {
    call!(libc::getppid()).fd()
}

fn continuing_client(role: &mut Role) {
    let client = call_server(role);
    role.expect("stopped");
    show_send("client", client, b"sleep", 0);
    show_poll_for("no answer", client, libc::POLLIN, 20);
    role.tell("go on");
    show_recv("client", client, 8, 0);
}
