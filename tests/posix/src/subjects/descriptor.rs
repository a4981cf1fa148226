//! Sockets as descriptors: dup, fcntl, ioctl, close, numbers.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("descriptor/dup", dup_of_a_socket),
    solo("descriptor/dup2_over_socket", dup2_over_socket),
    solo("descriptor/dup2_over_file", dup2_over_file),
    solo("descriptor/dup2_same", dup2_same),
    solo("descriptor/dup2_to_standard", dup2_to_standard),
    solo("descriptor/fcntl_spares_standard", fcntl_spares_standard),
    solo("descriptor/dup3", dup3_flags),
    solo("descriptor/dup_errors", dup_errors),
    solo("descriptor/fcntl_dupfd", fcntl_dupfd),
    solo("descriptor/fcntl_flags", fcntl_flags),
    solo("descriptor/fcntl_errors", fcntl_errors),
    solo("descriptor/cloexec", cloexec),
    solo("descriptor/lowest_after_close", lowest_after_close),
    solo("descriptor/lowest_among_kinds", lowest_among_kinds),
    solo("descriptor/close_range", range),
    solo("descriptor/close_range_cloexec", range_cloexec),
    solo("descriptor/ioctl_errors", ioctl_errors),
    solo("descriptor/fstat", fstat_type),
    solo("descriptor/async_io", async_io),
    solo("descriptor/high_numbers", high_numbers),
    solo("descriptor/proc_self_fd", proc_self_fd),
];

fn dup_of_a_socket() {
    let pair = connected();
    let twin = show_fd("dup", dup(pair.client));
    show_send("original", pair.client, b"one ", 0);
    show_send("dup", twin, b"two ", 0);
    show("close the original", close(pair.client));
    show_send("dup", twin, b"three", 0);
    await_bytes(pair.server, 13);
    show_recv("server", pair.server, 64, 0);
    show_send("server", pair.server, b"back", 0);
    await_readable(twin);
    show_recv("dup", twin, 64, 0);
    show_peername("dup", twin);
    close(twin);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}

fn dup2_over_socket() {
    let (a, b) = (connected(), connected());
    let result = dup2(a.client, b.client);
    say!("dup2 returns the number: {}", result.fd() == b.client);
    await_readable(b.server);
    show_recv("peer of the replaced one", b.server, 8, 0);
    show_send("replaced number", b.client, b"through a", 0);
    await_readable(a.server);
    show_recv("a's server", a.server, 32, 0);
    close(a.client);
    show_send("after the original closed", b.client, b"still a", 0);
    await_readable(a.server);
    show_recv("a's server", a.server, 32, 0);
}

fn dup2_over_file() {
    let pair = connected();
    let file = temporary_file(b"content");
    say!("dup2 returns the number: {}", dup2(pair.client, file).fd() == file);
    say!("now {}", file_type(file));
    show("write", write(file, b"not to the file"));
    await_readable(pair.server);
    show_read("server", pair.server, 32);
    let other = temporary_file(b"other");
    say!("dup2 of a file over a socket: {}", dup2(other, pair.client).fd() == pair.client);
    say!("now {}", file_type(pair.client));
    show_read("the socket's number", pair.client, 32);
    show_send("the file's number is the socket", file, b"alive", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}

fn dup2_same() {
    let pair = connected();
    fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC);
    say!("returns the number: {}", dup2(pair.client, pair.client).fd() == pair.client);
    say!("{}", descriptor_flags(pair.client));
    show_send("client", pair.client, b"x", 0);
    show("dup3 of the same", dup3(pair.client, pair.client, 0));
    close(pair.client);
    show("dup2 of a closed one", dup2(pair.client, pair.client));
}

/// What inetd and CGI programs do.
fn dup2_to_standard() {
    let pair = connected();
    let (saved_in, saved_out) = (dup(0).fd(), dup(1).fd());
    dup2(pair.server, 0);
    dup2(pair.server, 1);
    close(pair.server);
    send(pair.client, b"question", 0);
    let mut buffer = [0; 32];
    let got = read(0, &mut buffer);
    let wrote = write(1, b"answer");
    dup2(saved_in, 0);
    dup2(saved_out, 1);
    show_bytes("read of standard input", got, &buffer);
    show("write to standard output", wrote);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
}

/// The results 0 and 1 of fcntl are no descriptors: sockets on 0 and 1 outlive them (dropbear).
fn fcntl_spares_standard() {
    let pair = connected();
    let (saved_in, saved_out) = (dup(0).fd(), dup(1).fd());
    dup2(pair.server, 0);
    dup2(pair.server, 1);
    fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC as _);
    fcntl(pair.server, libc::F_GETFD, 0);
    close(pair.server);
    send(pair.client, b"question", 0);
    let mut buffer = [0; 32];
    let got = read(0, &mut buffer);
    let wrote = write(1, b"answer");
    dup2(saved_in, 0);
    dup2(saved_out, 1);
    show_bytes("read of standard input", got, &buffer);
    show("write to standard output", wrote);
    show_recv("client", pair.client, 32, 0);
}

fn dup3_flags() {
    let pair = connected();
    let target = tcp();
    say!("dup3: {}", dup3(pair.client, target, libc::O_CLOEXEC).fd() == target);
    say!("original {}, copy {}", descriptor_flags(pair.client), descriptor_flags(target));
    say!("dup3: {}", dup3(pair.client, target, 0).fd() == target);
    say!("copy {}", descriptor_flags(target));
    show("unknown flag", dup3(pair.client, target, 1));
    show("O_NONBLOCK", dup3(pair.client, target, libc::O_NONBLOCK));
    show_send("copy", target, b"x", 0);
}

fn dup_errors() {
    let fd = tcp();
    show("dup of -1", dup(-1));
    show("dup of 999", dup(999));
    show("dup2 from 999", dup2(999, fd));
    say!("the target is untouched: {}", file_type(fd));
    show("dup2 to -1", dup2(fd, -1));
    show("dup2 beyond the limit", dup2(fd, 1 << 30));
    show("dup3 from 999", dup3(999, fd, 0));
    show("dup3 to -1", dup3(fd, -1, 0));
    close(fd);
    show("dup of a closed one", dup(fd));
}

fn fcntl_dupfd() {
    let pair = connected();
    let copy = fcntl(pair.client, libc::F_DUPFD, 50).fd();
    say!("F_DUPFD 50: {copy} {}", descriptor_flags(copy));
    let copy = fcntl(pair.client, libc::F_DUPFD_CLOEXEC, 50).fd();
    say!("F_DUPFD_CLOEXEC 50: {copy} {}", descriptor_flags(copy));
    show_send("copy", copy, b"x", 0);
    let lowest = lowest_free();
    let copy = fcntl(pair.client, libc::F_DUPFD, 0).fd();
    say!("F_DUPFD 0 takes the lowest: {}", copy == lowest);
    show("F_DUPFD -1", fcntl(pair.client, libc::F_DUPFD, -1));
    show("F_DUPFD beyond the limit", fcntl(pair.client, libc::F_DUPFD, 1 << 30));
    show("F_DUPFD of 999", fcntl(999, libc::F_DUPFD, 0));
}

fn fcntl_flags() {
    let pair = connected();
    say!("{}", status_flags(pair.client));
    show("set O_NONBLOCK|O_APPEND", fcntl(pair.client, libc::F_SETFL, libc::O_NONBLOCK | libc::O_APPEND));
    say!("{}", status_flags(pair.client));
    show("set nothing", fcntl(pair.client, libc::F_SETFL, 0));
    say!("{}", status_flags(pair.client));
    show("set O_WRONLY", fcntl(pair.client, libc::F_SETFL, libc::O_WRONLY));
    say!("{}", status_flags(pair.client));
    show("set O_DIRECT", fcntl(pair.client, libc::F_SETFL, libc::O_DIRECT));
    say!("peer: {}", status_flags(pair.server));
    let (listening, _) = listener();
    say!("listener: {}", status_flags(listening));
}

fn fcntl_errors() {
    let fd = connected().client;
    show("F_GETFL of -1", fcntl(-1, libc::F_GETFL, 0));
    show("F_GETFD of 999", fcntl(999, libc::F_GETFD, 0));
    show("unknown command", fcntl(fd, 9999, 0));
    show("F_GETPIPE_SZ", fcntl(fd, libc::F_GETPIPE_SZ, 0));
    show("F_SETPIPE_SZ", fcntl(fd, libc::F_SETPIPE_SZ, 4096));
    show("F_GET_SEALS", fcntl(fd, libc::F_GET_SEALS, 0));
    show("F_SETFD 3", fcntl(fd, libc::F_SETFD, 3));
    say!("{}", descriptor_flags(fd));
    show("F_GETOWN", fcntl(fd, libc::F_GETOWN, 0));
}

fn cloexec() {
    let pair = connected();
    say!("{}", descriptor_flags(pair.client));
    show("set", fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC));
    say!("{}", descriptor_flags(pair.client));
    let twin = dup(pair.client).fd();
    say!("dup {}", descriptor_flags(twin));
    show("FIONCLEX", ioctl_int(pair.client, libc::FIONCLEX, 0).0);
    say!("{}", descriptor_flags(pair.client));
    show("FIOCLEX", ioctl_int(pair.client, libc::FIOCLEX, 0).0);
    say!("{}", descriptor_flags(pair.client));
}

fn lowest_after_close() {
    let fds: Vec<i32> = (0..6).map(|_| tcp()).collect();
    let (listening, addr) = listener();
    let client = dial(&addr);
    for index in [4, 1, 3] {
        close(fds[index]);
    }
    say!("accept: {}", accept(listening).fd() == fds[1]);
    say!("socket: {}", tcp() == fds[3]);
    say!("dup: {}", dup(client).fd() == fds[4]);
    close(client);
    say!("socket: {}", tcp() == client);
}

fn lowest_among_kinds() {
    // The numbers that are free, in order: the starter of this program may have left descriptors open.
    let free: Vec<i32> = (0..12).map(|_| dup(1).fd()).collect();
    close_all(&free);
    let mut expected = free.iter();
    let mut check = |label: &str, fd: i32| say!("{label}: {}", Some(&fd) == expected.next());
    check("socket", tcp());
    check("file", temporary_file(b""));
    check("epoll", epoll());
    check("eventfd", eventfd(0, 0));
    check("timerfd", timerfd(1000));
    check("open", open_path(c"/dev/null", libc::O_RDONLY).fd());
    let (read_end, write_end) = pipe(0);
    check("pipe", read_end);
    check("pipe", write_end);
    let (_, [one, two]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    check("socketpair", one);
    check("socketpair", two);
    check("udp", socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd());
    check("socket", tcp());
    close(free[2]);
    say!("open takes a gap: {}", open_path(c"/dev/null", libc::O_RDONLY).fd() == free[2]);
    close(free[0]);
    say!("epoll takes a socket's gap: {}", epoll() == free[0]);
}

fn range() {
    let (a, b) = (connected(), connected());
    let (first, last) = (a.client.min(a.server), b.client.max(b.server));
    show("close_range", close_range(first, last, 0));
    for fd in [a.client, a.server, b.client, b.server] {
        say!("{}", descriptor_flags(fd));
    }
    let again = connected();
    say!("numbers are free again: {}", (first..=last).contains(&again.client));
    show("last before first", close_range(10, 5, 0));
    show("unknown flags", close_range(900, 901, 1 << 10));
    show("an empty range", close_range(900, 950, 0));
    let one = connected();
    close_range(one.client, one.client, 0);
    await_readable(one.server);
    show_recv("the peer sees the end", one.server, 8, 0);
}

fn range_cloexec() {
    let pair = connected();
    let flag = libc::CLOSE_RANGE_CLOEXEC as i32;
    show("close_range CLOEXEC", close_range(pair.client, pair.client, flag));
    say!("client {}, server {}", descriptor_flags(pair.client), descriptor_flags(pair.server));
    show_send("client", pair.client, b"x", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}

fn ioctl_errors() {
    let pair = connected();
    show("unknown request", ioctl_int(pair.client, 0xdead, 0).0);
    show("TCGETS", ioctl_raw(pair.client, libc::TCGETS, [0u8; 256].as_mut_ptr().cast()));
    show("TIOCGWINSZ", ioctl_raw(pair.client, libc::TIOCGWINSZ, [0u8; 256].as_mut_ptr().cast()));
    show("FIONREAD to null", ioctl_raw(pair.client, libc::FIONREAD, std::ptr::null_mut()));
    show("FIONBIO from null", ioctl_raw(pair.client, libc::FIONBIO, std::ptr::null_mut()));
    show("FIONREAD of -1", ioctl_int(-1, libc::FIONREAD, 0).0);
    show("FIONREAD of 999", ioctl_int(999, libc::FIONREAD, 0).0);
    show("FIOASYNC 0", ioctl_int(pair.client, libc::FIOASYNC, 0).0);
    show("isatty", isatty(pair.client));
}

fn fstat_type() {
    let pair = connected();
    say!("fresh {}", file_type(tcp()));
    say!("listener {}", file_type(listener().0));
    say!("client {}, server {}", file_type(pair.client), file_type(pair.server));
    say!("dup {}", file_type(dup(pair.client).fd()));
    close(pair.client);
    say!("closed {}", file_type(pair.client));
}

fn async_io() {
    count_signal(libc::SIGIO, libc::SA_RESTART);
    let pair = connected();
    show("F_SETOWN", fcntl(pair.server, libc::F_SETOWN, getpid()));
    show("O_ASYNC", fcntl(pair.server, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK));
    say!("{}", status_flags(pair.server));
    taken(libc::SIGIO);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    say!("SIGIO came: {}", comes(libc::SIGIO));
}

fn high_numbers() {
    let pair = connected();
    let old = limit_descriptors(4096);
    let high = dup2(pair.client, 2000);
    say!("dup2 to 2000: {high}");
    show_send("2000", 2000, b"high", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
    show_poll("2000", 2000);
    let ep = epoll();
    epoll_add(ep, 2000, libc::EPOLLIN, 1);
    close(pair.client);
    send(pair.server, b"down", 0);
    await_readable(2000);
    show_epoll("2000", ep);
    show("close", close(2000));
    limit_descriptors(old);
}

fn proc_self_fd() {
    let pair = connected();
    say!("client: {}", proc_link(pair.client));
    say!("listener: {}", proc_link(listener().0));
    close(pair.client);
    say!("closed: {:?}", proc_link(pair.client));
}
