//! RLIMIT_NOFILE: which numbers a program may have, and who else learns of its limit.

use super::exec::exec_helper;
use super::idle_busy::memory_of;
use super::others::pass;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("limits/told", told),
    solo("limits/refused", refused),
    solo("limits/every_number", every_number),
    solo("limits/every_call", every_call),
    solo("limits/duplicates", duplicates),
    solo("limits/poll", polled),
    solo("limits/accept_later", accept_later),
    solo("limits/accept_unix", accept_unix),
    solo("limits/connect", connects),
    solo("limits/message", message_at_the_limit),
    solo("limits/programs", programs),
    solo("limits/child", child_of_a_limited),
    solo("limits/data", data),
    solo("limits/data_of_a_child", data_of_a_child),
    solo("limits/data_of_a_program", data_of_a_program),
    solo("limits/files", files),
    solo("limits/files_of_a_child", files_of_a_child),
    solo("limits/files_of_a_program", files_of_a_program),
    solo("limits/numbers_of_a_program", numbers_of_a_program),
    solo("limits/data_beside_the_starter", data_beside_the_starter),
    solo("limits/files_beside_the_starter", files_beside_the_starter),
    solo("limits/numbers_beside_the_starter", numbers_beside_the_starter),
    solo("limits/locked", locked),
    solo("limits/locked_by_number", locked_by_number),
];

/// All memory is locked, before and after there are connections.
fn locked() {
    for flags in [0, 64, libc::MCL_ONFAULT] {
        show("mlockall, nothing that there is", call!(libc::mlockall(flags)));
    }
    lock_with(|flags| call!(libc::mlockall(flags)));
}

fn locked_by_number() {
    lock_with(|flags| call!(libc::syscall(libc::SYS_mlockall, flags)));
}

fn lock_with(lock: impl Fn(i32) -> Ret) {
    if !is_root() {
        return say!("holes count against RLIMIT_MEMLOCK: POSIX-DIFFERENCES.md");
    }
    let first = connected();
    for flags in [libc::MCL_FUTURE, libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE] {
        show("mlockall", lock(flags));
        talk(first.client, first.server);
        let next = connected();
        talk(next.client, next.server);
    }
    say!("less than a gigabyte: {}", memory_of("Rss") < 1 << 30);
    show("munlockall", call!(libc::munlockall()));
    talk(first.client, first.server);
}

pub(super) fn limit(soft: u64, hard: u64) -> Ret {
    call!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: soft, rlim_max: hard }))
}

fn show_limit(label: &str) {
    let mut now = [libc::rlimit { rlim_cur: 0, rlim_max: 0 }; 2];
    call!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now[0]));
    call!(libc::prlimit(0, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut now[1]));
    for limit in now {
        say!("{label}: {} of at most {}", limit.rlim_cur, limit.rlim_max);
    }
    say!("{label}: _SC_OPEN_MAX {}", call!(libc::sysconf(libc::_SC_OPEN_MAX)));
    say!("{label}: getdtablesize {}", call!(libc::getdtablesize()));
    say!(
        "{label}: by number {}",
        call!(libc::syscall(libc::SYS_getrlimit, libc::RLIMIT_NOFILE, &raw mut now[0]))
    );
    say!("{label}: {} of at most {}", now[0].rlim_cur, now[0].rlim_max);
}

fn told() {
    let pair = connected();
    show("100 of 200", limit(100, 200));
    show_limit("100 of 200");
    show("200 of 200", limit(200, 200));
    show_limit("200 of 200");
    show("50 of 200", limit(50, 200));
    let (new, mut old) =
        (libc::rlimit { rlim_cur: 60, rlim_max: 150 }, libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    show("prlimit", call!(libc::prlimit(0, libc::RLIMIT_NOFILE, &raw const new, &raw mut old)));
    say!("before: {} of at most {}", old.rlim_cur, old.rlim_max);
    show_limit("60 of 150");
    show("_SC_PAGESIZE", call!(libc::sysconf(libc::_SC_PAGESIZE)));
    show("_SC_ unknown", call!(libc::sysconf(9999)));
    talk(pair.client, pair.server);
}

pub(super) fn talk(client: i32, server: i32) {
    show_send("client", client, b"ping", 0);
    show_recv("server", server, 16, 0);
}

fn refused() {
    show("100 of 200", limit(100, 200));
    show("above its hard limit", limit(201, 200));
    show("more than there can be", limit(100, u64::MAX));
    show("a bad address", call!(libc::setrlimit(libc::RLIMIT_NOFILE, std::ptr::null())));
    show_limit("as before");
    // Only with a privilege may a hard limit rise: without, whatever the kernel would have allowed us.
    show("no privilege", call!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534)));
    show("hard limit up", limit(100, 201));
    show("far up", limit(100, 5000));
    show("soft limit up", limit(200, 200));
    show("hard limit down", limit(100, 150));
    show("and up again", limit(100, 200));
    show_limit("in the end");
}

/// Takes all numbers that are left.
pub(super) fn use_up() -> Vec<i32> {
    let mut taken = Vec::new();
    loop {
        let result = call!(libc::eventfd(0, 0));
        if !result.ok() {
            say!("used up: {}", errno_name(result.errno));
            return taken;
        }
        taken.push(result.fd());
    }
}

fn every_number() {
    let pair = connected();
    let first = lowest_free();
    limit(first as u64 + 30, 2000);
    let mut sockets = Vec::new();
    let result = loop {
        let result = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        if !result.ok() {
            break result;
        }
        sockets.push(result.fd());
    };
    say!("the last: {result}, ascending: {}", sockets.is_sorted());
    let last = sockets.pop().unwrap_or(-1);
    say!("up to the limit: {}", last == first + 29);
    talk(pair.client, pair.server);
    close(last);
    say!("the last again: {}", tcp() == last);
    limit(first as u64 + 32, 2000);
    say!("two more: {}", use_up().len());
    limit(first as u64 + 10, 2000);
    show("below what is open", call!(libc::eventfd(0, 0)));
    let (below, above) = (sockets[0], sockets[20]);
    close(below);
    say!("a free number: {}", tcp() == below);
    show_send("above", above, b"x", libc::MSG_NOSIGNAL);
    show("close", close(above));
    show("which makes no number free", call!(libc::eventfd(0, 0)));
}

fn every_call() {
    let pair = connected();
    let (listening, addr) = listener();
    let set = signal_set(&[libc::SIGUSR1]);
    limit(lowest_free() as u64 + 5, 1000);
    let taken = use_up();
    show("socket", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
    show("socket, UDP", socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    show("socketpair", socketpair(libc::AF_UNIX, libc::SOCK_STREAM).0);
    show("accept", accept(listening));
    show("accept4", accept4(listening, libc::SOCK_NONBLOCK));
    show("accept of a connection", accept(pair.server));
    show("accept of nothing", accept(-1));
    show("dup", dup(pair.client));
    show("dup of nothing", dup(-1));
    show("epoll_create1", epoll_create1(0));
    show("eventfd", call!(libc::eventfd(0, 0)));
    show("timerfd_create", call!(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)));
    show("signalfd", call!(libc::signalfd(-1, &raw const set, 0)));
    show("open", call!(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY)));
    show("open of nothing", call!(libc::open(c"/nothing/here".as_ptr(), libc::O_RDONLY)));
    show("memfd_create", call!(libc::memfd_create(c"none".as_ptr(), 0)));
    show("inotify_init1", call!(libc::inotify_init1(0)));
    show("by number", call!(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), 0)));
    let mut ends = [-1; 2];
    show("pipe2", call!(libc::pipe2(ends.as_mut_ptr(), 0)));
    close(taken[0]);
    show("pipe with one number left", call!(libc::pipe(ends.as_mut_ptr())));
    show("socketpair with one number left", socketpair(libc::AF_UNIX, libc::SOCK_STREAM).0);
    let client = tcp();
    say!("the number is still there: {}", client == taken[0]);
    show("connect", connect(client, &addr));
    talk(pair.client, pair.server);
}

fn duplicates() {
    let pair = connected();
    let bound = lowest_free() + 5;
    limit(bound as u64, 1000);
    let command = libc::F_DUPFD;
    for (label, fd) in [("a connection", pair.client), ("a pipe", pipe(0).0)] {
        show(&format!("{label}: dup2 to the limit"), dup2(fd, bound));
        show(&format!("{label}: dup2 beyond"), dup2(fd, bound + 7));
        show(&format!("{label}: dup3 beyond"), dup3(fd, bound + 7, libc::O_CLOEXEC));
        show(&format!("{label}: dup2 to -1"), dup2(fd, -1));
        say!("{label}: dup2 below: {}", dup2(fd, bound - 1).fd() == bound - 1);
        show(&format!("{label}: F_DUPFD of the limit"), fcntl(fd, command, bound));
        show(&format!("{label}: F_DUPFD of -1"), fcntl(fd, command, -1));
        show(&format!("{label}: F_DUPFD of the last number"), fcntl(fd, command, bound - 1));
        close(bound - 1);
        say!("{label}: when it is free: {}", fcntl(fd, command, bound - 1).fd() == bound - 1);
        close(bound - 1);
    }
    show("dup2 of nothing beyond", dup2(-1, bound));
    talk(pair.client, pair.server);
}

fn polled() {
    let pair = connected();
    let first = lowest_free();
    limit(first as u64 + 10, 1000);
    let mut fds = vec![pollfd(pair.client, libc::POLLOUT); first as usize + 11];
    show("as many as the limit", poll(&mut fds[1..], 0));
    show("one more", poll(&mut fds, 0));
    fds.iter_mut().for_each(|one| one.fd = -1);
    show("one more, and none of them open", poll(&mut fds, 0));
}

/// What was refused for want of a number waits until there is one.
fn accept_later() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    show_send("client", client, b"early", 0);
    limit(lowest_free() as u64 + 5, 1000);
    let taken = use_up();
    show("accept", accept(listening));
    show_poll("listener", listening);
    close(taken[4]);
    let server = accept(listening).fd();
    say!("the number that was closed: {}", server == taken[4]);
    show_recv("server", server, 16, 0);
    show_poll("listener", listening);
}

/// The same of a listener that is the kernel's alone.
fn accept_unix() {
    let listening = show_fd("socket", socket(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    let name = libc::AF_UNIX as u16;
    show("bind", call!(libc::bind(listening, (&raw const name).cast(), 2)));
    show("listen", listen(listening, 4));
    let (_, addr) = getsockname(listening);
    let client = show_fd("socket", socket(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    show("connect", connect(client, &addr));
    limit(lowest_free() as u64 + 5, 1000);
    let taken = use_up();
    show("accept", accept(listening));
    show_send("client", client, b"early", 0);
    close(taken[0]);
    let server = accept(listening).fd();
    say!("the number that was closed: {}", server == taken[0]);
    show_recv("server", server, 16, 0);
}

/// connect takes no number, and neither do a close and what follows it.
fn connects() {
    limit(lowest_free() as u64 + 12, 1000);
    let (listening, addr) = listener();
    let (blocking, nonblocking) = (tcp(), tcp_nonblocking());
    let taken = use_up();
    show("connect", connect(blocking, &addr));
    let result = connect(nonblocking, &addr);
    say!("non-blocking: {}", result.ok() || result.errno == libc::EINPROGRESS);
    await_events(nonblocking, libc::POLLOUT);
    close(taken[0]);
    let server = accept(listening).fd();
    talk(blocking, server);
    close(blocking);
    show_recv("server", server, 16, 0);
}

/// Of the descriptors in a message as many come as there are numbers.
fn message_at_the_limit() {
    let (_, [one, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let pair = connected();
    limit(lowest_free() as u64 + 5, 1000);
    let taken = use_up();
    pass(one, pair.server);
    take_at_the_limit("none", other);
    pass(one, pair.server);
    close(taken[2]);
    let fd = take_at_the_limit("one", other);
    say!("the number that was closed: {}", fd == taken[2]);
    talk(pair.client, fd);
}

fn take_at_the_limit(label: &str, over: i32) -> i32 {
    let (mut byte, mut control) = ([0u8], [0u64; 4]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut header = message();
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 32);
    let result = recvmsg_raw(over, &mut header, 0);
    say!("{label}: {result}, {}, {} bytes of control", msg_flags(header.msg_flags), header.msg_controllen);
    if header.msg_controllen == 0 { -1 } else { control[2] as i32 }
}

/// Programs that a limited one starts in one way or the other have its limits.
fn programs() {
    let pair = connected();
    fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC);
    fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC);
    limit(300, 700);
    let say_them = c"ulimit -n; ulimit -Hn";
    show("system", call!(libc::system(say_them.as_ptr())));
    let child = fork_child(|| {
        call!(libc::execl(
            c"/bin/sh".as_ptr(),
            c"sh".as_ptr(),
            c"-c".as_ptr(),
            say_them.as_ptr(),
            std::ptr::null::<libc::c_char>()
        ));
        1
    });
    say!("exec: {}", wait_child(child));
    show("no such program", call!(libc::execl(c"/nothing".as_ptr(), std::ptr::null::<libc::c_char>())));
    show_limit("after an exec that failed");
    exec_stream(say_them);
    talk(pair.client, pair.server);
}

fn exec_stream(command: &std::ffi::CStr) {
    let mut text = [0 as libc::c_char; 32];
    // SAFETY: the strings end in NUL, the buffer has room, and the stream is used while it is open.
    unsafe {
        let stream = libc::popen(command.as_ptr(), c"r".as_ptr());
        while !libc::fgets(text.as_mut_ptr(), 32, stream).is_null() {
            say!("popen: {}", std::ffi::CStr::from_ptr(text.as_ptr()).to_string_lossy().trim_end());
        }
        say!("pclose: {}", libc::pclose(stream));
    }
}

/// A child has its parent's limits, and so has what it executes with a connection that it keeps.
fn child_of_a_limited() {
    let pair = connected();
    let first = lowest_free();
    limit(first as u64 + 6, 1000);
    show_send("client", pair.client, b"to the child", 0);
    let child = fork_child(|| {
        show_limit("child");
        let taken = use_up();
        say!("child: {}", taken.len());
        close(taken[0]);
        close(pair.client);
        exec_helper("upper", &[pair.server]);
        1
    });
    close(pair.server);
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 64, 0);
}

fn limit_data(bytes: u64) -> Ret {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    call!(libc::setrlimit(libc::RLIMIT_DATA, &raw const limit))
}

/// No file may be written from now on, as in programs that confine themselves.
fn no_files() -> Ret {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit))
}

/// What is not the program's own does not count.
fn data() {
    let pair = connected();
    show("RLIMIT_DATA", limit_data(64 << 20));
    // Of so much each is a mapping of its own.
    let blocks: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 1_000_000]).collect();
    say!("allocated {}", blocks.iter().map(Vec::len).sum::<usize>());
    talk(pair.client, pair.server);
    let next = connected();
    talk(next.client, next.server);
}

/// The starter has a client's connection waiting when it executes the program that accepts it.
fn waiting_for_a_program(limit: fn() -> Ret) {
    let (listening, addr) = listener();
    let client = dial(&addr);
    await_readable(listening);
    let child = fork_child(|| {
        show("limit", limit());
        exec_helper("accept", &[listening])
    });
    close(listening);
    say!("child: {}", wait_child(child));
    await_bytes(client, 15);
    show_recv("client", client, 32, 0);
}

/// A connection is passed to a program that is limited (softlimit, chpst).
fn passed_to_a_program(limit: fn() -> Ret) {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        limit();
        exec_helper("upper", &[pair.server])
    });
    close(pair.server);
    let answer = super::exec::ask(pair.client, "word");
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    say!("answer {answer:?}");
}

fn data_of_a_child() {
    waiting_for_a_program(|| limit_data(64 << 20));
}

fn data_of_a_program() {
    passed_to_a_program(|| limit_data(8 << 20));
}

/// The limit comes before the first socket.
fn files() {
    show("RLIMIT_FSIZE", no_files());
    let pair = connected();
    talk(pair.client, pair.server);
}

fn files_of_a_child() {
    waiting_for_a_program(no_files);
}

fn files_of_a_program() {
    passed_to_a_program(no_files);
}

/// So few numbers that none are left for anything but the program.
fn numbers_of_a_program() {
    let (listening, addr) = listener();
    let low = dup2(listening, 3).fd();
    let child = fork_child(|| {
        limit(12, 12);
        exec_helper("epoll_accept", &[low])
    });
    let client = dial(&addr);
    await_bytes(client, 15);
    show_recv("client", client, 32, 0);
    say!("child: {}", wait_child(child));
}

/// The starter looks at its listener all the time, as inetd does, but lets a program accept what it sees there.
fn beside_the_starter(limit: fn() -> Ret) {
    let (listening, addr) = listener();
    // One of the few numbers that the program may have.
    let low = dup2(listening, 3).fd();
    if low != listening {
        close(listening);
    }
    let ready = epoll();
    epoll_add(ready, low, libc::EPOLLIN, 1);
    epoll_wait(ready, 1, 0);
    let client = fork_child(|| {
        close(low);
        close(ready);
        let client = dial(&addr);
        let mut buffer = [0; 32];
        let got = recv(client, &mut buffer, 0);
        i32::from(&buffer[..got.count()] == b"hello from exec")
    });
    let (result, events) = epoll_wait(ready, 1, 5000);
    say!("starter: {result}, {events:?}");
    let child = fork_child(|| {
        close(ready);
        show("limit", limit());
        exec_helper("epoll_accept", &[low])
    });
    say!("program: {}", wait_child(child));
    say!("client has its greeting: {}", wait_child(client));
}

fn data_beside_the_starter() {
    beside_the_starter(|| limit_data(64 << 20));
}

fn files_beside_the_starter() {
    beside_the_starter(no_files);
}

fn numbers_beside_the_starter() {
    beside_the_starter(|| limit(12, 12));
}
