//! Children that confine themselves, by seccomp(2) and setrlimit(2), with a connection.

use super::pair_basic::{call_server, serve_one};
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("confine/child_echoes", child_echoes),
    solo("confine/by_number", by_number),
    solo("confine/strict", strict),
    solo("confine/refused", refused),
    solo("confine/mlockall", mlockall),
    solo("confine/raw_fork", raw_fork),
    solo("confine/address_space", address_space),
    pair("confine/server", confined_server, client),
    pair("confine/both", confined_server, confined_client),
];

const ALLOWED: [i64; 12] = [
    libc::SYS_read,
    libc::SYS_write,
    old_calls::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_clock_gettime,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_rt_sigreturn,
];

/// Kills for all but [`ALLOWED`] and mmap.
fn filter() -> Vec<libc::sock_filter> {
    let op = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    let calls: Vec<i64> = ALLOWED.into_iter().chain([libc::SYS_mmap]).collect();
    for (index, nr) in calls.iter().enumerate() {
        program.push(op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            (calls.len() - index) as u8,
            *nr as u32,
        ));
    }
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program
}

fn confine(by_number: bool) -> Ret {
    let mut program = filter();
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    match by_number {
        true => call!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)),
        false => call!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)),
    }
}

/// Sends back what comes, waiting now in read and now in poll, until the end.
fn echo(fd: i32) -> i32 {
    let mut buffer = [0; 4096];
    for round in 0.. {
        if round % 2 == 1 {
            poll_one(fd, libc::POLLIN, -1);
        }
        let got = read(fd, &mut buffer);
        if got.value <= 0 {
            return got.value as i32;
        }
        write(fd, &buffer[..got.count()]);
    }
    1
}

/// A few exchanges, with pauses in which both sides fall asleep.
fn talk(fd: i32) {
    for round in 0..6u8 {
        if round % 3 == 2 {
            pause(30);
        }
        let data = vec![b'a' + round; 3000];
        write(fd, &data);
        let (mut back, mut len) = (vec![0; 3000], 0);
        while len < back.len() {
            let got = read(fd, &mut back[len..]);
            if got.value <= 0 {
                show("read", got);
                return;
            }
            len += got.count();
        }
        say!("round {round}: same {}", back == data);
    }
}

fn child_between(install: impl FnOnce() -> Ret) {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        show("filter", install());
        echo(pair.server)
    });
    talk(pair.client);
    // The child had the socket, and this process has it still.
    send(pair.server, b"from the parent", 0);
    show_recv("client", pair.client, 32, 0);
    call!(libc::shutdown(pair.client, libc::SHUT_WR));
    say!("child: {}", wait_child(child));
    close(pair.server);
    show_recv("client", pair.client, 32, 0);
}

fn child_echoes() {
    child_between(|| confine(false));
}

fn by_number() {
    child_between(|| confine(true));
}

fn strict() {
    let pair = connected();
    let child = fork_child(|| {
        call!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT));
        let mut buffer = [0; 64];
        let got = read(pair.server, &mut buffer);
        write(pair.server, &buffer[..got.count()]);
        // exit_group is one call too many.
        0
    });
    sleep(20);
    write(pair.client, b"to a strict child");
    show_recv("client", pair.client, 32, 0);
    say!("child: {}", wait_child(child));
}

/// What is no filter is refused, and changes nothing.
fn refused() {
    let pair = connected();
    let none = std::ptr::null::<libc::sock_fprog>();
    show("no program", call!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, none)));
    show("no program", call!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, none)));
    show("mode", call!(libc::prctl(libc::PR_SET_SECCOMP, 77, none)));
    show("asked", call!(libc::prctl(libc::PR_GET_SECCOMP)));
    write(pair.client, b"still there");
    show_recv("server", pair.server, 32, 0);
}

/// What a filter says to it is the answer, here SIGSYS.
fn mlockall() {
    let pair = connected();
    let child = fork_child(|| {
        show("filter", confine(false));
        call!(libc::mlockall(libc::MCL_CURRENT)).value as i32
    });
    say!("child: {}", wait_child(child));
    write(pair.client, b"still there");
    show_recv("server", pair.server, 32, 0);
}

/// A child by clone(2), as vsftpd makes them.
fn raw_fork() {
    let pair = connected();
    let pid = call!(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0));
    if pid.value == 0 {
        close(pair.client);
        exit_now(echo(pair.server));
    }
    close(pair.server);
    talk(pair.client);
    close(pair.client);
    say!("child: {}", wait_child(pid.value as i32));
}

fn confined_server(role: &mut Role) {
    let server = serve_one(role);
    let child = fork_child(|| {
        show("filter", confine(false));
        echo(server)
    });
    close(server);
    say!("child: {}", wait_child(child));
}

fn client(role: &mut Role) {
    let client = call_server(role);
    talk(client);
    close(client);
}

fn confined_client(role: &mut Role) {
    let client = call_server(role);
    let child = fork_child(|| {
        show("filter", confine(true));
        echo_first(client)
    });
    close(client);
    say!("child: {}", wait_child(child));
}

/// As [`talk`], without a pause, which the filter does not allow.
fn echo_first(fd: i32) -> i32 {
    let mut buffer = [0; 64];
    for _ in 0..20 {
        write(fd, b"ping");
        if read(fd, &mut buffer).value != 4 {
            return 1;
        }
    }
    0
}

/// A limit on addresses, in a child and its child.
fn address_space() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        let limit = libc::rlimit { rlim_cur: 200 << 20, rlim_max: 300 << 20 };
        show("setrlimit", call!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit)));
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        show("getrlimit", call!(libc::getrlimit(libc::RLIMIT_AS, &raw mut now)));
        say!("{} MiB of at most {} MiB", now.rlim_cur >> 20, now.rlim_max >> 20);
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let map = |mib: usize| call!(libc::mmap(std::ptr::null_mut(), mib << 20, prot, flags, -1, 0)).errno;
        say!("little: {}, much: {}", map(20), map(250) == libc::ENOMEM);
        let grandchild = fork_child(|| {
            write(pair.server, b"from the grandchild");
            echo(pair.server)
        });
        say!("grandchild: {}", wait_child(grandchild));
        0
    });
    close(pair.server);
    show_recv("client", pair.client, 32, 0);
    talk(pair.client);
    close(pair.client);
    say!("child: {}", wait_child(child));
}
