//! Urgent data: `MSG_OOB`, `SIOCATMARK`, `SO_OOBINLINE`, `SIGURG`.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("urgent/byte", byte),
    solo("urgent/mark", mark),
    solo("urgent/inline", inline),
    solo("urgent/poll_and_select", poll_and_select),
    solo("urgent/errors", errors),
    solo("urgent/sigurg", sigurg),
    solo("urgent/replaced", replaced),
    solo("urgent/replaced_at_the_mark", replaced_at_the_mark),
    solo("urgent/peek", peek),
    solo("urgent/ends", ends),
    solo("urgent/handler", handler),
];

/// asm-generic/sockios.h; not in the libc crate.
const SIOCATMARK: libc::Ioctl = 0x8905;

fn show_mark(label: &str, fd: i32) {
    let (result, value) = ioctl_int(fd, SIOCATMARK, -1);
    say!("{label}: SIOCATMARK = {result} {value}");
}

fn byte() {
    let pair = connected();
    show_send("client", pair.client, b"ab", 0);
    show_send("client", pair.client, b"!", libc::MSG_OOB);
    show_send("client", pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 2);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("urgent again", pair.server, 8, libc::MSG_OOB);
    show_recv("up to the mark", pair.server, 8, 0);
    await_readable(pair.server);
    show_recv("after the mark", pair.server, 8, 0);
}

fn mark() {
    let pair = connected();
    show_mark("before", pair.server);
    send(pair.client, b"ab", 0);
    send(pair.client, b"!", libc::MSG_OOB);
    send(pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 2);
    show_mark("two before the mark", pair.server);
    show_recv("one", pair.server, 1, 0);
    show_mark("one before the mark", pair.server);
    show_recv("up to the mark", pair.server, 8, 0);
    show_mark("at the mark", pair.server);
    await_readable(pair.server);
    show_recv("over the mark", pair.server, 8, 0);
    show_mark("after", pair.server);
    show_mark("fresh socket", tcp());
    show_mark("listener", listener().0);
}

fn inline() {
    let pair = connected();
    show("set SO_OOBINLINE", set_int(pair.server, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1));
    send(pair.client, b"ab", 0);
    send(pair.client, b"!", libc::MSG_OOB);
    send(pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 5);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("up to the mark", pair.server, 8, 0);
    show_mark("at the mark", pair.server);
    show_recv("over the mark", pair.server, 8, 0);
}

fn poll_and_select() {
    let pair = connected();
    show_send("client", pair.client, b"long!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 4);
    show_poll("server", pair.server);
    show_select("server", &[("s", pair.server)], 0);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
    show_poll("urgent byte taken", pair.server);
    show_recv("the rest", pair.server, 8, 0);
    show_poll("all taken", pair.server);
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN | libc::EPOLLPRI, 1);
    show_epoll("quiet", ep);
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    show_epoll("urgent", ep);
}

fn errors() {
    let pair = connected();
    show_recv("none sent", pair.server, 1, libc::MSG_OOB);
    send(pair.client, b"plain", 0);
    await_readable(pair.server);
    show_recv("plain data only", pair.server, 1, libc::MSG_OOB);
    show_send("no bytes", pair.client, b"", libc::MSG_OOB);
    shutdown(pair.client, libc::SHUT_WR);
    show_send("after SHUT_WR", pair.client, b"!", libc::MSG_OOB | libc::MSG_NOSIGNAL);
    show_recv("fresh socket", tcp(), 1, libc::MSG_OOB);
}

fn sigurg() {
    count_signal(libc::SIGURG, libc::SA_RESTART);
    let pair = connected();
    show("F_SETOWN", fcntl(pair.server, libc::F_SETOWN, getpid()));
    say!("F_GETOWN is this process: {}", fcntl(pair.server, libc::F_GETOWN, 0).fd() == getpid());
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    say!("SIGURG came: {}", comes(libc::SIGURG));
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
}

fn replaced() {
    let pair = connected();
    send(pair.client, b"ab!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    send(pair.client, b"cd?", libc::MSG_OOB);
    await_bytes(pair.server, 5);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
    show_recv("up to the second mark", pair.server, 16, 0);
    show_mark("at the second mark", pair.server);
    send(pair.client, b"ef", 0);
    await_readable(pair.server);
    show_recv("over the mark", pair.server, 16, 0);
}

fn replaced_at_the_mark() {
    let pair = connected();
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
    send(pair.client, b"?", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    show_mark("at the second", pair.server);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
    show_recv("nothing else", pair.server, 8, libc::MSG_DONTWAIT);
    show_mark("passed", pair.server);
}

fn peek() {
    let pair = connected();
    send(pair.client, b"ab!", libc::MSG_OOB);
    send(pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 2);
    show_recv("urgent, peek", pair.server, 8, libc::MSG_OOB | libc::MSG_PEEK);
    show_recv("urgent, no room", pair.server, 0, libc::MSG_OOB | libc::MSG_PEEK);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("peek to the mark", pair.server, 8, libc::MSG_PEEK);
    show_recv("all, to the mark", pair.server, 4, libc::MSG_WAITALL);
    await_readable(pair.server);
    show_recv("peek over the mark", pair.server, 8, libc::MSG_PEEK);
    show_recv("over the mark", pair.server, 8, 0);
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    show_recv("peek at only an urgent byte", pair.server, 8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("nothing else", pair.server, 8, libc::MSG_DONTWAIT);
    show_recv("urgent again", pair.server, 8, libc::MSG_OOB);
}

fn ends() {
    let pair = connected();
    send(pair.client, b"ab!", libc::MSG_OOB);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("closed", pair.server);
    show_recv("up to the mark", pair.server, 8, 0);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("the end", pair.server, 8, 0);
    let pair = connected();
    send(pair.server, b"!", libc::MSG_OOB);
    await_events(pair.client, libc::POLLPRI);
    show("close with an urgent byte unread", close(pair.client));
    await_events(pair.server, libc::POLLHUP);
    show_recv("reset", pair.server, 8, 0);
}

static FOUND: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
static SOCKET: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

extern "C" fn take_urgent(_: i32) {
    use std::sync::atomic::Ordering::SeqCst;
    let mut byte = [0u8; 1];
    // SAFETY: one byte of room.
    if unsafe { libc::recv(SOCKET.load(SeqCst), byte.as_mut_ptr().cast(), 1, libc::MSG_OOB) } == 1 {
        FOUND.store(i32::from(byte[0]), SeqCst);
    }
}

/// As telnet(1) does it: the handler takes the byte while recv waits.
fn handler() {
    use std::sync::atomic::Ordering::SeqCst;
    let pair = connected();
    SOCKET.store(pair.server, SeqCst);
    handle(libc::SIGURG, take_urgent, libc::SA_RESTART);
    show("F_SETOWN", fcntl(pair.server, libc::F_SETOWN, getpid()));
    let thread = std::thread::spawn(move || {
        sleep(10);
        send(pair.client, b"!", libc::MSG_OOB);
        while FOUND.load(SeqCst) < 0 {
            sleep(1);
        }
        send(pair.client, b"later", 0);
    });
    show_recv("server", pair.server, 8, 0);
    let _ = thread.join();
    say!("the handler found {}", FOUND.load(SeqCst));
}
