//! Processes that give rights up with connections, of which their relatives have copies.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::collections::BTreeSet;

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("privileges/child_drops", child_drops),
    solo("privileges/by_number", by_number),
    solo("privileges/no_new_privileges", no_new_privileges),
    solo("privileges/put_aside", put_aside),
    solo("privileges/names_and_options", names_and_options),
    solo("privileges/nothing_is_left", nothing_is_left),
    solo("privileges/registered_before", registered_before),
    solo("privileges/listener", listener_goes_on),
    solo("privileges/bulk", bulk),
    solo("privileges/ends", ends),
    solo("privileges/each_call", each_call),
    solo("privileges/put_aside_and_exec", put_aside_and_exec),
    solo("privileges/calls_that_keep", calls_that_keep),
    solo("privileges/passed_after_confining", passed_after_confining),
];

pub(super) const NOBODY: libc::uid_t = 65_534;

/// Whether it worked is no matter: only root can.
pub(super) fn drop_rights() {
    let changed = call!(libc::setresgid(NOBODY, NOBODY, NOBODY)).ok()
        && call!(libc::setresuid(NOBODY, NOBODY, NOBODY)).ok();
    assert!(changed || !is_root());
}

pub(super) fn echo(fd: i32) -> i32 {
    let mut buffer = [0; 4096];
    loop {
        let got = read(fd, &mut buffer);
        if got.value <= 0 {
            return got.value as i32;
        }
        write(fd, &buffer[..got.count()]);
    }
}

pub(super) fn talk(fd: i32) {
    for round in 0..6u8 {
        if round % 3 == 2 {
            pause(30);
        }
        let data = vec![b'a' + round; 3000];
        write(fd, &data);
        say!("round {round}: same {}", receive_all(fd, data.len()) == data);
    }
}

pub(super) fn receive_all(fd: i32, len: usize) -> Vec<u8> {
    let (mut back, mut at) = (vec![0; len], 0);
    while at < len {
        let got = read(fd, &mut back[at..]);
        if got.value <= 0 {
            show("read", got);
            break;
        }
        at += got.count();
    }
    back.truncate(at);
    back
}

/// A child echoes after `drop`; the parent keeps its copy.
fn child_after(drop: impl FnOnce()) {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        drop();
        echo(pair.server)
    });
    talk(pair.client);
    send(pair.server, b"from the parent", 0);
    show_recv("client", pair.client, 32, 0);
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    close(pair.server);
    show_recv("client", pair.client, 32, 0);
}

fn child_drops() {
    child_after(drop_rights);
}

fn by_number() {
    child_after(|| {
        call!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY));
        call!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY));
    });
}

fn no_new_privileges() {
    child_after(|| {
        show("prctl", call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    });
}

fn put_aside() {
    child_after(|| {
        for uid in [NOBODY, 0, NOBODY, 0] {
            call!(libc::seteuid(uid));
        }
    });
}

fn names_and_options() {
    let pair = connected();
    let (own, peer) = (getsockname(pair.server).1.port(), getpeername(pair.server).1.port());
    let child = fork_child(|| {
        close(pair.client);
        set_nonblocking(pair.server, true);
        let copy = call!(libc::fcntl(pair.server, libc::F_DUPFD_CLOEXEC, 40)).value as i32;
        drop_rights();
        let now = |fd| (getsockname(fd).1.port(), getpeername(fd).1.port());
        say!("same names: {} {}", now(pair.server) == (own, peer), now(copy) == (own, peer));
        show("flags", call!(libc::fcntl(copy, libc::F_GETFL)));
        show("number's flags", call!(libc::fcntl(copy, libc::F_GETFD)));
        let mut byte = [0];
        show("nothing yet", recv(pair.server, &mut byte, 0));
        send(copy, b"by the copy", 0);
        close(copy);
        0
    });
    show_recv("client", pair.client, 32, 0);
    say!("child: {}", wait_child(child));
}

/// Of the parent's memory and files for sockets the child has none: those that are neither its own nor its program's.
fn nothing_is_left() {
    let (pair, other) = (connected(), connected());
    write(other.client, b"a secret");
    let before = segments();
    let child = fork_child(|| {
        close_all(&[pair.client, other.client, other.server]);
        drop_rights();
        // SAFETY: no arguments.
        let is_other = unsafe { libc::getuid() } == NOBODY;
        say!("left: {:?}", if is_other { before.intersection(&segments()).count() } else { 0 });
        echo(pair.server)
    });
    talk(pair.client);
    show_recv("other", other.server, 32, 0);
    close(pair.server);
    close(pair.client);
    say!("child: {}", wait_child(child));
}

/// Inodes of the memory files that are mapped or open, but for what all processes of the host may read.
pub(super) fn segments() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        if is_segment(line) {
            all.extend(line.split_whitespace().nth(4).map(str::to_owned));
        }
    }
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if is_segment(&target.to_string_lossy()) {
            let inode = std::os::linux::fs::MetadataExt::st_ino;
            all.extend(std::fs::metadata(entry.path()).map(|file| inode(&file).to_string()));
        }
    }
    all
}

fn is_segment(name: &str) -> bool {
    name.contains("/memfd:sd-") && !name.contains("sd-directory")
}

/// A process of the same user that has confined itself, or has fewer capabilities, is passed a connection: it gets that, and
/// nothing else of the sender's.
fn passed_after_confining() {
    let confine: [fn(); 2] = [
        || drop_nothing_but(call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))),
        || drop_nothing_but(give_up_capabilities(1 << 13)),
    ];
    // Who has no capabilities gives nothing up in the second way, and keeps what its relatives have.
    for confine in confine.into_iter().take(if is_root() { 2 } else { 1 }) {
        let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
        let child = fork_child(|| {
            confine();
            let (_, passed) = super::others::take(there);
            say!("left: {}", segments().intersection(&read_lines(there)).count());
            let peer = getpeername(passed).1.port().to_string();
            send(passed, format!("same name {}", read_lines(there).contains(&peer)).as_bytes(), 0);
            write(passed, &receive_all(passed, 8));
            0
        });
        let (pair, other) = (connected(), connected());
        write(other.client, b"a secret");
        pause(30);
        super::others::pass(here, pair.server);
        close(pair.server);
        tell_lines(here, &segments());
        tell_lines(here, &[getsockname(pair.client).1.port().to_string()].into());
        show_recv("client", pair.client, 32, 0);
        write(pair.client, b"question");
        show_recv("client", pair.client, 32, 0);
        say!("child: {}", wait_child(child));
        show_recv("other", other.server, 32, 0);
    }
}

/// What it came to is no matter.
pub(super) fn drop_nothing_but(_: Ret) {}

/// Lines, and an empty one at their end.
fn tell_lines(fd: i32, lines: &BTreeSet<String>) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    write(fd, format!("{text}\n").as_bytes());
}

fn read_lines(fd: i32) -> BTreeSet<String> {
    let (mut text, mut byte) = (String::from("\n"), [0]);
    while !text.ends_with("\n\n") && read(fd, &mut byte).count() == 1 {
        text.push(char::from(byte[0]));
    }
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// A connection and a listener that were in an epoll instance before.
fn registered_before() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let child = fork_child(|| {
        close(pair.client);
        let ep = call!(libc::epoll_create1(0)).value as i32;
        epoll_add(ep, pair.server, libc::EPOLLIN, 1);
        epoll_add(ep, listening, libc::EPOLLIN, 2);
        drop_rights();
        let mut seen = BTreeSet::new();
        while seen.len() < 2 {
            let (_, events) = epoll_wait(ep, 4, 5000);
            for (source, _) in events {
                if seen.insert(source) && source == 1 {
                    show_recv("child", pair.server, 32, 0);
                    write(pair.server, b"x");
                } else if source == 2 {
                    let accepted = call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut()));
                    send(accepted.value as i32, b"accepted", 0);
                }
            }
        }
        0
    });
    pause(100);
    write(pair.client, b"in epoll");
    read(pair.client, &mut [0]);
    let second = dial(&addr);
    show_recv("second", second, 32, 0);
    say!("child: {}", wait_child(child));
}

fn listener_goes_on() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        drop_rights();
        for _ in 0..5 {
            let accepted = call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut()));
            echo(accepted.value as i32);
            close(accepted.value as i32);
        }
        0
    });
    for _ in 0..5 {
        let client = dial(&addr);
        write(client, b"hello");
        say!("answer {:?}", String::from_utf8_lossy(&receive_all(client, 5)));
        close(client);
    }
    say!("child: {}", wait_child(child));
}

fn bulk() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        drop_rights();
        crate::bulk::send_pattern(pair.server, 3_000_000, &[70_000]);
        crate::bulk::receive_pattern(pair.server, 4_000_000, &[65_536]).show("child");
        0
    });
    close(pair.server);
    crate::bulk::receive_pattern(pair.client, 3_000_000, &[50_000]);
    let client = pair.client;
    say!("sent {}", crate::bulk::send_pattern(client, 3_000_000, &[50_000]));
    close(client);
    say!("child: {}", wait_child(child));
}

/// Ends of all kinds, in both directions.
fn ends() {
    for how in 0..4 {
        let pair = connected();
        let child = fork_child(|| {
            close(pair.client);
            drop_rights();
            let mut buffer = [0; 32];
            match how {
                0 => return 0,
                1 => drop(shutdown(pair.server, libc::SHUT_WR)),
                2 => {
                    abort(pair.server);
                    return 0;
                }
                _ => {}
            }
            show("child", recv(pair.server, &mut buffer, 0));
            0
        });
        close(pair.server);
        if how == 3 {
            pause(50);
            abort(pair.client);
        } else {
            show_recv("client", pair.client, 32, 0);
            close(pair.client);
        }
        say!("child: {}", wait_child(child));
    }
}

unsafe extern "C" {
    fn capset(header: *const [u32; 2], data: *const [[u32; 3]; 2]) -> i32;
    fn capget(header: *const [u32; 2], data: *mut [[u32; 3]; 2]) -> i32;
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Gives up the capabilities of a mask, one of the first 32 each.
pub(super) fn give_up_capabilities(mask: u32) -> Ret {
    let (header, mut now) = ([CAPABILITY_VERSION_3, 0], [[0; 3]; 2]);
    call!(capget(&header, &mut now));
    now[0].iter_mut().for_each(|word| *word &= !mask);
    call!(capset(&header, &now))
}

/// One question and its answer, by a child that makes a call first.
fn answer_after(what: &str, make: impl FnOnce() -> Ret) {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        show(what, make());
        write(pair.server, &receive_all(pair.server, 8));
        0
    });
    write(pair.client, b"question");
    say!("answer {:?}", String::from_utf8_lossy(&receive_all(pair.client, 8)));
    say!("child: {}", wait_child(child));
    close(pair.client);
    close(pair.server);
}

const KEEP: libc::uid_t = libc::uid_t::MAX;

fn each_call() {
    answer_after("setuid", || call!(libc::setuid(NOBODY)));
    answer_after("seteuid", || call!(libc::seteuid(NOBODY)));
    answer_after("setreuid", || call!(libc::setreuid(NOBODY, NOBODY)));
    answer_after("setresuid", || call!(libc::setresuid(NOBODY, NOBODY, NOBODY)));
    answer_after("setgid", || call!(libc::setgid(NOBODY)));
    answer_after("setegid", || call!(libc::setegid(NOBODY)));
    answer_after("setregid", || call!(libc::setregid(NOBODY, NOBODY)));
    answer_after("setresgid", || call!(libc::setresgid(NOBODY, NOBODY, NOBODY)));
    answer_after("capset", || give_up_capabilities(1 << 13));
    answer_after("capset and setgid", || {
        give_up_capabilities(1 << 6);
        call!(libc::setgid(NOBODY))
    });
}

fn calls_that_keep() {
    answer_after("setuid", || call!(libc::setuid(libc::getuid())));
    answer_after("seteuid", || call!(libc::seteuid(libc::geteuid())));
    answer_after("setreuid", || call!(libc::setreuid(KEEP, NOBODY)));
    answer_after("setresuid", || call!(libc::setresuid(KEEP, NOBODY, KEEP)));
    answer_after("setgid", || call!(libc::setgid(libc::getgid())));
    answer_after("setegid", || call!(libc::setegid(libc::getegid())));
    answer_after("setregid", || call!(libc::setregid(KEEP, NOBODY)));
    answer_after("setresgid", || call!(libc::setresgid(KEEP, KEEP, KEEP)));
    answer_after("capset", || give_up_capabilities(0));
}

/// What exec takes away: the saved user id.
fn put_aside_and_exec() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        call!(libc::setresuid(NOBODY, NOBODY, 0));
        super::exec::exec_helper("upper", &[pair.server])
    });
    close(pair.server);
    // The other program prints at the same time.
    let answer = super::exec::ask(pair.client, "by another program");
    close(pair.client);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}
