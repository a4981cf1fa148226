//! What nobody does with a socket, until somebody does.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("odd/listener_replaced_in_accept", listener_replaced_in_accept),
    solo("odd/listener_closed_in_accept", listener_closed_in_accept),
    solo("odd/listener_closed_and_fork", listener_closed_and_fork),
    solo("odd/replaced_in_recv", replaced_in_recv),
    solo("odd/replaced_in_poll", replaced_in_poll),
    solo("odd/listener_disconnected", listener_disconnected),
    solo("odd/listen_in_syn_sent", listen_in_syn_sent),
    solo("odd/exclusive_and_dup", exclusive_and_dup),
    solo("odd/huge_lengths", huge_lengths),
    solo("odd/file_operations", file_operations),
    solo("odd/one_inode", one_inode),
    solo("odd/same_file", same_file),
    solo("odd/information", information),
    solo("odd/positions", positions),
    solo("odd/error_queue", error_queue),
    solo("odd/poll_lists", poll_lists),
    solo("odd/made_by_number", made_by_number),
    solo("odd/source_port_range", source_port_range),
    solo("odd/self_connected_pair", self_connected_pair),
    solo("odd/close_range_of_all", close_range_of_all),
];

/// The call that waits has the listener for itself; then it is closed.
fn listener_replaced_in_accept() {
    let (listening, addr) = listener();
    let acceptor = thread::spawn(move || accept(listening));
    sleep(30);
    let other = tcp();
    say!("replaced: {}", dup2(other, listening).fd() == listening);
    let client = dial(&addr);
    let result = acceptor.join().unwrap_or(Ret { value: -2, errno: 0 });
    let server = show_fd("accept", result);
    show_send("client", client, b"to whom?", 0);
    await_readable(server);
    show_recv("server", server, 16, 0);
    show("the number is another socket now: listen", listen(listening, 1));
    show("connect", connect(tcp(), &addr));
}

fn listener_closed_in_accept() {
    let (listening, addr) = listener();
    let acceptor = thread::spawn(move || accept(listening));
    sleep(30);
    show("close", close(listening));
    show("connect", connect(tcp(), &addr));
    show_fd("accept", acceptor.join().unwrap_or(Ret { value: -2, errno: 0 }));
    show("connect, later", connect(tcp(), &addr));
}

/// A child of that time does not hold the listener.
fn listener_closed_and_fork() {
    let (listening, addr) = listener();
    let acceptor = thread::spawn(move || accept(listening));
    sleep(30);
    let (go, done) = pipe(0);
    let child = fork_child(|| {
        close(listening);
        read(go, &mut [0]);
        0
    });
    close(listening);
    show("connect", connect(tcp(), &addr));
    show_fd("accept", acceptor.join().unwrap_or(Ret { value: -2, errno: 0 }));
    sleep(30);
    show("connect, later", connect(tcp(), &addr));
    write(done, b"x");
    say!("child: {}", wait_child(child));
}

fn replaced_in_recv() {
    for closes in [false, true] {
        let (pair, other) = (connected(), connected());
        let number = pair.server;
        let reader = thread::spawn(move || {
            let mut buffer = [0; 16];
            let result = recv(number, &mut buffer, 0);
            format!("{result} {}", text(&buffer[..result.count()]))
        });
        sleep(30);
        match closes {
            true => show("close", close(number)),
            false => Ret { value: i64::from(dup2(other.server, number).fd() == number), errno: 0 },
        };
        send(other.client, b"other", 0);
        show_send("client", pair.client, b"first", 0);
        say!("recv {}", reader.join().unwrap_or_default());
        await_events(pair.client, libc::POLLRDHUP);
        show_recv("the last use is over", pair.client, 8, 0);
    }
}

fn replaced_in_poll() {
    let (pair, other) = (connected(), connected());
    let number = pair.server;
    let poller = thread::spawn(move || poll_one(number, libc::POLLIN, 3000));
    sleep(30);
    dup2(other.server, number);
    send(pair.client, b"x", 0);
    let (result, revents) = poller.join().unwrap_or((Ret { value: -2, errno: 0 }, 0));
    say!("poll = {result} {}", poll_mask(revents));
}

/// connect to AF_UNSPEC ends a listener; its port is kept when it was asked for.
fn listener_disconnected() {
    for asked in [false, true] {
        let listening = tcp();
        let port = if asked { free_port() } else { 0 };
        show("bind", bind(listening, &Addr::local(port)));
        show("listen", listen(listening, 4));
        let addr = getsockname(listening).1;
        let waiting = dial(&addr);
        show("connect to nothing", connect(listening, &Addr::unspec()));
        await_events(waiting, libc::POLLERR);
        show_recv("what waited", waiting, 8, 0);
        show_tcp_state("listener", listening, "CLOSE");
        show("accept", accept(listening));
        show_poll("listener", listening);
        show("connect", connect(tcp(), &addr));
        say!("has a port {}", getsockname(listening).1.port() != 0);
        show("listen again", listen(listening, 4));
        say!("the same port {}", getsockname(listening).1.port() == addr.port());
        let client = dial(&getsockname(listening).1);
        show_fd("accept", accept(listening));
        close_all(&[client, listening, waiting]);
    }
}

fn listen_in_syn_sent() {
    let (_listening, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show("listen", listen(client, 4));
    show("bind", bind(client, &Addr::local(0)));
    show("accept", accept(client));
    show("shutdown WR", shutdown(client, libc::SHUT_WR));
    show("listen", listen(client, 4));
}

/// EPOLLEXCLUSIVE on a socket and on its copy, in two sets.
fn exclusive_and_dup() {
    const EXCLUSIVE: i32 = 1 << 28;
    let pair = connected();
    let copy = dup(pair.server).fd();
    let (one, two) = (epoll(), epoll());
    epoll_add(one, pair.server, libc::EPOLLIN | EXCLUSIVE, 1);
    epoll_add(one, copy, libc::EPOLLIN | EXCLUSIVE, 2);
    epoll_add(two, copy, libc::EPOLLIN, 3);
    show("MOD", epoll_ctl(one, libc::EPOLL_CTL_MOD, copy, libc::EPOLLIN, 4));
    show("MOD to it", epoll_ctl(two, libc::EPOLL_CTL_MOD, copy, libc::EPOLLIN | EXCLUSIVE, 4));
    show(
        "with EPOLLONESHOT",
        epoll_ctl(two, libc::EPOLL_CTL_ADD, pair.server, EXCLUSIVE | libc::EPOLLONESHOT, 5),
    );
    show(
        "with EPOLLRDHUP",
        epoll_ctl(two, libc::EPOLL_CTL_ADD, pair.server, EXCLUSIVE | libc::EPOLLRDHUP, 5),
    );
    show("of a set", epoll_ctl(two, libc::EPOLL_CTL_ADD, one, EXCLUSIVE | libc::EPOLLIN, 5));
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("two", two);
    show_epoll("one", one);
    close(pair.server);
    show_epoll("one, the original closed", one);
    close(copy);
    show_epoll("one, both closed", one);
    show_epoll("two, both closed", two);
}

fn huge_lengths() {
    let pair = connected();
    send(pair.client, b"few", 0);
    await_readable(pair.server);
    // Low in the address space, unlike the stack: what is said to follow it exists.
    let mut buffer = vec![0u8; 64];
    let place = buffer.as_mut_ptr().cast();
    for (label, len) in [("int", 0x7fff_f000), ("more", 1 << 40)] {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        say!("recv {label} = {}", call!(libc::recv(pair.server, place, len, flags)));
        let (from, from_len) = (std::ptr::null_mut(), std::ptr::null_mut());
        say!("recvfrom {label} = {}", call!(libc::recvfrom(pair.server, place, len, flags, from, from_len)));
    }
    set_nonblocking(pair.server, true);
    for (label, len) in [("half", 1usize << 63), ("all", usize::MAX)] {
        say!("read {label} = {}", call!(libc::read(pair.server, place, len)));
        say!("write {label} = {}", call!(libc::write(pair.client, place, len)));
        say!("sendfile {label} = {}", sendfile(pair.client, temporary_file(b"f"), len));
    }
    let parts = [
        libc::iovec { iov_base: place, iov_len: 32 },
        libc::iovec { iov_base: place, iov_len: usize::MAX / 2 },
    ];
    say!("readv = {}", call!(libc::readv(pair.server, parts.as_ptr(), 2)));
    say!("left {}", fionread(pair.server));
}

fn file_operations() {
    for fd in [tcp(), listener().0, connected().client] {
        show("fchmod", call!(libc::fchmod(fd, 0o600)));
        show("fchown", call!(libc::fchown(fd, 1, 1)));
        // SAFETY: all-zero bytes are a valid stat and statfs.
        let (mut stat, mut fs): (libc::stat, libc::statfs) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        show("fstat", call!(libc::fstat(fd, &raw mut stat)));
        say!("mode {:o} links {} size {} owner {}", stat.st_mode, stat.st_nlink, stat.st_size, stat.st_uid);
        show("fstatfs", call!(libc::fstatfs(fd, &raw mut fs)));
        say!("sockfs {}", fs.f_type == 0x534f_434b);
        show("futimens", call!(libc::futimens(fd, std::ptr::null())));
        let mut name = [0u8; 32];
        let got = call!(libc::fgetxattr(fd, c"system.sockprotoname".as_ptr(), name.as_mut_ptr().cast(), 32));
        show_bytes("fgetxattr", got, &name);
        show("fsetxattr", call!(libc::fsetxattr(fd, c"user.a".as_ptr(), b"b".as_ptr().cast(), 1, 0)));
        show("flistxattr", call!(libc::flistxattr(fd, name.as_mut_ptr().cast(), 32)));
        show("F_SETLEASE", fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK));
        show("F_NOTIFY", fcntl(fd, libc::F_NOTIFY, 1));
        show("F_GETPIPE_SZ", fcntl(fd, libc::F_GETPIPE_SZ, 0));
        show("FIGETBSZ", ioctl_int(fd, 2, 0).0);
        show("FIOQSIZE", ioctl_raw(fd, 0x5460, name.as_mut_ptr().cast()));
        show("TIOCGWINSZ", ioctl_raw(fd, libc::TIOCGWINSZ, name.as_mut_ptr().cast()));
        show("getdents", call!(libc::syscall(libc::SYS_getdents64, fd, name.as_mut_ptr(), 32)));
        show("openat", call!(libc::openat(fd, c"x".as_ptr(), libc::O_RDONLY)));
        show("faccessat", call!(libc::faccessat(fd, c"x".as_ptr(), 0, 0)));
        show("linkat", call!(libc::linkat(fd, c"".as_ptr(), fd, c"x".as_ptr(), libc::AT_EMPTY_PATH)));
    }
}

pub(super) fn inode(fd: i32) -> u64 {
    // SAFETY: all-zero bytes are a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    call!(libc::fstat(fd, &raw mut stat));
    stat.st_ino
}

/// A socket keeps its inode for life.
fn one_inode() {
    let (listening, addr) = listener();
    let client = tcp();
    let first = inode(client);
    set_int(client, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    show("connect", connect(client, &addr));
    say!("after connect {}", inode(client) == first);
    set_int(client, libc::IPPROTO_IP, libc::IP_TOS, 8);
    say!("after an option {}", inode(client) == first);
    say!("of the copy {}", inode(dup(client).fd()) == first);
    let server = accept(listening).fd();
    say!("both ends differ {}", inode(server) != inode(client));
}

/// kcmp(2) and F_DUPFD_QUERY tell copies from others.
fn same_file() {
    const FILE: i32 = 0;
    const DUPFD_QUERY: i32 = 1027;
    let (pair, other) = (connected(), tcp());
    let copy = dup(pair.client).fd();
    let fds = [
        ("itself", pair.client),
        ("its copy", copy),
        ("its peer", pair.server),
        ("another", other),
        ("a file", 1),
    ];
    for (label, fd) in fds {
        let order = call!(libc::syscall(libc::SYS_kcmp, getpid(), getpid(), FILE, pair.client, fd));
        say!(
            "{label}: kcmp same {}, F_DUPFD_QUERY {}",
            order.value == 0,
            fcntl(pair.client, DUPFD_QUERY, fd)
        );
    }
    show("of -1", fcntl(pair.client, DUPFD_QUERY, -1));
    show("from -1", fcntl(-1, DUPFD_QUERY, pair.client));
    show("F_CREATED_QUERY", fcntl(pair.client, 1028, 0));
}

fn fdinfo(fd: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("flags") || line.starts_with("pos"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// /proc/self/fdinfo and the links beside it.
fn information() {
    let pair = connected();
    for fd in [tcp(), listener().0, pair.client, tcp_nonblocking()] {
        say!("{} {}", fdinfo(fd), proc_link(fd));
        let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL");
        show("open", open_path(&path, libc::O_RDWR));
        say!("open for its path {}", open_path(&path, libc::O_PATH | libc::O_NOFOLLOW).ok());
    }
    set_nonblocking(pair.client, true);
    say!("{}", fdinfo(pair.client));
}

fn positions() {
    let pair = connected();
    let mut offset = 0i64;
    let file = temporary_file(b"0123456789");
    show("sendfile from a socket, offset", sendfile_at(file, pair.server, &mut offset, 4));
    show("sendfile socket to socket", sendfile_at(pair.client, pair.server, &mut offset, 4));
    show("sendfile to a listener", sendfile(listener().0, file, 4));
    let null = std::ptr::null_mut();
    show("splice of a file", call!(libc::splice(file, &raw mut offset, pair.client, null, 4, 0)));
    show("copy_file_range", call!(libc::copy_file_range(file, &raw mut offset, pair.client, null, 4, 0)));
    let mut byte = [0u8; 8];
    let part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 8 };
    for flags in [
        libc::RWF_HIPRI,
        libc::RWF_DSYNC,
        libc::RWF_SYNC,
        libc::RWF_NOWAIT,
        libc::RWF_APPEND,
        0x20,
        0x40,
        0x80,
    ] {
        let written = call!(libc::pwritev2(pair.client, &raw const part, 1, -1, flags));
        let read = call!(libc::preadv2(pair.server, &raw const part, 1, -1, flags | libc::RWF_NOWAIT));
        say!("flags {flags:#x}: pwritev2 {written}, preadv2 {read}");
    }
    show("at -2", call!(libc::preadv2(pair.server, &raw const part, 1, -2, 0)));
    say!("{offset}");
}

fn error_queue() {
    let pair = connected();
    for on in [0, 1] {
        set_int(pair.client, libc::IPPROTO_IP, libc::IP_RECVERR, on);
        show_recv("error queue", pair.client, 8, libc::MSG_ERRQUEUE);
        show_recvmsg("error queue", pair.client, &[8], libc::MSG_ERRQUEUE);
        send(pair.server, b"data", 0);
        await_readable(pair.client);
        show_recvmsg("error queue with data", pair.client, &[8], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
        show_recv("data", pair.client, 8, 0);
    }
    show_recv("of a listener", listener().0, 8, libc::MSG_ERRQUEUE);
    show_recv("of a fresh socket", tcp(), 8, libc::MSG_ERRQUEUE);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("at the end", pair.client, 8, libc::MSG_ERRQUEUE);
}

fn poll_lists() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let mut fds = [
        pollfd(pair.server, libc::POLLIN),
        pollfd(-1, libc::POLLIN),
        pollfd(pair.server, libc::POLLOUT),
        pollfd(-pair.server, libc::POLLIN),
        pollfd(9999, libc::POLLIN),
        pollfd(pair.server, 0),
        pollfd(i32::MAX, libc::POLLIN),
    ];
    show("poll", poll(&mut fds, 0));
    say!("{}", fds.map(|fd| poll_mask(fd.revents)).join(" "));
    let old = limit_descriptors(64);
    let mut many = vec![pollfd(-1, 0); 65];
    show("more than RLIMIT_NOFILE", poll(&mut many, 0));
    show("as many", poll(&mut many[..64], 0));
    limit_descriptors(old);
}

/// By number: each takes the lowest that is free.
fn made_by_number() {
    let (gap, next) = (tcp(), connected());
    close(gap);
    let path = c"/dev/null".as_ptr();
    let mask = 0u64;
    let makers = [
        ("open", call!(libc::syscall(old_calls::SYS_open, path, libc::O_RDONLY))),
        ("signalfd4", call!(libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, 0))),
        ("fanotify_init", call!(libc::syscall(libc::SYS_fanotify_init, 0, 0))),
        ("pidfd_open", call!(libc::syscall(libc::SYS_pidfd_open, getpid(), 0))),
        ("userfaultfd", call!(libc::syscall(libc::SYS_userfaultfd, 1))),
        ("memfd_secret", call!(libc::syscall(libc::SYS_memfd_secret, 0))),
        ("perf_event_open", call!(libc::syscall(libc::SYS_perf_event_open, 0, 0, 0, 0, 0))),
    ];
    let mut last = gap - 1;
    for (name, made) in makers {
        let ascending = !made.ok() || made.fd() == gap && last < gap || made.fd() > last;
        say!("{name}: {}", if made.ok() { format!("in order {ascending}") } else { made.to_string() });
        last = last.max(made.fd());
    }
    show_send("client", next.client, b"x", 0);
    show_recv("server", next.server, 8, 0);
}

fn source_port_range() {
    const LOCAL_PORT_RANGE: i32 = 51;
    let (_listening, addr) = listener();
    for (low, high) in [(41_000u32, 41_003), (45_000, 0), (41_003, 41_000)] {
        let fd = tcp();
        show("range", set_int(fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE, (high << 16 | low) as i32));
        show("connect", connect(fd, &addr));
        let port = u32::from(getsockname(fd).1.port());
        say!("within {}", port >= low && (high == 0 || port <= high));
        show_option("range", fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE);
        close(fd);
    }
    // A range of one port, which is in use then.
    let fds = [tcp(), tcp()];
    for fd in fds {
        set_int(fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE, 42_001 << 16 | 42_001);
        show("connect", connect(fd, &addr));
    }
    close_all(&fds);
}

/// A socket that is connected to itself, and its copy.
fn self_connected_pair() {
    let fd = tcp();
    bind(fd, &Addr::local(0));
    let addr = getsockname(fd).1;
    show("connect", connect(fd, &addr));
    let copy = dup(fd).fd();
    show_send("to itself", fd, b"echo", 0);
    await_readable(copy);
    show_recv("from itself", copy, 8, 0);
    show("shutdown", shutdown(copy, libc::SHUT_WR));
    await_events(fd, libc::POLLRDHUP);
    show_recv("the end", fd, 8, 0);
    show_tcp_state("itself", fd, "CLOSE");
}

/// Everything but the output goes at once, in the middle of traffic.
fn close_range_of_all() {
    let pair = connected();
    let child = fork_child(|| {
        let own = connected();
        send(own.client, b"x", 0);
        show("close_range", close_range(2, i32::MAX, 0));
        show_send("afterwards", own.client, b"x", 0);
        let again = connected();
        send(again.client, b"fresh", 0);
        await_readable(again.server);
        show_recv("fresh", again.server, 8, 0);
        0
    });
    say!("child: {}", wait_child(child));
    show_send("parent", pair.client, b"x", 0);
    show_recv("parent", pair.server, 8, 0);
}
