//! Network namespaces, other root directories, and errors that need routes and ranges of ports which no honest machine has.
//!
//! Each subject leaves the machine's network for one of its own.

use super::others::{pass, take};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("network/unshare", unshared),
    solo("network/unshare_before_any_socket", unshare_first),
    solo("network/unshare_by_number", unshare_by_number),
    solo("network/unshare_something_else", unshare_something_else),
    solo("network/fresh_socket_stays", fresh_socket_stays),
    solo("network/listener_stays", listener_stays),
    solo("network/setns_and_back", setns_and_back),
    solo("network/setns_by_number", setns_by_number),
    solo("network/thread_leaves", thread_leaves),
    solo("network/child_leaves", child_leaves),
    solo("network/child_born_elsewhere", child_born_elsewhere),
    solo("network/child_of_clone", child_of_clone),
    solo("network/chroot", chroot),
    solo("network/chroot_first", chroot_first),
    solo("network/few_ports", few_ports),
    solo("network/no_route", no_route),
    solo("network/datagram_errors", datagram_errors),
];

/// Leaves the network for a new one, in which loopback is not up yet.
fn leave() {
    show("unshare", unshare(libc::CLONE_NEWNET));
}

fn loopback_up() {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    show("loopback up", call!(libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw const request)));
    close(fd);
}

/// A word each way.
fn talk(label: &str, pair: &Connected) {
    show_send(&format!("{label}: client"), pair.client, b"there", 0);
    await_readable(pair.server);
    show_recv(&format!("{label}: server"), pair.server, 16, 0);
    show_send(&format!("{label}: server"), pair.server, b"back", 0);
    await_readable(pair.client);
    show_recv(&format!("{label}: client"), pair.client, 16, 0);
}

/// What was made before stays where it was; what is made now is elsewhere.
fn after_the_move(listening: i32, addr: &Addr, old: &Connected) {
    show("connect, loopback down", connect(tcp(), addr));
    loopback_up();
    show("connect to the old listener", connect(tcp(), addr));
    talk("old connection", old);
    let same_port = tcp();
    show("bind the old listener's port", bind(same_port, addr));
    show("listen", listen(same_port, 4));
    let client = tcp();
    show("connect", connect(client, addr));
    fcntl(listening, libc::F_SETFL, libc::O_NONBLOCK);
    show("the old listener's accept", accept(listening));
    let server = show_fd("the new one's", accept(same_port));
    talk("new connection", &Connected { client, server });
}

/// Another root directory, from which no path leads to anything.
fn lose_all_paths() {
    show("no such directory", call!(libc::chroot(c"/nowhere/at/all".as_ptr())));
    show("chroot", call!(libc::chroot(c"/proc/self/task".as_ptr())));
    show("chdir", call!(libc::chdir(c"/".as_ptr())));
}

fn chroot() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    lose_all_paths();
    talk("old connection", &old);
    talk("new connection", &connect_to(listening, &addr));
}

/// No socket was made before.
fn chroot_first() {
    lose_all_paths();
    let (listening, addr) = listener();
    talk("connection", &connect_to(listening, &addr));
    show("no such directory", call!(libc::chroot(c"/nowhere/at/all".as_ptr())));
}

fn unshared() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    leave();
    after_the_move(listening, &addr, &old);
}

fn unshare_first() {
    leave();
    loopback_up();
    let pair = connected();
    talk("connection", &pair);
    show_poll("server", pair.server);
}

fn unshare_by_number() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    show("unshare", call!(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNET)));
    after_the_move(listening, &addr, &old);
}

fn unshare_something_else() {
    let (listening, addr) = listener();
    show("unshare of the host's name", unshare(libc::CLONE_NEWUTS));
    show("unshare of nothing", unshare(0));
    show("unshare of an unknown bit", unshare(1));
    show("setns of a socket", setns(listening, libc::CLONE_NEWNET));
    show("setns of no descriptor", setns(-1, 0));
    talk("connection", &connect_to(listening, &addr));
}

/// A socket belongs to the network in which it was made, also one that was not used yet.
fn fresh_socket_stays() {
    let (listening, addr) = listener();
    let (fresh, bound) = (tcp(), tcp());
    show("bind", bind(bound, &Addr::local(0)));
    let copy = dup(tcp()).fd();
    set_int(copy, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    leave();
    for (name, fd) in [("fresh", fresh), ("bound", bound), ("copy", copy)] {
        show(name, connect(fd, &addr));
        let server = show_fd("accept", accept(listening));
        talk(name, &Connected { client: fd, server });
    }
    show_option("TCP_NODELAY", copy, libc::IPPROTO_TCP, libc::TCP_NODELAY);
}

fn listener_stays() {
    let (listening, addr) = listener();
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        let mut byte = [0];
        recv(there, &mut byte, 0);
        let client = dial(&addr);
        send(client, b"to the old place", 0);
        await_readable(client);
        show_recv("child", client, 16, 0);
        0
    });
    leave();
    send(here, b"x", 0);
    let server = show_fd("accept", accept(listening));
    await_readable(server);
    say!("parent: {} bytes", recv(server, &mut [0; 32], 0).count());
    send(server, b"answer", 0);
    say!("child: {}", wait_child(child));
}

fn own_network() -> i32 {
    show_fd("own network", open_path(c"/proc/thread-self/ns/net", libc::O_RDONLY))
}

fn setns_and_back() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    let home = own_network();
    leave();
    let away = own_network();
    loopback_up();
    let elsewhere = tcp();
    show("back", setns(home, libc::CLONE_NEWNET));
    show("at home", connect(tcp(), &addr));
    show_fd("accept", accept(listening));
    show("made elsewhere", connect(elsewhere, &addr));
    talk("old connection", &old);
    show("away again", setns(away, 0));
    show("there", connect(tcp(), &addr));
}

fn setns_by_number() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    let child = fork_child(|| {
        leave();
        let (_, [here, _]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
        close(here);
        sleep(10_000);
        0
    });
    sleep(200);
    let path = std::ffi::CString::new(format!("/proc/{child}/ns/net")).unwrap_or_default();
    let there = open_path(&path, libc::O_RDONLY).fd();
    show("setns", call!(libc::syscall(libc::SYS_setns, there, libc::CLONE_NEWNET)));
    kill(child, libc::SIGKILL);
    wait_child(child);
    after_the_move(listening, &addr, &old);
}

/// A network is a thread's.
fn thread_leaves() {
    let (listening, addr) = listener();
    let thread = std::thread::spawn(move || {
        leave();
        loopback_up();
        show("the thread's connect", connect(tcp(), &addr));
        talk("the thread's own", &connected());
    });
    say!("thread: {}", thread.join().is_ok());
    talk("the others'", &connect_to(listening, &addr));
}

/// A child leaves, and passes what it has there to its parent.
fn child_leaves() {
    let (listening, addr) = listener();
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        leave();
        loopback_up();
        show("child's connect", connect(tcp(), &addr));
        let pair = connected();
        pass(there, pair.client);
        await_readable(pair.server);
        show_recv("child", pair.server, 32, 0);
        0
    });
    let (_, fd) = take(here);
    let sent = send(fd, b"from one to another", 0);
    say!("child: {}", wait_child(child));
    show("parent: send", sent);
    talk("parent", &connect_to(listening, &addr));
}

/// clone(2) that makes a child in a new network.
fn child_born_elsewhere() {
    let (listening, addr) = listener();
    let old = connect_to(listening, &addr);
    let child = call!(libc::syscall(libc::SYS_clone, libc::CLONE_NEWNET | libc::SIGCHLD, 0, 0, 0, 0)).value;
    if child == 0 {
        show("child's connect", connect(tcp(), &addr));
        loopback_up();
        show("with loopback", connect(tcp(), &addr));
        talk("the old connection", &old);
        talk("the child's own", &connected());
        exit_now(0);
    }
    say!("child: {}", wait_child(child as i32));
    talk("parent", &connect_to(listening, &addr));
}

extern "C" fn in_a_new_network(addr: *mut libc::c_void) -> i32 {
    // SAFETY: the address that `child_of_clone` passes.
    let addr = unsafe { &*addr.cast::<Addr>() };
    show("child's connect", connect(tcp(), addr));
    loopback_up();
    show("with loopback", connect(tcp(), addr));
    talk("the child's own", &connected());
    0
}

/// The same by libc's function, with an option set on a fresh socket before.
fn child_of_clone() {
    let (listening, mut addr) = listener();
    let fresh = tcp();
    set_int(fresh, libc::IPPROTO_IP, libc::IP_TOS, 8);
    tcp();
    let mut stack = vec![0u8; 1 << 20];
    let top = stack.as_mut_ptr_range().end.cast();
    let argument = (&raw mut addr).cast();
    let child = call!(libc::clone(in_a_new_network, top, libc::CLONE_NEWNET | libc::SIGCHLD, argument)).value;
    say!("child: {}", wait_child(child as i32));
    show("parent's fresh socket", connect(fresh, &addr));
    close(accept(listening).fd());
    talk("parent", &connect_to(listening, &addr));
}

/// Ephemeral ports are used up.
fn few_ports() {
    leave();
    loopback_up();
    let range = std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "50000 50001");
    say!("range: {}", range.is_ok());
    let (listening, addr) = listener();
    let taken = tcp();
    show("bind to the other", bind(taken, &Addr::local(0)));
    show("bind", bind(tcp(), &Addr::local(0)));
    show("listen", listen(tcp(), 1));
    show("connect", connect(tcp(), &addr));
    close(taken);
    for _ in 0..2 {
        bind(socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd(), &Addr::local(0));
    }
    let datagram = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
    show("sendto of an unbound datagram socket", sendto(datagram, b"x", 0, Some(&addr)));
    let pair = connect_to(listening, &addr);
    show("second connect", connect(tcp(), &addr));
    talk("first", &pair);
}

/// Adds a route by the program `ip`, which is quieter than netlink.
fn route(words: &[&str]) {
    let status = std::process::Command::new("ip").args(["route", "add"]).args(words).status();
    say!("route {}: {}", words[0], status.is_ok_and(|status| status.success()));
}

fn no_route() {
    leave();
    show("connect, loopback down", connect(tcp(), &Addr::local(1)));
    loopback_up();
    show("connect, no route", connect(tcp(), &Addr::v4([10, 9, 9, 9], 1)));
    for (kind, last) in [("unreachable", 1), ("prohibit", 2), ("blackhole", 3), ("throw", 4)] {
        let place = format!("10.9.9.{last}");
        route(&[kind, &place]);
        let fd = tcp();
        show("connect", connect(fd, &Addr::v4([10, 9, 9, last], 1)));
        show_poll("after it", fd);
        show("connect without waiting", connect(tcp_nonblocking(), &Addr::v4([10, 9, 9, last], 1)));
    }
    show("connect to all hosts", connect(tcp(), &Addr::v4([255, 255, 255, 255], 1)));
    show("connect to many", connect(tcp(), &Addr::v4([224, 0, 0, 1], 1)));
}

fn datagram_errors() {
    leave();
    loopback_up();
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
    show("sendto too long", sendto(fd, &vec![0; 70_000], 0, Some(&Addr::local(1))));
    show("sendto all hosts", sendto(fd, b"x", 0, Some(&Addr::v4([127, 255, 255, 255], 1))));
    show("connect to all hosts", connect(fd, &Addr::v4([127, 255, 255, 255], 1)));
    show("sendto by MSG_OOB", sendto(fd, b"x", libc::MSG_OOB, Some(&Addr::local(1))));
    let stream = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    show_send("Unix, not connected", stream, b"x", 0);
    let (_, [a, _]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    show("sendto of a connected one", sendto(a, b"x", 0, Some(&super::others::unix_address())));
}
